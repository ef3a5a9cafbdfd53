"""How good is what a user gets who sets nothing, and which algorithm should that be?

Every table is divided between organisations, and the federation is told the label, the
algorithm's name and the seed, and nothing else. On the same rows scikit-learn's boosting
(HistGradientBoosting), a network (MLP) and a linear model learn from all columns in one
place. Each of the three has the variants in `central_models`, of which its validation
rows choose one, as they choose the default here; it is then trained again on training
and validation rows. Regret is the best of the three on the test rows minus the
federation: AUC of two classes, accuracy of more, R squared of numbers. Whoever takes the
best of three for each seed has seen its test rows: the three have a regret by this
measure, too, which is printed beside ours, as is what the federation lacks to the one of
them that is best on a table over all seeds. A linear algorithm is held to the linear
model alone. What is encrypted by default runs in the open here (`OPEN`): that gives the
same model, in minutes instead of a day.

There are four groups of tables:

    usual         FATE's pairs as they are; data sets of one table, by halves of columns
    interactions  made here: what a row is follows from columns of two parties together
    skewed        positive labels with a long tail, made here, and loans by their amount
    splits        letter between four parties, by columns' importance as VertiBench does

Which algorithm is the default (`CANDIDATES`) follows from validation rows alone: the
highest mean over the groups, each of which is the mean over its tables. CPU time and
bytes stand beside it.

A cell is a table, a seed and an algorithm ("letter, 2, splitnn"), or the models that
see all columns ("letter, 2, centralized"). Tables of more than `ROWS` rows are drawn
from, with the seed. docs/how-to-tune.md says by which seeds everything else than the
default was chosen.

FATE's pairs, letter and the loans are read from the folder COLONNADE_DATA, and left out
where it has none; the results say which.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.algorithms import ALGORITHMS
from colonnade.benchmark import Cells, Result
from colonnade.core.party import one_torch_thread
from colonnade.errors import ColonnadeError
from colonnade.federation import Federation
from colonnade.settings.algorithms import DEFAULT

Values = NDArray[np.float64]
ROWS = 3000
ROWS_OF_A_SPLIT = 6000
SEEDS = (10, 11, 12)
CENTRAL = "centralized"
RECOMMENDED = 0.01
EVERY = 0.03
GROUPS = ("usual", "interactions", "skewed", "splits")
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
CANDIDATES: dict[str, dict[str, Any]] = {
    "vimadmm": {"name": "vimadmm"},
    "splitnn": {"name": "splitnn"},
    "splitnn of a linear head": {"name": "splitnn", "head_hidden": 0},
    "splitnn with 32 hidden": {"name": "splitnn", "head_hidden": 32},
    "splitnn of the mean": {"name": "splitnn", "combine": "mean"},
    "boosted_trees": {"name": "boosted_trees"},
}
"""What the default for tables is chosen from, and what it is told beside its name."""
STORED = {
    "south_german_credit": "credit_risk",
    "statlog_german_credit": "credit_risk",
    "letter": "lettr",
}
MADE_ROWS = 3000
MADE_COLUMNS = 6
"""Of each party of a table that is made here; most of them say nothing."""
IMPORTANCE = (0.1, 1.0, 10.0, 100.0)
"""How evenly letter's columns are divided: Dirichlet's alpha, as in VertiBench."""
SPLIT_BETWEEN = 4


@dataclass(frozen=True, eq=False)
class Task:
    """One table, divided between organisations; the first has the label."""

    name: str
    frames: dict[str, pd.DataFrame]
    id: str
    label: str
    is_number: bool
    group: str = "usual"
    rows: int = ROWS  # at most
    # the task with the same rows and columns, whose centralized models count here too
    central: str = ""


@lru_cache(maxsize=1)
def tables() -> tuple[Task, ...]:
    """All that can be read here, read once."""
    folder = Path(os.environ.get("COLONNADE_DATA", "."))
    return (
        *usual(folder),
        *interactions(),
        *skewed(folder),
        *splits(folder),
    )


def usual(folder: Path) -> Iterator[Task]:
    from sklearn import datasets as ready

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


def interactions() -> Iterator[Task]:
    """Tables whose label no sum over parties can tell: a, b and c are columns of the
    first, the second and a third organisation, and e is noise."""

    def product(a: Values, b: Values, e: Values) -> Values:
        return a[:, 0] * b[:, 0] + 0.5 * (a[:, 1] + b[:, 1]) + 0.3 * e

    def gate(a: Values, b: Values, e: Values) -> Values:
        """The sign of one column decides how another counts."""
        return np.where(b[:, 0] > 0, a[:, 0], -a[:, 0]) + 0.3 * a[:, 1] + 0.3 * e

    def nearness(a: Values, b: Values, e: Values) -> Values:
        """Rows in which two columns agree."""
        return 0.8 - np.abs(a[:, 0] - b[:, 0]) + 0.3 * e

    def three(a: Values, b: Values, c: Values, e: Values) -> Values:
        return a[:, 0] * b[:, 0] + b[:, 1] * c[:, 0] + 0.5 * c[:, 1] + 0.3 * e

    yield made("product", 2, product, is_number=False)
    yield made("product, a number", 2, product, is_number=True)
    yield made("gate", 2, gate, is_number=False)
    yield made("nearness", 2, nearness, is_number=False)
    yield made("three parties", 3, three, is_number=True)


def skewed(folder: Path) -> Iterator[Task]:
    """Positive labels with a long tail: where everything is multiplied, where parties
    interact as well, where parts are added up (and the logarithm is the wrong scale),
    where noise alone is skewed, and the amounts of real loans."""

    def multiplied(a: Values, b: Values, e: Values) -> Values:
        of_first = 0.8 * a[:, 0] - 0.5 * a[:, 1]
        of_second = 0.6 * b[:, 0] + 0.4 * b[:, 1]
        return np.exp(1.2 * (of_first + of_second) + 0.3 * e)

    def interacting(a: Values, b: Values, e: Values) -> Values:
        return np.exp(a[:, 0] * b[:, 0] + 0.5 * (a[:, 1] + b[:, 1]) + 0.3 * e)

    def added(a: Values, b: Values, e: Values) -> Values:
        costs = np.exp(a[:, 0]) + np.exp(b[:, 0]) + np.exp(b[:, 1])
        return np.maximum(costs + 0.3 * e, 0.01)

    def skewed_noise(a: Values, b: Values, e: Values) -> Values:
        mean = 5 + a[:, 0] + b[:, 0]
        return np.maximum(mean, 0.5) * np.exp(0.5 * e)

    yield made("multiplied", 2, multiplied, is_number=True, group="skewed")
    yield made("multiplied, product", 2, interacting, is_number=True, group="skewed")
    yield made("added up", 2, added, is_number=True, group="skewed")
    yield made("skewed noise", 2, skewed_noise, is_number=True, group="skewed")
    path = folder / "south_german_credit" / "south_german_credit.csv.gz"
    if path.exists():
        loans = pd.read_csv(path).drop(columns="credit_risk")
        yield _halves("loans", loans, "amount", is_number=True, group="skewed")


def splits(folder: Path) -> Iterator[Task]:
    """Letter between four parties. VertiBench (Wu, Hou and He, 2023, Section 4.1) draws
    how important each party is from a symmetric Dirichlet distribution, and gives each
    column to a party with that probability. Here every party is sure of one column."""
    path = folder / "letter" / "letter.csv.gz"
    if not path.exists():
        return
    frame = pd.read_csv(path)
    names = [f"letter by {alpha:g}" for alpha in IMPORTANCE]
    for number, alpha in enumerate(IMPORTANCE):
        parts = by_importance(
            [str(column) for column in frame if column != "lettr"], alpha, seed=number
        )
        yield _divided(
            names[number],
            frame,
            "lettr",
            parts,
            is_number=False,
            group="splits",
            rows=ROWS_OF_A_SPLIT,
            central=names[0],
        )


def by_importance(columns: list[str], alpha: float, seed: int) -> list[list[str]]:
    """Deal columns to parties, each with the probability that is its importance."""
    draws = np.random.default_rng(seed)
    importance = draws.dirichlet([alpha] * SPLIT_BETWEEN)
    shuffled = draws.permutation(columns).tolist()
    parts = [[column] for column in shuffled[:SPLIT_BETWEEN]]
    for column in shuffled[SPLIT_BETWEEN:]:
        parts[draws.choice(SPLIT_BETWEEN, p=importance)].append(column)
    return parts


def made(
    name: str,
    parties: int,
    rule: Callable[..., Values],
    *,
    is_number: bool,
    group: str = "interactions",
) -> Task:
    """Draw normal columns of each party, and noise; the label is what the rule makes of
    them, or of two classes whether that is above its median."""
    draws = np.random.default_rng(7)
    parts = [draws.normal(size=(MADE_ROWS, MADE_COLUMNS)) for _ in range(parties)]
    value = rule(*parts, draws.normal(size=MADE_ROWS))
    names = [
        [f"{party}{column}" for column in range(MADE_COLUMNS)]
        for party in "abc"[:parties]
    ]
    frame = pd.DataFrame(np.hstack(parts), columns=list(chain(*names)))
    frame["y"] = value if is_number else np.where(value > np.median(value), "yes", "no")
    return _divided(name, frame, "y", names, is_number=is_number, group=group)


def _usable(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.loc[:, [column for column in frame if frame[column].nunique() > 1]]


def _halves(
    name: str, frame: pd.DataFrame, label: str, *, is_number: bool, group: str = "usual"
) -> Task:
    frame = _usable(frame)
    columns = [str(column) for column in frame if column != label]
    half = len(columns) // 2
    parts = [columns[:half], columns[half:]]
    return _divided(name, frame, label, parts, is_number=is_number, group=group)


def _divided(
    name: str, frame: pd.DataFrame, label: str, parts: list[list[str]], **about: Any
) -> Task:
    """Give each organisation its part of the columns, and the label to the first."""
    frame = frame.assign(row=[f"r{number}" for number in range(len(frame))])
    organisations = ("one", "two", "three", "four")
    frames = {
        organisation: frame[["row", *part]]
        for organisation, part in zip(organisations, parts, strict=False)
    }
    frames["one"] = frame[["row", label, *parts[0]]]
    return Task(name, frames, "row", label, **about)


def drawn(task: Task, seed: int, rows: int) -> dict[str, pd.DataFrame]:
    """At most so many rows, the same of all."""
    first, *others = task.frames.values()
    if len(first) > rows:
        kept = first[task.id].sample(rows, random_state=seed)
        first = first[first[task.id].isin(kept)]
    same = [frame[frame[task.id].isin(first[task.id])] for frame in others]
    return dict(zip(task.frames, (first, *same), strict=True))


def federation(task: Task, name: str, seed: int, rows: int) -> Federation:
    """What a user has who names the algorithm and nothing else; of a candidate, also
    what makes it one."""
    kind = "regression" if task.is_number else "classification"
    algorithm = CANDIDATES.get(name, {"name": name})
    settings = {
        "algorithm": {**algorithm, **OPEN.get(name, {})},
        "data": {"task": kind},
        "federation": {"seed": seed},
    }
    return Federation.from_frames(
        drawn(task, seed, rows), id=task.id, label=task.label, settings=settings
    )


def federated(task: Task, name: str, seed: int, rows: int) -> dict[str, Any]:
    """Its scores, the bytes that crossed, and what it says is wrong with it."""
    summary = federation(task, name, seed, rows).fit().summary
    return {
        "validation": telling(task, summary["metrics"]["validation"]),
        "score": telling(task, summary["metrics"]["test"]),
        "bytes": sum(party["out"] for party in summary["bytes"].values()),
        "findings": [str(one) for one in summary.get("findings", [])],
    }


def telling(task: Task, scores: Mapping[str, Any]) -> float:
    """The score that counts: AUC of two classes, accuracy of more, R squared."""
    if task.is_number:
        return float(scores["r2"])
    return float(scores.get("auc", scores["accuracy"]))


def central_models(seed: int, *, is_number: bool) -> dict[str, list[Any]]:
    """The models that see all columns, and the variants of each."""
    from sklearn import ensemble, linear_model, neural_network

    if is_number:
        boosting: Any = ensemble.HistGradientBoostingRegressor
        network: Any = neural_network.MLPRegressor
        linear = [linear_model.Ridge(alpha=alpha) for alpha in (1.0, 100.0)]
    else:
        boosting = ensemble.HistGradientBoostingClassifier
        network = neural_network.MLPClassifier
        linear = [
            linear_model.LogisticRegression(C=c, max_iter=2000) for c in (1.0, 0.05)
        ]
    return {
        "boosting": [
            boosting(random_state=seed),
            boosting(random_state=seed, learning_rate=0.05, max_leaf_nodes=8),
        ],
        "network": [
            network(max_iter=200, random_state=seed),
            network(max_iter=200, random_state=seed, alpha=0.1, early_stopping=True),
        ],
        "linear": linear,
    }


def centralized(task: Task, seed: int, rows: int) -> dict[str, float]:
    """Scores on a federation's own test rows, whatever its algorithm, of models that
    see all columns."""
    from sklearn.base import clone
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    whole = reduce(
        lambda left, right: left.merge(right, on=task.id, suffixes=("", " too")),
        drawn(task, seed, rows).values(),
    ).set_index(task.id)
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

    def score(model: Any, trained: Any, asked: Any) -> float:
        fitted = make_pipeline(columns, clone(model)).fit(x.loc[trained], y[trained])
        return central_score(task, fitted, x.loc[asked], y[asked])

    found = {}
    for name, variants in central_models(seed, is_number=task.is_number).items():
        if task.is_number:
            variants = on_both_scales(variants, positive=bool((y > 0).all()))
        by_validation = [
            score(model, split["train"], split["validation"]) for model in variants
        ]
        best = variants[int(np.argmax(by_validation))]
        found[name] = score(best, learn, split["test"])
    return found


def on_both_scales(variants: list[Any], *, positive: bool) -> list[Any]:
    """Each model of a standardised label; and where labels are positive, of its
    logarithm, too."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    scales: list[Any] = [StandardScaler()]
    if positive:
        logarithm = FunctionTransformer(np.log, np.exp, check_inverse=False)
        scales.append(make_pipeline(logarithm, StandardScaler()))
    return [
        TransformedTargetRegressor(model, transformer=scale)
        for model in variants
        for scale in scales
    ]


