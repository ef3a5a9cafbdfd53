"""A budget is for all runs of an organisation together, in the one store of its site."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from colonnade.core import Batches, Outbox, Rule
from colonnade.errors import CheckpointError, StoreError
from colonnade.privacy import Account
from colonnade.privacy.gaussian import Gaussian
from colonnade.runs.stores import (
    has_site_store,
    is_run,
    make_site_store,
    open_site_store,
    peek_site_store,
)

COLUMN = "patient"


def account(runs: Path) -> Account:
    """An account that counts in the site's store."""
    rows = torch.arange(4)
    batches = Batches({"train": rows}, batch_size=4, epochs=2, seed=0)
    mine = Account("lab", batches, ["a", "b", "c", "d"], None)
    mine.keep(open_site_store("lab", runs), COLUMN)
    return mine


def spend(meter: Account) -> None:
    outbox = Outbox(
        "lab", torch.Generator(), {"embedding": Rule(Gaussian(clip=1.0, sigma=5.0))}
    )
    outbox.meter = meter
    outbox.release(torch.ones(4, 2), "embedding", "train/0/0", to="clinic")


def test_a_new_run_goes_on_where_the_last_one_ended_left_or_not(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_site_store("lab", runs, COLUMN)
    spent = []
    for run in ("one", "two", "three"):
        mine = account(runs)
        spent.append(mine.worst)
        spend(mine)
        if run == "one":
            mine.close()
        del mine  # the others break off
    assert spent[0] == 0.0
    assert 0.0 < spent[1] < spent[2]
    later = account(runs)
    seen = peek_site_store("lab", runs)
    assert seen is not None
    looking = account(runs)
    looking.look_at(seen)
    assert looking.worst == later.worst > spent[2]
    assert peek_site_store("lab", tmp_path / "elsewhere") is None


def test_runs_are_their_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(mode=0o755)
    make_site_store("lab", tmp_path / "runs", COLUMN)
    for folder in ("runs", "runs/store", "runs.anchor"):
        assert (tmp_path / folder).stat().st_mode & 0o077 == 0


def test_two_runs_at_once_spend_one_budget(tmp_path: Path) -> None:
    make_site_store("lab", tmp_path / "runs", COLUMN)
    one, two = account(tmp_path / "runs"), account(tmp_path / "runs")
    spend(one)
    spend(two)
    spend(one)
    assert one.worst > two.worst > 0.0
    assert [way for way in one.spent() if way] == [way for way in two.spent() if way]


def test_who_has_left_a_run_releases_nothing_in_it_any_more(tmp_path: Path) -> None:
    """A driver that closes a run, starts another one and goes on asking in the first."""
    make_site_store("lab", tmp_path / "runs", COLUMN)
    first = account(tmp_path / "runs")
    spend(first)
    first.close()
    spend(account(tmp_path / "runs"))
    with pytest.raises(CheckpointError, match="'lab' has left this run"):
        spend(first)


def test_a_store_that_nobody_made_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no store of 'lab'"):
        open_site_store("lab", tmp_path / "runs")
    assert not has_site_store(tmp_path / "runs")
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """Nor is one put back that is older: its anchor lies outside of the runs."""
    runs = tmp_path / "runs"
    make_site_store("lab", runs, COLUMN)
    spend(account(runs))
    shutil.copytree(runs, tmp_path / "older")
    for _ in range(3):
        spend(account(runs))
    shutil.rmtree(runs)
    assert has_site_store(runs)
    with pytest.raises(StoreError, match="is gone"):
        account(runs)
    with pytest.raises(StoreError, match="there was a store of 'lab' here"):
        make_site_store("lab", runs, COLUMN)
    shutil.copytree(tmp_path / "older", runs, dirs_exist_ok=True)
    with pytest.raises(StoreError, match="is an older copy"):
        account(runs)


def test_rows_of_another_column_do_not_begin_anew(tmp_path: Path) -> None:
    make_site_store("lab", tmp_path / "runs", COLUMN)
    spend(account(tmp_path / "runs"))
    mine = Account(
        "lab", Batches({}, batch_size=1, epochs=1, seed=0), ["a@x", "b@x"], None
    )
    with pytest.raises(StoreError, match="counts people by column 'patient'"):
        mine.keep(open_site_store("lab", tmp_path / "runs"), "email")


@pytest.mark.parametrize(
    "run",
    [
        *(
            "Store",
            "refused.jsonl",
            "failed.json",
            "Draining",
            "site.log",
            "site.log.1",
        ),
        *("CON", "nul", "aux.txt", "ends.", "..", "a/b", ""),
    ],
)
def test_a_run_is_not_called_what_lies_beside_the_runs(run: str) -> None:
    assert not is_run(run)


@pytest.mark.parametrize("run", ["one", "2026.03", "a-b_c"])
def test_other_names_are_taken(run: str) -> None:
    assert is_run(run)
