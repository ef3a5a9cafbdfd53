"""Which rate C-VFL has on MNIST and ModelNet10 for each Q: the best of seven on
validation rows, mean of three seeds.

Embeddings go out as they are; data, models and epochs are those of `accuracy.py`. A
data set with a Q, a rate and a seed is a cell.
"""

from __future__ import annotations

import math

from colonnade import reproduction
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import script_of

ACCURACY = script_of(reproduction.plan("cvfl-accuracy"))
RATES = {
    "mnist": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    "modelnet10": (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2),
}
QUICK = {"modelnet10": (0.005, 0.05)}


def table(plan: Plan) -> dict[str, tuple[str, int, float, int]]:
    """Data, Q, rate and seed by the name of the cell: what takes longest first."""
    return {
        f"{data}, Q {q}, rate {rate:g}, seed {seed}": (data, q, rate, seed)
        for seed in plan.seeds
        for data, rates in (QUICK if plan.short else RATES).items()
        for q in reversed(ACCURACY.LOCAL_STEPS)
        for rate in rates
    }


def cells(plan: Plan) -> list[str]:
    return list(table(plan))


def run(study: Study, cell: str) -> None:
    data, q, rate, seed = table(study.plan)[cell]
    federation = ACCURACY.federation_of(
        study, ACCURACY.Run(data, q, "none", seed), rate
    )
    _, ended = ACCURACY.trained(study, cell, federation)
    for split in ("validation", "test"):
        score = federation.evaluate(split)["accuracy"] if ended else math.nan
        study.record(f"{data}, Q {q}, rate {rate:g}: {split}", score)


def finish(study: Study) -> None:
    """Of each data set and Q the rate that validation rows choose, where all rates are
    there; diverged is worst."""
    tried: dict[tuple[str, int], dict[float, float]] = {}
    for data, q, rate, _ in table(study.plan).values():
        found = study.measured.get(f"{data}, Q {q}, rate {rate:g}: validation")
        if found is not None:
            tried.setdefault((data, q), {})[rate] = (
                found.mean if math.isfinite(found.mean) else 0.0
            )
    for (data, q), scores in tried.items():
        if len(scores) == len((QUICK if study.plan.short else RATES)[data]):
            study.record(
                f"{data}, Q {q}: rate by validation rows",
                max(scores, key=lambda rate: scores[rate]),
                "",
            )