def central_score(task: Task, fitted: Any, x: pd.DataFrame, y: Any) -> float:
    from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

    if task.is_number:
        return float(r2_score(y, fitted.predict(x)))
    if len(fitted.classes_) == 2:
        return float(roc_auc_score(y, fitted.predict_proba(x)[:, 1]))
    return float(accuracy_score(y, fitted.predict(x)))


def measure(cell: str, rows: int | None) -> dict[str, Any]:
    """What one algorithm, or what is central, reaches on one table with one seed."""
    named, seed, name = parts_of(cell)
    task = next(task for task in tables() if task.name == named)
    rows = rows or task.rows
    start = time.process_time()
    with one_torch_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == CENTRAL:
            return centralized(task, int(seed), rows)
        try:
            found = federated(task, name, int(seed), rows)
        except ColonnadeError as error:  # told, so nobody takes it for a result
            return {"error": str(error)}
    return {**found, "cpu": round(time.process_time() - start, 2)}


def parts_of(cell: str) -> tuple[str, str, str]:
    """The table of a cell, whose name may have a comma, the seed and the algorithm."""
    table, seed, name = cell.rsplit(", ", 2)
    return table, seed, name


Measured = Mapping[str, dict[str, Any]]
BySeed = dict[str, dict[str, Any]]  # by table and seed, what a cell found


