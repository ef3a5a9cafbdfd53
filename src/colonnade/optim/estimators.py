"""scikit-learn's estimators, by a name from a fixed list, and what they learned as
plain tensors.

    boosted_trees    HistGradientBoosting: the column and threshold of each node of each
                     tree, and the values of the leaves
    logistic         LogisticRegression, or Ridge where labels are numbers: one linear
                     map of standardised columns
    mlp              MLPClassifier or MLPRegressor with a hidden layer of 64: two linear
                     maps with a ReLU between them
    auto             the one of these with the least loss on a fifth of the rows, which
                     then learns from all rows

scikit-learn learns. What it learned is read into a torch module, so that it is saved
without pickle, exported like every other model, and means the same under the next
version of scikit-learn. A test holds each module to its estimator's own outputs.
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

FEWEST_ROWS_TO_COMPARE = 10
"""With fewer rows to compare estimators by, the linear one is taken."""
LOGIT_OF_UNSEEN_CLASS = -30.0
"""The logit of a class that no training row has."""
ROWS_FOR_EARLY_STOPPING = 1000
"""From this many rows on a perceptron holds some of them back to know when to stop."""
HIDDEN_UNITS = 64
SMALLEST_SPREAD = 1e-12
"""A column whose standard deviation is smaller is not divided by it."""


class Estimated(nn.Module):
    """A trained estimator as a torch module.

    An estimator has an output for each class that it saw, while a loss reads an output
    for each class there is. The loss's outputs are `answers(x) @ placement + offset`.

    Args:
        placement: A 1 where an estimator's output (row) is an output of the loss
            (column), and 0 elsewhere.
        offset: What is added to each output of the loss.
    """

    placement: Tensor
    offset: Tensor

    def __init__(self, placement: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.register_buffer("placement", placement)
        self.register_buffer("offset", offset)

    def answers(self, x: Tensor) -> Tensor:
        """The estimator's own outputs for rows of columns, in float64."""
        raise NotImplementedError

    def forward(self, parts: list[Tensor]) -> Tensor:
        """The loss's outputs for rows of which each party sent some columns."""
        x = torch.cat([part.flatten(1) for part in parts], dim=1)
        outputs = self.answers(x.double()) @ self.placement + self.offset
        return outputs.to(x.dtype)


class LinearLayers(Estimated):
    """Linear maps with a ReLU between them.

    Args:
        weights: The matrix of each map, [inputs, outputs].
        biases: What is added after each map.
        placement: See `Estimated`.
        offset: See `Estimated`.
    """

    def __init__(
        self,
        weights: list[Tensor],
        biases: list[Tensor],
        placement: Tensor,
        offset: Tensor,
    ) -> None:
        super().__init__(placement, offset)
        self.depth = len(weights)
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            self.register_buffer(f"weight{number}", weight)
            self.register_buffer(f"bias{number}", bias)

    def answers(self, x: Tensor) -> Tensor:
        for number in range(self.depth):
            if number:
                x = x.relu()
            weight = self.get_buffer(f"weight{number}")
            x = x @ weight + self.get_buffer(f"bias{number}")
        return x


class Trees(Estimated):
    """Decision trees whose leaves' values are added up.

    All trees have room for as many nodes as the largest. A leaf is its own left and
    right child, so a row that has reached its leaf stays there for the remaining steps.

    Args:
        placement: See `Estimated`.
        offset: See `Estimated`.
        nodes: For each tree and node `column` and `threshold` of its question, its
            children `left` and `right`, and its `value`; for each tree in `adds_to` a 1
            at the output that it adds to; and `depth`, which is as long as the deepest
            tree is deep.
    """

    column: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    adds_to: Tensor
    depth: Tensor

    def __init__(self, placement: Tensor, offset: Tensor, **nodes: Tensor) -> None:
        super().__init__(placement, offset)
        for name in ("column", "threshold", "left", "right", "value"):
            self.register_buffer(name, nodes[name])
        self.register_buffer("adds_to", nodes["adds_to"])
        self.register_buffer("depth", nodes["depth"])

    def answers(self, x: Tensor) -> Tensor:
        columns = x.mT
        trees = len(self.column)
        # the node at which each row is, in each tree
        node = torch.zeros(trees, x.shape[0], dtype=torch.int64, device=x.device)
        for _ in range(len(self.depth)):
            asked = columns.gather(0, self.column.gather(1, node))
            goes_left = asked <= self.threshold.gather(1, node)
            left = self.left.gather(1, node)
            right = self.right.gather(1, node)
            node = torch.where(goes_left, left, right)
        return self.value.gather(1, node).mT.contiguous() @ self.adds_to


