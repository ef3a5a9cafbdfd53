"""VF-PS's Table 2 and Figures 3 to 6: which participants are chosen, how good models of
theirs are, and what it takes.

A cell is one data set with one seed: its 80/10/10 rows, its partition of the columns,
its draws. Times are processor seconds, which other programs on the machine do not
change, with one thread; those of encrypted training are measured on a few rows or one
batch, and multiplied. With the first seed a cell also measures times.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade import datasets
from colonnade.datasets.preprocess import Labels
from colonnade.encryption import make_keys
from colonnade.federation import Federation
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.pictures import save
from colonnade.rows.holdings import Columns, Holdings
from colonnade.selection import select_here

Group = tuple[str, ...]
SHARES = {"50 %": 0.5, "25 %": 0.25}
METHODS = ("ALL", "RANDOM", "LASSO", "VF-PS")
MODELS = ("kNN", "LR", "GBT")
BANK = ("age", "balance", "day", "campaign", "pdays", "previous", "housing", "loan")
NEIGHBOURS = 5
RANDOM_DRAWS = 10
ABLATIONS = {
    "with both": {},
    "without Fagin": {"fagin": False},
    "without batching": {"batching": False},
    "without both": {"fagin": False, "batching": False},
}
ABLATION_QUERIES = 32
TREE_DEPTH = 4
TREE_ROUNDS = 3  # Pivot's limits
VALUES = 400_000
"""Distances on which encrypted kNN is timed."""


@dataclass(frozen=True)
class Table:
    """One line of Table 1: who makes the rows, and among how many parties their columns
    go."""

    make: Callable[[int], tuple[NDArray[Any], NDArray[Any]]]
    parties: int
    batch: int = 256


def synthesis(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """1,000 standard normal rows of 50 columns, on this or that side of a random
    hyperplane through the origin."""
    generator = np.random.default_rng([seed, 1])
    x = generator.normal(size=(1000, 50))
    return x, (x @ generator.normal(size=50) > 0).astype(np.int64)


def g2(columns: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """What G2 is made by: 1,024 rows around 500 in every column and as many around 600,
    here with the largest of its standard deviations, 100. The files themselves could
    not be had, and the paper does not say which it took."""
    y = np.repeat([0, 1], 1024)
    return (
        np.random.default_rng([seed, columns]).normal(
            500 + 100 * y[:, None], 100, (2048, columns)
        ),
        y,
    )


def bank(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """3,200 calls, drawn anew for each seed."""
    x, y = calls()
    chosen = np.random.default_rng([seed, 2]).choice(len(x), 3200, replace=False)
    return x[chosen], y[chosen]


@lru_cache
def calls() -> tuple[NDArray[Any], NDArray[Any]]:
    """Six numbers, and two answers as 0 and 1."""
    rows = datasets.load("bank_marketing").train
    assert isinstance(rows.x, dict)
    columns = [
        rows.x[c] == "yes" if c in ("housing", "loan") else rows.x[c] for c in BANK
    ]
    return np.stack([column.astype(np.float64) for column in columns], axis=1), rows.y


@lru_cache
def public(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """All rows of a named data set, official test rows among them."""
    found = datasets.load(name)
    parts = [part for part in (found.train, found.test) if part is not None]
    columns = [
        part.frame().to_numpy(np.float64) if found.kind == "tabular" else part.array()
        for part in parts
    ]
    return np.concatenate(columns).astype(np.float64), np.concatenate(
        [part.y for part in parts]
    )


SETS = {
    "Birch1": Table(lambda _: public("birch1"), 2, batch=1024),
    "Birch2": Table(lambda _: public("birch2"), 2, batch=1024),
    "Letter": Table(lambda _: public("letter"), 4),
    "Unbalance": Table(lambda _: public("unbalance"), 2),
    "Bank": Table(bank, 4),
    "Simulated G2-128": Table(lambda seed: g2(128, seed), 4),
    "Simulated G2-4": Table(lambda seed: g2(4, seed), 4),
    "Synthesis": Table(synthesis, 5),
}
LARGER = ("Letter", "Birch1", "Birch2")
QUICK = ("Unbalance", "Synthesis")


@dataclass(frozen=True, eq=False)
class Cut:
    """A data set among its parties: standardised columns, labels, and rows by purpose."""

    columns: dict[str, NDArray[Any]]
    labels: NDArray[Any]
    train: NDArray[Any]
    validation: NDArray[Any]
    test: NDArray[Any]
    batch: int
    seed: int

    @property
    def parties(self) -> Group:
        return tuple(self.columns)

    @property
    def asked(self) -> NDArray[Any]:
        """Rows that a finished model is asked about: to choose it, and to test it."""
        return np.concatenate([self.validation, self.test])

    def joined(self, group: Sequence[str]) -> NDArray[Any]:
        return np.concatenate([self.columns[name] for name in group], axis=1)


def cut(name: str, seed: int) -> Cut:
    table = SETS[name]
    x, y = table.make(seed)
    generator = np.random.default_rng([seed, 3])
    order = generator.permutation(len(x))
    tenth = len(x) // 10
    validation, test, train = np.split(order, [tenth, 2 * tenth])
    x = (x - x[train].mean(0)) / x[train].std(0)
    parts = np.array_split(generator.permutation(x.shape[1]), table.parties)
    columns = {f"party_{at}": x[:, part] for at, part in enumerate(parts)}
    return Cut(columns, y, train, validation, test, table.batch, seed)


# Downstream models


def knn(here: Cut, group: Group, rows: NDArray[Any]) -> float:
    """What `algorithm = "knn"` predicts with k = 5 and fade = 0, computed on joined
    columns."""
    from sklearn.neighbors import KNeighborsClassifier

    x = here.joined(group)
    model = KNeighborsClassifier(NEIGHBOURS).fit(x[here.train], here.labels[here.train])
    return float(model.score(x[rows], here.labels[rows]))


def trees(study: Study, here: Cut, group: Group) -> float:
    """Boosted trees of the federation, in the place of Pivot's, at Pivot's limits. With
    encryption they are the same, bit by bit."""
    settings = study.settings(
        {
            "algorithm": {
                "name": "boosted_trees",
                "encryption": "none",
                "depth": TREE_DEPTH,
            }
        }
    )
    federation = study.federation(settings, here.seed, held(here, group, here.labels))
    with warnings.catch_warnings():
        # all of it is in this process
        warnings.filterwarnings("ignore", "boosted_trees without encryption")
        for _ in itertools.islice(federation.train(), TREE_ROUNDS):
            pass
    return federation.evaluate("test")["accuracy"]


def logistic(study: Study, here: Cut, group: Group) -> tuple[float, int]:
    """Trained by the federation, in plain text; stopped after 50 epochs, or 5 without a
    lower validation loss. The test accuracy, and how many epochs it took."""
    settings = study.settings({"train": {"batch_size": here.batch}})
    federation: Federation = study.federation(
        settings, here.seed, held(here, group, here.labels)
    )
    losses: list[float] = []
    for step in federation.train():
        if step.batch.number + 1 == federation.batches.per_epoch:
            losses.append(federation.evaluate("validation")["loss"])
            if len(losses) - 1 - int(np.argmin(losses)) >= 5:
                break
    return federation.evaluate("test")["accuracy"], len(losses)


def held(here: Cut, group: Group, labels: NDArray[Any]) -> Holdings:
    """Of a group of participants, and of a leader who has labels and a column of ones."""
    parties = {
        name: Columns(torch.from_numpy(here.columns[name]).float()) for name in group
    }
    rows = len(labels)
    parties["leader"] = Columns(torch.ones(rows, 1))
    ids = np.arange(rows).astype(np.str_)
    splits = {
        name: torch.from_numpy(getattr(here, name))
        for name in ("train", "validation", "test")
    }
    encoder = Labels("leader", "classification", tuple(range(int(labels.max()) + 1)))
    return Holdings.of_one(
        parties, torch.from_numpy(labels), ids, splits, "leader", encoder
    )


# What encrypted training would take


def encrypted_trees(study: Study, here: Cut) -> float:
    """Our own boosted trees (EC-ElGamal) at Pivot's limits, 3 rounds of depth 4: the
    second tree is measured, for one class against the others, and there is one for each
    class and round."""
    trees = {"name": "boosted_trees", "depth": TREE_DEPTH}
    settings = study.settings({"algorithm": trees})
    settings = dataclasses.replace(settings, train=settings.train.changed(epochs=2))
    labels = (here.labels == 0).astype(np.int64)
    steps = study.federation(
        settings, here.seed, held(here, here.parties, labels)
    ).train()
    next(steps)  # makes keys and tables
    start = time.process_time()
    next(steps)
    classes = int(here.labels.max()) + 1
    return (
        (time.process_time() - start) * TREE_ROUNDS * (1 if classes == 2 else classes)
    )


def encrypted_knn(here: Cut) -> float:
    """Every party encrypts its distances of every row asked about to every training
    row, a server adds, and the leader decrypts: measured on some of the rows."""
    secret = make_keys("ckks", limit=2.0**16 / len(here.columns))
    count = max(1, min(len(here.asked), VALUES // len(here.train)))
    rows = here.asked[:count]
    start = time.process_time()
    sent = []
    for name, columns in here.columns.items():
        a = torch.from_numpy(columns[rows])
        b = torch.from_numpy(columns[here.train])
        sent.append(secret.public.encrypt(torch.cdist(a, b).square(), owner=name))
    secret.decrypt(secret.public.add(*sent)).topk(NEIGHBOURS, largest=False)
    return (time.process_time() - start) * len(here.asked) / count


def encrypted_logistic(here: Cut, epochs: int) -> float:
    """Per batch, party and logit: the leader encrypts p - y, the party multiplies by
    its columns and masks, the leader opens, the party takes the mask off: vFedCCE's
    exchange, for one batch, one party and one logit, measured."""
    secret = make_keys("ckks", use="products", limit=4.0)
    public = secret.public
    rows = here.train[:256]
    columns = torch.from_numpy(next(iter(here.columns.values()))[rows]).clamp(-3, 3)
    residual = torch.rand(len(rows), dtype=torch.float64) - 0.5
    start = time.process_time()
    blinded, mask = public.blind(
        public.product(
            secret.encrypt(residual, owner="leader"), columns, owner="party_0"
        )
    )
    public.unblind(secret.open_blinded(blinded), mask)
    seconds = time.process_time() - start
    classes = int(here.labels.max()) + 1
    batches = math.ceil(len(here.train) / 256)
    logits = 1 if classes == 2 else classes
    return seconds * batches * epochs * len(here.columns) * logits


# A cell


def cells(plan: Plan) -> list[str]:
    chosen = QUICK if plan.short else SETS
    return [f"{name}, seed {seed}" for seed in plan.seeds for name in chosen]


def run(study: Study, cell: str) -> None:
    torch.set_num_threads(1)
    warm_up()
    name, _, seed = cell.partition(", seed ")
    here = cut(name, int(seed))
    queries = 32 if study.plan.short else 256
    score = {
        "kNN": lru_cache(lambda group: knn(here, group, here.test)),
        "LR": lru_cache(lambda group: logistic(study, here, group)),
        "GBT": lru_cache(lambda group: trees(study, here, group)),
    }
    seconds: dict[str, float] = {}
    ranking = {
        "LASSO": ranked(here, "lasso", "LASSO, centralized", seconds),
        "VF-PS": ranked(here, "vf_ps", "selection", seconds, queries=queries),
    }
    # Figure 1(b): what each further participant brings
    for count in range(1, len(here.parties) + 1):
        study.record(
            f"{name}, kNN, the first {count} by VF-PS",
            score["kNN"](tuple(sorted(ranking["VF-PS"][:count]))),
        )
    for share, part in SHARES.items():
        keep = max(1, int(part * len(here.parties)))
        if part < 0.5 and len(here.parties) < 4:
            continue
        chosen = chosen_groups(here, keep, ranking, seconds)
        for model, of in score.items() if share == "50 %" else [("kNN", score["kNN"])]:
            for method, groups in chosen.items():
                if method != "brute force" or model == "kNN":
                    values = [of(group) for group in groups]
                    accuracy = np.mean(
                        [
                            value[0] if isinstance(value, tuple) else value
                            for value in values
                        ]
                    )
                    study.record(f"{name}, {model}, {method}, {share}", float(accuracy))
    if here.seed == study.plan.seeds[0]:
        for what, value in seconds.items():
            study.record(f"{name}, {what}", value, "s")
        times(study, name, here, seconds["selection"])
        if name == "Letter":
            study.record(
                "Letter, kNN, the best four columns by the test rows",
                four_columns(here),
            )


def four_columns(here: Cut) -> float:
    """What a quarter of Letter's columns can do at best, if they were not in parties
    and the test rows chose them."""
    x = here.joined(here.parties)
    some = (list(one) for one in itertools.combinations(range(x.shape[1]), 4))
    return max(
        knn(dataclasses.replace(here, columns={"all": x[:, one]}), ("all",), here.test)
        for one in some
    )


@lru_cache
def warm_up() -> None:
    """What is loaded once in a process is no part of anybody's seconds."""
    from sklearn import neighbors  # noqa: F401

    x = np.random.default_rng(0).normal(size=(64, 2))
    for method in ("lasso", "vf_ps"):
        columns = {"party_0": x[:, :1], "party_1": x[:, 1:]}
        select_here(
            columns, (x[:, 0] > 0).astype(np.int64), keep=1, method=method, queries=4
        )


