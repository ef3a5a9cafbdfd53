"""What nodes tell of labels: a feature owner of boosted trees that knows 200 labels
guesses those of all other rows.

The defaults of 30,000 credit cards as FATE cut them
(`fate_vertical/default_credit_hetero_{guest,host}.csv.gz` under COLONNADE_DATA), or
scikit-learn's breast cancer data where they are not there. Twenty trees of depth 5 at
the defaults; the nodes are the same whether gradients are encrypted, and are told
without encryption here, which takes less time. The attacker learns from the nodes of
its 200 rows, beside its own columns; the control learns from its own columns alone,
which is what hidden nodes leave it. Logistic regressions and forests, the better of
both on each side.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch

from colonnade.attacks.label_attacks import memberships
from colonnade.attacks.received import Knowledge
from colonnade.benchmark import Result
from colonnade.federation import Federation

CREDIT = "fate_vertical/default_credit_hetero_{}.csv.gz"
KNOWN = 200
ROUNDS = 20


def run(quick: bool) -> list[Result]:
    name, frames = tables(quick)
    attacker = list(frames)[1]
    settings = {
        "algorithm": {"name": "boosted_trees", "encryption": "none"},
        "train": {"epochs": 5 if quick else ROUNDS, "early_stop": False},
        "federation": {"device": "cpu", "seed": 0},
        "data": {"validation": 0, "test": 0},
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "boosted_trees without encryption")
        federation = Federation.from_frames(
            frames, id="id", label="y", settings=settings, record=True
        )
        for _ in federation.train():
            pass
    assert federation.recording is not None
    own = federation.owners[attacker].features.cpu()
    held = Knowledge(
        attacker,
        federation.agreed.one,
        federation.settings.config,
        2,
        federation.algorithm.releases,
        columns=own,
    )
    rows, paths = memberships(federation.recording.transcripts[attacker], held)
    nodes = torch.cat([torch.nn.functional.one_hot(column) for column in paths.T], 1)
    y = federation.labels.cpu()[rows].numpy()
    columns = own[rows].flatten(1).numpy()
    both = np.concatenate([columns, nodes.numpy()], axis=1)
    draws = range(1 if quick else 5)
    with_nodes, without = (
        fmean(guessed(x, y, draw) for draw in draws) for x in (both, columns)
    )
    return [
        Result(
            f"labels of {name}, with nodes and {KNOWN} labels",
            f"AUC {with_nodes:.3f}",
            f"own columns {without:.3f}",
            numbers={"auc": with_nodes, "auc_of_own_columns": without},
        )
    ]


def tables(quick: bool) -> tuple[str, dict[str, pd.DataFrame]]:
    """Label owner first."""
    folder = Path(os.environ.get("COLONNADE_DATA", "."))
    if not quick and (folder / CREDIT.format("guest")).exists():
        guest, host = (
            pd.read_csv(folder / CREDIT.format(who)) for who in ("guest", "host")
        )
        return "default_credit", {"bank": guest, "bureau": host}
    from sklearn.datasets import load_breast_cancer

    frame = (
        load_breast_cancer(as_frame=True)
        .frame.rename(columns={"target": "y"})
        .rename_axis("id")
        .reset_index()
    )
    columns = list(frame.columns[1:-1])
    return "breast cancer", {
        "clinic": frame[["id", *columns[:20], "y"]],
        "lab": frame[["id", *columns[20:]]],
    }


def guessed(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], seed: int) -> float:
    """The AUC of a guess at all other rows' labels."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    order = np.random.default_rng(seed).permutation(len(y))
    known = order[:KNOWN]
    others = order[KNOWN:]
    models = (
        make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000)),
        RandomForestClassifier(300, min_samples_leaf=3, random_state=seed),
    )
    scores = [
        model.fit(x[known], y[known]).predict_proba(x[others])[:, 1] for model in models
    ]
    return max(float(roc_auc_score(y[others], score)) for score in scores)
