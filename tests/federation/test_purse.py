"""A budget is for all runs of an organisation together, and for one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from colonnade.core import Batches, Outbox, Rule
from colonnade.errors import ConfigError
from colonnade.federation.purse import Purse
from colonnade.privacy import Account
from colonnade.privacy.gaussian import Gaussian

pytest.importorskip("dp_accounting")


def account() -> Account:
    rows = torch.arange(4)
    return Account("lab", Batches({"train": rows}, batch_size=4, epochs=2, seed=0), ["a", "b", "c", "d"], None)


def spend(meter: Account) -> None:
    outbox = Outbox("lab", torch.Generator(), {"embedding": Rule(Gaussian(clip=1.0, sigma=5.0))})
    outbox.meter = meter
    with outbox.answering("clinic"):
        outbox.release(torch.ones(4, 2), "embedding", "train/0/0")


def test_a_new_run_goes_on_where_the_last_one_ended_saved_or_not(tmp_path: Path) -> None:
    spent = []
    for run in ("one", "two", "three"):
        mine, folder = account(), tmp_path / run / "parties"
        purse = Purse("lab", tmp_path, run, {"lab": mine})
        (folder / "lab").mkdir(parents=True)
        purse.keep(folder.joinpath)
        purse.save()
        spent.append(mine.worst)
        spend(mine)
        if run == "one":  # the second breaks off before it saves again
            purse.save()
            mine.settled()
        purse.leave()
    assert spent[0] == 0.0
    assert 0.0 < spent[1] < spent[2]


def test_two_runs_do_not_spend_at_once(tmp_path: Path) -> None:
    first = Purse("lab", tmp_path, "one", {"lab": account()})
    with pytest.raises(ConfigError, match="'lab' takes part in another run, and counts its budget for one at a time"):
        Purse("lab", tmp_path, "two", {"lab": account()})
    first.leave()
    Purse("lab", tmp_path, "two", {"lab": account()}).leave()


def test_who_counts_nothing_may_take_part_in_two(tmp_path: Path) -> None:
    for run in ("one", "two"):
        Purse("lab", tmp_path / "runs", run, {})
    assert not (tmp_path / "runs").exists()
