"""Columns read off a Jacobian: what vFedCCE in plaintext, when asked for it by name, hands to its receiver.

Its party 1 sends da/dtheta, the derivative of each row's probabilities a by every parameter. Where its model begins
with a linear layer u = W1 x + b1, with delta = da/du,

    da/dW1 = delta (x) x          da/db1 = delta          so x = (da/dW1) / (da/db1), exactly.

One hidden unit would do. All units and outputs together give the same x, weighted by delta squared, which is also the
least-squares answer when the numbers are rounded or carry noise. It needs to know which entries belong to the first
layer, nothing else: no weights, no labels.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from colonnade.algorithms import Kind
from colonnade.attacks.finding import Finding, of_columns
from colonnade.attacks.received import received
from colonnade.attacks.rehearsal import Attacked, Rehearsal, victims
from colonnade.attacks.scores import correlation, r_squared
from colonnade.errors import DataError


def jacobian_findings(federation: Attacked, rehearsal: Rehearsal, rows: int, party: str | None) -> Iterator[Finding]:
    """The label owner against every party whose Jacobian it received."""
    attacker = federation.holdings.label_owner
    for victim in victims(federation, party):
        batches, heard = rehearsal.between(victim), rehearsal.heard_by(attacker)
        jacobian = next(received(heard, batches, federation.algorithm.named(Kind.JACOBIAN), victim), None)
        at = first_layer(rehearsal.models[victim])
        if jacobian is None or at is None:
            continue
        guess = read(jacobian.values, len(jacobian.rows), *at)[:rows]
        features = federation.owners[victim].features.cpu().flatten(1)
        truth, train = features[jacobian.rows[:rows]], batches.splits["train"]
        preprocessor = federation.holdings.columns[victim].preprocessor
        names = {f"column {column}": slice(column, column + 1) for column in range(truth.shape[1])}
        by_column = r_squared(truth, guess, features[train].mean(0), preprocessor.spans if preprocessor else names)
        linked = float(correlation(truth.flatten()[:, None], guess.flatten()[:, None])[0])
        yield of_columns(
            "columns by dividing the Jacobian", attacker, victim, rehearsal.moment,
            "knows the shape of the victim's first layer, not its weights", by_column,
            releases=federation.algorithm.named(Kind.JACOBIAN), details={"rows": len(truth), "correlation": linked},
        )  # fmt: skip


def first_layer(model: nn.Module) -> tuple[int, int, int] | None:
    """Where da/dW1 begins among all parameters, and the layer's units and inputs; None where it is not linear."""
    layers = [part for part in model.modules() if not list(part.children()) and list(part.parameters())]
    if not layers or not isinstance(layers[0], nn.Linear) or layers[0].bias is None:
        return None
    start = 0
    for weight in (weight for weight in model.parameters() if weight.requires_grad):
        if weight is layers[0].weight:
            return start, layers[0].out_features, layers[0].in_features
        start += weight.numel()
    return None


def read(jacobian: Tensor, rows: int, start: int, units: int, inputs: int) -> Tensor:
    """From `[rows * outputs, parameters]`: x `[rows, inputs]`."""
    by_row = jacobian.reshape(rows, -1, jacobian.shape[-1])
    weight = by_row[..., start : start + units * inputs].reshape(*by_row.shape[:2], units, inputs)
    bias = by_row[..., start + units * inputs :][..., :units]
    return columns_from_jacobian(weight, bias)


def columns_from_jacobian(weight: Tensor, bias: Tensor) -> Tensor:
    """x [rows, inputs] from da/dW1 [rows, outputs, units, inputs] and da/db1 [rows, outputs, units]. A row whose delta
    is zero everywhere (all units switched off) shows nothing and comes back as zeros."""
    if weight.dim() != 4 or weight.shape[:-1] != bias.shape:
        raise DataError(
            "A Jacobian of a first linear layer is [rows, outputs, units, inputs] for its weight and [rows, outputs, "
            f"units] for its bias; found {list(weight.shape)} and {list(bias.shape)}."
        )
    # Each row is scaled to its largest entry first: squares of tiny derivatives would vanish.
    largest = bias.abs().amax((1, 2), keepdim=True).clamp_min(1e-300 if bias.dtype.itemsize == 8 else 1e-38)
    delta = (bias / largest).double()
    products = (weight / largest[..., None]).double()
    norm = delta.square().sum((1, 2))[:, None]
    return ((delta[..., None] * products).sum((1, 2)) / norm.clamp_min(1e-300)).to(weight.dtype)
