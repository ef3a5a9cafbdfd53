"""Where parties lack rows, each is explained on the rows that it holds."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from tests.federation.test_rows_differ import ABLE, NAMES, made, settings, three

from colonnade.evaluate.metrics import measure
from colonnade.explain import (
    at_rows,
    explain,
    gather,
    permutation,
    retrain,
    silenced,
    trained_copy,
)
from colonnade.explain.importance import added, permuted_by, ranking
from colonnade.federation import Federation

SUM = {"name": "fdml"}
MEAN = {"name": "splitnn", "combine": "mean"}


def trained(algorithm: dict[str, Any], lab: float = 0.6, **more: Any) -> Federation:
    federation = made(three(lab=lab, rows=300), settings(algorithm, **more))
    for _ in federation.train():
        pass
    return federation


def auc(federation: Federation, outputs: torch.Tensor, at: torch.Tensor) -> float:
    labels = federation.labels[federation.batches.splits["test"]]
    return measure(federation.holdings.loss, outputs[at], labels[at])["auc"]


@pytest.mark.parametrize("algorithm", ABLE, ids=NAMES)
def test_what_a_partner_adds_is_what_the_model_loses_without_it_on_its_rows(
    algorithm: dict[str, Any],
) -> None:
    federation = trained(algorithm)
    rows = federation.batches.splits["test"]
    lacks = federation.holdings.away
    whole = federation.outputs("test")
    embeddings = gather(federation)
    assert torch.allclose(embeddings.outputs(), whole, atol=1e-6)
    found = added(embeddings, "clinic")
    assert list(found) == ["lab", "shop"]
    for party, one in found.items():
        held = (~lacks[party][rows]).nonzero().flatten()
        with federation.peers.presence.without([party]):  # type: ignore[union-attr]
            without = federation.outputs("test")
        assert one["rows"] == len(held) < len(rows)
        assert one["with_it"] == pytest.approx(auc(federation, whole, held))
        assert one["without_it"] == pytest.approx(auc(federation, without, held))
        assert one["gain"] == pytest.approx(one["with_it"] - one["without_it"])


@pytest.mark.parametrize("algorithm", [SUM, MEAN], ids=["sum", "mean"])
def test_permuting_is_among_the_rows_that_a_party_holds(
    algorithm: dict[str, Any],
) -> None:
    """As if its columns of these rows had been permuted and everybody asked again."""
    federation = trained(algorithm)
    embeddings = gather(federation)
    order = torch.randperm(
        len(embeddings.rows), generator=torch.Generator().manual_seed(1)
    )
    held = embeddings.held_by("lab")
    mixed = order[torch.isin(order, held)]
    holdings = at_rows(federation.holdings, "test", embeddings.rows)
    columns = holdings.columns["lab"].features.clone()
    columns[held] = columns[mixed]
    other = {
        **holdings.columns,
        "lab": dataclasses.replace(holdings.columns["lab"], features=columns),
    }
    again = gather(
        trained_copy(federation, dataclasses.replace(holdings, columns=other))
    )
    lost = embeddings.score(at=held) - again.score(at=held)
    assert permuted_by(embeddings, [order])["lab"].mean == pytest.approx(lost)
    assert not torch.allclose(
        again.outputs(at=held), embeddings.outputs(at=held), atol=1e-4
    )
    others = embeddings.lacks["lab"].nonzero().flatten()
    assert torch.allclose(
        again.outputs(at=others), embeddings.outputs(at=others), atol=1e-6
    )


def test_a_partner_that_holds_none_of_the_rows_has_no_measure_and_comes_last() -> None:
    federation = trained(SUM, lab=-1)
    embeddings = gather(federation)
    lost = {
        party: one.mean for party, one in permutation(embeddings, repeats=2).items()
    }
    assert math.isnan(lost["lab"])
    assert ranking(lost)[-1] == "lab"
    assert math.isnan(silenced(embeddings)["lab"])
    assert added(embeddings, "clinic")["lab"]["rows"] == 0
    told = json.loads(explain(federation, repeats=1).to_json())
    assert told["measures"]["noise"]["lab"] is None
    assert told["added"]["lab"] == {
        "rows": 0,
        "with_it": None,
        "without_it": None,
        "gain": None,
    }


def test_a_sample_of_rows_is_asked_of_who_holds_them() -> None:
    federation = trained(SUM)
    few = gather(federation, rows=20)
    whole = federation.outputs("test")
    test = federation.batches.splits["test"]
    at = torch.isin(test, few.rows)
    assert torch.allclose(
        few.outputs().sort(0).values, whole[at].sort(0).values, atol=1e-6
    )
    asked = [
        entry
        for entry in federation.ledgers["lab"].entries
        if entry.batch and entry.batch.startswith("test")
    ]
    assert asked


@pytest.mark.long
def test_trained_again_with_one_party_rows_that_it_lacks_are_left_out() -> None:
    federation = made(three(rows=300), settings(SUM, train={"epochs": 1}))
    federation.fit()
    report = retrain(federation, explain(federation, repeats=1))
    assert set(report.measures["left_out"]) == {"clinic", "lab", "shop"}
    assert "rows that nobody holds any more" in report.notes[-1]
    json.loads(report.to_json())
