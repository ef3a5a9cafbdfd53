"""Batches that are drawn anew from all rows: they train, and what rows pay is what was
really drawn."""

from __future__ import annotations

from typing import Any

import pytest

from colonnade.core.batches import SAMPLINGS
from colonnade.errors import ConfigError
from colonnade.federation import Federation, Settings

BUDGET = {"epsilon": 8.0}


def settings(sampling: str, **algorithm: Any) -> Settings:
    noise = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": "auto"}}
    owners = {
        f"client_0{at}": {"outbox": {"embedding": noise}, "budget": BUDGET}
        for at in (1, 2)
    }
    return Settings.from_mapping(
        {
            "algorithm": {"name": "vimsgd", "learning_rate": 0.05} | algorithm,
            "data": {
                "dataset": "digits",
                "split": "strips",
                "parts": 2,
                "validation": 0.1,
            },
            "model": {"name": "mlp", "hidden": [16], "width": 8},
            "train": {
                "epochs": 3,
                "batch_size": 128,
                "sampling": sampling,
                "early_stop": False,
            },
            "parties": owners,
        }
    )


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_worst_row_spends_its_budget_exactly_however_batches_are_drawn(
    sampling: str,
) -> None:
    federation = Federation.from_settings(settings(sampling))
    steps = list(federation.train())
    assert len(steps) == federation.batches.per_epoch * 3
    most = federation.agreed.one.most_often()
    assert (most == 3) == (sampling == "epoch")
    for account in federation.accounts.values():
        (item,) = account.rounds
        assert account.released(item)[0] == most
        assert 7.9 < account.worst <= 8.0 * (1 + 1e-9)


@pytest.mark.parametrize("sampling", ["poisson", "without_replacement"])
def test_a_plan_expects_what_will_be_drawn(sampling: str) -> None:
    from colonnade.federation.guarantees import planned_releases
    from colonnade.planning.budgets import epsilon_of, expected

    federation = Federation.from_settings(settings(sampling))
    planned = [one for one in planned_releases(federation) if one[1] == "train"]
    before = epsilon_of(expected(federation, "client_01", planned))
    list(federation.train())
    assert federation.accounts["client_01"].worst == pytest.approx(before, rel=1e-9)


def test_where_batches_go_together_they_cannot_be_drawn_one_by_one() -> None:
    owners = [{"name": "north"}, {"name": "south"}]
    data = {"dataset": "digits", "split": "strips", "parts": 2}
    with pytest.raises(
        ConfigError,
        match=(
            r'sampling = "poisson" draws each batch by itself, and multi_vfl has'
            r" several"
        ),
    ):
        Settings.from_mapping(
            {
                "algorithm": {"name": "multi_vfl"},
                "data": data,
                "label_owners": owners,
                "train": {"sampling": "poisson"},
            }
        )
    with pytest.raises(ConfigError, match=r"and boosted_trees takes all rows at once"):
        Settings.from_mapping(
            {"algorithm": {"name": "boosted_trees"}, "train": {"sampling": "poisson"}}
        )
