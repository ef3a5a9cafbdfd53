"""Small trained federations, each made once: three organisations, of which one holds
nothing but noise."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch

from colonnade.federation import Federation

ALGORITHMS = (
    "vimadmm",
    "vimsgd",
    "splitnn",
    "vafl",
    "fdml",
    "vimadmm_joint",
    "logistic_regression",
)
WITHOUT_HEADS = ("fdml", "vimadmm_joint", "logistic_regression")


def frames(task: str = "classes", rows: int = 500) -> dict[str, pd.DataFrame]:
    """`strong` and `weak` hold what the label is made from, `noise` holds nothing of
    it."""
    random = np.random.default_rng(5)
    x = random.normal(size=(rows, 6))
    total = 1.5 * (x[:, 0] + x[:, 1]) + 1.2 * x[:, 2]
    label: Any = {
        "binary": np.where(total > 0, "ill", "well"),
        "classes": np.array(["high", "low", "mid"])[np.digitize(total, [-1.5, 1.5])],
        "regression": 100 + 20 * total,
    }[task]
    ids = [f"P{number:03d}" for number in range(rows)]
    columns = {"strong": x[:, :2], "weak": x[:, 2:4], "noise": x[:, 4:]}
    made = {
        name: pd.DataFrame({"id": ids, "a": two[:, 0], "b": two[:, 1]})
        for name, two in columns.items()
    }
    made["weak"]["y"] = label
    return made


def settings(name: str = "vimadmm", **changes: Any) -> dict[str, Any]:
    return {
        "preset": "vim-mnist",
        "algorithm": {"name": name, **changes.pop("algorithm", {})},
        "model": {"name": "mlp", "hidden": [8], "width": 4},
        "train": (
            {"epochs": 8, "batch_size": 64, "early_stop": False}
            | changes.pop("train", {})
        ),
        "federation": {"device": "cpu"},
        **changes,
    }


def fresh(name: str = "vimadmm", task: str = "classes", **changes: Any) -> Federation:
    federation = Federation.from_frames(
        frames(task), id="id", label="y", settings=settings(name, **changes)
    )
    for _ in federation.train():
        pass
    return federation


@cache
def trained(algorithm: str = "vimadmm", task: str = "classes") -> Federation:
    """Shared by tests, which leave it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return fresh(algorithm, task)
    finally:
        torch.set_num_threads(before)