def learn(name: str, x: Tensor, labels: Tensor, loss: Loss, seed: int) -> Estimated:
    """Train an estimator.

    Args:
        name: One of `NAMES`, or `AUTO`.
        x: The rows, [rows, columns].
        labels: The class number or the value of each row.
        loss: The loss whose outputs the result computes. Its class weights count.
        seed: The seed of the estimator's random choices.
    """
    if name == AUTO:
        name = _best(x, labels, loss, seed)
    columns = x.detach().cpu().double().numpy()
    truth = labels.detach().cpu().numpy()
    if isinstance(loss, Squared):
        regressor = new_regressor(name, seed, rows=len(truth))
        return _trained(name, regressor, columns, truth, None, *_one_output())
    classes = np.unique(truth)
    if len(classes) == 1:
        return constant(columns.shape[1], _outputs_for(int(classes[0]), loss.outputs))
    if loss.outputs == 1:
        placement, offset = _one_output()
    else:
        placement, offset = _outputs_by_class(classes, loss.outputs)
    weights = loss.weigh(labels)
    counts = None if weights is None else weights.cpu().numpy()
    classifier = new_classifier(name, seed, rows=len(truth))
    return _trained(name, classifier, columns, truth, counts, placement, offset)


def constant(inputs: int, outputs: Tensor) -> LinearLayers:
    """A module with the same outputs for every row, for labels that are all equal, or
    before anything was learned.

    Args:
        inputs: The number of a row's columns.
        outputs: The outputs.
    """
    count = len(outputs)
    no_weights = torch.zeros(inputs, count, dtype=torch.float64)
    placement = torch.eye(count, dtype=torch.float64)
    no_offset = 0 * outputs.double()
    return LinearLayers([no_weights], [outputs.double()], placement, no_offset)


def restore(state: Mapping[str, Tensor]) -> Estimated:
    """Make a module again from its `state_dict`."""
    tensors = dict(state)
    placement = tensors.pop("placement")
    offset = tensors.pop("offset")
    if "threshold" in tensors:
        return Trees(placement, offset, **tensors)
    depth = len(tensors) // 2
    weights = [tensors[f"weight{number}"] for number in range(depth)]
    biases = [tensors[f"bias{number}"] for number in range(depth)]
    return LinearLayers(weights, biases, placement, offset)


def new_classifier(name: str, seed: int, *, rows: int) -> Any:
    """A classifier of scikit-learn by one of `NAMES`, for this many training rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    match name:
        case "boosted_trees":
            return HistGradientBoostingClassifier(random_state=seed)
        case "logistic":
            return LogisticRegression(max_iter=1000)
        case "mlp":
            return MLPClassifier(**_perceptron_settings(seed, rows))
    raise _unknown(name)


def new_regressor(name: str, seed: int, *, rows: int) -> Any:
    """A regressor of scikit-learn by one of `NAMES`, for this many training rows."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge
    from sklearn.neural_network import MLPRegressor

    match name:
        case "boosted_trees":
            return HistGradientBoostingRegressor(random_state=seed)
        case "logistic":
            return Ridge()
        case "mlp":
            return MLPRegressor(**_perceptron_settings(seed, rows))
    raise _unknown(name)


def _perceptron_settings(seed: int, rows: int) -> dict[str, Any]:
    return {
        "hidden_layer_sizes": (HIDDEN_UNITS,),
        "early_stopping": rows >= ROWS_FOR_EARLY_STOPPING,
        "max_iter": 200,
        "random_state": seed,
    }


def _unknown(name: str) -> ValueError:
    return ValueError(f"There is no estimator {name!r}. Use one of {', '.join(NAMES)}.")


