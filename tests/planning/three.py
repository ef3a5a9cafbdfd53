"""Three organisations with tables so small that a plan of them takes a moment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.federation import small

from colonnade.federation import Federation, Settings

Tables = dict[str, Any]
GAUSSIAN = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 3.0}}}


def frames(rows: int = 90) -> small.Frames:
    """The clinic, the laboratory, and a scanner with two columns more."""
    random = np.random.default_rng(1)
    found = small.frames(rows)
    values = random.normal(size=(rows, 2)).round(3)
    found["scan"] = pd.DataFrame(
        {
            "patient": found["clinic"]["patient"],
            "size": values[:, 0],
            "edge": values[:, 1],
        }
    )
    return found


def tables(**changes: Any) -> Tables:
    """63 training rows in batches of 16: the last of an epoch is shorter."""
    train = {
        "epochs": 3,
        "batch_size": 16,
        "early_stop": False,
        **changes.pop("train", {}),
    }
    return {**small.QUICK, "train": train, **changes}


def write(folder: Path, given: Mapping[str, Any], rows: int = 90) -> Path:
    return small.write(folder, frames(rows), given)


def federation(**changes: Any) -> Federation:
    return small.federation(frames(), tables(**changes))


def settings(folder: Path, given: Mapping[str, Any], rows: int = 90) -> Settings:
    return Settings.from_toml(write(folder, given, rows))
