"""Trackers are made as [tracking] says; none can end a run, and what fails is said
once."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import federation, quick

from colonnade.core import Step
from colonnade.core.batches import Batch
from colonnade.errors import ConfigError
from colonnade.installation import hint
from colonnade.tracking import TRACKERS, About, Trackers, TrackingSettings, trackers_of


@pytest.mark.parametrize(
    ("package", "given"),
    [("tensorboard", {"tensorboard": True}), ("mlflow.tracking", {"mlflow": "runs"})],
)
def test_a_package_that_is_missing_is_named_before_training(
    package: str,
    given: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=re.escape(hint("tracking"))):
        federation(settings=quick(tracking=given)).fit(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_only_a_run_directory_is_tracked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    federation(settings=quick(tracking={"tensorboard": True})).fit()
    assert list(tmp_path.iterdir()) == []
    assert trackers_of(TrackingSettings(), tmp_path).active == []
    assert set(TRACKERS) <= set(vars(TrackingSettings()))


SUMMARY: dict[str, Any] = {
    "rounds": 2,
    "seconds": 1.0,
    "metrics": {"test": {"loss": 0.5}},
    "bytes": {},
    "privacy": [],
}


class Heard:
    """Writes down what it is told, and fails at one word of it."""

    def __init__(self, name: str, fails_at: str = "") -> None:
        self.name = name
        self.fails_at = fails_at
        self.told: list[tuple[str, Any]] = []

    def _hear(self, word: str, what: Any) -> None:
        self.told.append((word, what))
        if word == self.fails_at:
            raise OSError(28, "No space left on device")

    def begin(self, about: About) -> None:
        self._hear("begin", about.name)

    def batch(self, step: int, loss: float) -> None:
        self._hear("batch", (step, loss))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._hear("log", (dict(numbers), step))

    def end(self, how: str) -> None:
        self._hear("end", how)


def run(*trackers: Heard) -> dict[str, str]:
    with Trackers(trackers) as all_of_them:
        all_of_them.begin(About("a"))
        all_of_them(Step(Batch("train/0/0", 4, 0, 0, 0), 0.75))
        all_of_them({"step": 1, "epoch": 1, "loss": 0.75})
        return all_of_them.finish(SUMMARY)


def test_each_is_told_all_in_order() -> None:
    one = Heard("one")
    assert run(one) == {}
    assert one.told == [
        ("begin", "a"),
        ("batch", (1, 0.75)),
        ("log", ({"epoch": 1.0, "loss": 0.75}, 1)),
        ("log", ({"rounds": 2.0, "seconds_in_all": 1.0, "test/loss": 0.5}, 1)),
        ("end", "finished"),
    ]


@pytest.mark.parametrize("word", ["begin", "batch", "log", "end"])
def test_one_that_fails_is_told_once_and_asked_no_more(
    word: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Heard("bad", word)
    good = Heard("good")
    with caplog.at_level(logging.WARNING, "colonnade.tracking"):
        failures = run(bad, good)
    step = 0 if word == "begin" else 1
    assert failures == {
        "bad": f"stopped at step {step}: OSError: [Errno 28] No space left on device"
    }
    assert [record.getMessage() for record in caplog.records] == [
        f"bad {failures['bad']}. Training goes on without it."
    ]
    assert [told for told, _ in bad.told][-1] == word
    assert [told for told, _ in good.told] == ["begin", "batch", "log", "log", "end"]


@pytest.mark.parametrize(
    ("error", "how"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted")]
)
def test_a_run_that_breaks_off_is_told_as_that(
    error: type[BaseException], how: str
) -> None:
    one = Heard("one")
    trackers = Trackers([one])
    trackers.begin(About("a"))
    with pytest.raises(error), trackers:
        raise error
    assert one.told == [("begin", "a"), ("end", how)]
