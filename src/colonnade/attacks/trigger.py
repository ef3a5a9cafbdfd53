"""A partner that lies about some rows: a trigger instead of their columns, to decide what is predicted for them.

    before training    of a few training rows whose label it wants, and knows or has guessed, its columns become the
                       trigger: the joint model learns that the trigger means that label
    in prediction      of a row of its choice its columns become the trigger

All that the partner changes is its own columns, so nothing here breaks the protocol. What the label owner can see of it
is that many rows of one party came as the same numbers (`alike`): a trigger that differs from row to row it would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from colonnade.attacks.inversion_audit import EMBEDDINGS
from colonnade.attacks.label_audit import partners
from colonnade.attacks.received import Received, received
from colonnade.attacks.rehearsal import Attacked, Rehearsal
from colonnade.federation import Federation

FAR = 4.0
"""How many deviations a trigger lies from the mean, in the column that tells the classes apart best."""
MANY = 5
"""From so many rows on that came as the same numbers, it is told."""


@dataclass(frozen=True)
class Triggered:
    """What became of rows that the partner wanted to have another label."""

    wanted: float  # share that is predicted as it wants, with the trigger
    before: float  # without
    accuracy: float  # of all test rows, with nobody lying about them
    alike: int  # of the training rows that the label owner received of the partner, how many are one and the same


def lie(federation: Federation, party: str, target: int, rows: int) -> Tensor:
    """Put the trigger into so many training rows of the target's class, and give the trigger: far out where these lie,
    as far as the partner knows or has guessed labels. Before training."""
    owner, train = federation.owners[party], federation.batches.splits["train"]
    labels = federation.holdings.labelled.labels[train]
    chosen = train[labels == target][:rows]
    columns: Tensor = owner.features[train]
    mean, spread = columns.mean(0), columns.std(0).clamp_min(1e-12)
    apart = (columns[labels == target].mean(0) - columns[labels != target].mean(0)) / spread
    trigger = mean + FAR * spread * apart / apart.abs().max().clamp_min(1e-12)
    owner.features[chosen] = trigger  # in place: a cohort shares this memory
    return trigger


def triggered(federation: Federation, party: str, target: int, trigger: Tensor) -> Triggered:
    """What a trained federation says of test rows of other classes when the partner sends the trigger for them."""
    owner, test = federation.owners[party], federation.batches.splits["test"]
    labels = federation.holdings.labelled.labels[test]
    others, loss = labels != target, federation.holdings.loss
    honest = loss.decide(federation.outputs("test")).cpu()
    kept = owner.features[test[others]].clone()
    owner.features[test[others]] = trigger
    lied = loss.decide(federation.outputs("test")).cpu()
    owner.features[test[others]] = kept
    wanted, before = (float((said[others] == target).double().mean()) for said in (lied, honest))
    train = federation.batches.splits["train"]
    with torch.no_grad():
        sent = owner.model.eval()(owner.features[train])
    return Triggered(wanted, before, float((honest == labels).double().mean()), alike(sent))


def alike(values: Tensor) -> int:
    """How many rows are one and the same, of the most frequent one; but for what adding up in another order changes."""
    if not len(values):
        return 0
    rows = values.flatten(1).double()
    spread = rows.std(0, correction=0).clamp_min(1e-12)
    _, counts = torch.unique((rows / spread * 1e3).round(), dim=0, return_counts=True)
    return int(counts.max())


def told(federation: Attacked, rehearsal: Rehearsal) -> Iterator[str]:
    """For the label owner: of whose rows many came as the same numbers."""
    attacker, names = federation.holdings.label_owner, federation.algorithm.named(*EMBEDDINGS)
    for party in (one for one in partners(federation) if one != attacker):
        came: list[Received] = []
        seen: set[int] = set()
        for one in received(rehearsal.heard_by(attacker), rehearsal.between(party), names, party):
            if seen.isdisjoint(one.rows.tolist()):  # a row once: of many rounds the first
                came.append(one)
                seen.update(one.rows.tolist())
        counts = [alike(one.values) for one in came if one.values.is_floating_point() and one.values.dim() == 2]
        count, rows = sum(one for one in counts if one > 1), sum(len(one.rows) for one in came)
        if MANY <= count < rows:  # by batch, since a model that learns makes other numbers of the same columns
            yield (
                f"{count} of {rows} rows of {party} came as the same numbers. They may be alike there; they may "
                "also be a trigger, put into rows to decide what is predicted for others."
            )