def results(measured: Measured) -> list[Result]:
    """The choice of the default; the mean regret of every algorithm on the usual tables;
    and each table by itself. Regret is of the tables and seeds for which what is central
    was measured, too."""
    runs = by_algorithm(measured)
    central = runs.pop(CENTRAL, {})
    sound = {
        name: {
            table: {seed: one for seed, one in cells.items() if "error" not in one}
            for table, cells in by_table.items()
        }
        for name, by_table in runs.items()
    }
    found = choice(sound, central)
    found += [
        regret_line(name, _in_group(by_table, "usual"), central)
        for name, by_table in sound.items()
        if name not in CANDIDATES or CANDIDATES[name] == {"name": name}
    ]
    found.append(central_line(central))
    measured_tables = {parts_of(cell)[0] for cell in measured}
    found += [
        table_line(task, sound, central)
        for task in tables()
        if task.name in measured_tables
    ]
    return [*found, *faults(measured), *missing_tables()]


def by_algorithm(measured: Measured) -> dict[str, dict[str, BySeed]]:
    """What was measured, by algorithm, table and seed; where tables share their
    centralized models, each has them."""
    runs: dict[str, dict[str, BySeed]] = {}
    for cell, found in measured.items():
        table, seed, name = parts_of(cell)
        if table in {task.name for task in tables()}:
            runs.setdefault(name, {}).setdefault(table, {})[seed] = found
    central = runs.get(CENTRAL, {})
    for task in tables():
        if task.central in central:
            central[task.name] = central[task.central]
    return runs


