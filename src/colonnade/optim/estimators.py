"""scikit-learn's estimators, by a name from a fixed list, and what they learned as
plain tensors.

scikit-learn learns; what it learned is read into a torch module that applies it, so
that it is saved without pickle, exported like every other model, and means the same
under the next version of scikit-learn. A test holds each module to its estimator's own
outputs.

    boosted_trees    HistGradientBoosting: of each tree the column and threshold of every node, and its leaves' values
    logistic         LogisticRegression, or Ridge where labels are numbers: one linear map of standardised columns
    mlp              MLPClassifier or MLPRegressor with a hidden layer of 64: two linear maps with a ReLU between them
    auto             of these the one with the least loss on a fifth of the rows, then learned from all
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from colonnade.optim.losses import Loss, Squared

NAMES = ("boosted_trees", "logistic", "mlp")
AUTO = "auto"
FEW = 10
"""Of fewer rows to compare by, no estimator is better than a linear one."""
UNSEEN = -30.0
"""The logit of a class that no training row has."""
MANY = 1000
"""From so many rows on a perceptron keeps some of them back to know when to stop."""


class Estimated(nn.Module):
    """What an estimator says of each row, placed among the outputs that a loss reads."""

    place: Tensor
    offset: Tensor

    def __init__(self, place: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.register_buffer("place", place)  # [said, outputs]
        self.register_buffer("offset", offset)  # [outputs]

    def said(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, parts: list[Tensor]) -> Tensor:
        """The outputs for what each party sent for the same rows."""
        x = torch.cat([part.flatten(1) for part in parts], dim=1)
        return (self.said(x.double()) @ self.place + self.offset).to(x.dtype)


class Layers(Estimated):
    """Linear maps with a ReLU between them."""

    def __init__(
        self, weights: list[Tensor], biases: list[Tensor], place: Tensor, offset: Tensor
    ) -> None:
        super().__init__(place, offset)
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            self.register_buffer(f"weight{number}", weight)  # [inputs, outputs]
            self.register_buffer(f"bias{number}", bias)
        self.depth = len(weights)

    def said(self, x: Tensor) -> Tensor:
        for number in range(self.depth):
            x = x.relu() if number else x
            x = x @ self.get_buffer(f"weight{number}") + self.get_buffer(
                f"bias{number}"
            )
        return x


class Trees(Estimated):
    """Of every tree its nodes, and how each row comes to a leaf; leaves are their own
    children."""

    column: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    whose: Tensor
    depth: Tensor

    def __init__(self, place: Tensor, offset: Tensor, **nodes: Tensor) -> None:
        super().__init__(place, offset)
        for name in ("column", "threshold", "left", "right", "value"):
            self.register_buffer(name, nodes[name])  # [trees, nodes]
        # [trees, said]: which of the outputs a tree adds to
        self.register_buffer("whose", nodes["whose"])
        self.register_buffer("depth", nodes["depth"])

    def said(self, x: Tensor) -> Tensor:
        node = torch.zeros(
            len(self.column), x.shape[0], dtype=torch.int64, device=x.device
        )
        for _ in range(len(self.depth)):
            goes_left = x.mT.gather(
                0, self.column.gather(1, node)
            ) <= self.threshold.gather(1, node)
            node = torch.where(
                goes_left, self.left.gather(1, node), self.right.gather(1, node)
            )
        return self.value.gather(1, node).mT.contiguous() @ self.whose


def constant(inputs: int, outputs: Tensor) -> Layers:
    """The same outputs for every row: where nothing was learned, or every row has one
    label."""
    said = torch.zeros(inputs, len(outputs), dtype=torch.float64)
    return Layers(
        [said],
        [outputs.double()],
        torch.eye(len(outputs), dtype=torch.float64),
        0 * outputs.double(),
    )


def learned(name: str, x: Tensor, labels: Tensor, loss: Loss, seed: int) -> Estimated:
    """What the estimator of that name learns from these rows."""
    if name == AUTO:
        name = _best(x, labels, loss, seed)
    columns = x.detach().cpu().double().numpy()
    y = labels.detach().cpu().numpy()
    if isinstance(loss, Squared):
        return _read(
            name, _made(name, "regression", seed, len(y)), columns, y, *_as_it_is(1)
        )
    classes = np.unique(y)
    if len(classes) == 1:
        only = torch.full(
            (loss.outputs,), UNSEEN if loss.outputs > 1 or not classes[0] else -UNSEEN
        )
        if loss.outputs > 1:
            only[int(classes[0])] = 0.0
        return constant(columns.shape[1], only)
    place, offset = (
        _as_it_is(1) if loss.outputs == 1 else _placed(classes, loss.outputs)
    )
    weights = loss.weigh(labels)
    counts = None if weights is None else weights.cpu().numpy()
    return _read(
        name,
        _made(name, "classification", seed, len(y)),
        columns,
        y,
        place,
        offset,
        counts,
    )


def _best(x: Tensor, labels: Tensor, loss: Loss, seed: int) -> str:
    """The estimator that learns most for other rows from four fifths of these."""
    order = torch.randperm(
        len(labels), generator=torch.Generator().manual_seed(seed)
    ).to(x.device)
    out = order[: len(order) // 5]
    used = order[len(order) // 5 :]
    if len(out) < FEW:
        return "logistic"
    candidates = {
        name: learned(name, x[used], labels[used], loss, seed).to(x.device)
        for name in NAMES
    }
    return min(
        candidates,
        key=lambda name: float(loss(candidates[name]([x[out]]), labels[out])),
    )


def restored(state: Mapping[str, Tensor]) -> Estimated:
    """Make it again from a `state_dict`."""
    held = dict(state)
    place = held.pop("place")
    offset = held.pop("offset")
    if "threshold" in held:
        return Trees(place, offset, **held)
    depth = len(held) // 2
    return Layers(
        [held[f"weight{n}"] for n in range(depth)],
        [held[f"bias{n}"] for n in range(depth)],
        place,
        offset,
    )


def _as_it_is(outputs: int) -> tuple[Tensor, Tensor]:
    return torch.eye(outputs, dtype=torch.float64), torch.zeros(
        outputs, dtype=torch.float64
    )


def _placed(classes: NDArray[Any], outputs: int) -> tuple[Tensor, Tensor]:
    """Each known class's logit in its place; of two an estimator says one number, the
    log-odds of the second."""
    known = torch.from_numpy(classes.astype(np.int64))
    shown = known if len(known) > 2 else known[1:]
    place = torch.zeros(len(shown), outputs, dtype=torch.float64)
    place[torch.arange(len(shown)), shown] = 1.0
    offset = torch.full((outputs,), UNSEEN, dtype=torch.float64)
    offset[known] = 0.0
    return place, offset


def _made(name: str, task: str, seed: int, rows: int) -> Any:
    """The estimator: received text never chooses code, it is looked up here."""
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    numbers = task == "regression"
    if name == "boosted_trees":
        return (
            HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier
        )(random_state=seed)
    if name == "logistic":
        return Ridge() if numbers else LogisticRegression(max_iter=1000)
    kind = MLPRegressor if numbers else MLPClassifier
    return kind(
        hidden_layer_sizes=(64,),
        early_stopping=rows >= MANY,
        max_iter=200,
        random_state=seed,
    )


def _read(
    name: str,
    estimator: Any,
    columns: NDArray[Any],
    y: NDArray[Any],
    place: Tensor,
    offset: Tensor,
    counts: NDArray[Any] | None = None,
) -> Estimated:
    """What it learned of these rows, each of which `counts` so much."""
    weighed = {} if counts is None else {"sample_weight": counts}
    if name == "boosted_trees":
        return _trees(estimator.fit(columns, y, **weighed), place, offset)
    from sklearn.exceptions import ConvergenceWarning

    mean = columns.mean(0)
    spread = columns.std(0)
    spread = np.where(spread > 1e-12, spread, 1.0)
    with warnings.catch_warnings():
        # as far as it came: scores say how good that is
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit((columns - mean) / spread, y, **weighed)
    if name == "mlp":
        weights = list(estimator.coefs_)
        biases = list(estimator.intercepts_)
    else:
        weights = [np.atleast_2d(estimator.coef_).T]
        biases = [np.atleast_1d(estimator.intercept_)]
    weights[0], biases[0] = (
        weights[0] / spread[:, None],
        biases[0] - (mean / spread) @ weights[0],
    )
    return Layers(
        [_tensor(w) for w in weights], [_tensor(b) for b in biases], place, offset
    )


def _trees(estimator: Any, place: Tensor, offset: Tensor) -> Trees:
    """From the arrays in which HistGradientBoosting keeps its trees, one per round and
    output."""
    rounds = estimator._predictors
    trees = [
        (tree.nodes, output)
        for trees_of_round in rounds
        for output, tree in enumerate(trees_of_round)
    ]
    most = max((len(nodes) for nodes, _ in trees), default=1)
    said = len(place)
    size = len(trees), most
    nodes_by_tree = {
        name: torch.zeros(size, dtype=torch.int64)
        for name in ("column", "left", "right")
    }
    nodes_by_tree |= {
        name: torch.zeros(size, dtype=torch.float64) for name in ("threshold", "value")
    }
    nodes_by_tree["whose"] = torch.zeros(len(trees), said, dtype=torch.float64)
    for number, (nodes, output) in enumerate(trees):
        leaf = nodes["is_leaf"].astype(bool)
        own = np.arange(len(nodes))
        count = len(nodes)
        nodes_by_tree["column"][number, :count] = _tensor(
            np.where(leaf, 0, nodes["feature_idx"]), torch.int64
        )
        nodes_by_tree["threshold"][number, :count] = _tensor(
            np.where(leaf, 0.0, nodes["num_threshold"])
        )
        nodes_by_tree["left"][number, :count] = _tensor(
            np.where(leaf, own, nodes["left"]), torch.int64
        )
        nodes_by_tree["right"][number, :count] = _tensor(
            np.where(leaf, own, nodes["right"]), torch.int64
        )
        nodes_by_tree["value"][number, :count] = _tensor(
            np.where(leaf, nodes["value"], 0.0)
        )
        nodes_by_tree["whose"][number, output] = 1.0
    deepest = max((int(nodes["depth"].max()) for nodes, _ in trees), default=0)
    start = _tensor(np.asarray(estimator._baseline_prediction)).reshape(-1)
    return Trees(
        place,
        offset + start @ place,
        depth=torch.zeros(deepest, dtype=torch.int64),
        **nodes_by_tree,
    )


def _tensor(values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
