"""A plan being carried out: what was measured so far, next to what the paper says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from colonnade.core import Step
from colonnade.errors import Diverged
from colonnade.evaluate.metrics import HEADLINE
from colonnade.federation import Federation, Settings
from colonnade.reproduction.expected import Figure, Plan
from colonnade.rows.holdings import Holdings

Watch = Callable[[str, Step], None]
"""Called with a line that says which run it is, and its steps: for progress bars."""

Curves = list[list[tuple[int, float]]]
"""Per seed, (epoch, value)."""


@dataclass
class Measured:
    """One thing that was measured, by seed, and its figure. The unit is "%" for shares, or a word such as "MB"."""

    what: str
    figure: Figure = field(default_factory=Figure)
    unit: str = "%"
    by_seed: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.by_seed) / len(self.by_seed) if self.by_seed else float("nan")

    @property
    def deviation(self) -> float:
        """Between seeds; of one seed it is not known, nor where one has no number."""
        known = len(self.by_seed) > 1 and math.isfinite(self.mean)
        return statistics.stdev(self.by_seed) if known else float("nan")

    @property
    def holds(self) -> bool | None:
        """Whether the mean is within its bounds; None where there are none."""
        least, most = self.figure.at_least, self.figure.at_most
        if least is None and most is None:
            return None
        return (least is None or self.mean >= least) and (most is None or self.mean <= most)

    def to_json(self) -> dict[str, Any]:
        told = {key: value for key, value in vars(self.figure).items() if value is not None}
        values = (self.mean, self.deviation, *self.by_seed)
        mean, deviation, *by_seed = (None if math.isnan(value) else value for value in values)
        about = {"what": self.what, "unit": self.unit, "mean": mean, "deviation": deviation}
        return about | {"by_seed": by_seed, "holds": self.holds} | told


class Study:
    """A plan with what it found so far. A script records what it measures; bounds are looked up by name. Whenever
    something was recorded, `keep` is called, so that little is lost when the process is killed."""

    def __init__(self, plan: Plan, watch: Watch | None = None, keep: Callable[[Study], None] | None = None) -> None:
        self.plan, self.watch, self.keep = plan, watch, keep
        self.measured: dict[str, Measured] = {}
        self.curves: dict[str, Curves] = {}  # run -> its test scores
        self.losses: dict[str, Curves] = {}  # run -> its mean losses while it trained
        self.arrays: dict[str, NDArray[Any]] = {}  # what a script needs for its pictures
        self.cells: dict[str, dict[str, list[float]]] = {}  # what each measured: `by_seed` does not say whose it is
        self.failed: dict[str, Exception] = {}  # cell -> why nothing, or not all, is known of it

    @property
    def holds(self) -> bool:
        """Whether everything that was measured and has a bound is within it; of the quick version also
        that everything with a bound was measured."""
        return all(one.holds is not False for one in self.measured.values()) and not self.unmeasured

    @property
    def unmeasured(self) -> list[str]:
        """What the quick version has a bound for, and never measured."""
        bounded = [what for what, one in self.plan.figures.items() if (one.at_least, one.at_most) != (None, None)]
        return [what for what in bounded if what not in self.measured] if self.plan.short else []

    def record(self, what: str, value: float, unit: str = "%") -> None:
        one = self.measured.setdefault(what, Measured(what, self.plan.figures.get(what, Figure()), unit))
        one.by_seed.append(value)
        if self.keep is not None:
            self.keep(self)

    def found(self) -> dict[str, Any]:
        """What was measured, but for the arrays, as JSON can hold it; `add` reads it."""
        measured = [{"what": one.what, "unit": one.unit, "by_seed": one.by_seed} for one in self.measured.values()]
        return _numbers({"measured": measured, "curves": self.curves, "losses": self.losses})  # type: ignore[no-any-return]

    def add(self, found: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None, cell: str = "") -> None:
        """Take over what another process found, in that cell."""
        for one in found["measured"]:
            values = [math.nan if value is None else value for value in one["by_seed"]]
            self.cells.setdefault(cell, {})[one["what"]] = values
            for value in values:
                self.record(one["what"], value, one["unit"])
        for mine, theirs in ((self.curves, found["curves"]), (self.losses, found["losses"])):
            for title, seeds in theirs.items():
                points = [[(epoch, math.nan if value is None else value) for epoch, value in curve] for curve in seeds]
                mine.setdefault(title, []).extend(points)
        self.arrays |= arrays or {}

    def settings(self, changes: Mapping[str, Any] | None = None) -> Settings:
        """The plan's federation file with some settings changed; `until` is the last epoch, where the plan's is
        later."""
        tables = Settings.from_toml(self.plan.config).to_mapping()
        changes = dict(changes or {})
        epochs = min(changes.pop("until", math.inf), max(self.plan.epochs))
        if "name" in changes.get("algorithm", {}):
            tables["algorithm"] = {}  # another algorithm has other settings
        for section, values in changes.items():
            tables[section] = {**tables.get(section, {}), **values}
        tables["train"] = {**tables["train"], "epochs": epochs, "early_stop": False}
        return Settings.from_mapping(tables, where=self.plan.name)

    def train(self, title: str, settings: Settings, seed: int, holdings: Holdings | None = None) -> Federation:
        """One run to its end; its test scores become its curve, and at the plan's epochs they are recorded. A run that
        diverges scores NaN from there on."""
        federation = self.federation(settings, seed, holdings)
        score = HEADLINE[federation.holdings.encoder.task]
        curve: list[tuple[int, float]] = []
        self.curves.setdefault(title, []).append(curve)
        sums: dict[int, float] = {}
        reached = self.plan.reach is None
        try:
            for step in federation.train():
                if self.watch is not None:
                    self.watch(f"{title}, seed {seed}", step)
                epoch = step.batch.epoch + 1
                sums[epoch] = sums.get(epoch, 0.0) + step.loss * step.batch.size
                if step.batch.number + 1 == federation.batches.per_epoch:
                    curve.append((epoch, federation.evaluate("test")[score]))
                    if epoch in self.plan.epochs:
                        self.record(f"{title}, epoch {epoch}", curve[-1][1])
                done = step.batch.step + 1
                if not reached and self.plan.reach is not None and done % self.plan.reach[1] == 0:
                    reached = federation.evaluate("test")[score] >= self.plan.reach[0]
                    if reached:
                        self._reached(title, federation, done)
        except Diverged:
            for epoch in range(len(curve) + 1, settings.train.epochs + 1):
                curve.append((epoch, math.nan))
                if epoch in self.plan.epochs:
                    self.record(f"{title}, epoch {epoch}", math.nan)
        rows = len(federation.batches.splits["train"])
        self.losses.setdefault(title, []).append([(epoch, sums.get(epoch, math.nan) / rows) for epoch, _ in curve])
        return federation

    def federation(self, settings: Settings, seed: int, holdings: Holdings | None = None) -> Federation:
        """With the seed in the settings' place; over other holdings than the settings name, if given, else with as many
        rows as the plan has."""
        if holdings is None:
            made = Federation.from_settings(settings, seed=seed)
            if not self.plan.rows:
                return made
            holdings = made.holdings
            for split, most in self.plan.rows.items():
                holdings.splits[split] = holdings.splits[split][:most]
        return Federation(settings.with_seed(seed), holdings)

    def _reached(self, title: str, federation: Federation, rounds: int) -> None:
        """Training rounds, and the bytes a party sent and received in them; the looks at test rows are left out."""
        assert self.plan.reach is not None
        wanted = f"{self.plan.reach[0]:.0%}"
        ledger = federation.ledgers[next(iter(federation.owners))]
        moved = sum(entry.bytes for entry in ledger.entries if (entry.batch or "").startswith("train/"))
        self.record(f"{title}, rounds to {wanted}", rounds, "rounds")
        self.record(f"{title}, MB per party to {wanted}", moved / 1e6, "MB")


def _numbers(value: Any) -> Any:
    """With None for NaN, which JSON does not know."""
    if isinstance(value, dict):
        return {key: _numbers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
