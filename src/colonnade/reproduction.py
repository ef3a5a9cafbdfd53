"""Reproductions: a paper's claim, a federation file, and what must come out, measured next to the paper's figure.

    reproductions/<paper>/    README.md    configs/*.toml    expected.json

`expected.json` names each reproduction, its seeds and checks. A check is a score at an epoch, averaged over seeds,
with the paper's figure, the authors' own code where it was run, and the bound that must hold.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.core import Step
from colonnade.core.checks import did_you_mean
from colonnade.errors import ConfigError
from colonnade.federation import Federation, Settings

Watch = Callable[[str, "Step | dict[str, Any]"], None]
"""Called with a line that says which run it is, and that run's steps and records."""


@dataclass(frozen=True)
class Check:
    """A score that must be reached."""

    epoch: int
    metric: str
    at_least: float
    paper: float | None = None
    authors_code: float | None = None


@dataclass(frozen=True)
class Plan:
    """One reproduction as `expected.json` describes it."""

    name: str
    claim: str
    config: Path
    seeds: tuple[int, ...]
    epochs: int
    checks: tuple[Check, ...]
    quick: dict[str, Any]

    def shortened(self) -> Plan:
        """What fits into five minutes on two cores: fewer seeds and epochs, and the checks that remain."""
        epochs = int(self.quick["epochs"])
        kept = tuple(check for check in self.checks if check.epoch <= epochs)
        return dataclasses.replace(self, seeds=tuple(self.quick["seeds"]), epochs=epochs, checks=kept)


@dataclass
class Measured:
    """One check with what came out."""

    check: Check
    by_seed: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.by_seed) / len(self.by_seed) if self.by_seed else float("nan")  # stopped before that epoch

    @property
    def holds(self) -> bool:
        return self.mean >= self.check.at_least

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self.check) | {
            "by_seed": self.by_seed,
            "mean": self.mean if self.by_seed else None,
            "holds": self.holds,
        }


def folder() -> Path:
    """Where the reproductions are: in the installed package, or in the repository."""
    inside = Path(__file__).parent / "_reproductions"
    return inside if inside.exists() else Path(__file__).parents[2] / "reproductions"


def plans() -> dict[str, Plan]:
    """Every reproduction there is."""
    found: dict[str, Plan] = {}
    for path in sorted(folder().glob("*/expected.json")):
        for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
            found[name] = Plan(
                name,
                entry["claim"],
                path.parent / entry["config"],
                tuple(entry["seeds"]),
                entry["epochs"],
                tuple(Check(**check) for check in entry["checks"]),
                entry["quick"],
            )
    return found


def plan(name: str) -> Plan:
    """The reproduction of that name."""
    known = plans()
    if name not in known:
        hint = did_you_mean(name, list(known))
        raise ConfigError(f"There is no reproduction {name!r}{hint}; there are {', '.join(known)}.")
    return known[name]


def reproduce(name: str, *, quick: bool = False, watch: Watch | None = None) -> list[Measured]:
    """Run it for every seed and compare; `holds` says whether each check was reached."""
    chosen = plan(name).shortened() if quick else plan(name)
    measured = [Measured(check) for check in chosen.checks]
    settings = Settings.from_toml(chosen.config)
    settings = dataclasses.replace(settings, train=dataclasses.replace(settings.train, epochs=chosen.epochs))
    for seed in chosen.seeds:
        federation = Federation.from_settings(settings, seed=seed)
        title = f"{name}, seed {seed}"

        def on(event: Step | dict[str, Any], federation: Federation = federation, title: str = title) -> None:
            if isinstance(event, dict):
                due = [one for one in measured if one.check.epoch == event["epoch"]]
                event["test"] = federation.evaluate("test") if due else {}
                for one in due:
                    one.by_seed.append(event["test"][one.check.metric])
            if watch is not None:
                watch(title, event)

        federation.fit(watch=on)
    return measured
