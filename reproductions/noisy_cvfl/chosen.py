"""Accuracy of C-VFL at the rate that validation rows chose for each Q (`rates.py`),
with most of the codecs of `accuracy.py`: what they lose there, and what more local
iterations bring when every Q has its own rate.

Rates were chosen with embeddings as they are: a codec may do better at another. A data
set with a codec, a Q and a seed is a cell.
"""

from __future__ import annotations

import math
from typing import Any

from colonnade import reproduction
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import script_of

ACCURACY = script_of(reproduction.plan("cvfl-accuracy"))
CHOSEN = {
    "mnist": {1: 0.5, 5: 0.2, 10: 0.1},
    "modelnet10": {1: 0.05, 5: 0.01, 10: 0.005},
}
CODECS = (
    *(
        "none",
        "scalar 8",
        "noisy 8 + Bin(8, 0.5)",
        "top-k 0.12",
        "noisy 8 + Bin(32, 0.5)",
    ),
    *("scalar 2", "vector 64", "top-k 0.23"),
)
QUICK = {"data": ("modelnet10",), "q": (1, 10), "codec": ("none", "scalar 8")}


def table(plan: Plan) -> dict[str, Any]:
    """Every run by the name of its cell."""
    data, steps, codecs = (
        QUICK.values() if plan.short else (CHOSEN, ACCURACY.LOCAL_STEPS, CODECS)
    )
    runs = [
        ACCURACY.Run(one, q, codec, seed)
        for seed in plan.seeds
        for codec in codecs
        for one in data
        for q in steps
    ]
    return {f"{run.title}, seed {run.seed}": run for run in runs}


def cells(plan: Plan) -> list[str]:
    return list(table(plan))


def run(study: Study, cell: str) -> None:
    one = table(study.plan)[cell]
    federation = ACCURACY.federation_of(study, one, CHOSEN[one.data][one.q])
    _, ended = ACCURACY.trained(study, cell, federation)
    study.record(
        f"{one.title}: accuracy",
        federation.evaluate("test")["accuracy"] if ended else math.nan,
    )


def finish(study: Study) -> None:
    """What each codec lost against none, and how far ten local iterations are above
    one, seed by seed."""
    ACCURACY.finish(study)
    for data, codec in {
        (run.data, run.codec): None for run in table(study.plan).values()
    }:
        few, many = (
            study.measured.get(f"{data}, Q {q}, {codec}: accuracy") for q in (1, 10)
        )
        if few is not None and many is not None:
            for one, other in zip(few.by_seed, many.by_seed, strict=False):
                study.record(f"{data}, {codec}: Q 10 above Q 1", other - one)
