"""A budget is for all runs of an organisation together, and for one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from colonnade.core import Batches, Outbox, Rule, files
from colonnade.errors import CheckpointError, ConfigError
from colonnade.privacy import Account
from colonnade.privacy.gaussian import Gaussian
from colonnade.privacy.journal import Journal
from colonnade.runs.budget_over_runs import ACCOUNT, BudgetOverRuns, spent_before
from colonnade.runs.layout import JOURNAL


def account() -> Account:
    rows = torch.arange(4)
    return Account(
        "lab",
        Batches({"train": rows}, batch_size=4, epochs=2, seed=0),
        ["a", "b", "c", "d"],
        None,
    )


def spend(meter: Account) -> None:
    outbox = Outbox(
        "lab", torch.Generator(), {"embedding": Rule(Gaussian(clip=1.0, sigma=5.0))}
    )
    outbox.meter = meter
    outbox.release(torch.ones(4, 2), "embedding", "train/0/0", to="clinic")


def kept(runs: Path, run: str) -> tuple[BudgetOverRuns, Account]:
    mine = account()
    purse = BudgetOverRuns("lab", runs, run, {"lab": mine})
    purse.keep()
    return purse, mine


def test_a_new_run_goes_on_where_the_last_one_ended_left_or_not(tmp_path: Path) -> None:
    spent = []
    for run in ("one", "two", "three"):
        purse, mine = kept(tmp_path, run)
        spent.append(mine.worst)
        spend(mine)
        if run == "one":
            purse.settle()
            purse.leave()
        else:
            del purse, mine  # it breaks off
    assert spent[0] == 0.0
    assert 0.0 < spent[1] < spent[2]
    later = account()
    assert spent_before(tmp_path, later, "exact") == later.worst > spent[2]
    assert spent_before(tmp_path / "elsewhere", account(), "exact") is None


def test_two_runs_do_not_spend_at_once(tmp_path: Path) -> None:
    first = BudgetOverRuns("lab", tmp_path, "one", {"lab": account()})
    with pytest.raises(
        ConfigError,
        match=(
            "'lab' takes part in another run, and counts its budget for one at a time"
        ),
    ):
        BudgetOverRuns("lab", tmp_path, "two", {"lab": account()})
    first.leave()
    BudgetOverRuns("lab", tmp_path, "two", {"lab": account()}).leave()


def test_who_has_left_a_run_releases_nothing_in_it_any_more(tmp_path: Path) -> None:
    """A driver that closes a run, starts another one and goes on asking in the first."""
    purses = list[BudgetOverRuns]()
    accounts = list[Account]()
    for run in ("one", "two", "three"):
        purse, mine = kept(tmp_path, run)
        assert mine.worst == (accounts[-1].worst if accounts else 0.0)
        spend(mine)
        for gone in accounts:
            with pytest.raises(CheckpointError, match="'lab' has left this run"):
                spend(gone)
        purses.append(purse)
        accounts.append(mine)
        for one in purses:
            one.leave()  # twice is once
    with pytest.raises(CheckpointError, match="'lab' has left this run"):
        purses[0].settle()


def test_who_cannot_begin_keeps_nobody_else_from_it(tmp_path: Path) -> None:
    first = BudgetOverRuns("lab", tmp_path, "one", {"lab": account()})
    with pytest.raises(ValueError, match="no such checkpoint"), first.held():
        raise ValueError("no such checkpoint")
    BudgetOverRuns("lab", tmp_path, "two", {"lab": account()}).leave()


def test_who_counts_nothing_may_take_part_in_two(tmp_path: Path) -> None:
    for run in ("one", "two"):
        BudgetOverRuns("lab", tmp_path / "runs", run, {})
    assert not (tmp_path / "runs").exists()


def test_a_crash_while_the_journal_is_written_anew_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the old one and the new one: at no moment is there none."""
    purse, one = kept(tmp_path, "one")
    spend(one)

    def crash(source: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as crashing:
        crashing.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            one._rewrite(Journal(tmp_path / JOURNAL))
    purse.leave()
    assert kept(tmp_path, "two")[1].worst == one.worst > 0.0


def test_rows_whose_budget_an_early_version_counted_do_not_begin_anew(
    tmp_path: Path,
) -> None:
    files.write_state(tmp_path / ACCOUNT, {"run": "one", "ids": "exact"})
    refused_to_begin_anew(tmp_path)


def test_rows_whose_budget_a_single_run_counted_do_not_begin_anew(
    tmp_path: Path,
) -> None:
    """A run of one process counts in its own folder. Where that lies among a site's,
    which counts beside them, its rows have paid."""
    own = tmp_path / "one" / "parties" / "lab"
    own.mkdir(parents=True)
    before = account()
    before.keep(own / JOURNAL)
    spend(before)
    refused_to_begin_anew(tmp_path)
    (own / JOURNAL).rename(tmp_path / JOURNAL)
    assert kept(tmp_path, "two")[1].worst == before.worst > 0.0


def refused_to_begin_anew(runs: Path) -> None:
    for begin in (
        lambda: spent_before(runs, account(), "exact"),
        lambda: kept(runs, "two"),
    ):
        with pytest.raises(
            ConfigError,
            match=r"which alone is read: they would begin anew\. Put that file back",
        ):
            begin()
    assert not (runs / JOURNAL).exists()


@pytest.mark.parametrize(
    "run",
    [
        "Spent.Journal",
        "account",
        "refused.jsonl",
        "orders.json",
        "Draining",
        "site.log",
        "site.log.1",
    ],
)
def test_a_run_is_not_called_what_lies_beside_the_runs(
    tmp_path: Path, run: str
) -> None:
    for accounts in ({}, {"lab": account()}):
        with pytest.raises(
            ConfigError,
            match=f"'lab' keeps no run called '{run}': a run's name .* is none of",
        ):
            BudgetOverRuns("lab", tmp_path, run, accounts)
    assert list(tmp_path.iterdir()) == []