def ranked(
    here: Cut, method: str, what: str, seconds: dict[str, float], **settings: Any
) -> Group:
    """All participants, best first, and what that took."""
    start = time.process_time()
    given: dict[str, Any] = {
        "rows": here.train,
        "seed": here.seed,
        "scaling": "none",
        **settings,
    }
    found = select_here(
        here.columns, here.labels, method=method, **{"keep": 1, **given}
    )
    seconds.setdefault(what, time.process_time() - start)
    return found.ranking


def chosen_groups(
    here: Cut, keep: int, ranking: dict[str, Group], seconds: dict[str, float]
) -> dict[str, list[Group]]:
    """Who is chosen by whom. Brute force tries all subsets on the validation rows."""
    subsets = list(itertools.combinations(here.parties, keep))
    draws = np.random.default_rng([here.seed, 4]).choice(len(subsets), RANDOM_DRAWS)
    by_all = ranked(
        here,
        "brute_force",
        "brute force, in plain text",
        seconds,
        keep=keep,
        score=lambda group: knn(here, group, here.validation),
    )
    return {
        "ALL": [here.parties],
        "RANDOM": [subsets[at] for at in draws],
        **{method: [tuple(sorted(order[:keep]))] for method, order in ranking.items()},
        "brute force": [tuple(sorted(by_all[:keep]))],
    }


