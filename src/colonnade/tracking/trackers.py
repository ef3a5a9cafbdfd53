"""All the trackers of a run at once. None of them can end it: one that fails is told once, and stops."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from colonnade.core import Step
from colonnade.tracking.told import numbers_of, totals_of

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