def _in_group(by_table: Mapping[str, BySeed], group: str) -> dict[str, BySeed]:
    names = {task.name for task in tables() if task.group == group}
    return {name: cells for name, cells in by_table.items() if name in names and cells}


def choice(
    runs: Mapping[str, Mapping[str, BySeed]], central: Mapping[str, BySeed]
) -> list[Result]:
    """Which candidate has the highest mean validation score: of the groups, each of
    which is the mean over its tables. No test score decides. A candidate that was
    measured on fewer tables than the others is listed, and cannot be chosen."""
    measured = {
        name: {table: cells for table, cells in runs[name].items() if cells}
        for name in CANDIDATES
        if name in runs
    }
    most = max((len(by_table) for by_table in measured.values()), default=0)
    compared = [name for name, by_table in measured.items() if len(by_table) == most]
    if len(compared) < 2:
        return []
    means = {
        name: fmean(_mean_of_groups(measured[name], "validation").values())
        for name in compared
    }
    best = max(means, key=lambda name: means[name])
    verdict = Result(
        "the default, by validation rows",
        f"{best}, on {most} tables",
        "",
        DEFAULT,
        best == DEFAULT,
    )
    lines = [
        candidate_line(name, by_table, central) for name, by_table in measured.items()
    ]
    return [verdict, *lines]


