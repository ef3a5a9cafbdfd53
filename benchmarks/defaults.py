"""How good is what a user gets who sets nothing? Every table at hand, against models
that see all columns in one place.

Each table is divided between two organisations: FATE's pairs as they are, the others by
halves of their columns. The federation has the label, the algorithm's name and the
seed, and nothing else. On the same rows scikit-learn's boosting (HistGradientBoosting),
a network (MLP) and a linear model learn from all columns together, from training and
validation rows, as nobody must watch when to stop. Regret is the best of these three on
the test rows minus the federation: AUC of two classes, accuracy of more, R squared of
numbers. Whoever takes the best of three for each seed has seen its test rows: the three
have a regret by this measure, too, which is printed beside ours, as is what the
federation lacks to the one of them that is best on a table over all seeds. Tables of
more than `ROWS` rows are drawn from, with the seed. A linear algorithm is held to the
linear model alone. What is encrypted by default runs in the open here (`OPEN`): that
gives the same model, in minutes instead of a day.

A cell is a table, a seed and an algorithm ("letter, 2, splitnn"), or the models that
see all columns ("letter, 2, centralized"). Nothing was chosen by the seeds measured
here, but for one thing: that models of many classes keep an activation after the last
layer was noticed by them on `letter`, and settled by seed 0. docs/how-to-tune.md says
by which seeds everything else was.

FATE's pairs are read from the folder COLONNADE_DATA, and left out where it has none.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd

from colonnade.algorithms import ALGORITHMS, DEFAULT
from colonnade.benchmark import Cells, Result
from colonnade.core.party import one_torch_thread
from colonnade.errors import ColonnadeError
from colonnade.federation import Federation

ROWS = 3000
SEEDS = (10, 11, 12)
CENTRAL = "centralized"
RECOMMENDED = 0.01
EVERY = 0.03
PAIRS = {  # name -> id, label, whether it is a number
    "breast": ("id", "y", False),
    "default_credit": ("id", "y", False),
    "dvisits": ("id", "doctorco", True),
    "ionosphere_scale": ("sid", "label", False),
    "motor": ("idx", "motor_speed", True),
    "student": ("id", "y", True),
}
OPEN: dict[str, dict[str, str]] = {
    "boosted_trees": {"encryption": "none"},
    "knn": {"aggregation": "plain"},
    "vfedcce": {"mode": "plaintext"},
}
STORED = {
    "south_german_credit": "credit_risk",
    "statlog_german_credit": "credit_risk",
    "letter": "lettr",
}


@dataclass(frozen=True, eq=False)
class Task:
    """One table, divided between two organisations; the first has the label."""

    name: str
    frames: dict[str, pd.DataFrame]
    id: str
    label: str
    is_number: bool


@lru_cache(maxsize=1)
def tables() -> tuple[Task, ...]:
    """All that can be read here, read once."""
    return tuple(_tables())


def _tables() -> Iterator[Task]:
    from sklearn import datasets as ready

    folder = Path(os.environ.get("COLONNADE_DATA", "."))
    for name, (id_, label, is_number) in PAIRS.items():
        paths = [
            folder / "fate_vertical" / f"{name}_hetero_{side}.csv.gz"
            for side in ("guest", "host")
        ]
        if all(path.exists() for path in paths):
            guest, host = (_usable(pd.read_csv(path)) for path in paths)
            yield Task(name, {"guest": guest, "host": host}, id_, label, is_number)
    for name, label in STORED.items():
        path = folder / name / f"{name}.csv.gz"
        if path.exists():
            yield _halves(name, pd.read_csv(path), label, is_number=False)
    for path in sorted(folder.glob("bank_marketing/*full*.csv.gz")):
        frame = pd.read_csv(path, sep=None, engine="python")
        name = path.name.removesuffix("-full.csv.gz")
        yield _halves(
            name, frame.drop(columns="duration", errors="ignore"), "y", is_number=False
        )
    classes = {
        "breast_cancer": ready.load_breast_cancer,
        "wine": ready.load_wine,
        "iris": ready.load_iris,
    }
    for name, load in (classes | {"digits": ready.load_digits}).items():
        yield _halves(name, load(as_frame=True).frame, "target", is_number=False)
    yield _halves(
        "diabetes", ready.load_diabetes(as_frame=True).frame, "target", is_number=True
    )


def _usable(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.loc[:, [column for column in frame if frame[column].nunique() > 1]]


def _halves(name: str, frame: pd.DataFrame, label: str, *, is_number: bool) -> Task:
    frame = _usable(frame).assign(row=[f"r{number}" for number in range(len(frame))])
    columns = [column for column in frame if column not in (label, "row")]
    first = columns[: len(columns) // 2]
    second = columns[len(columns) // 2 :]
    return Task(
        name,
        {"one": frame[["row", label, *first]], "two": frame[["row", *second]]},
        "row",
        label,
        is_number,
    )


def drawn(task: Task, seed: int, rows: int) -> dict[str, pd.DataFrame]:
    """At most so many rows, the same of both."""
    first, second = task.frames.values()
    if len(first) > rows:
        kept = first[task.id].sample(rows, random_state=seed)
        first = first[first[task.id].isin(kept)]
    second = second[second[task.id].isin(first[task.id])]
    return dict(zip(task.frames, (first, second), strict=True))


def federation(task: Task, name: str, seed: int, rows: int) -> Federation:
    """What a user has who names the algorithm and nothing else."""
    kind = "regression" if task.is_number else "classification"
    algorithm = {"name": name, **OPEN.get(name, {})}
    settings = {
        "algorithm": algorithm,
        "data": {"task": kind},
        "federation": {"seed": seed},
    }
    return Federation.from_frames(
        drawn(task, seed, rows), id=task.id, label=task.label, settings=settings
    )


def federated(task: Task, name: str, seed: int, rows: int) -> tuple[float, list[str]]:
    """Its score on the test rows, and what it says is wrong with it."""
    summary = federation(task, name, seed, rows).fit().summary
    scores = summary["metrics"]["test"]
    score = float(
        scores["r2"] if task.is_number else scores.get("auc", scores["accuracy"])
    )
    return score, [str(one) for one in summary.get("findings", [])]


def centralized(task: Task, seed: int, rows: int) -> dict[str, float]:
    """Scores on a federation's own test rows, whatever its algorithm, of models that
    see all columns."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    first, second = drawn(task, seed, rows).values()
    whole = first.merge(second, on=task.id, suffixes=("", " too")).set_index(task.id)
    whole.index = whole.index.astype(str)
    y = whole[task.label]
    x = whole.drop(columns=task.label)
    text = x.select_dtypes(exclude="number").columns
    numbers = x.select_dtypes("number").columns
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    columns = make_column_transformer(
        (scaled, numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), text),
    )
    held = federation(task, DEFAULT, seed, rows).holdings
    split = {name: held.ids[rows_.numpy()] for name, rows_ in held.splits.items()}
    learn = np.concatenate([split["train"], split["validation"]])
    test = split["test"]
    models = {
        "boosting": (
            HistGradientBoostingRegressor
            if task.is_number
            else HistGradientBoostingClassifier
        )(random_state=seed),
        "network": (MLPRegressor if task.is_number else MLPClassifier)(
            max_iter=200, random_state=seed
        ),
        "linear": Ridge() if task.is_number else LogisticRegression(max_iter=2000),
    }
    found = {}
    for name, model in models.items():
        fitted = make_pipeline(columns, model)
        if task.is_number:
            mean = y[learn].mean()
            deviation = y[learn].std()
            fitted.fit(x.loc[learn], (y[learn] - mean) / deviation)
            found[name] = float(
                r2_score(y[test], fitted.predict(x.loc[test]) * deviation + mean)
            )
        else:
            fitted.fit(x.loc[learn], y[learn])
            if y.nunique() == 2:
                found[name] = float(
                    roc_auc_score(y[test], fitted.predict_proba(x.loc[test])[:, 1])
                )
            else:
                found[name] = float(
                    accuracy_score(y[test], fitted.predict(x.loc[test]))
                )
    return found