def times(study: Study, name: str, here: Cut, selection: float) -> None:
    start = time.process_time()
    knn(here, here.parties, here.asked)
    study.record(
        f"{name}, training kNN in plain text", time.process_time() - start, "s"
    )
    start = time.process_time()
    _, epochs = logistic(study, here, here.parties)
    study.record(f"{name}, training LR in plain text", time.process_time() - start, "s")
    study.record(f"{name}, epochs of LR", epochs, "")
    for model, took in (
        *(("kNN", encrypted_knn(here)), ("LR", encrypted_logistic(here, epochs))),
        ("trees", encrypted_trees(study, here)),
    ):
        study.record(f"{name}, training {model} encrypted, extrapolated", took, "s")
        study.record(
            f"{name}, encrypted {model} takes so many selections", took / selection, "x"
        )
    found = {}
    for what, changes in ABLATIONS.items():
        start = time.process_time()
        given: dict[str, Any] = {
            "rows": here.train,
            "seed": here.seed,
            "scaling": "none",
            **changes,
        }
        select_here(
            here.columns, here.labels, keep=1, queries=ABLATION_QUERIES, **given
        )
        found[what] = time.process_time() - start
        study.record(
            f"{name}, selection by {ABLATION_QUERIES} queries, {what}", found[what], "s"
        )
    for what in ("Fagin", "batching"):
        study.record(
            f"{name}, {what} makes it so many times faster",
            found[f"without {what}"] / found["with both"],
            "x",
        )


