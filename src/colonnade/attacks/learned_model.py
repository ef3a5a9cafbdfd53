"""Columns by somebody who has no weights of the victim's.

It learns from a few known rows what the victim's releases tell of others.

A label owner often knows some columns of some rows: of its own staff, of people who
asked for their records, or of rows that were in a leak. It regresses these columns on
the embeddings that it received of the same rows, and applies what was learned to all
other rows. This is what a secret local model still gives away. The control is the same
regression on what the label owner holds anyway, its labels and its own columns; the
score is how much of the error that these leave is gone with the embeddings, 1 - error
with / error without. So columns that the label owner could tell anyway do not count.

The regression is linear, with a ridge whose weight is chosen by leaving out one row
after the other; an attacker with more known rows and a better model may do better.

The same regression is made on values that are first computed from other releases:

    sums over bins      Of trees, each sum is an equation in which rows are in the group (`Equations`). There are far
                        fewer equations than rows, so the attacker takes the bits nearest to what every row would have
                        if the group were drawn by chance; what is left of the truth in them is regressed.
    scores, lengths     Of a linear model, each round a party sends d = X p of all training rows, and p.p. So d / |p| is
                        its columns along a direction of length one, in their own unit: of one column it is the column
                        itself, up to its sign. Over many rounds there are as many directions as columns. Where scores
                        arrive masked, their sum is the columns of all parties along one direction: with as many rounds
                        as all of them have columns, each one's follow just so.

Columns read off a Jacobian take no known row: what vFedCCE in plaintext, when asked for
it by name, hands to its receiver. Its party 1 sends da/dtheta, the derivative of each
row's probabilities a by every parameter. Where its model begins with a linear layer u =
W1 x + b1, with delta = da/du,

    da/dW1 = delta (x) x          da/db1 = delta          so x = (da/dW1) / (da/db1), exactly.

One hidden unit would do. All units and outputs together give the same x, weighted by
delta squared, which is also the least-squares answer when the numbers are rounded or
carry noise. It needs to know which entries belong to the first layer, nothing else: no
weights, no labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.algorithms import Kind
from colonnade.algorithms.algorithm import Equations
from colonnade.attacks.finding import Finding, of_columns
from colonnade.attacks.inversion_audit import EMBEDDINGS
from colonnade.attacks.received import Names, Received, received, side_by_side, stacked
from colonnade.attacks.rehearsal import Attacked, Rehearsal, spans_of, victims
from colonnade.attacks.scores import correlation, r_squared
from colonnade.core import Released
from colonnade.encryption.masks import SHARES, open_sum
from colonnade.errors import BoundaryError, DataError

LEARNED = (*EMBEDDINGS, Kind.DIRECTIONS)
KNOWN_ROWS = (20, 100)
LEAST = 20
"""The fewest rows to score on, besides those that the attacker knows."""
KNOWN_ANYWAY = 0.99
"""The R² from which on the label owner's own data tell a column, and embeddings can add
nothing."""
RIDGES = [10.0**power for power in range(-4, 5)]
RIDGE = 1e-6
"""As a share of the equations' own size: rounded sums may contradict each other a
little."""


def learned_findings(
    federation: Attacked, rehearsal: Rehearsal, party: str | None
) -> Iterator[Finding]:
    """The label owner against every party whose embeddings it received."""
    names = federation.algorithm.named(*LEARNED)
    heard = rehearsal.heard_by(federation.holdings.label_owner)
    for victim in victims(federation, party):
        embeddings = received(heard, rehearsal.between(victim), names, victim)
        rows, values = stacked(_joined(embeddings))
        yield from learned_from(
            federation, victim, rehearsal.moment, rows, values, names
        )


def sums_findings(
    federation: Attacked, rehearsal: Rehearsal, party: str | None
) -> Iterator[Finding]:
    """The label owner against every party that sent it sums over bins."""
    attacker = federation.holdings.label_owner
    equations_of = federation.algorithm.equations
    # it is elsewhere
    if (
        equations_of is None
        or attacker not in rehearsal.transcripts
        or federation.driver is None
    ):
        return
    for victim in (
        name for name in victims(federation, party) if name in rehearsal.transcripts
    ):
        heard = rehearsal.transcripts[attacker]
        sent = rehearsal.transcripts[victim]
        systems = equations_of(federation.driver, heard, sent)
        batches = rehearsal.between(victim)
        rows, values = side_by_side(
            (batches.rows(equations.batch).cpu(), bits(equations))
            for equations in systems
        )
        if len(rows):
            yield from learned_from(
                federation,
                victim,
                rehearsal.moment,
                rows,
                values,
                federation.algorithm.named(Kind.HISTOGRAMS),
                attack="columns from sums over bins",
            )


def bits(equations: Equations) -> Tensor:
    """How likely each row is on the left, [rows, candidates]: the equations' solution
    nearest to equal shares."""
    weights = equations.weights.double()
    sums = equations.sums.double()
    # of the root's Hessians
    share = (sums[1:2] / weights[1].sum().clamp_min(1e-12)).nan_to_num(0.5).clamp(0, 1)
    # a sum that was not sent says nothing
    left = (sums - weights.sum(1, keepdim=True) * share).nan_to_num(0.0)
    square = weights @ weights.T
    square = square + RIDGE * square.diagonal().mean().clamp_min(1e-12) * torch.eye(
        len(square), dtype=square.dtype
    )
    solved: Tensor = torch.linalg.solve(square, left)
    return share + weights.T @ solved


def lengths_findings(
    federation: Attacked, rehearsal: Rehearsal, party: str | None
) -> Iterator[Finding]:
    """The label owner against every party whose scores it received with their lengths."""
    attacker = federation.holdings.label_owner
    algorithm = federation.algorithm
    scores = algorithm.named(Kind.LOGITS)
    lengths = algorithm.named(Kind.LENGTHS)
    for victim in victims(federation, party) if lengths else ():
        rows, along = side_by_side(
            _directions(rehearsal, attacker, victim, scores, lengths)
        )
        names = (*scores, *lengths)
        attack = "columns from scores of many rounds"
        if along.shape[1]:
            yield _scaled(federation, victim, rehearsal.moment, rows, along, names)
        else:
            rows, along = side_by_side(_sums(rehearsal, attacker, victim, scores))
            attack = "columns from sums of scores of many rounds"
        if along.shape[1]:
            yield from learned_from(
                federation, victim, rehearsal.moment, rows, along, names, attack=attack
            )


def _directions(
    rehearsal: Rehearsal, attacker: str, victim: str, scores: Names, lengths: Names
) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of each round, and their values along a direction of length one; masked
    scores are left out."""
    for seen in rehearsal.heard_by(attacker):
        sent = {
            item.receipt.name: item
            for item in seen.message.released()
            if item.receipt.owner == victim
        }
        values, length = (
            next((sent[name] for name in names if name in sent), None)
            for names in (scores, lengths)
        )
        if (
            values is None
            or length is None
            or not values.tensor.is_floating_point()
            or not float(length.tensor[0]) > 0
        ):
            continue
        rows = rehearsal.between(victim).rows(str(values.receipt.batch)).cpu()
        # the length is of all outputs together
        squared = float(length.tensor[0]) * len(rows) / values.tensor.shape[1]
        yield rows, values.tensor.cpu().double() / squared**0.5


