"""A clinic and a laboratory with tables so small that a federation of them trains in a
moment."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from colonnade.core import DpEvent, files
from colonnade.core.chance import Source
from colonnade.errors import BudgetExhausted
from colonnade.federation import Federation, Settings
from colonnade.settings.toml_text import to_toml

Task = Literal["binary", "classes", "regression"]
Frames = dict[str, pd.DataFrame]
Tables = dict[str, dict[str, Any]]

QUICK: Tables = {
    "algorithm": {"name": "vimadmm", "local_steps": 2},
    "preprocess": {"numbers": "standard"},
    "model": {"name": "mlp", "hidden": [6], "width": 4},
    "train": {"epochs": 2, "batch_size": 16},
    "federation": {"device": "cpu"},
}


def quick(**changes: Mapping[str, Any]) -> Tables:
    """`QUICK` with changes: quick(train={"epochs": 1})."""
    return {
        key: {**QUICK.get(key, {}), **changes.get(key, {})}
        for key in {**QUICK, **changes}
    }


def splitnn(**changes: Mapping[str, Any]) -> Tables:
    return {
        **quick(**changes),
        "algorithm": {"name": "splitnn", **changes.get("algorithm", {})},
    }


THREE = quick(train={"epochs": 3, "early_stop": False})
THREE_EACH = [THREE, splitnn(train={"epochs": 3, "early_stop": False})]


def frames(rows: int = 80, task: Task = "binary", seed: int = 0) -> Frames:
    """The clinic holds two columns and the label, the laboratory two other columns in
    another row order."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4)).round(3)
    total = x @ np.array([1.0, -2.0, 1.5, 0.5])
    label: Any = {
        "binary": np.where(total > 0, "ill", "well"),
        "classes": np.array(["high", "low", "mid"])[np.digitize(total, [-1.0, 1.0])],
        "regression": 100 + 20 * total,
    }[task]
    ids = [f"P{number:03d}" for number in range(rows)]
    clinic = pd.DataFrame(
        {"patient": ids, "age": x[:, 0], "weight": x[:, 1], "diagnosis": label}
    )
    lab = pd.DataFrame({"patient": ids, "iron": x[:, 2], "zinc": x[:, 3]})
    return {"clinic": clinic, "lab": lab.sample(frac=1, random_state=1)}


def federation(
    given: Frames | None = None,
    settings: Mapping[str, Any] = QUICK,
    *,
    record: bool = False,
) -> Federation:
    return Federation.from_frames(
        frames() if given is None else given,
        id="patient",
        label="diagnosis",
        settings=settings,
        record=record,
    )


def write(
    folder: Path, given: Frames | None = None, settings: Mapping[str, Any] = QUICK
) -> Path:
    """The same as files: one CSV per party and the federation file, whose path is given
    back."""
    folder.mkdir(parents=True, exist_ok=True)
    parties: dict[str, Any] = {}
    for name, frame in (frames() if given is None else given).items():
        frame.to_csv(folder / f"{name}.csv", index=False)
        label = {"label": "diagnosis"} if "diagnosis" in frame.columns else {}
        parties[name] = {
            "table": f"{name}.csv",
            **label,
            **settings.get("parties", {}).get(name, {}),
        }
    tables = {
        **settings,
        "parties": parties,
        "data": {"id": "patient", **settings.get("data", {})},
    }
    path = folder / "federation.toml"
    path.write_text(to_toml(tables), encoding="utf-8")
    return path


def tensors(state: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a nested state with their places."""
    if isinstance(state, Tensor):
        yield path, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from tensors(value, f"{path}/{key}")
    elif isinstance(state, (list, tuple)):
        for number, value in enumerate(state):
            yield from tensors(value, f"{path}/{number}")


def learned_of(one: Federation) -> dict[str, Tensor]:
    """Every tensor that any party must remember: parameters, heads, duals, optimizers,
    random numbers."""
    return {
        place: t.clone()
        for party in one.organisations
        for place, t in tensors(one.organisations[party].state(), party)
    }


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def models_of(one: Federation) -> dict[str, Tensor]:
    """What was learned about the data alone: local models and what the label owner
    holds."""
    return {
        place: t
        for place, t in learned_of(one).items()
        if "/seat/" not in place and "/optimizer/" not in place
    }


def checkpoint_of(run: Path) -> dict[str, Tensor]:
    """Every tensor in the last checkpoint on disk."""
    number = json.loads((run / "checkpoint.json").read_text())["number"]
    found: dict[str, Tensor] = {}
    for folder in sorted((run / "parties").iterdir()):
        found |= tensors(
            files.read_state(folder / f"checkpoint-{number:06d}"), folder.name
        )
    return found


def records(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the times."""
    lines = [
        json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    return [
        {key: value for key, value in line.items() if key != "seconds"}
        for line in lines
    ]


def ledgers(run: Path) -> dict[str, str]:
    return {
        folder.name: (folder / "ledger.jsonl").read_text()
        for folder in sorted((run / "parties").iterdir())
    }


def entries(run: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for text in ledgers(run).values() for line in text.splitlines()
    ]


def settings_of(**tables: Any) -> Settings:
    return Settings.from_mapping(tables)


def with_models(settings: Settings, models: str | None) -> Settings:
    """With "seeded" models, sites train what one process would, to the bit; None leaves
    them to each owner's file."""
    if models is None:
        return settings
    parties = {
        name: one.changed(models=models) for name, one in settings.parties.items()
    }
    owners = {
        name: one.changed(models=models) for name, one in settings.label_owners.items()
    }
    return dataclasses.replace(settings, parties=parties, label_owners=owners)


class Spent:
    """A mechanism that refuses once it was used so many times."""

    def __init__(self, after: int = 3) -> None:
        self.left = after

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        if self.left == 0:
            raise BudgetExhausted(
                "'lab' will not release \"embedding\" again: its budget is spent."
            )
        self.left -= 1
        return tensor, DpEvent("gaussian", {"sigma": 0.0})


class Tower(nn.Module):
    """A model of the user's own."""

    def __init__(self, shape: tuple[int, ...], depth: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(shape[0], shape[0]) for _ in range(depth))
        self.last = nn.Linear(shape[0], 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        out: Tensor = self.last(x)
        return out


class Broken(Tower):
    """Fails when it trains."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("the tower fell")
        return super().forward(x)


class Forgetful(Tower):
    """Draws random numbers when it trains."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.dropout = nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(super().forward(x))
        return out
