"""Where parties lack rows, an attacker works with the rows that it and its victim
share."""

from __future__ import annotations

from typing import Any

import pytest
from tests.attacks.runs import score_of
from tests.federation.test_rows_differ import made, settings, three

from colonnade.attacks.audit import Audit, audit_federation
from colonnade.federation import Federation

PLAIN = {"name": "fdml", "optimizer": "sgd", "learning_rate": 0.01}


def audited(algorithm: dict[str, Any], **more: Any) -> tuple[Federation, Audit]:
    federation = made(three(rows=240), settings(algorithm, **more), record=True)
    for _ in federation.train():
        pass
    return federation, audit_federation(federation, rows=16)


def test_attacks_are_scored_on_the_rows_that_a_party_was_told_about() -> None:
    """Labels that follow from a gradient by an equation are all right, which they are
    on no other rows; the known initial model gives the columns of the very rows that
    were sent."""
    federation, found = audited(PLAIN)
    train = federation.batches.splits["train"]
    away = federation.holdings.away
    for party in ("lab", "shop"):
        named = [one for one in found.findings if one.attacker == party]
        assert {one.attack for one in named} == {"labels from logit gradients"}
        assert all(one.score == 1.0 for one in named)
        assert named[0].details["rows"] == int((~away[party][train]).sum())
        rebuilt = [
            one
            for one in found.findings
            if one.victim == party and "initial model" in one.attack
        ]
        assert rebuilt
        assert rebuilt[0].details["rows"] < 32  # its part of one batch
    assert found.not_attacked == []
    assert found.passed


@pytest.mark.long
@pytest.mark.parametrize(
    "algorithm",
    [{"name": "vimadmm"}, {"name": "vimsgd"}, {"name": "splitnn", "combine": "mean"}],
)
def test_everything_that_crosses_is_attacked(algorithm: dict[str, Any]) -> None:
    _, found = audited(algorithm, train={"party_dropout": 0.3})
    assert found.not_attacked == []
    assert {one.attacker for one in found.findings} == {"clinic", "lab", "shop"}
    labels = [one for one in found.findings if one.victim == "clinic"]
    assert max(score_of(one) for one in labels) > 0.9
