"""A budget is for all runs of an organisation together, and for one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from colonnade.core import Batches, Outbox, Rule
from colonnade.errors import CheckpointError, ConfigError
from colonnade.federation.purse import ACCOUNT, Purse
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
        if run == "one":
            purse.save()
            mine.settled()
            purse.leave()
        else:  # it breaks off before it saves again
            mine.leave()
            assert purse._lock is not None
            purse._lock.close()
    assert spent[0] == 0.0
    assert 0.0 < spent[1] < spent[2]


def test_two_runs_do_not_spend_at_once(tmp_path: Path) -> None:
    first = Purse("lab", tmp_path, "one", {"lab": account()})
    with pytest.raises(ConfigError, match="'lab' takes part in another run, and counts its budget for one at a time"):
        Purse("lab", tmp_path, "two", {"lab": account()})
    first.leave()
    Purse("lab", tmp_path, "two", {"lab": account()}).leave()


def test_who_has_left_a_run_neither_releases_nor_saves_in_it_any_more(tmp_path: Path) -> None:
    """A driver that closes a run, starts another one and goes on asking in the first must not spend twice, nor have the
    first write over what the second spent."""
    purses: list[Purse] = []
    accounts = [account(), account(), account()]
    for number, (mine, run) in enumerate(zip(accounts, ("one", "two", "three"), strict=True)):
        (tmp_path / run).mkdir()
        purses.append(Purse("lab", tmp_path, run, {"lab": mine}))
        purses[-1].keep(lambda _, run=run: tmp_path / run)  # type: ignore[misc]
        assert mine.worst == (accounts[number - 1].worst if number else 0.0)
        spend(mine)
        if number == 1:
            with pytest.raises(CheckpointError, match="what its rows have paid is not known here"):
                spend(accounts[0])
            with pytest.raises(ConfigError, match="'lab' has left the run 'one'"):
                purses[0].save()
        for purse in purses:
            purse.leave()  # twice is once
    assert accounts[0].worst < accounts[1].worst < accounts[2].worst


def test_who_cannot_begin_keeps_nobody_else_from_it(tmp_path: Path) -> None:
    first = Purse("lab", tmp_path, "one", {"lab": account()})
    with pytest.raises(ValueError, match="no such checkpoint"), first.held():
        raise ValueError("no such checkpoint")
    Purse("lab", tmp_path, "two", {"lab": account()}).leave()


def test_who_counts_nothing_may_take_part_in_two(tmp_path: Path) -> None:
    for run in ("one", "two"):
        Purse("lab", tmp_path / "runs", run, {})
    assert not (tmp_path / "runs").exists()


def test_a_crash_while_it_is_saved_forgets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the old account and the new one: at no moment is there none."""
    one = account()
    purse = Purse("lab", tmp_path, "one", {"lab": one})
    (tmp_path / "one").mkdir()
    purse.keep(lambda _: tmp_path / "one")
    spend(one)
    purse.save()
    one.settled()
    with monkeypatch.context() as crashing:
        rename = Path.rename

        def crash(source: Path, target: Path) -> Path:
            if target.name == ACCOUNT:
                raise KeyboardInterrupt
            return rename(source, target)

        crashing.setattr(Path, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            purse.save()
    purse.leave()
    two = account()
    (tmp_path / "two").mkdir()
    purse = Purse("lab", tmp_path, "two", {"lab": two})
    purse.keep(lambda _: tmp_path / "two")
    purse.leave()
    assert two.worst == one.worst > 0.0


@pytest.mark.parametrize("run", ["account", "refused.jsonl", "failed.json"])
def test_a_run_is_not_called_what_lies_beside_the_runs(tmp_path: Path, run: str) -> None:
    for accounts in ({}, {"lab": account()}):
        with pytest.raises(ConfigError, match=f"A run cannot be called '{run}', which 'lab' keeps beside its runs"):
            Purse("lab", tmp_path, run, accounts)
    assert list(tmp_path.iterdir()) == []
