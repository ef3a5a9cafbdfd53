"""Rows of one node are alike in their labels: whoever is told the nodes can tell many
labels."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tests.attacks.runs import score_of, three, trained

from colonnade.attacks.finding import Finding
from colonnade.attacks.label_attacks import from_columns, from_nodes, memberships
from colonnade.attacks.label_audit import _knowledge, label_findings
from colonnade.attacks.rehearsal import Rehearsal, first_rounds
from colonnade.federation import Federation


@cache
def rehearsed(**config: Any) -> tuple[Federation, Rehearsal]:
    federation = trained(
        "boosted_trees",
        given=three(300),
        config={"depth": 3, "bins": 8, "min_rows": 2, **config},
        train={"epochs": 1},
    )
    return federation, first_rounds(federation, 64)


def found(**config: Any) -> list[Finding]:
    return [
        one
        for one in label_findings(*rehearsed(**config), None)
        if "nodes" in one.attack
    ]


def test_nodes_tell_labels_though_gradients_are_encrypted() -> None:
    both = found()
    assert {one.attacker for one in both} == {"clinic", "lab"}
    for one in both:
        assert one.releases == ("sample", "splits", "nodes")
        assert one.low is not None
        assert one.low > one.baseline
        assert score_of(one) > 0.5


def test_hidden_nodes_leave_what_own_columns_tell() -> None:
    """The same run with hidden nodes: of rows the party hears nothing, and its guess is
    that of its own columns."""
    shown = found()
    hidden = found(nodes="hidden", depth=2)
    for one, other in zip(shown, hidden, strict=True):
        assert other.details["rows"] == one.details["rows"]
    federation, rehearsal = rehearsed(nodes="hidden", depth=2)
    for name in ("clinic", "lab"):
        own = _knowledge(federation, rehearsal, name, 3)
        _, paths = memberships(rehearsal.transcripts[name], own)
        assert not paths.numel()
        control = from_columns(rehearsal.transcripts[name], own)
        assert torch.equal(
            from_nodes(rehearsal.transcripts[name], own).labels, control.labels
        )
        assert len(control.rows) == len(federation.batches.splits["train"])


@pytest.mark.filterwarnings("ignore:boosted_trees")
def test_memberships_are_the_nodes_that_rows_were_in() -> None:
    federation = trained(
        "boosted_trees",
        given=three(200),
        config={"encryption": "none", "depth": 2},
        train={"epochs": 1},
    )
    rehearsal = first_rounds(federation, 64)
    rows, paths = memberships(
        rehearsal.transcripts["lab"], _knowledge(federation, rehearsal, "lab", 3)
    )
    assert sorted(rows.tolist()) == sorted(federation.batches.splits["train"].tolist())
    classes = 3
    # one level is told of each of three trees; the next is of leaves
    assert paths.shape == (len(rows), classes)
    assert all(len(torch.unique(column)) == 2 for column in paths.T)
