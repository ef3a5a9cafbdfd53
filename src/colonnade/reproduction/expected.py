"""What a reproduction claims and how it is run, as its paper's `expected.json` says.

"vim-mnist": {
    "claim":   one sentence
    "config":  the federation file that all runs start from
    "runs":    {"VIMSGD": {"algorithm": {"name": "vimsgd"}}, ...}     what each run changes in it
                                                                     ("until": 8 ends a
                                                                     run after eight
                                                                     epochs)
    "script":  instead of runs, a file beside with `run(study)`; see `cells`
    "seeds":   [0, 1, 2]
    "epochs":  [2, 5, 10]                                            when the test rows are scored
    "reach":   [0.96, 10]                                            rounds and bytes to that score, a look every 10
    "panels":  ["loss", "score"]                                     what is drawn; without it, scores alone
    "figures": {"VIMSGD, epoch 10": {"paper": ..., "authors_code": ..., "at_least": ...,
    "at_most": ...}}
    "quick":   {"seeds": [0], "epochs": [2], "figures": {...}}       what fits into five minutes on two cores, and the
                                                                     bounds of that:
                                                                     those above are of
                                                                     the whole ("rows":
                                                                     {"test": 1000}, at
                                                                     most so many)
    "measured": what came out, and on what hardware
}
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.errors import ConfigError, did_you_mean
from colonnade.installation import REPOSITORY, project_url


@dataclass(frozen=True)
class Figure:
    """A number in the paper, the number from the authors' code where that was run, and
    the bounds that must hold."""

    paper: float | None = None
    authors_code: float | None = None
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Plan:
    """One reproduction."""

    name: str
    claim: str
    folder: Path
    config: Path
    seeds: tuple[int, ...]
    epochs: tuple[int, ...]
    figures: Mapping[str, Figure]
    runs: Mapping[str, Mapping[str, Any]]
    script: Path | None
    reach: tuple[float, int] | None
    quick: Mapping[str, Any]
    panels: tuple[str, ...] = ("score",)
    short: bool = False  # whether this is the quick version
    # the most rows of a split, by its name
    rows: Mapping[str, int] = field(default_factory=dict)

    def shortened(self) -> Plan:
        """The plan with fewer seeds, epochs or runs and other bounds, as `quick` says;
        `reach` is not measured."""
        quick = self.quick
        bounds: dict[str, dict[str, Any]] = quick["figures"]
        unbounded = {"at_least": None, "at_most": None}
        return dataclasses.replace(
            self,
            seeds=tuple(quick.get("seeds", self.seeds)),
            epochs=tuple(quick.get("epochs", self.epochs)),
            figures={
                name: dataclasses.replace(
                    self.figures.get(name, Figure()),
                    **(unbounded | bounds.get(name, {})),
                )
                for name in (*self.figures, *bounds)
            },
            runs={name: self.runs[name] for name in quick.get("runs", self.runs)},
            config=self.folder / quick["config"] if "config" in quick else self.config,
            reach=None,
            short=True,
            rows=quick.get("rows", {}),
        )


def folder() -> Path:
    """Where the reproductions are."""
    return in_repository("reproductions")


def in_repository(name: str) -> Path:
    """A folder of the repository that is not part of the installed package."""
    folder = REPOSITORY / name
    if not folder.is_dir():
        raise ConfigError(
            f"The {name} are not part of the installed package: clone"
            f" {project_url('Source')} and call this command in the environment that"
            " `make demo` makes there."
        )
    return folder


def plans() -> dict[str, Plan]:
    """Every reproduction there is."""
    all_plans: dict[str, Plan] = {}
    for path in sorted(folder().glob("*/expected.json")):
        for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
            all_plans[name] = _plan(name, entry, path.parent)
    return all_plans


def plan(name: str) -> Plan:
    """The reproduction of that name."""
    all_plans = plans()
    check_known("reproduction", name, list(all_plans))
    return all_plans[name]


def check_known(kind: str, name: str, known: list[str]) -> None:
    """Raise where nothing of that kind has that name."""
    if name not in known:
        raise ConfigError(
            f"There is no {kind} {name!r}{did_you_mean(name, known)}; there are"
            f" {', '.join(known)}."
        )


def _plan(name: str, entry: Mapping[str, Any], beside: Path) -> Plan:
    reach = entry.get("reach")
    return Plan(
        name=name,
        claim=entry["claim"],
        folder=beside,
        config=beside / entry["config"],
        seeds=tuple(entry["seeds"]),
        epochs=tuple(entry["epochs"]),
        figures={title: Figure(**figure) for title, figure in entry["figures"].items()},
        runs=entry.get("runs", {}),
        script=beside / entry["script"] if "script" in entry else None,
        reach=None if reach is None else (float(reach[0]), int(reach[1])),
        quick=entry["quick"],
        panels=tuple(entry.get("panels", ("score",))),
    )
