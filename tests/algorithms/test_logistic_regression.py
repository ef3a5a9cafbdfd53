"""Vertical logistic regression is FDML whose parties hold their columns and a head: scikit-learn's optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import LogisticRegression

from colonnade import Federation

DECAY = 0.01


def federated(load: Any, parties: int) -> Federation:
    """f_k is the identity, so that W_k has a weight per column; Adam on whole batches, to the optimum."""
    x, y = load(return_X_y=True)
    frame = pd.DataFrame(x, columns=[f"c{at}" for at in range(x.shape[1])]).assign(id=np.arange(len(x)))
    runs = np.array_split(frame.columns[:-1], parties)
    frames = {f"party_{at}": frame[["id", *run]] for at, run in enumerate(runs)}
    frames["party_0"] = frames["party_0"].assign(label=y)
    return Federation.from_frames(
        frames,
        id="id",
        label="label",
        settings={
            "algorithm": {"name": "fdml", "optimizer": "adam", "learning_rate": 0.03, "weight_decay": DECAY},
            "model": {"name": "identity"},
            "train": {"epochs": 1000, "batch_size": 100_000, "early_stop": False},
            "federation": {"device": "cpu"},
        },
    )


@pytest.mark.parametrize(("load", "parties"), [(load_breast_cancer, 3), (load_wine, 2)], ids=["two classes", "three"])
def test_fdml_with_linear_parties_reaches_scikit_learns_optimum(load: Any, parties: int) -> None:
    """mean loss + decay/2 |w|^2 here is sum loss + 1/(2C) |w|^2 there, with C = 1/(decay rows). Neither has an
    intercept; a party adds one as a column of ones that is not scaled."""
    federation = federated(load, parties)
    for _ in federation.train():
        pass
    federation.settle()
    rows = federation.batches.splits["train"]
    x = torch.cat([owner.features for owner in federation.owners.values()], dim=1).double()
    reference = LogisticRegression(C=1 / (DECAY * len(rows)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    reference.fit(x[rows], federation.labels[rows])
    weights = torch.cat([weight for owner in federation.owners.values() for weight in owner.model.parameters()], dim=1)
    weights = weights.detach().double()
    expected = torch.from_numpy(reference.coef_)
    assert weights.shape == expected.shape
    assert float((weights - expected).abs().max()) <= 2e-3 * float(expected.abs().max())
    test = federation.batches.splits["test"]
    scores = federation.holdings.loss.scores(federation.outputs("test")).double()
    assert float((scores - torch.from_numpy(reference.predict_proba(x[test]))).abs().max()) <= 1e-3
    decided = federation.holdings.loss.decide(federation.outputs("test"))
    assert torch.equal(decided, torch.from_numpy(reference.predict(x[test])))


def test_a_party_has_one_weight_per_column_and_output() -> None:
    """[model] "linear" would make it a product A_k W_k of two matrices: the same functions, but weight decay on both
    factors is no longer ridge. So the part below the head is the identity."""
    for load, outputs in ((load_breast_cancer, 1), (load_wine, 3)):
        for owner in federated(load, 3).owners.values():
            assert [tuple(weight.shape) for weight in owner.model.parameters()] == [(outputs, owner.features.shape[1])]
