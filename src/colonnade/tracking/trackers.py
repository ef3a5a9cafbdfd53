"""All the trackers of a run at once. None of them can end it: one that fails is
reported once, and stops.

A tracker gets names and numbers: never ids, rows, labels, columns, their names, or the
place of a table.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from colonnade.core import Step

SECTIONS = ("algorithm", "data", "model", "label_model", "train", "federation")
OWNERS = ("parties", "label_owners", "data_owners")
OF_AN_OWNER = ("scale", "model", "outbox", "budget", "rows", "classes")
OF_DATA = (
    "validation",
    "test",
    "task",
    "align",
    "dataset",
    "split",
    "parts",
    "patch",
    "labels_at",
)
COUNTED = "who knows the batches"
"""The adversary that a budget is enforced against; `epsilon` is tracked for it alone,
the privacy report has all."""
LONGEST = 500
"""The most characters of a setting that MLflow servers of any version take."""


def parameters_of(tables: Mapping[str, Any]) -> dict[str, str]:
    """Settings, flattened: train.epochs, parties.lab.budget.epsilon. Only what is
    listed above is included."""
    settings: dict[str, Any] = {}
    for section in SECTIONS:
        for key, value in tables.get(section, {}).items():
            if section != "data" or key in OF_DATA:
                settings.update(_leaves(f"{section}.{key}", value))
    for section in OWNERS:
        held = tables.get(section, {})
        named = (
            held.items()
            if isinstance(held, Mapping)
            else ((owner["name"], owner) for owner in held)
        )
        for name, owner in named:
            for key in OF_AN_OWNER:
                if key in owner:
                    settings.update(_leaves(f"{section}.{name}.{key}", owner[key]))
    texts = {key: str(value) for key, value in settings.items()}
    return {
        key: text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
        for key, text in texts.items()
    }


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one epoch: loss, validation/accuracy, bytes, seconds, epsilon/lab,
    missing/lab, left_out/north."""
    numbers: dict[str, Any] = {
        key: record[key]
        for key in ("epoch", "loss", "seconds", "bytes")
        if key in record
    }
    for group in ("validation", "losses", "epsilon"):
        numbers |= {
            f"{group}/{name}": value for name, value in record.get(group, {}).items()
        }
    for owner, scores in record.get("validation_each", {}).items():
        numbers |= {
            f"validation_each/{owner}/{name}": value for name, value in scores.items()
        }
    numbers |= {
        f"missing/{party}": sum(times.values())
        for party, times in record.get("missing", {}).items()
    }
    numbers |= {f"left_out/{owner}": 1 for owner in record.get("left_out", {})}
    return _finite(numbers)


def totals_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers at the end: scores of every split, bytes and epsilon of every party,
    who was missing."""
    totals: dict[str, Any] = {
        "rounds": summary["rounds"],
        "seconds_in_all": summary["seconds"],
    }
    for split, scores in summary["metrics"].items():
        totals |= {f"{split}/{name}": value for name, value in scores.items()}
    for party, traffic in summary["bytes"].items():
        totals |= {f"bytes_{way}/{party}": count for way, count in traffic.items()}
    for party, times in summary.get("missing", {}).items():
        totals[f"missing_in_all/{party}"] = sum(times.values())
    for guarantee in summary["privacy"]:
        labels = guarantee["protects"] == "labels"
        # the first that counts is in the relation of the party's budget
        for statement in guarantee["statements"]:
            if labels or statement["adversary"].startswith(COUNTED):
                totals[
                    f"{'epsilon_labels' if labels else 'epsilon'}/{guarantee['party']}"
                ] = statement["epsilon"]
                break
    return _finite(totals)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for inner_key, inner_value in value.items():
            yield from _leaves(f"{key}.{inner_key}", inner_value)
    else:
        yield key, value


def _finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that are finite: without AUC where a class is missing, and without an
    epsilon that is infinite."""
    return {
        key: float(value)
        for key, value in numbers.items()
        if value is not None and math.isfinite(value)
    }


log = logging.getLogger("colonnade.tracking")

FINISHED = "finished"
FAILED = "failed"
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class About:
    """What a tracker gets before training: a run's name, its settings, and tags to find
    it by."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    step: int = 0  # training goes on from here
    resumed: bool = False


class Tracker(Protocol):
    """A service that follows a run. It is made before anything else, so that a missing
    package or server fails then."""

    name: str

    def begin(self, about: About) -> None: ...

    def batch(self, step: int, loss: float) -> None: ...

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...

    def end(self, how: str) -> None: ...


class Trackers:
    """Call `begin`, then this with every step and record, then `finish` with the
    summary. As a context, it also ends the trackers when training fails or is
    interrupted."""

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self.active = list(trackers)
        self.failures: dict[str, str] = {}
        self.step = 0

    def begin(self, about: About) -> None:
        self.step = about.step
        self._call_all(lambda tracker: tracker.begin(about))

    def __call__(self, event: Step | Mapping[str, Any]) -> None:
        if not self.active:
            return
        if isinstance(event, Step):
            self.step = event.batch.step + 1
            self._call_all(lambda tracker: tracker.batch(self.step, event.loss))
        else:
            self.step = event["step"]
            numbers = numbers_of(event)
            self._call_all(lambda tracker: tracker.log(numbers, self.step))

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(
            FINISHED
            if kind is None
            else FAILED
            if issubclass(kind, Exception)
            else INTERRUPTED
        )

    def finish(self, summary: Mapping[str, Any]) -> dict[str, str]:
        """Send the totals, and return the trackers that failed, each with the reason."""
        if self.active:
            totals = totals_of(summary)
            self._call_all(lambda tracker: tracker.log(totals, self.step))
        self.close(FINISHED)
        return self.failures

    def close(self, how: str) -> None:
        """End the trackers; a second call does nothing."""
        self._call_all(lambda tracker: tracker.end(how))
        self.active = []

    def _call_all(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self.active):
            try:
                call(tracker)
            # whatever a server, a disk or a library raises: training goes on
            except Exception as error:
                self.active.remove(tracker)
                cause = (str(error).strip().splitlines() or [""])[0][:300]
                self.failures[tracker.name] = (
                    f"stopped at step {self.step}: {type(error).__name__}: {cause}"
                )
                log.warning(
                    "%s %s. Training goes on without it.",
                    tracker.name,
                    self.failures[tracker.name],
                )