def finish(study: Study) -> None:
    """How often a selection comes close to brute force."""
    if study.plan.short:
        return
    for share, method in itertools.product(SHARES, METHODS[1:]):
        pairs = [
            (f"{name}, kNN, {method}, {share}", f"{name}, kNN, brute force, {share}")
            for name in SETS
        ]
        gaps = [
            study.measured[b].mean - study.measured[a].mean
            for a, b in pairs
            if a in study.measured
        ]
        if gaps:
            what = (
                f"data sets where {method} is within 0.02 of brute force, {share}, of"
                f" {len(gaps)}"
            )
            study.record(what, sum(gap <= 0.02 for gap in gaps), "")


def draw(study: Study, out: Path) -> list[Path]:
    from matplotlib.figure import Figure

    names = [name for name in reversed(SETS) if f"{name}, selection" in study.measured]

    def bars(axes: Any, series: dict[str, list[float]], label: str) -> None:
        width = 0.8 / len(series)
        for at, (title, values) in enumerate(series.items()):
            axes.bar(
                np.arange(len(names)) + (at - (len(series) - 1) / 2) * width,
                values,
                width,
                label=title,
            )
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(
            frameon=False,
            ncols=len(series),
            fontsize="small",
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
        )

    def means(what: str) -> list[float]:
        return [study.measured[f"{name}, {what}"].mean for name in names]

    accuracy = Figure(figsize=(9, 9), layout="constrained")
    for at, model in enumerate(MODELS):
        axes = accuracy.add_subplot(3, 1, at + 1)
        bars(
            axes,
            {method: means(f"{model}, {method}, 50 %") for method in METHODS},
            f"{model}: test accuracy",
        )
        axes.set_ylim(0, 1)
    taken = Figure(figsize=(9, 8), layout="constrained")
    shown = {
        "selection (VF-PS)": "selection",
        "LASSO, centralized": "LASSO, centralized",
        "kNN, plain": "training kNN in plain text",
        "LR, plain": "training LR in plain text",
        "kNN, encrypted": "training kNN encrypted, extrapolated",
        "LR, encrypted": "training LR encrypted, extrapolated",
    }
    axes = taken.add_subplot(2, 1, 1)
    bars(
        axes, {title: means(what) for title, what in shown.items()}, "processor seconds"
    )
    axes.set_yscale("log")
    axes = taken.add_subplot(2, 1, 2)
    what = f"selection by {ABLATION_QUERIES} queries"
    bars(
        axes,
        {title: means(f"{what}, {title}") for title in ABLATIONS},
        f"seconds, {ABLATION_QUERIES} queries",
    )
    axes.set_yscale("log")
    return [
        *save(accuracy, out / "vf-ps-accuracy"),
        *save(taken, out / "vf-ps-seconds"),
    ]
