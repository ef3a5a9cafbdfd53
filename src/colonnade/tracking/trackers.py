"""All the trackers of a run at once. None of them can end it: one that fails is told once, and stops.

A tracker is told names and numbers. Never ids, rows, labels, columns, their names, or where a table lies.
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
OF_DATA = ("validation", "test", "task", "align", "dataset", "split", "parts", "patch", "labels_at")
COUNTED = "who knows the batches"
"""Against whom a budget is enforced; `epsilon` is told against them alone, and the privacy report has the others."""
LONGEST = 500
"""Characters of a setting that MLflow's servers of any version take."""


def parameters_of(tables: Mapping[str, Any]) -> dict[str, str]:
    """Settings, flattened: train.epochs, parties.lab.budget.epsilon. Only what is listed above is told."""
    found: dict[str, Any] = {}
    for section in SECTIONS:
        for key, value in tables.get(section, {}).items():
            if section != "data" or key in OF_DATA:
                found.update(_leaves(f"{section}.{key}", value))
    for section in OWNERS:
        held = tables.get(section, {})
        named = held.items() if isinstance(held, Mapping) else ((one["name"], one) for one in held)
        for name, owner in named:
            for key in OF_AN_OWNER:
                if key in owner:
                    found.update(_leaves(f"{section}.{name}.{key}", owner[key]))
    return {
        key: text if len(text := str(value)) <= LONGEST else text[: LONGEST - 1] + "…" for key, value in found.items()
    }


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """One epoch: loss, validation/accuracy, bytes, seconds, epsilon/lab, missing/lab, left_out/north."""
    found: dict[str, Any] = {key: record[key] for key in ("epoch", "loss", "seconds", "bytes") if key in record}
    for group in ("validation", "losses", "epsilon"):
        found |= {f"{group}/{name}": value for name, value in record.get(group, {}).items()}
    for owner, scores in record.get("validation_each", {}).items():
        found |= {f"validation_each/{owner}/{name}": value for name, value in scores.items()}
    found |= {f"missing/{party}": sum(times.values()) for party, times in record.get("missing", {}).items()}
    found |= {f"left_out/{owner}": 1 for owner in record.get("left_out", {})}
    return _finite(found)


def totals_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The end: scores of every split, bytes and epsilon of every party, who was missing."""
    found: dict[str, Any] = {"rounds": summary["rounds"], "seconds_in_all": summary["seconds"]}
    for split, scores in summary["metrics"].items():
        found |= {f"{split}/{name}": value for name, value in scores.items()}
    for party, traffic in summary["bytes"].items():
        found |= {f"bytes_{way}/{party}": count for way, count in traffic.items()}
    for party, times in summary.get("missing", {}).items():
        found[f"missing_in_all/{party}"] = sum(times.values())
    for one in summary["privacy"]:
        labels = one["protects"] == "labels"
        counted = [s["epsilon"] for s in one["statements"] if labels or s["adversary"].startswith(COUNTED)]
        if counted:  # the first is in the relation of the party's budget
            found[f"{'epsilon_labels' if labels else 'epsilon'}/{one['party']}"] = counted[0]
    return _finite(found)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for inner, one in value.items():
            yield from _leaves(f"{key}.{inner}", one)
    else:
        yield key, value


def _finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Without a score that is no number, as AUC without both classes, and an epsilon that promises nothing."""
    return {key: float(value) for key, value in numbers.items() if value is not None and math.isfinite(value)}


log = logging.getLogger("colonnade.tracking")

FINISHED, FAILED, INTERRUPTED = "finished", "failed", "interrupted"


@dataclass(frozen=True)
class About:
    """What a tracker is told before training: a run's name, its settings, and words to find it by."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    step: int = 0  # training goes on from here
    resumed: bool = False


class Tracker(Protocol):
    """Made before anything else happens, so that what is missing or cannot be reached is an error then."""

    name: str

    def begin(self, about: About) -> None: ...

    def batch(self, step: int, loss: float) -> None: ...

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...

    def end(self, how: str) -> None: ...


class Trackers:
    """`begin`, then every step and record, then `finish` with the summary; as a context, also of what came between."""

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self.going = list(trackers)
        self.failures: dict[str, str] = {}
        self.step = 0

    def begin(self, about: About) -> None:
        self.step = about.step
        self._each(lambda tracker: tracker.begin(about))

    def __call__(self, event: Step | Mapping[str, Any]) -> None:
        if not self.going:
            return
        if isinstance(event, Step):
            self.step = event.batch.step + 1
            self._each(lambda tracker: tracker.batch(self.step, event.loss))
        else:
            self.step, numbers = event["step"], numbers_of(event)
            self._each(lambda tracker: tracker.log(numbers, self.step))

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(FINISHED if kind is None else FAILED if issubclass(kind, Exception) else INTERRUPTED)

    def finish(self, summary: Mapping[str, Any]) -> dict[str, str]:
        """Tell the end; gives back who did not hear all of it, and why."""
        if self.going:
            totals = totals_of(summary)
            self._each(lambda tracker: tracker.log(totals, self.step))
        self.close(FINISHED)
        return self.failures

    def close(self, how: str) -> None:
        """Once: whoever is told an end is not told another."""
        self._each(lambda tracker: tracker.end(how))
        self.going = []

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for tracker in list(self.going):
            try:
                tell(tracker)
            except Exception as error:  # whatever a server, a disk or a library comes up with: training goes on
                self.going.remove(tracker)
                cause = (str(error).strip().splitlines() or [""])[0][:300]
                self.failures[tracker.name] = f"stopped at step {self.step}: {type(error).__name__}: {cause}"
                log.warning("%s %s. Training goes on without it.", tracker.name, self.failures[tracker.name])
