"""Boosted trees between two organisations beside scikit-learn's HistGradientBoosting on
joined columns.

Both have 32 bins, trees of depth 5, a learning rate of 0.1 and as many rounds;
scikit-learn's gradients are exact, and here they are rounded to 8 bits. A tenth of the
rows are for testing, others for each seed; nothing is chosen by them, and nothing is
chosen at all. Beside them, with the first seed, networks at their defaults on the same
test rows: a ninth of the other rows validate, and say when to stop. FATE's vertical
examples are read as they are divided there: the guest holds the labels. Of the other
sets the label owner holds the first half of the columns.

FATE's files lie in `fate_vertical/` of the data folder ($COLONNADE_DATA):
NAME_hetero_guest.csv.gz and _host.csv.gz from FATE's examples/data.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade import datasets
from colonnade.algorithms.tree_owner import gaps_of, with_gaps
from colonnade.datasets.catalogue import FOLDER_VARIABLE
from colonnade.errors import DataError
from colonnade.federation import Federation
from colonnade.reproduction import Study
from colonnade.reproduction.expected import Plan

BANK = "bank"
PARTNER = "partner"
BINS = 32


@dataclass(frozen=True)
class Table:
    """FATE's file and its label, or the name of a public set; with more classes than
    two, fewer rounds."""

    name: str
    label: str = ""
    rounds: int = 100
    loss: str = "auto"
    metric: str = "auc"


SETS = {
    "letter": Table("letter", rounds=30, metric="accuracy"),
    "default_credit": Table("default_credit", "y"),
    "bank marketing": Table("bank_marketing"),
    "dvisits": Table("dvisits", "doctorco", loss="poisson", metric="r2"),
    "motor": Table("motor", "motor_speed", loss="squared", metric="r2"),
    "south german credit": Table("south_german_credit"),
    "breast": Table("breast", "y"),
    "ionosphere": Table("ionosphere_scale", "label"),
}
QUICK = ("breast", "south german credit")
NETWORKS = {"vimadmm": {}, "splitnn": {"head_hidden": 0}}
"""The networks beside the trees, with what keeps them as they were measured."""


def cells(plan: Plan) -> list[str]:
    return [name for name in SETS if not plan.short or name in QUICK]


def run(study: Study, cell: str) -> None:
    table = SETS[cell]
    rounds = 20 if study.plan.short else SETS[cell].rounds
    mine, theirs, y = read(table)
    for seed in study.plan.seeds:
        wanted = {"name": "boosted_trees", "encryption": "none", "loss": table.loss}
        settings = {
            "algorithm": (
                study.settings({"algorithm": wanted}).to_mapping()["algorithm"]
            ),
            "train": {"epochs": rounds, "early_stop": False},
            "data": {"validation": 0},
        }
        federation = joined(settings, table, mine, theirs, y, seed)
        ours = federation.evaluate("test")[table.metric]
        central = centralized(table, federation, rounds)
        study.record(f"{cell}, {table.metric}", ours, "")
        study.record(f"{cell}, {table.metric}, centralized", central, "")
        study.record(f"{cell}, {table.metric} less centralized", ours - central, "")
        beside = seed == study.plan.seeds[0] and not study.plan.short
        for name, own in NETWORKS.items() if beside else ():
            network = joined(
                {"algorithm": {"name": name, **own}}, table, mine, theirs, y, seed
            )
            assert np.array_equal(
                *(np.sort(one.batches.splits["test"]) for one in (federation, network))
            )
            study.record(
                f"{cell}, {table.metric}, {name}",
                network.evaluate("test")[table.metric],
                "",
            )


def read(table: Table) -> tuple[pd.DataFrame, pd.DataFrame, NDArray[Any]]:
    """The label owner's columns, the partner's, and labels."""
    if not table.label:
        found = datasets.load(table.name)
        parts = [part for part in (found.train, found.test) if part is not None]
        frame = pd.concat([part.frame() for part in parts], ignore_index=True)
        half = (frame.shape[1] + 1) // 2
        return (
            frame.iloc[:, :half],
            frame.iloc[:, half:],
            np.concatenate([part.y for part in parts]),
        )
    folder = Path(os.environ.get(FOLDER_VARIABLE, ".")) / "fate_vertical"
    frames = []
    for side in ("guest", "host"):
        path = folder / f"{table.name}_hetero_{side}.csv.gz"
        if not path.exists():
            raise DataError(
                f"{path} is not there. It is one of FATE's examples/data; put it into"
                f" ${FOLDER_VARIABLE}."
            )
        frame = pd.read_csv(path)
        frames.append(frame.set_index(frame.columns[0]).sort_index())
    guest, host = (frame.reset_index(drop=True) for frame in frames)
    host = host.rename(columns=lambda name: f"host {name}")
    varying = [
        frame.loc[:, frame.nunique() > 1]
        for frame in (guest.drop(columns=table.label), host)
    ]
    return varying[0], varying[1], guest[table.label].to_numpy()


def joined(
    settings: dict[str, Any],
    table: Table,
    mine: pd.DataFrame,
    theirs: pd.DataFrame,
    y: NDArray[Any],
    seed: int,
) -> Federation:
    """Trained between two organisations."""
    ids = pd.DataFrame({"id": np.arange(len(y))})
    task = "regression" if table.metric == "r2" else "classification"
    settings = {
        **settings,
        "federation": {"device": "cpu", "seed": seed},
        "data": {
            "test": 0.1,
            "task": task,
            "target_scale": "linear",
            **settings.get("data", {}),
        },
    }
    frames = {BANK: ids.join(mine).assign(label=y), PARTNER: ids.join(theirs)}
    with warnings.catch_warnings():
        # public data, all of it in this process
        warnings.filterwarnings("ignore", "boosted_trees without encryption")
        federation = Federation.from_frames(
            frames, id="id", label="label", settings=settings
        )
        federation.fit()
    return federation


def centralized(table: Table, federation: Federation, rounds: int) -> float:
    """scikit-learn's trees on the same prepared columns, gaps and rows."""
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.metrics import r2_score, roc_auc_score

    x = np.concatenate(
        [
            with_gaps(one.features, gaps_of(one.organisation.fitted))
            for one in federation.owners.values()
        ],
        1,
    )
    y = federation.labels.numpy()
    rows = federation.batches.splits
    chosen: dict[str, Any] = {
        "max_iter": rounds,
        "max_bins": BINS,
        "max_depth": 5,
        "max_leaf_nodes": None,
        "learning_rate": 0.1,
        "l2_regularization": 1.0,
        "min_samples_leaf": 5,
        "early_stopping": False,
    }
    if table.metric == "r2":
        encoder = federation.holdings.encoder
        y = (
            np.maximum(y * encoder.scale + encoder.mean, 0.0)
            if table.loss == "poisson"
            else y
        )
        loss = {"poisson": "poisson"}.get(table.loss, "squared_error")
        model = HistGradientBoostingRegressor(loss=loss, **chosen).fit(
            x[rows["train"]], y[rows["train"]]
        )
        return float(r2_score(y[rows["test"]], model.predict(x[rows["test"]])))
    model = HistGradientBoostingClassifier(**chosen).fit(
        x[rows["train"]], y[rows["train"]]
    )
    if table.metric == "accuracy":
        return float(model.score(x[rows["test"]], y[rows["test"]]))
    return float(
        roc_auc_score(y[rows["test"]], model.predict_proba(x[rows["test"]])[:, 1])
    )