def candidate_line(
    name: str, by_table: Mapping[str, BySeed], central: Mapping[str, BySeed]
) -> Result:
    """What a candidate reaches by validation rows and by test rows, and what it costs."""
    validation = _mean_of_groups(by_table, "validation")
    test = _mean_of_groups(by_table, "score")
    short = {
        table: fmean(regrets(name, cells, central[table]).values())
        for table, cells in by_table.items()
        if table in central
    }
    each = [one for cells in by_table.values() for one in cells.values()]
    by_group = ", ".join(f"{group} {mean:.3f}" for group, mean in validation.items())
    return Result(
        f"candidate for the default: {name}",
        f"validation {fmean(validation.values()):.3f}{_spread(by_table, 'validation')}"
        f" ({by_group}); test {fmean(test.values()):.3f}{_spread(by_table, 'score')};"
        f" regret {fmean(short.values()) if short else float('nan'):.3f};"
        f" {fmean(one['cpu'] for one in each):.1f} s of CPU and"
        f" {fmean(one['bytes'] for one in each) / 1e6:.1f} MB a run;"
        f" {len(by_table)} tables",
        numbers=validation,
    )


def _mean_of_groups(by_table: Mapping[str, BySeed], key: str) -> dict[str, float]:
    """By group the mean over tables of a score. Below 0 is no better than the mean, and
    how far below says little, so it counts as 0."""
    groups = {group: _in_group(by_table, group) for group in GROUPS}
    return {
        group: fmean(
            fmean(max(one[key], 0.0) for one in cells.values())
            for cells in in_group.values()
        )
        for group, in_group in groups.items()
        if in_group
    }


