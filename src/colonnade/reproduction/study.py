"""A plan being carried out: every run for every seed, and what was measured next to what the paper says."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.core import Step
from colonnade.errors import Diverged
from colonnade.evaluate.metrics import HEADLINE
from colonnade.federation import Federation, Settings
from colonnade.federation.holdings import Holdings
from colonnade.reproduction.expected import Figure, Plan, plan

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
        """Between seeds; of one seed it is not known."""
        return statistics.stdev(self.by_seed) if len(self.by_seed) > 1 else float("nan")

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
    """A plan with what it found so far. A script records what it measures; bounds are looked up by name."""

    def __init__(self, plan: Plan, watch: Watch | None = None) -> None:
        self.plan, self.watch = plan, watch
        self.measured: dict[str, Measured] = {}
        self.curves: dict[str, Curves] = {}  # run -> its test scores
        self.losses: dict[str, Curves] = {}  # run -> its mean losses while it trained

    @property
    def holds(self) -> bool:
        """Whether everything that was measured and has a bound is within it."""
        return all(one.holds is not False for one in self.measured.values())

    def record(self, what: str, value: float, unit: str = "%") -> None:
        one = self.measured.setdefault(what, Measured(what, self.plan.figures.get(what, Figure()), unit))
        one.by_seed.append(value)

    def settings(self, changes: Mapping[str, Any] | None = None) -> Settings:
        """The plan's federation file with some settings changed."""
        tables = Settings.from_toml(self.plan.config).to_mapping()
        changes = dict(changes or {})
        if "name" in changes.get("algorithm", {}):
            tables["algorithm"] = {}  # another algorithm has other settings
        for section, values in changes.items():
            tables[section] = {**tables.get(section, {}), **values}
        tables["train"] = {**tables["train"], "epochs": max(self.plan.epochs), "early_stop": False}
        return Settings.from_mapping(tables, where=self.plan.name)

    def train(self, title: str, settings: Settings, seed: int, holdings: Holdings | None = None) -> Federation:
        """One run to its end; its test scores at the plan's epochs become its curve and are recorded. A run that
        diverges scores NaN from there on."""
        federation = self.federation(settings, seed, holdings)
        score = HEADLINE[federation.holdings.encoder.task]
        curve: list[tuple[int, float]] = []
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
                done = step.batch.step + 1
                if not reached and self.plan.reach is not None and done % self.plan.reach[1] == 0:
                    reached = federation.evaluate("test")[score] >= self.plan.reach[0]
                    if reached:
                        self._reached(title, federation, done)
        except Diverged:
            curve += [(epoch, math.nan) for epoch in range(len(curve) + 1, settings.train.epochs + 1)]
        for epoch in self.plan.epochs:
            self.record(f"{title}, epoch {epoch}", curve[epoch - 1][1])
        self.curves.setdefault(title, []).append(curve)
        rows = len(federation.batches.splits["train"])
        self.losses.setdefault(title, []).append([(epoch, sums.get(epoch, math.nan) / rows) for epoch, _ in curve])
        return federation

    def federation(self, settings: Settings, seed: int, holdings: Holdings | None = None) -> Federation:
        """With the seed in the settings' place; over other holdings than the settings name, if given."""
        if holdings is None:
            return Federation.from_settings(settings, seed=seed)
        engine = dataclasses.replace(settings.engine, seed=seed)
        return Federation(dataclasses.replace(settings, engine=engine), holdings)

    def _reached(self, title: str, federation: Federation, rounds: int) -> None:
        """Training rounds, and the bytes a party sent and received in them; the looks at test rows are left out."""
        assert self.plan.reach is not None
        wanted = f"{self.plan.reach[0]:.0%}"
        ledger = federation.ledgers[next(iter(federation.owners))]
        moved = sum(entry.bytes for entry in ledger.entries if (entry.batch or "").startswith("train/"))
        self.record(f"{title}, rounds to {wanted}", rounds, "rounds")
        self.record(f"{title}, MB per party to {wanted}", moved / 1e6, "MB")


def reproduce(name: str, *, quick: bool = False, watch: Watch | None = None) -> Study:
    """Run it for every seed and compare."""
    chosen = plan(name).shortened() if quick else plan(name)
    study = Study(chosen, watch)
    if chosen.script is not None:
        _load(chosen.script).run(study)
        return study
    for title, changes in chosen.runs.items():
        settings = study.settings(changes)
        for seed in chosen.seeds:
            study.train(title, settings, seed)
    return study


def _load(script: Path) -> Any:
    """A paper's own script, as a module."""
    spec = importlib.util.spec_from_file_location(f"colonnade_reproduction_{script.parent.name}_{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
