"""Finished runs of small federations whose tables have gaps and words, to be exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.federation import small, small_multi

from colonnade.federation import Federation, Settings


def frames(task: small.Task = "binary") -> small.Frames:
    """As the small ones; the laboratory also has words, rare ones and gaps."""
    given = small.frames(task=task)
    random = np.random.default_rng(3)
    words = random.choice(["blood", "urine", "hair"], len(given["lab"]))
    given["lab"] = given["lab"].assign(
        tissue=pd.Series(words, index=given["lab"].index)
    )
    given["lab"].loc[given["lab"].index[:7], "tissue"] = None
    given["clinic"].loc[[3, 11, 40], "weight"] = np.nan
    return given


def run(
    folder: Path, algorithm: dict[str, Any], task: small.Task = "binary", **changes: Any
) -> Path:
    """A finished run in folder / "run", its tables beside it."""
    if algorithm["name"] == "multi_vfl":
        path = small_multi.write(folder, {**small_multi.QUICK, "algorithm": algorithm})
    else:
        path = small.write(
            folder, frames(task), {**small.quick(**changes), "algorithm": algorithm}
        )
    own = Settings.from_toml(path).code()
    Federation.from_toml(path, allow_models=own).fit(folder / "run")
    return folder / "run"
