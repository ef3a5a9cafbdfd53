"""Class weights: a row counts as often as its class weighs, whatever the algorithm; the
scores stay comparable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from tests.federation.small import federation, frames, quick

from colonnade import Federation
from colonnade.algorithms import ALGORITHMS
from colonnade.errors import ConfigError
from colonnade.federation.soundness import constant_loss
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, balanced, z_update

OPEN: dict[str, dict[str, Any]] = {  # the same numbers as encrypted, in a moment
    "boosted_trees": {"encryption": "none"},
    "knn": {"aggregation": "plain"},
    "vfedcce": {"mode": "plaintext"},
}
NAMES = [name for name, algorithm in ALGORITHMS.items() if algorithm.nested is None]


def rare(rows: int = 240) -> dict[str, pd.DataFrame]:
    """One in eight is ill, and no column tells for sure who."""
    random = np.random.default_rng(3)
    x = random.normal(size=(rows, 4))
    total = x @ np.array([1.0, -1.0, 1.0, 0.5]) + random.normal(size=rows)
    ids = [f"P{number}" for number in range(rows)]
    label = np.where(total > np.quantile(total, 0.875), "ill", "well")
    clinic = pd.DataFrame(
        {"patient": ids, "age": x[:, 0], "weight": x[:, 1], "diagnosis": label}
    )
    return {
        "clinic": clinic,
        "lab": pd.DataFrame({"patient": ids, "iron": x[:, 2], "zinc": x[:, 3]}),
    }


def trained(name: str, weights: Any, **train: Any) -> Federation:
    settings = {
        "algorithm": {"name": name, **OPEN.get(name, {})},
        "train": {
            "class_weights": weights,
            "epochs": 4,
            "batch_size": 64,
            "early_stop": False,
            **train,
        },
        "federation": {"device": "cpu"},
    }
    one = federation(rare(), settings)
    for _ in one.train():
        pass
    return one


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_weights_of_one_change_nothing_and_a_heavy_class_is_said_more_often(
    name: str,
) -> None:
    plain, ones, heavy = (
        trained(name, how) for how in ("equal", {"ill": 1.0, "well": 1.0}, {"ill": 7.0})
    )
    torch.testing.assert_close(
        ones.outputs("train"), plain.outputs("train"), rtol=1e-3, atol=1e-4
    )
    ill = [
        float((one.holdings.loss.decide(one.outputs("train")) == 0).double().mean())
        for one in (plain, heavy)
    ]
    assert ill[1] > ill[0]


def test_several_label_owners_weigh_their_own_rows() -> None:
    given = rare()
    owners = {"clinic": given["clinic"][["patient", "diagnosis"]].iloc[:160]}
    owners["ward"] = given["clinic"][["patient", "diagnosis"]].iloc[160:]
    columns = {"clinic": given["clinic"].drop(columns="diagnosis"), "lab": given["lab"]}
    settings = {
        "train": {"class_weights": "balanced", "epochs": 1},
        "federation": {"device": "cpu"},
    }
    one = Federation.from_frames(
        columns, id="patient", label="diagnosis", label_owners=owners, settings=settings
    )
    for owner in one.label_owners.values():
        train = one.agreed[owner.name].splits["train"]
        assert owner.loss.weights == balanced(owner.labels[train], 2)


@pytest.mark.parametrize(
    "loss", [Logistic(weights=(0.5, 3.0)), CrossEntropy(3, (1.0, 0.25, 4.0))]
)
def test_a_weighted_loss_is_the_mean_of_what_rows_count(loss: Loss) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(20, loss.outputs, generator=generator)
    labels = torch.randint(max(loss.outputs, 2), (20,), generator=generator)
    plain = Logistic() if loss.outputs == 1 else CrossEntropy(3)
    each = torch.stack(
        [plain(outputs[at : at + 1], labels[at : at + 1]) for at in range(20)]
    )
    counts = torch.tensor([loss.weights[label] for label in labels.tolist()])
    torch.testing.assert_close(loss(outputs, labels), (counts * each).mean())


@pytest.mark.parametrize(
    "loss", [Logistic(weights=(0.5, 3.0)), CrossEntropy(3, (1.0, 0.25, 40.0))]
)
def test_the_z_update_of_a_weighted_loss_is_its_minimum(loss: Loss) -> None:
    generator = torch.Generator().manual_seed(0)
    o, duals = (
        torch.randn(6, loss.outputs, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    labels = torch.randint(max(loss.outputs, 2), (6,), generator=generator)
    found = z_update(loss, o, duals, labels, rho=0.7)
    for row in range(6):

        def objective(z: Any, row: int = row) -> float:
            point = torch.from_numpy(z)[None]
            lost = float(loss(point, labels[row : row + 1]))
            return (
                lost
                - float((duals[row] * point).sum())
                + 0.35 * float((point - o[row]).square().sum())
            )

        least = minimize(
            objective, o[row].numpy(), method="BFGS", options={"gtol": 1e-9}
        )
        np.testing.assert_allclose(found[row].numpy(), least.x, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_balanced_logistic_regression_is_scikit_learns(classes: int) -> None:
    given = rare() if classes == 2 else frames(200, task="classes")
    settings = {
        "algorithm": {"name": "logistic_regression"},
        "preprocess": {"numbers": "standard"},
        "train": {"epochs": 120, "early_stop": False, "class_weights": "balanced"},
        "federation": {"device": "cpu"},
    }
    one = federation(given, settings)
    for _ in one.train():
        pass
    rows = one.batches.splits["train"]
    test = one.batches.splits["test"]
    x = (
        torch.cat([owner.features for owner in one.owners.values()], dim=1)
        .double()
        .numpy()
    )
    theirs = LogisticRegression(
        tol=1e-10, max_iter=10_000, class_weight="balanced"
    ).fit(x[rows], one.labels[rows])
    scores = one.holdings.loss.scores(one.outputs("test")).double().numpy()
    np.testing.assert_allclose(scores, theirs.predict_proba(x[test]), atol=1e-3)


def test_the_loss_that_is_told_counts_rows_alike_and_the_weighted_one_stands_beside_it() -> (
    None
):
    one = federation(rare(), quick(train={"class_weights": "balanced", "epochs": 2}))
    scores = one.evaluate("test")
    outputs = one.outputs("test")
    labels = one.labels[one.batches.splits["test"]]
    assert scores["loss"] == pytest.approx(float(one.holdings.loss(outputs, labels)))
    assert scores["weighted_loss"] == pytest.approx(
        float(one.driver.loss(outputs, labels))
    )
    assert scores["weighted_loss"] != pytest.approx(scores["loss"], rel=0.01)


def test_balanced_classes_are_as_hard_to_tell_as_even_ones() -> None:
    labels = torch.tensor([0] * 9 + [1])
    even = Logistic(weights=balanced(labels, 2))
    assert constant_loss(even, labels, labels) == pytest.approx(np.log(2))


def test_what_cannot_be_weighed_is_refused() -> None:
    with pytest.raises(ConfigError, match="is for classes, and the label is a number"):
        federation(
            frames(task="regression"), quick(train={"class_weights": "balanced"})
        )
    with pytest.raises(
        ConfigError, match="names a class 'dead', and none of the 2 classes"
    ):
        federation(settings=quick(train={"class_weights": {"dead": 2.0}}))
    with pytest.raises(
        ConfigError, match=r'class_weights must be "equal", "balanced", or by class'
    ):
        federation(settings=quick(train={"class_weights": {"ill": -1.0}}))
    rule = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 1.0}}}
    with pytest.raises(
        ConfigError,
        match="counts labels, and this label owner's rule draws them at random",
    ):
        federation(
            settings=quick(
                train={"class_weights": "balanced"},
                parties={"clinic": {"outbox": rule}},
            )
        )
    encrypted = quick(
        algorithm={"name": "vfedcce"}, train={"class_weights": {"ill": 9.0}}
    )
    encrypted["algorithm"].pop("local_steps")
    with pytest.raises(
        ConfigError, match=r"counts 9 times, and vfedcce\.coefficient_limit"
    ):
        federation(settings=encrypted)
    by_class = quick(
        train={"class_weights": {"ill": 2.0}}, parties={"clinic": {"outbox": rule}}
    )
    assert federation(settings=by_class).driver.loss.weights == (2.0, 1.0)
