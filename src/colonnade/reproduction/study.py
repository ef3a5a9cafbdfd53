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
from colonnade.runs.run_directory import plain

Watch = Callable[[str, Step], None]
"""Called with a run's title and each of its steps, for progress bars."""

Curves = list[list[tuple[int, float]]]
"""Per seed, (epoch, value)."""


@dataclass
class Measured:
    """One thing that was measured, by seed, and its figure. The unit is "%" for shares,
    or a word such as "MB"."""

    what: str
    figure: Figure = field(default_factory=Figure)
    unit: str = "%"
    by_seed: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.by_seed) / len(self.by_seed) if self.by_seed else float("nan")

    @property
    def deviation(self) -> float:
        """The deviation between seeds; NaN for one seed, or where a seed has no number."""
        known = len(self.by_seed) > 1 and math.isfinite(self.mean)
        return statistics.stdev(self.by_seed) if known else float("nan")

    @property
    def holds(self) -> bool | None:
        """Whether the mean is within its bounds; None where there are none."""
        least = self.figure.at_least
        most = self.figure.at_most
        if least is None and most is None:
            return None
        return (least is None or self.mean >= least) and (
            most is None or self.mean <= most
        )

    def to_json(self) -> dict[str, Any]:
        figure = {
            key: value for key, value in vars(self.figure).items() if value is not None
        }
        values = (self.mean, self.deviation, *self.by_seed)
        mean, deviation, *by_seed = (
            None if math.isnan(value) else value for value in values
        )
        summary = {
            "what": self.what,
            "unit": self.unit,
            "mean": mean,
            "deviation": deviation,
        }
        return summary | {"by_seed": by_seed, "holds": self.holds} | figure


class Study:
    """A plan with what was measured so far. A script records what it measures; bounds
    are looked up by name. `keep` is called whenever something was recorded, so that
    little is lost when the process is killed."""

    def __init__(
        self,
        plan: Plan,
        watch: Watch | None = None,
        keep: Callable[[Study], None] | None = None,
    ) -> None:
        self.plan = plan
        self.watch = watch
        self.keep = keep
        self.measured: dict[str, Measured] = {}
        self.curves: dict[str, Curves] = {}  # run -> its test scores
        self.losses: dict[str, Curves] = {}  # run -> its mean losses while it trained
        # what a script needs for its pictures
        self.arrays: dict[str, NDArray[Any]] = {}
        # what each measured: `by_seed` does not say whose it is
        self.cells: dict[str, dict[str, list[float]]] = {}
        self.failed: dict[str, Exception] = {}  # cell -> why it has not measured all

    @property
    def holds(self) -> bool:
        """Whether what was measured is within its bounds, and in the quick version
        whether all with a bound was."""
        return (
            all(measured.holds is not False for measured in self.measured.values())
            and not self.unmeasured
        )

    @property
    def unmeasured(self) -> list[str]:
        """What the quick version has a bound for, and never measured."""
        figures = self.plan.figures.items() if self.plan.short else ()
        bounded = [
            name
            for name, figure in figures
            if (figure.at_least, figure.at_most) != (None, None)
        ]
        return [name for name in bounded if name not in self.measured]

    def record(self, what: str, value: float, unit: str = "%") -> None:
        measured = self.measured.setdefault(
            what, Measured(what, self.plan.figures.get(what, Figure()), unit)
        )
        measured.by_seed.append(value)
        if self.keep is not None:
            self.keep(self)

    def recorded(self) -> dict[str, Any]:
        """What was measured, without arrays, as plain JSON; `add` reads it."""
        values = [
            {key: getattr(value, key) for key in ("what", "unit", "by_seed")}
            for value in self.measured.values()
        ]
        return plain({"measured": values, "curves": self.curves, "losses": self.losses})  # type: ignore[no-any-return]

    def add(
        self,
        recorded: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None,
        cell: str = "",
    ) -> None:
        """Take over what another process recorded in that cell."""
        for measured in recorded["measured"]:
            values = [
                math.nan if value is None else value for value in measured["by_seed"]
            ]
            self.cells.setdefault(cell, {})[measured["what"]] = values
            for value in values:
                self.record(measured["what"], value, measured["unit"])
        for curves, added in (
            (self.curves, recorded["curves"]),
            (self.losses, recorded["losses"]),
        ):
            for title, seeds in added.items():
                points = [
                    [
                        (epoch, math.nan if value is None else value)
                        for epoch, value in curve
                    ]
                    for curve in seeds
                ]
                curves.setdefault(title, []).extend(points)
        self.arrays |= arrays or {}

    def settings(self, changes: Mapping[str, Any] | None = None) -> Settings:
        """The plan's federation file with changes; `until` is the last epoch, unless
        the plan's is earlier."""
        tables = Settings.from_toml(self.plan.config).to_mapping()
        changes = dict(changes or {})
        epochs = min(changes.pop("until", math.inf), max(self.plan.epochs))
        if "name" in changes.get("algorithm", {}):
            tables["algorithm"] = {}  # another algorithm has other settings
        for section, values in changes.items():
            tables[section] = {**tables.get(section, {}), **values}
        tables["train"] = {**tables["train"], "epochs": epochs, "early_stop": False}
        return Settings.from_mapping(tables, where=self.plan.name)

    def train(
        self,
        title: str,
        settings: Settings,
        seed: int,
        holdings: Holdings | None = None,
    ) -> Federation:
        """Do one run. Its test scores become its curve, and are recorded at the plan's
        epochs. A run that diverges scores NaN from there on."""
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
                if (
                    not reached
                    and self.plan.reach is not None
                    and done % self.plan.reach[1] == 0
                ):
                    reached = federation.evaluate("test")[score] >= self.plan.reach[0]
                    if reached:
                        self._reached(title, federation, done)
        except Diverged:
            for epoch in range(len(curve) + 1, settings.train.epochs + 1):
                curve.append((epoch, math.nan))
                if epoch in self.plan.epochs:
                    self.record(f"{title}, epoch {epoch}", math.nan)
        rows = len(federation.batches.splits["train"])
        self.losses.setdefault(title, []).append(
            [(epoch, sums.get(epoch, math.nan) / rows) for epoch, _ in curve]
        )
        return federation

    def federation(
        self, settings: Settings, seed: int, holdings: Holdings | None = None
    ) -> Federation:
        """The federation of these settings with another seed, over these holdings or at
        most the plan's rows."""
        if holdings is None:
            federation = Federation.from_settings(settings, seed=seed)
            if not self.plan.rows:
                return federation
            holdings = federation.holdings
            for split, most in self.plan.rows.items():
                holdings.splits[split] = holdings.splits[split][:most]
        return Federation(settings.with_seed(seed), holdings)

    def _reached(self, title: str, federation: Federation, rounds: int) -> None:
        """Record the training rounds so far, and the bytes a party sent and received in
        them; scoring is left out."""
        assert self.plan.reach is not None
        wanted = f"{self.plan.reach[0]:.0%}"
        ledger = federation.ledgers[next(iter(federation.owners))]
        moved = sum(
            entry.bytes
            for entry in ledger.entries
            if (entry.batch or "").startswith("train/")
        )
        self.record(f"{title}, rounds to {wanted}", rounds, "rounds")
        self.record(f"{title}, MB per party to {wanted}", moved / 1e6, "MB")
