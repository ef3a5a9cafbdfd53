"""Sums over bins are equations in which side of a border each row is on; what they tell is measured."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tests.attacks.runs import three, trained

from colonnade.algorithms.algorithm import Equations
from colonnade.attacks.learned_model import bits, sums_findings
from colonnade.attacks.rehearsal import TRAINED, train_on
from colonnade.federation import Federation


@cache
def run(**config: Any) -> Federation:
    settings = {"depth": 3, "bins": 8, "min_rows": 2, **config}
    return trained("boosted_trees", given=three(300), config=settings, train={"epochs": 1})


@pytest.mark.parametrize(
    "config",
    [{}, *(pytest.param(one, marks=pytest.mark.long) for one in ({"nodes": "hidden", "depth": 2}, {"row_share": 0.7}))],
    ids=str,
)
def test_the_equations_hold_for_the_true_bits(config: dict[str, Any]) -> None:
    """Of every round, node and candidate that was told: the label owner's weights times the rows' true sides."""
    federation = run(**config)
    rehearsal = train_on(federation, 64, TRAINED)
    make, owner = federation.algorithm.equations, federation.owners["lab"]
    assert make is not None
    found = list(make(federation.driver, rehearsal.transcripts["registry"], rehearsal.transcripts["lab"]))
    assert found
    growing = owner._growing
    assert growing is not None
    left = torch.from_numpy(growing.all_going_left(range(len(growing.candidates)))).double()  # of the last round
    last = found[-1]
    told = ~last.sums.isnan()
    assert int(told.sum()) >= 10
    assert torch.allclose((last.weights @ left)[told], last.sums[told])


def test_with_as_many_equations_as_rows_every_bit_is_known_and_with_few_hardly_any() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = 40
    truth = (torch.rand(rows, 3, generator=generator) < 0.4).double()
    weights = torch.rand(rows, rows, generator=generator, dtype=torch.float64)
    whole = bits(Equations("train/0/0", weights, weights @ truth))
    assert ((whole > 0.5) == truth.bool()).all()
    few = bits(Equations("train/0/0", weights[:4], weights[:4] @ truth))
    assert not ((few > 0.5) == truth.bool()).all()


def test_a_label_owner_that_is_told_sums_is_an_attacker() -> None:
    federation = run()
    found = list(sums_findings(federation, train_on(federation, 64, TRAINED), None))
    assert {one.victim for one in found} == {"clinic", "lab"}
    for one in found:
        assert one.attacker == "registry"
        assert one.releases == ("sums",)
        assert one.score <= 1
        assert one.details["known_rows"] == 100
