"""How good is what a user gets who sets nothing? Every table at hand, against models that see all columns in one place.

Each table is divided between two organisations: FATE's pairs as they are, the others by halves of their columns. The
federation has the label, the algorithm's name and the seed, and nothing else. On the same rows scikit-learn's boosting
(HistGradientBoosting), a network (MLP) and a linear model learn from all columns together, from training and validation
rows, as nobody must watch when to stop. Regret is the best of these three on the test rows minus the federation: AUC of
two classes, accuracy of more, R squared of numbers. Tables of more than `ROWS` rows are drawn from, with the seed. A
linear algorithm is held to the linear model alone. What is encrypted by default runs in the open here (`OPEN`): that
gives the same model, in minutes instead of a day.

FATE's pairs are read from the folder COLONNADE_DATA, and left out where it has none.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from colonnade.algorithms import ALGORITHMS, DEFAULT
from colonnade.benchmark import Result
from colonnade.errors import ColonnadeError
from colonnade.federation import Federation
from colonnade.transport.in_process import one_torch_thread

ROWS = 3000
SEEDS = 3
RECOMMENDED, EVERY = 0.01, 0.03
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
STORED = {"south_german_credit": "credit_risk", "statlog_german_credit": "credit_risk", "letter": "lettr"}


@dataclass(frozen=True, eq=False)
class Task:
    """One table, divided between two organisations; the first has the label."""

    name: str
    frames: dict[str, pd.DataFrame]
    id: str
    label: str
    is_number: bool


def tables() -> Iterator[Task]:
    """All that can be read here."""
    from sklearn import datasets as ready

    folder = Path(os.environ.get("COLONNADE_DATA", "."))
    for name, (id_, label, is_number) in PAIRS.items():
        paths = [folder / "fate_vertical" / f"{name}_hetero_{side}.csv.gz" for side in ("guest", "host")]
        if all(path.exists() for path in paths):
            guest, host = (_usable(pd.read_csv(path)) for path in paths)
            yield Task(name, {"guest": guest, "host": host}, id_, label, is_number)
    for name, label in STORED.items():
        path = folder / name / f"{name}.csv.gz"
        if path.exists():
            yield _halves(name, pd.read_csv(path), label, is_number=False)
    for path in sorted(folder.glob("bank_marketing/*full*.csv.gz")):
        frame = pd.read_csv(path, sep=None, engine="python")
        yield _halves("bank", frame.drop(columns="duration", errors="ignore"), "y", is_number=False)
    for name, load in (("breast_cancer", ready.load_breast_cancer), ("wine", ready.load_wine)):
        yield _halves(name, load(as_frame=True).frame, "target", is_number=False)
    yield _halves("diabetes", ready.load_diabetes(as_frame=True).frame, "target", is_number=True)


def _usable(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.loc[:, [column for column in frame if frame[column].nunique() > 1]]


def _halves(name: str, frame: pd.DataFrame, label: str, *, is_number: bool) -> Task:
    frame = _usable(frame).assign(row=[f"r{number}" for number in range(len(frame))])
    columns = [column for column in frame if column not in (label, "row")]
    first, second = columns[: len(columns) // 2], columns[len(columns) // 2 :]
    return Task(name, {"one": frame[["row", label, *first]], "two": frame[["row", *second]]}, "row", label, is_number)


def drawn(task: Task, seed: int, rows: int) -> dict[str, pd.DataFrame]:
    """At most so many rows, the same of both."""
    first, second = task.frames.values()
    if len(first) > rows:
        kept = first[task.id].sample(rows, random_state=seed)
        first = first[first[task.id].isin(kept)]
    second = second[second[task.id].isin(first[task.id])]
    return dict(zip(task.frames, (first, second), strict=True))


def federated(task: Task, name: str, seed: int, rows: int, **more: Any) -> tuple[float, Federation]:
    """What a user gets who names the algorithm and nothing else."""
    kind = "regression" if task.is_number else "classification"
    settings: dict[str, Any] = {
        "algorithm": {"name": name, **OPEN.get(name, {}), **more.pop("algorithm", {})},
        "data": {"task": kind},
        "federation": {"seed": seed},
        **more,
    }
    frames = drawn(task, seed, rows)
    one = Federation.from_frames(frames, id=task.id, label=task.label, settings=settings)
    scores = one.fit().summary["metrics"]["test"]
    return float(scores["r2"] if task.is_number else scores.get("auc", scores["accuracy"])), one


def centralized(task: Task, seed: int, rows: int, one: Federation) -> dict[str, float]:
    """Scores on the federation's own test rows of models that see all columns."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    first, second = drawn(task, seed, rows).values()
    whole = first.merge(second, on=task.id, suffixes=("", " too")).set_index(task.id)
    whole.index = whole.index.astype(str)
    y, x = whole[task.label], whole.drop(columns=task.label)
    text = x.select_dtypes(exclude="number").columns
    numbers = x.select_dtypes("number").columns
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    columns = make_column_transformer(
        (scaled, numbers), (OneHotEncoder(handle_unknown="ignore", sparse_output=False), text)
    )
    split = {name: one.holdings.ids[rows_.numpy()] for name, rows_ in one.holdings.splits.items()}
    learn, test = np.concatenate([split["train"], split["validation"]]), split["test"]
    models = {
        "boosting": (HistGradientBoostingRegressor if task.is_number else HistGradientBoostingClassifier)(
            random_state=seed
        ),
        "network": (MLPRegressor if task.is_number else MLPClassifier)(max_iter=200, random_state=seed),
        "linear": Ridge() if task.is_number else LogisticRegression(max_iter=2000),
    }
    found = {}
    for name, model in models.items():
        fitted = make_pipeline(columns, model)
        if task.is_number:
            mean, deviation = y[learn].mean(), y[learn].std()
            fitted.fit(x.loc[learn], (y[learn] - mean) / deviation)
            found[name] = float(r2_score(y[test], fitted.predict(x.loc[test]) * deviation + mean))
        else:
            fitted.fit(x.loc[learn], y[learn])
            if y.nunique() == 2:
                found[name] = float(roc_auc_score(y[test], fitted.predict_proba(x.loc[test])[:, 1]))
            else:
                found[name] = float(accuracy_score(y[test], fitted.predict(x.loc[test])))
    return found


