"""One shot: how many numbers a row are worth sending? AUC, and what is rebuilt of
columns, by width.

The defaults of 30,000 credit cards, as FATE cut them into two parties of 13 and 10
columns (`fate_vertical/default_credit_hetero_{guest,host}.csv.gz` under
COLONNADE_DATA), and with the sides swapped; where they are not there, and with
`--quick`, scikit-learn's breast cancer data, 15 and 15 columns. Beside it what the
label owner reaches alone (the other party then sends a number drawn at random) and with
all columns in one place, by the same estimator. The columns are rebuilt by model
inversion with the party's own map: mean R² (256 rows, none below 0). Last, four numbers
with noise under a budget, beside the noise alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from colonnade.attacks.audit import audit_federation
from colonnade.benchmark import Result
from colonnade.core.party import one_torch_thread
from colonnade.federation import Federation

CREDIT = "fate_vertical/default_credit_hetero_{}.csv.gz"
WIDTHS = (1, 2, 4, 6, 8)
WIDTH = 4
EPSILONS = (8.0, 32.0, 128.0)
ROWS = 256


def run(quick: bool) -> list[Result]:
    tasks = {} if quick else credit()
    with one_torch_thread():
        return [
            result
            for name, frames in (tasks or breast()).items()
            for result in _task(name, frames, quick)
        ]


def credit() -> dict[str, dict[str, Any]]:
    """Label owner first; nothing where the tables are not there."""
    import pandas as pd

    folder = Path(os.environ.get("COLONNADE_DATA", "."))
    if not (folder / CREDIT.format("guest")).exists():
        return {}
    guest, host = (
        pd.read_csv(folder / CREDIT.format(who)) for who in ("guest", "host")
    )
    swapped = {
        "bank": host.merge(guest[["id", "y"]], on="id"),
        "bureau": guest.drop(columns="y"),
    }
    return {"credit": {"bank": guest, "bureau": host}, "credit, sides swapped": swapped}


def breast() -> dict[str, dict[str, Any]]:
    from sklearn.datasets import load_breast_cancer

    frame = (
        load_breast_cancer(as_frame=True)
        .frame.rename(columns={"target": "y"})
        .rename_axis("id")
        .reset_index()
    )
    columns = list(frame.columns[1:-1])
    return {
        "breast cancer": {
            "clinic": frame[["id", *columns[::2], "y"]],
            "lab": frame[["id", *columns[1::2]]],
        }
    }


def _task(name: str, frames: Mapping[str, Any], quick: bool) -> Iterator[Result]:
    import numpy as np
    import pandas as pd

    owner, other = frames
    seeds = range(1 if quick else 3)
    joined = frames[owner].merge(
        frames[other].rename(columns=lambda c: c if c == "id" else f"{c} there"),
        on="id",
    )
    chance = np.random.default_rng(0).normal(size=len(joined))
    nothing = pd.DataFrame({"id": frames[owner]["id"], "chance": chance})
    for who, whole in (("alone", frames[owner]), ("all columns in one place", joined)):
        auc = fmean(
            _trained({owner: whole, other: nothing}, 1, seed).evaluate("test")["auc"]
            for seed in seeds
        )
        yield Result(f"{name}: {who}", f"AUC {auc:.3f}", numbers={"auc": auc})
    for width in (2, 4) if quick else WIDTHS:
        made = [_trained(frames, width, seed, record=not seed) for seed in seeds]
        auc = fmean(one.evaluate("test")["auc"] for one in made)
        found = audit_federation(made[0], rows=ROWS).findings
        inverted = next(
            one for one in found if one.attack == "columns by model inversion"
        )
        rebuilt = fmean(max(r2, 0.0) for r2 in inverted.details["r2"].values())
        best = inverted.score or 0.0
        told = f"AUC {auc:.3f}; R² of columns rebuilt {rebuilt:.2f}, of the best {best:.2f}"
        numbers = {
            "width": width,
            "auc": auc,
            "mean_r2": rebuilt,
            "best_r2": best,
        }
        yield Result(
            f"{name}: {width} numbers",
            told,
            f"{4 * width} bytes a row",
            numbers=numbers,
        )

    yield from _noise(name, frames, (8.0,) if quick else EPSILONS, seeds)


def _noise(
    name: str,
    frames: Mapping[str, Any],
    epsilons: Sequence[float],
    seeds: Sequence[int],
) -> Iterator[Result]:
    """Under a budget for that one release of every row, and the control: the same noise
    without the row."""
    _, other = frames
    for epsilon in epsilons:
        rule = {"name": "gaussian", "clip": 1.0, "sigma": "auto"}
        budgeted = {
            other: {
                "outbox": {"embedding": {"mechanism": rule}},
                "budget": {"epsilon": epsilon},
            }
        }
        made = [_trained(frames, WIDTH, seed, parties=budgeted) for seed in seeds]
        sigma = made[0].organisations[other].outbox.rule("embedding").mechanism.sigma
        alone = {"mechanism": {"name": "noise_only", "clip": 1.0, "sigma": sigma}}
        control = [
            _trained(
                frames, WIDTH, seed, parties={other: {"outbox": {"embedding": alone}}}
            )
            for seed in seeds
        ]
        auc, without = (
            fmean(one.evaluate("test")["auc"] for one in each)
            for each in (made, control)
        )
        told = f"AUC {auc:.3f} with noise for ε = {epsilon:g} (σ = {sigma:.2f})"
        numbers = {"epsilon": epsilon, "auc": auc, "noise alone": without}
        yield Result(
            f"{name}: {WIDTH} numbers with noise",
            told,
            f"noise alone {without:.3f}",
            numbers=numbers,
        )


def _trained(
    frames: Mapping[str, Any],
    width: int,
    seed: int,
    record: bool = False,
    parties: Mapping[str, Any] | None = None,
) -> Any:
    settings = {
        "algorithm": {"name": "one_shot", "width": width},
        "data": {"validation": 0.0, "test": 0.2},
        "preprocess": {"numbers": "standard"},
        "federation": {"seed": seed, "device": "cpu"},
        "parties": dict(parties or {}),
    }
    made = Federation.from_frames(
        frames, id="id", label="y", settings=settings, record=record
    )
    for _ in made.train():
        pass
    return made
