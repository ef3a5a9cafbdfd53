"""Changed holdings differ in what was asked for and in nothing else."""

from __future__ import annotations

import pytest
import torch
from tests.explain.trained import trained

from colonnade.errors import ConfigError
from colonnade.explain import at_rows, noised, only, without
from colonnade.rows.holdings import Holdings


@pytest.fixture
def holdings() -> Holdings:
    return trained().holdings


def columns(holdings: Holdings, party: str) -> torch.Tensor:
    return holdings.columns[party].features


def noise(holdings: Holdings, sigma: float = 2.0, seed: int = 0, rows: torch.Tensor | None = None) -> Holdings:
    return noised(holdings, "weak", rows, sigma, torch.Generator().manual_seed(seed))


def test_noise_changes_the_named_party_and_rows_alone(holdings: Holdings) -> None:
    before = {name: columns(holdings, name).clone() for name in holdings.columns}
    rows = holdings.splits["test"]
    changed = noise(holdings, rows=rows)
    others = torch.ones(len(holdings.ids), dtype=torch.bool)
    others[rows] = False
    assert torch.equal(columns(changed, "weak")[others], before["weak"][others])
    assert bool((columns(changed, "weak")[rows] != before["weak"][rows]).all())
    for name in ("strong", "noise"):
        assert columns(changed, name) is columns(holdings, name)
    assert changed.labelled is holdings.labelled
    assert all(torch.equal(columns(holdings, name), before[name]) for name in before)


def test_noise_is_seeded_and_as_large_as_said(holdings: Holdings) -> None:
    assert torch.equal(columns(noise(holdings), "weak"), columns(noise(holdings), "weak"))
    assert not torch.equal(columns(noise(holdings), "weak"), columns(noise(holdings, seed=1), "weak"))
    added = columns(noise(holdings, 5.0), "weak") - columns(holdings, "weak")
    assert float(added.std()) == pytest.approx(5, rel=0.1)
    assert float(added.mean()) == pytest.approx(0, abs=0.6)
    assert torch.equal(columns(noise(holdings, 0.0), "weak"), columns(holdings, "weak"))


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf")])
def test_noise_has_a_size(holdings: Holdings, sigma: float) -> None:
    with pytest.raises(ConfigError, match="sigma must be a number that is not negative"):
        noise(holdings, sigma)


def test_only_and_without_keep_order_and_labels(holdings: Holdings) -> None:
    assert list(only(holdings, ["noise", "strong"]).columns) == ["strong", "noise"]
    assert only(holdings, ["noise", "strong"]).roles("weak") == ["labels"]
    assert list(without(holdings, "strong").columns) == ["weak", "noise"]
    assert without(holdings, "noise").roles("weak") == ["features", "labels"]
    for changed in (only(holdings, ["noise"]), without(holdings, "weak"), without(holdings, "strong")):
        assert changed.label_owner == "weak"
        assert changed.labelled is holdings.labelled
    assert holdings.roles("weak") == ["features", "labels"]


def test_rows_are_cut_out_for_everybody(holdings: Holdings) -> None:
    rows = torch.tensor([5, 3, 11])
    few = at_rows(holdings, "test", rows)
    assert few.ids.tolist() == [holdings.ids[row] for row in (5, 3, 11)]
    for name in few.columns:
        assert torch.equal(columns(few, name), columns(holdings, name)[rows])
    assert torch.equal(few.labelled.labels, holdings.labelled.labels[rows])
    assert {name: split.tolist() for name, split in few.splits.items()} == {"test": [0, 1, 2]}


def test_who_holds_no_columns_is_named(holdings: Holdings) -> None:
    with pytest.raises(ConfigError, match=r"'storng' holds no columns here.*did you mean.*strong"):
        without(holdings, "storng")
    with pytest.raises(ConfigError, match="those who do are strong, noise"):
        noise(without(holdings, "weak"))
    with pytest.raises(ConfigError, match="At least one party must keep its columns"):
        only(holdings, [])
