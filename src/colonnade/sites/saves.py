"""Checkpoints of organisations on different machines: each saves itself, and a run continues from what all have.

    driver                                       every other organisation
    its own checkpoint n
    Save n, keep m                          ->   its own checkpoint n; m stays, whatever lies between goes
    when all have answered, m = n
    KeepBest, at the end TakeBest           ->   its models when validation rows scored best, part of its checkpoints

m is the last one that all are known to have. So wherever a run breaks off, everybody still has m, and at most one newer
one besides: whoever is killed while it saves, two are enough. To resume, the driver asks who has which (`Kept`) and all
go back to the newest that all have; what lies after it is trained again, from the same state, to the same bits. What a
budget spent stays spent: accounts are never taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from colonnade.core import Peers, Step
from colonnade.errors import CheckpointError, NoAnswer
from colonnade.federation.fit import Outcome, Record, Watch
from colonnade.runs.run_directory import RunDirectory
from colonnade.sites.messages import Close, KeepBest, Kept, Save, TakeBest

log = logging.getLogger("colonnade.party")


class Saves:
    """The driver's side; `lenient` goes on without who does not answer, as [federation] on_missing may say."""

    def __init__(self, run: RunDirectory, others: Peers, *, lenient: bool = False) -> None:
        self.run, self.others, self.lenient = run, others, lenient
        run.common = 1  # the state before training, which everybody saves when it is prepared

    def go_back(self) -> int:
        """Where all can continue; this organisation goes back there, and the others when they are prepared."""
        answers = self.others.ask(Kept(self.run.path.name))
        kept = {self.others.owner: numbers(self.run)} | {name: answer.numbers for name, answer in answers.items()}
        number = newest_common(kept)
        self.run.back_to(number)
        self.run.common = number or 1
        return number

    def save(self, step: int) -> None:
        """After this organisation's own checkpoint: everybody else's."""
        number, common = self.run.mark()["number"], self.run.common
        assert common is not None
        if self._all(Save(number, step, common)):
            self.run.common = number

    def after(self, every: int, watch: Watch | None) -> Watch:
        """What `fit` tells is passed on to `watch`; when it has saved, which is every so many epochs, so do the
        others."""

        def told(event: Step | Record) -> None:
            if isinstance(event, dict) and every and event["epoch"] % every == 0:
                self.save(event["step"])
            if watch is not None:
                watch(event)

        return told

    def best(self, take: bool) -> bool:
        """Everybody else keeps its model as the best, or has it again; False where somebody could not be told."""
        return self._all(TakeBest() if take else KeepBest())

    def close(self, outcome: Outcome) -> None:
        """Everybody learns that it is over and why, and no score."""
        self._all(Close(outcome.told))

    def _all(self, request: Save | Close | KeepBest | TakeBest) -> bool:
        if not self.lenient:
            self.others.ask(request)
            return True
        _, failures = self.others.attempt(dict.fromkeys(self.others, request))
        for error in failures.values():
            if not isinstance(error, NoAnswer):
                raise error
            log.warning("%s The run goes on without it.", error)
        return not failures


def numbers(run: RunDirectory) -> tuple[int, ...]:
    return tuple(mark["number"] for mark in run.marks())


def newest_common(kept: Mapping[str, Sequence[int]]) -> int:
    """Of what each organisation has; 0 where not all have saved even once, so that nobody has trained."""
    common = set.intersection(*(set(numbers) for numbers in kept.values()))
    if common:
        return max(common)
    if all(number <= 1 for numbers in kept.values() for number in numbers):
        return 0
    told = "; ".join(f"'{name}' {' and '.join(map(str, numbers)) or 'none'}" for name, numbers in kept.items())
    raise CheckpointError(
        f"There is no checkpoint that all have: {told}. Somebody's folder of this run is missing or of another run. "
        "Put it back, or start a new run."
    )
