"""A full disk, a folder that is gone, a clock that jumps: told by name, and nothing
that was saved is lost."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.federation.small import (
    THREE,
    checkpoint_of,
    equal,
    federation,
    models_of,
    records,
)

from colonnade.core import Step
from colonnade.core.peers import NUMBERS
from colonnade.errors import InputError
from colonnade.federation.fit import Record


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """The operating system refuses to let any file grow beyond, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def after_epoch(number: int, do: Callable[[], None]) -> Callable[[Step | Record], None]:
    """Called when an epoch was saved."""

    def watch(event: Step | Record) -> None:
        if isinstance(event, dict) and event["epoch"] == number:
            do()

    return watch


def finishes(run: Path, whole: Path) -> None:
    federation(settings=THREE).fit(run, resume=True)
    assert equal(checkpoint_of(run), checkpoint_of(whole))
    assert records(run) == records(whole)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    federation(settings=THREE).fit(tmp_path / "whole")
    return tmp_path / "whole"


def test_a_full_disk_names_who_could_not_save_and_leaves_the_checkpoint_before(
    whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    limits = no_file_above(2048)
    try:
        with pytest.raises(InputError) as caught:
            federation(settings=THREE).fit(run, watch=after_epoch(1, limits.__enter__))
    finally:
        limits.__exit__(None, None, None)
    assert f"'clinic' cannot save its state in {run}/parties/clinic: " in str(
        caught.value
    )
    assert "File too large" in str(caught.value)
    assert (
        "The checkpoint of step 4 is intact. Put it right, and continue with --resume."
        in str(caught.value)
    )
    assert not list(run.rglob(".*tmp"))
    finishes(run, whole)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "parties/lab/ledger.jsonl",
            "'lab' cannot save its state in .*parties/lab: No space left on device",
        ),
        (
            "metrics.jsonl",
            "The run directory .*run cannot be written: No space left on device",
        ),
    ],
)
def test_no_space_left_on_device(
    name: str, told: str, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    kept = tmp_path / "kept"

    def fill() -> None:
        (run / name).rename(kept)
        (run / name).symlink_to("/dev/full")

    with pytest.raises(
        InputError, match=told + r"\. The checkpoint of step 8 is intact"
    ):
        federation(settings=THREE).fit(run, watch=after_epoch(2, fill))
    (run / name).unlink()
    kept.rename(run / name)
    finishes(run, whole)


def test_a_folder_that_is_gone_names_whose_it_was(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    aside = tmp_path / "aside"

    def replaced() -> None:
        (run / "parties" / "lab").rename(aside)
        (run / "parties" / "lab").write_text("no folder any more")

    with pytest.raises(
        InputError,
        match=(
            r"'lab' cannot save its state in .*lab: Not a directory\. The checkpoint"
            r" of st"
        ),
    ):
        federation(settings=THREE).fit(run, watch=after_epoch(1, replaced))
    (run / "parties" / "lab").unlink()
    aside.rename(run / "parties" / "lab")
    finishes(run, whole)


@pytest.mark.parametrize("jump", [-86_400, 86_400])
def test_a_clock_that_jumps_changes_nothing(
    jump: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = federation(settings=THREE)
    jumping = federation(settings=THREE)
    quiet.fit()
    real = time.time
    real_ns = time.time_ns
    number = next(NUMBERS)

    def jumps() -> None:
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + jump * 10**9)

    outcome = jumping.fit(watch=after_epoch(1, jumps))
    assert equal(models_of(quiet), models_of(jumping))
    assert all(record["seconds"] >= 0 for record in outcome.history)
    assert next(NUMBERS) > number  # calls are counted, not timed