def measure(cell: str, rows: int) -> dict[str, Any]:
    """What one algorithm, or what is central, reaches on one table with one seed."""
    named, seed, name = cell.split(", ")
    task = next(task for task in tables() if task.name == named)
    start = time.perf_counter()
    with one_torch_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == CENTRAL:
            return centralized(task, int(seed), rows)
        try:
            score, findings = federated(task, name, int(seed), rows)
        except ColonnadeError as error:  # told, so nobody takes it for a result
            return {"error": str(error)}
    return {
        "score": score,
        "findings": findings,
        "seconds": round(time.perf_counter() - start, 1),
    }


def results(measured: Mapping[str, dict[str, Any]]) -> list[Result]:
    """The mean regret of every algorithm, of the tables and seeds for which what is
    central was measured, too."""
    # of an algorithm by table and seed
    regrets: dict[str, dict[str, dict[str, float]]] = {}
    # of an algorithm by table, to the model that is best there
    one_model: dict[str, dict[str, float]] = {}
    unsound = {
        cell: told
        for cell, told in measured.items()
        if "error" in told or told.get("findings")
    }
    for cell, told in measured.items():
        table, seed, name = cell.split(", ")
        best = measured.get(f"{table}, {seed}, {CENTRAL}")
        if name == CENTRAL or best is None or "error" in told:
            continue
        rival = (
            max(best.values()) if ALGORITHMS[name].intercept is None else best["linear"]
        )
        regrets.setdefault(name, {}).setdefault(table, {})[seed] = rival - told["score"]
    for name, by_table in regrets.items():
        for table, by_seed in by_table.items():
            central = [measured[f"{table}, {seed}, {CENTRAL}"] for seed in by_seed]
            scores = [measured[f"{table}, {seed}, {name}"]["score"] for seed in by_seed]
            kinds = central[0] if ALGORITHMS[name].intercept is None else ["linear"]
            best_kind = max(fmean(one[kind] for one in central) for kind in kinds)
            one_model.setdefault(name, {})[table] = best_kind - fmean(scores)
    found = [_central(measured)]
    for name, by_table in regrets.items():
        means = {table: fmean(scores.values()) for table, scores in by_table.items()}
        bound = RECOMMENDED if name == DEFAULT else EVERY
        worst = max(means, key=lambda table: means[table])
        found.append(
            Result(
                f"{name}{', the default' if name == DEFAULT else ''}",
                f"regret {fmean(means.values()):.4f}{_between_seeds(by_table)}, mean of"
                f" {len(means)} tables; {worst}"
                f" {means[worst]:.4f}{_between_seeds({worst: by_table[worst]})}; to"
                f" each table's best model {fmean(one_model[name].values()):.4f}",
                "central models",
                f"≤ {bound}",
                fmean(means.values()) <= bound,
                means,
            )
        )
    told_ = "; ".join(
        f"{cell}: {told.get('error') or told['findings']}"
        for cell, told in unsound.items()
    )
    found.append(
        Result(
            "runs that failed or collapsed",
            f"{len(unsound)} {told_}".strip(),
            "",
            "0",
            not unsound,
        )
    )
    return found