def _spread(by_table: Mapping[str, BySeed], key: str) -> str:
    """The deviation between seeds of the mean over groups."""
    of_seed = []
    for seed in sorted(set.intersection(*({*cells} for cells in by_table.values()))):
        alone = {table: {seed: cells[seed]} for table, cells in by_table.items()}
        of_seed.append(fmean(_mean_of_groups(alone, key).values()))
    return f" ± {stdev(of_seed):.3f}" if len(of_seed) > 1 else ""


def is_linear(name: str) -> bool:
    """Whether an algorithm is held to the linear model alone."""
    return name in ALGORITHMS and ALGORITHMS[name].intercept is not None


def regrets(name: str, cells: BySeed, central: BySeed) -> dict[str, float]:
    """By seed, the best central model's test score minus the algorithm's."""
    return {
        seed: (
            central[seed]["linear"] if is_linear(name) else max(central[seed].values())
        )
        - one["score"]
        for seed, one in cells.items()
        if seed in central
    }


def to_one_model(name: str, cells: BySeed, central: BySeed) -> float:
    """What an algorithm lacks to the central model that is best over all seeds."""
    seeds = [seed for seed in cells if seed in central]
    kinds = ["linear"] if is_linear(name) else list(central[seeds[0]])
    best = max(fmean(central[seed][kind] for seed in seeds) for kind in kinds)
    return best - fmean(cells[seed]["score"] for seed in seeds)


def regret_line(
    name: str, by_table: Mapping[str, BySeed], central: Mapping[str, BySeed]
) -> Result:
    """An algorithm's mean regret over the usual tables, and where it is worst."""
    by_seed = {
        table: regrets(name, cells, central.get(table, {}))
        for table, cells in by_table.items()
    }
    by_seed = {table: found for table, found in by_seed.items() if found}
    called = f"{name}{', the default' if name == DEFAULT else ''}"
    bound = RECOMMENDED if name == DEFAULT else EVERY
    if not by_seed:
        return Result(called, "not measured beside the central models")
    means = {table: fmean(found.values()) for table, found in by_seed.items()}
    worst = max(means, key=lambda table: means[table])
    best = fmean(to_one_model(name, by_table[table], central[table]) for table in means)
    return Result(
        called,
        f"regret {fmean(means.values()):.4f}{_between_seeds(by_seed)}, mean of"
        f" {len(means)} tables; {worst}"
        f" {means[worst]:.4f}{_between_seeds({worst: by_seed[worst]})}; to"
        f" each table's best model {best:.4f}",
        "central models",
        f"≤ {bound}",
        fmean(means.values()) <= bound,
        means,
    )


def central_line(central: Mapping[str, BySeed]) -> Result:
    """By the same measure, each of the three models that see all columns."""
    short: dict[str, list[float]] = {}
    for by_seed in _in_group(central, "usual").values():
        for kind in next(iter(by_seed.values())):
            short.setdefault(kind, []).append(
                fmean(max(one.values()) - one[kind] for one in by_seed.values())
            )
    return Result(
        "models that see all columns",
        ", ".join(f"{kind} {fmean(found):.4f}" for kind, found in short.items()),
    )


