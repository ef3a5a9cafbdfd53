"""A round of a logistic regression between two organisations of 20 columns each, plain
and encrypted: processor seconds of both together, and bytes both ways. Columns are
random: only time and traffic are of interest."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd

from colonnade import Federation
from colonnade.benchmark import Result

COLUMNS = 20
ROUNDS = 4


def run(quick: bool) -> list[Result]:
    results = []
    for rows in (1_000,) if quick else (1_000, 10_000):
        (plain, few), (seconds, many) = (
            _round(rows, encryption) for encryption in ("none", "bfv")
        )
        results.append(
            Result(
                f"a round of {rows:,} rows and {COLUMNS} columns, encrypted",
                f"{seconds:.2f} s of a core, {many / 1e6:.2f} MB",
                f"plain {plain:.3f} s, {few / 1e6:.3f} MB",
                numbers={"processor seconds": seconds, "bytes": many},
            )
        )
    return results


def _round(rows: int, encryption: str) -> tuple[float, float]:
    """Processor seconds and bytes, after the first round, in which keys are made."""
    x = np.random.default_rng(0).normal(size=(rows, 2 * COLUMNS))
    frame = pd.DataFrame(x, columns=[f"c{at}" for at in range(2 * COLUMNS)]).assign(
        id=[str(at) for at in range(rows)]
    )
    frames = {
        "bank": (
            frame.iloc[:, :COLUMNS].assign(
                id=frame["id"], label=(x.sum(1) > 0).astype(int)
            )
        ),
        "shop": frame.iloc[:, COLUMNS:],
    }
    settings = {
        "algorithm": {"name": "logistic_regression", "encryption": encryption},
        "data": {"test": 0.0, "validation": 0.0},
        "preprocess": {"numbers": "standard"},
        "train": {"epochs": ROUNDS + 1, "early_stop": False},
        "federation": {"device": "cpu"},
    }
    federation = Federation.from_frames(
        frames, id="id", label="label", settings=settings
    )
    steps = federation.train()
    next(steps)
    begun = len(federation.ledgers["shop"].entries)
    start = time.process_time()
    for _ in range(ROUNDS):
        next(steps)
    taken = time.process_time() - start
    return (
        taken / ROUNDS,
        sum(entry.bytes for entry in federation.ledgers["shop"].entries[begun:])
        / ROUNDS,
    )