def _sums(
    rehearsal: Rehearsal, attacker: str, victim: str, scores: Names
) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows and the sum of each round in which everybody's scores arrived masked,
    scaled to a largest entry of 1."""
    shares: dict[tuple[object, ...], dict[str, Released]] = {}
    for share in (
        share
        for seen in rehearsal.heard_by(attacker)
        for share in seen.message.released()
    ):
        if (
            share.receipt.name in scores
            and share.receipt.codec == SHARES.name
            and share.packed is not None
        ):
            shares.setdefault(tuple(share.packed.settings.values()), {})[
                share.receipt.owner
            ] = share
    for parts in (parts for parts in shares.values() if victim in parts):
        try:
            total = open_sum(
                {name: share.tensor.cpu() for name, share in parts.items()}, parts
            )
        # at a site: what the others sent is not known there, and masks are left over
        except BoundaryError:
            continue
        if total.numel() and (size := float(total.abs().max())) > 0:
            yield (
                rehearsal.between(victim).rows(str(parts[victim].receipt.batch)).cpu(),
                total / size,
            )


def _scaled(
    federation: Attacked,
    victim: str,
    moment: str,
    rows: Tensor,
    along: Tensor,
    names: Names,
) -> Finding:
    """How near the best direction comes to each column, up to the sign."""
    truth = federation.owners[victim].features.cpu().flatten(1)[rows]
    guesses = torch.cat([along, -along], 1)
    wrong = torch.cdist(truth.T, guesses.T)  # [columns, directions]
    guess = guesses[:, wrong.argmin(1)]
    spans = spans_of(federation, victim)
    by_column = r_squared(truth, guess, truth.mean(0), spans)
    return of_columns(
        "columns from scores and lengths",
        federation.holdings.label_owner,
        victim,
        moment,
        by_column,
        releases=names,
        details={"r2": by_column, "directions": along.shape[1]},
    )


def learned_from(
    federation: Attacked,
    victim: str,
    moment: str,
    rows: Tensor,
    values: Tensor,
    names: Names,
    *,
    attack: str = "columns by regression on known rows",
) -> Iterator[Finding]:
    """What values computed from releases of these names tell of the victim's columns,
    if there are enough rows."""
    kept = _once(rows, federation.settings.engine.seed)
    rows = rows[kept]
    values = values[kept]
    numbers = [number for number in KNOWN_ROWS if len(rows) >= number + LEAST]
    if not numbers:
        return
    features = federation.owners[victim].features.cpu().flatten(1)
    spans = spans_of(federation, victim)
    own = _own(federation, rows)
    with_them, without = (
        {number: _score(inputs, features[rows], number, spans) for number in numbers}
        for inputs in (torch.cat([own, values], 1), own)
    )
    gains = {number: _gains(with_them[number], without[number]) for number in numbers}
    most = numbers[-1]
    details = {
        "rows": len(rows) - most,
        "known_rows": most,
        "r2": with_them[most],
        "r2_without_embeddings": without[most],
        "by_known_rows": {
            str(number): max(by_column.values(), default=0.0)
            for number, by_column in gains.items()
        },
    }
    yield of_columns(
        attack,
        federation.holdings.label_owner,
        victim,
        moment,
        gains[most],
        releases=names,
        known_rows=most,
        details=details,
    )


def _joined(embeddings: Iterator[Received]) -> Iterator[Received]:
    """The embeddings of each batch side by side; batches that are not as wide as the
    first one are left out."""
    by_batch: dict[str, list[Received]] = {}
    for embedding in embeddings:
        if embedding.real_matrix:
            by_batch.setdefault(embedding.batch, []).append(embedding)
    width = None
    for parts in by_batch.values():
        joined = torch.cat([part.values for part in parts], 1)
        width = joined.shape[1] if width is None else width
        if joined.shape[1] == width:
            yield dataclasses.replace(parts[0], values=joined)


def _gains(
    with_them: Mapping[str, float], without: Mapping[str, float]
) -> dict[str, float]:
    """For columns that own data do not tell: how much of the error that they leave is
    gone with the embeddings."""
    left = {
        name: 1 - max(own, 0.0) for name, own in without.items() if own < KNOWN_ANYWAY
    }
    return {name: 1 - (1 - with_them[name]) / error for name, error in left.items()}


def _once(rows: Tensor, seed: int) -> Tensor:
    """The places of the rows, each row once, in random order."""
    kept = torch.from_numpy(np.sort(np.unique(rows.numpy(), return_index=True)[1]))
    return kept[
        torch.randperm(len(kept), generator=torch.Generator().manual_seed(seed))
    ]


def _own(federation: Attacked, rows: Tensor) -> Tensor:
    """What the label owner itself holds about these rows; nothing where it is
    elsewhere: the score is over the mean."""
    holdings = federation.holdings
    if federation.driver is None:
        return torch.empty(len(rows), 0)
    own_columns = holdings.columns.get(holdings.label_owner)
    labels = holdings.labelled.labels.cpu()[rows]
    if holdings.encoder.task == "classification":
        labels = torch.nn.functional.one_hot(
            labels, len(holdings.encoder.classes)
        ).float()
    parts = [labels.reshape(len(rows), -1).float()]
    parts += (
        [] if own_columns is None else [own_columns.features.cpu()[rows].flatten(1)]
    )
    return torch.cat(parts, 1)


def _score(
    inputs: Tensor, columns: Tensor, known: int, spans: Mapping[str, slice]
) -> dict[str, float]:
    """R² on all rows except the known ones, from which the regression learns."""
    guess = regressed(inputs[:known], columns[:known], inputs[known:])
    return r_squared(columns[known:], guess, columns[:known].mean(0), spans)


def regressed(inputs: Tensor, columns: Tensor, others: Tensor) -> Tensor:
    """The columns of the other rows, by ridge regression on these."""
    if not inputs.shape[1]:
        return columns.mean(0).expand(len(others), -1)
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = inputs.double().numpy()
    y = columns.double()
    # so that every column counts alike when the ridge is chosen
    scale = y.std(0).clamp_min(1e-12)
    model = make_pipeline(
        StandardScaler(), RidgeCV([ridge * len(x) for ridge in RIDGES])
    ).fit(x, (y / scale).numpy())
    guess = torch.from_numpy(model.predict(others.double().numpy())).reshape(
        len(others), -1
    )
    return (guess * scale).to(columns.dtype)


def jacobian_findings(
    federation: Attacked, rehearsal: Rehearsal, rows: int, party: str | None
) -> Iterator[Finding]:
    """The label owner against every party whose Jacobian it received."""
    attacker = federation.holdings.label_owner
    for victim in victims(federation, party):
        batches = rehearsal.between(victim)
        heard = rehearsal.heard_by(attacker)
        jacobian = next(
            received(heard, batches, federation.algorithm.named(Kind.JACOBIAN), victim),
            None,
        )
        at = first_layer(rehearsal.models[victim])
        if jacobian is None or at is None:
            continue
        guess = read(jacobian.values, len(jacobian.rows), *at)[:rows]
        features = federation.owners[victim].features.cpu().flatten(1)
        truth = features[jacobian.rows[:rows]]
        train = batches.splits["train"]
        preprocessor = federation.holdings.columns[victim].preprocessor
        names = {
            f"column {column}": slice(column, column + 1)
            for column in range(truth.shape[1])
        }
        by_column = r_squared(
            truth,
            guess,
            features[train].mean(0),
            preprocessor.spans if preprocessor else names,
        )
        linked = float(
            correlation(truth.flatten()[:, None], guess.flatten()[:, None])[0]
        )
        yield of_columns(
            "columns by dividing the Jacobian",
            attacker,
            victim,
            rehearsal.moment,
            by_column,
            releases=federation.algorithm.named(Kind.JACOBIAN),
            details={"rows": len(truth), "correlation": linked},
        )


def first_layer(model: nn.Module) -> tuple[int, int, int] | None:
    """Where da/dW1 begins among all parameters, and the layer's units and inputs; None
    where it is not linear."""
    layers = [
        part
        for part in model.modules()
        if not list(part.children()) and list(part.parameters())
    ]
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
    weight = by_row[..., start : start + units * inputs].reshape(
        *by_row.shape[:2], units, inputs
    )
    bias = by_row[..., start + units * inputs :][..., :units]
    return columns_from_jacobian(weight, bias)


def columns_from_jacobian(weight: Tensor, bias: Tensor) -> Tensor:
    """x [rows, inputs] from da/dW1 [rows, outputs, units, inputs] and da/db1 [rows,
    outputs, units]. A row whose delta is zero everywhere (all units switched off) shows
    nothing and comes back as zeros."""
    if weight.dim() != 4 or weight.shape[:-1] != bias.shape:
        raise DataError(
            "A Jacobian of a first linear layer is [rows, outputs, units, inputs] for"
            " its weight and [rows, outputs, units] for its bias; found"
            f" {list(weight.shape)} and {list(bias.shape)}."
        )
    # Each row is scaled to its largest entry first: squares of tiny derivatives would
    # vanish.
    largest = (
        bias.abs()
        .amax((1, 2), keepdim=True)
        .clamp_min(1e-300 if bias.dtype.itemsize == 8 else 1e-38)
    )
    delta = (bias / largest).double()
    products = (weight / largest[..., None]).double()
    norm = delta.square().sum((1, 2))[:, None]
    return ((delta[..., None] * products).sum((1, 2)) / norm.clamp_min(1e-300)).to(
        weight.dtype
    )
