"""Organisations that save themselves: two checkpoints each are enough, whoever has
saved when a run breaks off."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.federation.small import quick
from tests.federation.small_sites import SKIP, saved, sites, three
from tests.sites.kinds import made, same_bits, trains

from colonnade.errors import CheckpointError, PartyError
from colonnade.runs.run_directory import RunDirectory
from colonnade.sites.driving import drive
from colonnade.sites.participant import newest_common, numbers
from colonnade.sites.site import Site
from colonnade.transport.remote import Route


def kept(site: Site) -> tuple[int, ...]:
    return numbers(RunDirectory(site.own.runs / "run"))


def test_the_newest_that_all_have_is_found_whoever_has_saved() -> None:
    """While checkpoint 5 is saved everybody has 4, some also 5, and who went back has 4
    alone."""
    for states in itertools.product([(5, 4), (4, 3), (4,)], repeat=3):
        found = newest_common(dict(zip("abc", states, strict=True)))
        assert found == (5 if all(5 in state for state in states) else 4)


def test_a_run_that_nobody_can_have_trained_begins_anew() -> None:
    assert newest_common({"clinic": (), "lab": (1,), "bank": ()}) == 0
    assert newest_common({"clinic": (1,), "lab": (1,)}) == 1


def test_a_lost_folder_is_told_and_nothing_is_thrown_away() -> None:
    with pytest.raises(CheckpointError, match="'clinic' 5 and 4; 'lab' none"):
        newest_common({"clinic": (5, 4), "lab": ()})


class Stopped(BaseException):
    """As if the driver's process had ended."""


def breaking(inner: Route, at: int, *, after: bool) -> Route:
    """A line whose call of this number is the driver's last; the site has answered it
    or never got it."""
    calls = itertools.count()

    def call(data: bytes, deadline: float) -> bytes:
        now = next(calls)
        if now == at and not after:
            raise Stopped
        reply = inner(data, deadline)
        if now >= at:
            raise Stopped
        return reply

    return call


@pytest.mark.parametrize("after", [False, True], ids=["not delivered", "answer lost"])
def test_a_driver_that_stops_at_any_call_is_resumed_bit_equal(
    tmp_path: Path, after: bool
) -> None:
    """At every sixth call to the laboratory: while they join, prepare, train, save,
    measure and close."""
    made(tmp_path, "one", train={"epochs": 3, "early_stop": False})
    clinic = sites(tmp_path)["clinic"]
    inner = clinic.routes["lab"]
    calls = itertools.count()

    def counted(data: bytes, deadline: float) -> bytes:
        next(calls)
        return inner(data, deadline)

    clinic.routes["lab"] = counted
    drive(clinic, "whole")
    whole = saved(tmp_path, "whole")
    seen = set()
    for at in range(int(after), next(calls), 6):
        clinic = sites(tmp_path)["clinic"]
        run = f"run-{at}"
        clinic.routes["lab"] = breaking(clinic.routes["lab"], at, after=after)
        with pytest.raises(Stopped):
            drive(clinic, run)
        seen.add(
            tuple(
                numbers(RunDirectory(tmp_path / name / "runs" / run))
                for name in ("clinic", "lab")
            )
        )
        trains(tmp_path, "one", run, resume=True)
        same_bits(whole, saved(tmp_path, run))
    assert len(seen) > 3


def test_who_is_away_while_others_save_keeps_what_all_have(tmp_path: Path) -> None:
    """With on_missing = "skip" a run goes on without the bank, and is resumed from what
    the bank has, too."""
    every = three(tmp_path, quick(train={"epochs": 4, "early_stop": False}, **SKIP))
    clinic = every["clinic"]
    saves = itertools.count(2)
    bank = clinic.routes["bank"]

    def away(data: bytes, deadline: float) -> bytes:
        if b"messages.Save" in data and next(saves) in (3, 4):
            raise ConnectionError("gone")
        return bank(data, deadline)

    def stop(event: object) -> None:
        if isinstance(event, dict) and event["epoch"] == 4:
            raise Stopped

    clinic.routes["bank"] = away
    with pytest.raises(Stopped):
        drive(clinic, "run", watch=stop)
    assert {name: kept(site) for name, site in every.items()} == {
        "clinic": (5, 2),
        "lab": (5, 2),
        "bank": (5, 2),
    }


def test_a_disk_that_is_full_ends_the_run_though_who_is_away_would_not(
    tmp_path: Path,
) -> None:
    every = three(tmp_path, quick(**SKIP))
    clinic = every["clinic"]
    lab = clinic.routes["lab"]

    def full(data: bytes, deadline: float) -> bytes:
        if b"messages.Save" in data:
            folder = every["lab"].own.runs / "run" / "parties" / "lab"
            (folder / "checkpoint-000002").mkdir(exist_ok=True)
            (folder / ".checkpoint-000002.old.tmp").write_text("in the way")
        return lab(data, deadline)

    clinic.routes["lab"] = full
    with pytest.raises(PartyError, match=r"answering messages\.Save"):
        drive(clinic, "run")


def test_a_call_whose_answer_was_lost_is_made_again_and_done_once(
    tmp_path: Path,
) -> None:
    """Every first answer to every call of the site's own is lost; the run is the same,
    and nothing is saved twice."""
    made(tmp_path, "one")
    trains(tmp_path, "one", "whole")
    every = sites(tmp_path)
    lost = list[bytes]()
    clinic = every["clinic"]
    inner = clinic.routes["lab"]

    def lossy(data: bytes, deadline: float) -> bytes:
        reply = inner(data, deadline)
        if b"messages." in data:
            lost.append(data)
            if lost.count(data) == 1:
                raise ConnectionError("the answer was lost")
        return reply

    clinic.routes["lab"] = lossy
    drive(clinic, "run")
    # join, prepare, two best epochs, the end, the best, close
    assert len(lost) == 2 * len(set(lost)) == 18
    assert kept(every["lab"]) == kept(clinic) == (4, 3)
    same_bits(saved(tmp_path, "whole"), saved(tmp_path, "run"))