def _best(x: Tensor, labels: Tensor, loss: Loss, seed: int) -> str:
    """The name of the estimator that learns best from four fifths of the rows, by its
    loss on the last fifth."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator).to(x.device)
    fifth = len(order) // 5
    test_rows = order[:fifth]
    training_rows = order[fifth:]
    if len(test_rows) < FEWEST_ROWS_TO_COMPARE:
        return "logistic"
    losses: dict[str, float] = {}
    for name in NAMES:
        model = learn(name, x[training_rows], labels[training_rows], loss, seed)
        outputs = model.to(x.device)([x[test_rows]])
        losses[name] = float(loss(outputs, labels[test_rows]))
    return min(losses, key=lambda name: losses[name])


def _one_output() -> tuple[Tensor, Tensor]:
    """The placement and offset of an estimator with one output, for a loss with one."""
    return torch.eye(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)


def _outputs_by_class(classes: NDArray[Any], outputs: int) -> tuple[Tensor, Tensor]:
    """The placement and offset of an estimator that saw these classes, for a loss with
    an output for each class.

    An estimator that saw two classes has one output, the log-odds of the second. It
    becomes the second class's logit, beside a 0 for the first.
    """
    seen = torch.from_numpy(classes.astype(np.int64))
    with_output = seen if len(seen) > 2 else seen[1:]
    estimator_outputs = torch.arange(len(with_output))
    placement = torch.zeros(len(with_output), outputs, dtype=torch.float64)
    placement[estimator_outputs, with_output] = 1.0
    offset = torch.full((outputs,), LOGIT_OF_UNSEEN_CLASS, dtype=torch.float64)
    offset[seen] = 0.0
    return placement, offset


def _outputs_for(only_class: int, outputs: int) -> Tensor:
    """The outputs of a loss where every training row is of one class."""
    if outputs > 1:
        logits = torch.full((outputs,), LOGIT_OF_UNSEEN_CLASS)
        logits[only_class] = 0.0
        return logits
    log_odds = -LOGIT_OF_UNSEEN_CLASS if only_class else LOGIT_OF_UNSEEN_CLASS
    return torch.full((1,), log_odds)


def _trained(
    name: str,
    estimator: Any,
    columns: NDArray[Any],
    truth: NDArray[Any],
    counts: NDArray[Any] | None,
    placement: Tensor,
    offset: Tensor,
) -> Estimated:
    """Train an estimator of scikit-learn, and read what it learned.

    Args:
        name: The estimator's name, of `NAMES`.
        estimator: The estimator.
        columns: The training rows.
        truth: Their labels.
        counts: How much each row counts, or None where all count alike.
        placement: See `Estimated`.
        offset: See `Estimated`.
    """
    # not every estimator takes weights, so they are passed only where there are some
    weights = {} if counts is None else {"sample_weight": counts}
    if name == "boosted_trees":
        estimator.fit(columns, truth, **weights)
        return _read_trees(estimator, placement, offset)
    mean = columns.mean(0)
    spread = columns.std(0)
    spread = np.where(spread > SMALLEST_SPREAD, spread, 1.0)
    _fit_quietly(estimator, (columns - mean) / spread, truth, weights)
    matrices, biases = _linear_maps(name, estimator)
    # the module reads columns as they are, so its first map standardises them:
    # W' = W / spread and b' = b - (mean / spread) W
    biases[0] = biases[0] - (mean / spread) @ matrices[0]
    matrices[0] = matrices[0] / spread[:, None]
    return LinearLayers(
        [_float_tensor(matrix) for matrix in matrices],
        [_float_tensor(bias) for bias in biases],
        placement,
        offset,
    )


def _linear_maps(
    name: str, estimator: Any
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """The matrices [inputs, outputs] and the biases of a trained estimator's maps."""
    if name == "mlp":
        return list(estimator.coefs_), list(estimator.intercepts_)
    matrix = np.atleast_2d(estimator.coef_).T
    bias = np.atleast_1d(estimator.intercept_)
    return [matrix], [bias]


def _fit_quietly(
    estimator: Any,
    columns: NDArray[Any],
    truth: NDArray[Any],
    weights: Mapping[str, NDArray[Any]],
) -> None:
    """Train an estimator without a warning if its steps were not enough: the scores of
    the run say how good it is."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(columns, truth, **weights)


def _read_trees(estimator: Any, placement: Tensor, offset: Tensor) -> Trees:
    """Read the arrays in which HistGradientBoosting keeps its trees.

    It grows one tree per round and output, and starts from a baseline for each output,
    which becomes part of the offset.
    """
    trees: list[NDArray[Any]] = []
    outputs: list[int] = []
    for trees_of_round in estimator._predictors:
        for output, tree in enumerate(trees_of_round):
            trees.append(tree.nodes)
            outputs.append(output)
    adds_to = torch.zeros(len(trees), len(placement), dtype=torch.float64)
    adds_to[torch.arange(len(trees)), torch.tensor(outputs, dtype=torch.int64)] = 1.0
    deepest = max((int(nodes["depth"].max()) for nodes in trees), default=0)
    baseline = _float_tensor(np.asarray(estimator._baseline_prediction)).reshape(-1)
    return Trees(
        placement,
        offset + baseline @ placement,
        adds_to=adds_to,
        depth=torch.zeros(deepest, dtype=torch.int64),
        **_node_tensors(trees),
    )


def _node_tensors(trees: list[NDArray[Any]]) -> dict[str, Tensor]:
    """The nodes of all trees as tensors [trees, nodes], by the names that `Trees` has.

    A leaf has no question and is its own child. Room that a small tree does not need is
    filled with zeros, and no row gets there.
    """
    size = (len(trees), max((len(nodes) for nodes in trees), default=1))
    tensors = {
        "column": torch.zeros(size, dtype=torch.int64),
        "threshold": torch.zeros(size, dtype=torch.float64),
        "left": torch.zeros(size, dtype=torch.int64),
        "right": torch.zeros(size, dtype=torch.int64),
        "value": torch.zeros(size, dtype=torch.float64),
    }
    for number, nodes in enumerate(trees):
        count = len(nodes)
        itself = np.arange(count)
        is_leaf = nodes["is_leaf"].astype(bool)
        arrays = {
            "column": np.where(is_leaf, 0, nodes["feature_idx"]),
            "threshold": np.where(is_leaf, 0.0, nodes["num_threshold"]),
            "left": np.where(is_leaf, itself, nodes["left"]),
            "right": np.where(is_leaf, itself, nodes["right"]),
            "value": np.where(is_leaf, nodes["value"], 0.0),
        }
        for name, array in arrays.items():
            values = torch.from_numpy(np.ascontiguousarray(array))
            tensors[name][number, :count] = values.to(tensors[name].dtype)
    return tensors


def _float_tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.float64)