def table_line(
    task: Task,
    runs: Mapping[str, Mapping[str, BySeed]],
    central: Mapping[str, BySeed],
) -> Result:
    """Each candidate on one table: its test score, and in brackets its validation score,
    CPU time and bytes."""
    parts = []
    for name in CANDIDATES:
        cells = [*runs.get(name, {}).get(task.name, {}).values()]
        if cells:
            parts.append(
                f"{name} {_mean(cells, 'score')} (validation"
                f" {_mean(cells, 'validation')}, {fmean(c['cpu'] for c in cells):.1f} s,"
                f" {fmean(c['bytes'] for c in cells) / 1e6:.2f} MB)"
            )
    models = [*central.get(task.name, {}).values()]
    against = [f"{kind} {_mean(models, kind)}" for kind in (models[:1] or [{}])[0]]
    return Result(f"{task.group}: {task.name}", "; ".join(parts), ", ".join(against))


def _mean(cells: list[dict[str, Any]], key: str) -> str:
    values = [one[key] for one in cells]
    deviation = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{deviation}"


def faults(measured: Measured) -> list[Result]:
    """Runs that ended in an error, or say themselves that they learned nothing."""
    unsound = {
        cell: found.get("error") or found["findings"]
        for cell, found in measured.items()
        if "error" in found or found.get("findings")
    }
    words = "; ".join(f"{cell}: {fault}" for cell, fault in unsound.items())
    return [
        Result(
            "runs that failed or collapsed",
            f"{len(unsound)} {words}".strip(),
            "",
            "0",
            not unsound,
        )
    ]


def missing_tables() -> list[Result]:
    """Say which stored tables were not there, so that nobody takes fewer for all."""
    there = {task.name for task in tables()}
    wanted = [*PAIRS, *STORED, "bank", "bank-additional", "loans"]
    wanted += [f"letter by {alpha:g}" for alpha in IMPORTANCE]
    absent = [name for name in wanted if name not in there]
    if not absent:
        return []
    return [
        Result(
            "tables left out",
            f"{', '.join(absent)}: set COLONNADE_DATA to the folder that has them",
        )
    ]


def _between_seeds(by_table: Mapping[str, Mapping[str, float]]) -> str:
    """The deviation between seeds of the mean over these tables."""
    seeds = set.intersection(*(set(scores) for scores in by_table.values()))
    means = [
        fmean(scores[seed] for scores in by_table.values()) for seed in sorted(seeds)
    ]
    return f" ± {stdev(means):.4f}" if len(means) > 1 else ""


def run(quick: bool) -> Cells:
    tasks = tables()
    if quick:
        few = [task for task in tasks if task.name in ("diabetes", "product")]
        cells = cells_of(few, [DEFAULT], SEEDS[:1])
        return Cells(cells, partial(measure, rows=600), results)
    names = [name for name, one in ALGORITHMS.items() if one.nested is None]
    others = [name for name in names if name not in CANDIDATES]
    usual_tasks = [task for task in tasks if task.group == "usual"]
    cells = [*cells_of(tasks, [*CANDIDATES], SEEDS)]
    cells += [*cells_of(usual_tasks, others, SEEDS)]
    return Cells(list(dict.fromkeys(cells)), partial(measure, rows=None), results)


def cells_of(
    tasks: Sequence[Task], names: Sequence[str], seeds: Sequence[int]
) -> list[str]:
    """A cell for each table, seed and algorithm that can learn it, and for what is
    central."""
    cells = []
    for name in [*names, CENTRAL]:
        for task in tasks:
            if can_learn(name, task):
                cells += [f"{task.name}, {seed}, {name}" for seed in seeds]
    return cells


def can_learn(name: str, task: Task) -> bool:
    """Whether an algorithm is for such labels; and of central models, whether they are
    this table's own."""
    if name == CENTRAL:
        return task.central in ("", task.name)
    algorithm = ALGORITHMS[CANDIDATES.get(name, {"name": name})["name"]]
    return ("regression" if task.is_number else "classification") in algorithm.tasks