def _central(measured: Mapping[str, dict[str, Any]]) -> Result:
    """By the same measure, each of the three models that see all columns."""
    regrets: dict[str, dict[str, list[float]]] = {}
    for cell, told in measured.items():
        table, _, name = cell.split(", ")
        for kind, score in told.items() if name == CENTRAL else ():
            regrets.setdefault(kind, {}).setdefault(table, []).append(
                max(told.values()) - score
            )
    means = {
        kind: fmean(fmean(one) for one in by_table.values())
        for kind, by_table in regrets.items()
    }
    return Result(
        "models that see all columns",
        ", ".join(f"{kind} {mean:.4f}" for kind, mean in means.items()),
    )


def _between_seeds(by_table: Mapping[str, Mapping[str, float]]) -> str:
    """The deviation between seeds of the mean over these tables."""
    seeds = set.intersection(*(set(scores) for scores in by_table.values()))
    means = [
        fmean(scores[seed] for scores in by_table.values()) for seed in sorted(seeds)
    ]
    return f" ± {stdev(means):.4f}" if len(means) > 1 else ""


def run(quick: bool) -> Cells:
    rows = 600 if quick else ROWS
    names = (
        [DEFAULT]
        if quick
        else [name for name, one in ALGORITHMS.items() if one.nested is None]
    )
    tasks = tables()
    cells = [
        f"{task.name}, {seed}, {name}"
        for name in [*names, CENTRAL]
        for task in (tasks[-1:] if quick else tasks)
        for seed in (SEEDS[:1] if quick else SEEDS)
        if name == CENTRAL
        or ("regression" if task.is_number else "classification")
        in ALGORITHMS[name].tasks
    ]
    return Cells(cells, partial(measure, rows=rows), results)