def run(quick: bool) -> list[Result]:
    rows, seeds = (600, 1) if quick else (ROWS, SEEDS)
    names = [DEFAULT] if quick else [name for name, one in ALGORITHMS.items() if one.nested is None]
    regrets: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    results = []
    with one_torch_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task in [*tables()][-1:] if quick else tables():
            for seed in range(seeds):
                scored: dict[str, float] = {}
                for name in names:
                    kind = "regression" if task.is_number else "classification"
                    if kind not in ALGORITHMS[name].tasks:
                        continue
                    try:
                        scored[name], one = federated(task, name, seed, rows)
                    except ColonnadeError as error:  # told, so nobody takes it for a result
                        print(f"{task.name}, seed {seed}, {name}: {error}", file=sys.stderr)
                best = centralized(task, seed, rows, one)
                for name, score in scored.items():
                    rival = max(best.values()) if ALGORITHMS[name].intercept is None else best["linear"]
                    regrets[name].setdefault(task.name, []).append(rival - score)
                told = ", ".join(f"{name} {score:.4f}" for name, score in (best | scored).items())
                print(f"{task.name}, seed {seed}: {told}", file=sys.stderr, flush=True)
    for name, by_table in regrets.items():
        means = {table: fmean(found) for table, found in by_table.items()}
        if not means:
            continue
        bound = RECOMMENDED if name == DEFAULT else EVERY
        worst = max(means, key=lambda table: means[table])
        results.append(
            Result(
                f"regret of {name}{', the default' if name == DEFAULT else ''}, mean of {len(means)} tables",
                f"{fmean(means.values()):.4f}, at most {means[worst]:.4f} ({worst})",
                "the best of boosting, a network and a linear model on all columns",
                f"≤ {bound}",
                fmean(means.values()) <= bound,
                means,
            )
        )
    return results
