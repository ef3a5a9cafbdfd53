"""What others may compare with a party's ids in a day: counted on the disk, over
restarts and processes, and never less than was taken."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from colonnade.alignment.allowance import Allowance
from colonnade.core.party import Refused
from colonnade.errors import CheckpointError, ConfigError, InputError
from colonnade.settings.alignment import AllowanceSettings

FEW = AllowanceSettings(per_day=2, predicted_per_day=5, smallest=3)


def at(folder: Path, day: str = "2026-03-01") -> Allowance:
    return Allowance("lab", folder / "alignments.json", FEW, day=lambda: day)


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
        "bank": {"alignments": 1, "ids": 0},
    }


def test_a_day_begins_anew_and_a_clock_that_is_set_back_does_not(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        at(tmp_path).align("clinic")
    with pytest.raises(Refused):
        at(tmp_path, "2026-02-28").align("clinic")
    at(tmp_path, "2026-03-02").align("clinic")
    assert at(tmp_path, "2026-03-02").taken() == {"clinic": {"alignments": 1, "ids": 0}}


def test_one_changed_bit_is_an_error_and_never_more_to_take(tmp_path: Path) -> None:
    at(tmp_path).align("clinic")
    path = tmp_path / "alignments.json"
    whole = path.read_bytes()
    for place in range(len(whole) - 1):  # what follows the text is no part of it
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises((CheckpointError, Refused)):
            at(tmp_path).align("clinic")
    for cut in (b"", whole[:-4], whole[:20]):
        path.write_bytes(cut)
        with pytest.raises(
            CheckpointError,
            match="is damaged, and it has how often 'lab' aligned with whom today",
        ):
            at(tmp_path).compare("clinic", 1)


def test_two_at_once_do_not_take_the_same(tmp_path: Path) -> None:
    took = list[bool]()

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


def test_what_cannot_be_written_down_is_not_answered(tmp_path: Path) -> None:
    (tmp_path / "alignments.json").mkdir()
    with pytest.raises((InputError, OSError)):
        at(tmp_path).align("clinic")


@pytest.mark.parametrize(
    "wrong", [{"per_day": -1}, {"smallest": 0}, {"predicted_per_day": 1.5}]
)
def test_a_setting_that_says_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be a whole number"):
        AllowanceSettings(**wrong)  # type: ignore[arg-type]
