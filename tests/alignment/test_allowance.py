"""What others may compare with a party's ids in a day: counted on the disk, over
restarts and processes, and never less than was taken."""

from __future__ import annotations

import shutil
import threading
from datetime import date
from pathlib import Path

import pytest

from colonnade.alignment.allowance import Allowance
from colonnade.core.party import Refused
from colonnade.errors import ConfigError, StoreError
from colonnade.settings.alignment import AllowanceSettings
from colonnade.store import SiteStore

FEW = AllowanceSettings(per_day=2, predicted_per_day=5, smallest=3)


def at(folder: Path, day: str = "2026-03-01") -> Allowance:
    """The laboratory's allowance on a day, in its store."""
    place = folder / "store"
    if not place.exists():
        SiteStore.create(place, "lab").close()
    store = SiteStore.open(place, "lab")
    return Allowance("lab", lambda: store, FEW, day=lambda: date.fromisoformat(day))


def test_each_asker_has_its_own_and_a_restart_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        at(tmp_path).align("clinic")
    with pytest.raises(
        Refused,
        match=(
            "it aligns with 'clinic' 2 times a day, had 2 today and was asked for 1"
            " more"
        ),
    ):
        at(tmp_path).align("clinic")
    at(tmp_path).align("bank")
    at(tmp_path).compare("clinic", 4)
    with pytest.raises(
        Refused, match="compares 5 ids a day with 'clinic' to predict, had 4 today"
    ):
        at(tmp_path).compare("clinic", 2)
    at(tmp_path).compare("clinic", 1)
    assert at(tmp_path).taken() == {
        "clinic": {"alignments": 2, "ids": 5},
        "bank": {"alignments": 1},
    }


def test_a_day_begins_anew_and_a_clock_that_is_set_back_does_not(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        at(tmp_path).align("clinic")
    with pytest.raises(Refused):
        at(tmp_path, "2026-02-28").align("clinic")
    at(tmp_path, "2026-03-02").align("clinic")
    assert at(tmp_path, "2026-03-02").taken() == {"clinic": {"alignments": 1}}


def test_a_clock_that_was_ahead_closes_nothing_until_then(tmp_path: Path) -> None:
    """It said 2038 for a moment, and one alignment was made."""
    at(tmp_path, "2038-01-19").align("clinic")
    at(tmp_path).align("clinic")
    with pytest.raises(Refused, match="had 2 today"):
        at(tmp_path).align("clinic")
    at(tmp_path, "2026-03-02").align("clinic")


def test_a_store_that_is_gone_gives_no_new_allowance(tmp_path: Path) -> None:
    for _ in range(2):
        at(tmp_path).align("clinic")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(StoreError, match="there was a store of 'lab' here"):
        at(tmp_path)


def test_two_at_once_do_not_take_the_same(tmp_path: Path) -> None:
    took = list[bool]()

    at(tmp_path)

    def one() -> None:
        try:
            at(tmp_path).compare("clinic", 1)
            took.append(True)
        except Refused:
            took.append(False)

    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(took) == FEW.predicted_per_day


@pytest.mark.parametrize(
    "wrong", [{"per_day": -1}, {"smallest": 0}, {"predicted_per_day": 1.5}]
)
def test_a_setting_that_says_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be a whole number"):
        AllowanceSettings(**wrong)  # type: ignore[arg-type]
