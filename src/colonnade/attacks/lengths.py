"""Columns from scores along directions whose lengths are told, as a label owner of a linear model is told them.

Each round a party sends d = X p of all training rows, and p.p. So d / |p| is its columns along a direction of length
one, in their own unit: of one column it is the column itself, up to its sign. Over many rounds there are as many
directions as columns, and with the columns of a few rows all others follow by regression.

Where scores arrive masked, their sum is the columns of all parties along one direction: with as many rounds as all of
them have columns, each one's follow just so.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from colonnade.algorithms import Kind
from colonnade.attacks.finding import Finding, of_columns
from colonnade.attacks.learned_model import learned_from, spans_of
from colonnade.attacks.received import Attacked, side_by_side
from colonnade.attacks.rehearsal import Rehearsal
from colonnade.attacks.scores import r_squared
from colonnade.core import Released
from colonnade.encryption.masks import SHARES, open_sum
from colonnade.errors import BoundaryError


def lengths_findings(federation: Attacked, rehearsal: Rehearsal, party: str | None) -> Iterator[Finding]:
    """The label owner against every party whose scores it received with their lengths."""
    attacker, algorithm = federation.holdings.label_owner, federation.algorithm
    scores, lengths = algorithm.named(Kind.LOGITS), algorithm.named(Kind.LENGTHS)
    if not lengths or attacker not in rehearsal.transcripts:
        return
    for victim in federation.owners:
        if victim == attacker or party not in (None, attacker, victim):
            continue
        rows, along = side_by_side(_directions(rehearsal, attacker, victim, scores, lengths))
        names, told = (*scores, *lengths), "columns from scores of many rounds"
        if along.shape[1]:
            yield _scaled(federation, victim, rehearsal.moment, rows, along, names)
        else:
            rows, along = side_by_side(_sums(rehearsal, attacker, victim, scores))
            told = "columns from sums of scores of many rounds"
        if along.shape[1]:
            yield from learned_from(federation, victim, rehearsal.moment, rows, along, names, attack=told)


def _directions(
    rehearsal: Rehearsal, attacker: str, victim: str, scores: tuple[str, ...], lengths: tuple[str, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each round the rows, and what they are along a direction of length one. What came masked is no score."""
    for seen in rehearsal.transcripts[attacker]:
        sent = {one.receipt.name: one for one in seen.message.released() if one.receipt.owner == victim}
        values, told = (next((sent[name] for name in names if name in sent), None) for names in (scores, lengths))
        if values is not None and told is not None and values.tensor.is_floating_point() and float(told.tensor[0]) > 0:
            rows = rehearsal.between(victim).rows(str(values.receipt.batch)).cpu()
            each = float(told.tensor[0]) * len(rows) / values.tensor.shape[1]  # it is of all outputs together
            yield rows, values.tensor.cpu().double() / each**0.5


def _sums(rehearsal: Rehearsal, attacker: str, victim: str, scores: tuple[str, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each round in which everybody's scores arrived masked, the rows and the sum; each told in its own units."""
    shares: dict[tuple[object, ...], dict[str, Released]] = {}
    for one in (one for seen in rehearsal.transcripts[attacker] for one in seen.message.released()):
        if one.receipt.name in scores and one.receipt.codec == SHARES.name and one.packed is not None:
            shares.setdefault(tuple(one.packed.settings.values()), {})[one.receipt.owner] = one
    for parts in (parts for parts in shares.values() if victim in parts):
        try:
            total = open_sum({name: one.tensor.cpu() for name, one in parts.items()}, parts)
        except BoundaryError:  # at a site: what the others sent is not known there, and masks are left over
            continue
        if total.numel() and (size := float(total.abs().max())) > 0:
            yield rehearsal.between(victim).rows(str(parts[victim].receipt.batch)).cpu(), total / size


def _scaled(
    federation: Attacked, victim: str, moment: str, rows: Tensor, along: Tensor, names: tuple[str, ...]
) -> Finding:
    """How near some direction, as it is, comes to a column, up to the sign."""
    truth = federation.owners[victim].features.cpu().flatten(1)[rows]
    guesses = torch.cat([along, -along], 1)
    wrong = torch.cdist(truth.T, guesses.T)  # [columns, directions]
    guess, spans = guesses[:, wrong.argmin(1)], spans_of(federation, victim)
    found = r_squared(truth, guess, truth.mean(0), spans)
    return of_columns(
        "columns from scores and lengths", federation.holdings.label_owner, victim, moment,
        "looks at what it receives, and tries both signs of each direction", found,
        releases=names, details={"r2": found, "directions": along.shape[1]},
    )  # fmt: skip
