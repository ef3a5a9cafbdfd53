"""Two hospitals with diagnoses and two centres with columns, so small that a federation
of them trains in a moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.federation import Federation
from colonnade.settings.toml_text import to_toml

Frames = dict[str, pd.DataFrame]
QUICK: dict[str, Any] = {
    "algorithm": {"name": "multi_vfl", "learning_rate": 0.01},
    "preprocess": {"numbers": "standard"},
    "model": {"name": "mlp", "hidden": [6], "width": 4},
    "label_model": {"name": "mlp", "hidden": [5]},
    "train": {"epochs": 3, "batch_size": 16, "early_stop": False},
    "federation": {"device": "cpu"},
}
LABELS = ("north", "south")
COLUMNS = ("lab", "scan")
GAUSSIAN = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 4.0}}}


def quick(**changes: Any) -> dict[str, Any]:
    """`QUICK` with changes: quick(train={"epochs": 1}, data_owners=[{"name": "lab",
    ...}])."""
    return {
        key: (
            changes[key]
            if isinstance(changes.get(key), list)
            else {**QUICK.get(key, {}), **changes.get(key, {})}
        )
        for key in {**QUICK, **changes}
    }


def frames(people: int = 150) -> Frames:
    """North knows the first 90, south the last 80, so 20 are known to both; the centres
    know everybody."""
    random = np.random.default_rng(0)
    x = random.normal(size=(people, 4)).round(3)
    ids = np.array([f"P{number:03d}" for number in range(people)])
    ill = np.where(x @ np.array([1.0, -2.0, 1.5, 0.5]) > 0, "ill", "well")
    known = {"north": range(90), "south": range(people - 80, people)}
    found = {
        k: pd.DataFrame({"patient": ids[list(rows)], "diagnosis": ill[list(rows)]})
        for k, rows in known.items()
    }
    found["lab"] = pd.DataFrame(
        {"patient": ids, "iron": x[:, 0], "zinc": x[:, 1]}
    ).sample(frac=1, random_state=1)
    found["scan"] = pd.DataFrame({"patient": ids, "size": x[:, 2], "edge": x[:, 3]})
    return found


def some(given: Frames, names: Iterable[str]) -> Frames:
    return {name: given[name] for name in names}


def federation(
    settings: Mapping[str, Any] = QUICK, given: Frames | None = None
) -> Federation:
    held = frames() if given is None else given
    labelled = some(held, LABELS)
    columns = some(held, COLUMNS)
    return Federation.from_frames(
        columns,
        label_owners=labelled,
        id="patient",
        label="diagnosis",
        settings=settings,
    )


def write(
    folder: Path, settings: Mapping[str, Any] = QUICK, given: Frames | None = None
) -> Path:
    """The same as files: one CSV per organisation and the federation file, whose path
    is given back."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in (frames() if given is None else given).items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    tables = {**settings, "data": {"id": "patient", **settings.get("data", {})}}
    for section, names in (("label_owners", LABELS), ("data_owners", COLUMNS)):
        more = {one["name"]: one for one in settings.get(section, [])}
        label = {"label": "diagnosis"} if section == "label_owners" else {}
        tables[section] = [
            {"name": n, "table": f"{n}.csv", **label, **more.get(n, {})} for n in names
        ]
    path = folder / "federation.toml"
    path.write_text(to_toml(tables), encoding="utf-8")
    return path
