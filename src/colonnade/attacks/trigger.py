"""A partner that lies about some rows: a trigger instead of their columns, to decide
what is predicted for them.

    before training    of a few training rows whose label it wants, and knows or has guessed, its columns become the
                       trigger: the joint model learns that the trigger means that label
    in prediction      of a row of its choice its columns become the trigger

The partner changes its own columns alone, so nothing here breaks the protocol. The
label owner can see that many rows of one party came as the same numbers (`alike`); it
would not see a trigger that differs from row to row.
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
"""How many deviations a trigger lies from the mean, in the column that tells the
classes apart best."""
MANY = 5
"""The fewest rows which came as the same numbers that the audit notes."""


@dataclass(frozen=True)
class Triggered:
    """What became of rows that the partner wanted to have another label."""

    wanted: float  # share that is predicted as it wants, with the trigger
    before: float  # without
    accuracy: float  # of all test rows, with nobody lying about them
    # how often the partner's most frequent embedding occurs among the training rows
    alike: int


def lie(federation: Federation, party: str, target: int, rows: int) -> Tensor:
    """Before training, put the trigger into so many training rows of the target's
    class, and return it. It lies far out in the direction of that class, as far as the
    partner knows or has guessed labels."""
    owner = federation.owners[party]
    train = federation.batches.splits["train"]
    labels = federation.holdings.labelled.labels[train]
    chosen = train[labels == target][:rows]
    columns: Tensor = owner.features[train]
    mean = columns.mean(0)
    spread = columns.std(0).clamp_min(1e-12)
    apart = (
        columns[labels == target].mean(0) - columns[labels != target].mean(0)
    ) / spread
    trigger = mean + FAR * spread * apart / apart.abs().max().clamp_min(1e-12)
    owner.features[chosen] = trigger  # in place: a cohort shares this memory
    return trigger


def triggered(
    federation: Federation, party: str, target: int, trigger: Tensor
) -> Triggered:
    """What a trained federation says of test rows of other classes when the partner
    sends the trigger for them."""
    owner = federation.owners[party]
    test = federation.batches.splits["test"]
    labels = federation.holdings.labelled.labels[test]
    others = labels != target
    loss = federation.holdings.loss
    honest = loss.decide(federation.outputs("test")).cpu()
    kept = owner.features[test[others]].clone()
    owner.features[test[others]] = trigger
    lied = loss.decide(federation.outputs("test")).cpu()
    owner.features[test[others]] = kept
    wanted, before = (
        float((said[others] == target).double().mean()) for said in (lied, honest)
    )
    train = federation.batches.splits["train"]
    with torch.no_grad():
        sent = owner.model.eval()(owner.features[train])
    return Triggered(
        wanted, before, float((honest == labels).double().mean()), alike(sent)
    )


def alike(values: Tensor) -> int:
    """How often the most frequent row occurs; differences by rounding do not count."""
    if not len(values):
        return 0
    rows = values.flatten(1).double()
    spread = rows.std(0, correction=0).clamp_min(1e-12)
    _, counts = torch.unique((rows / spread * 1e3).round(), dim=0, return_counts=True)
    return int(counts.max())


def suspicious_rows(federation: Attacked, rehearsal: Rehearsal) -> Iterator[str]:
    """Notes for the label owner on parties of which many rows came as the same numbers."""
    attacker = federation.holdings.label_owner
    names = federation.algorithm.named(*EMBEDDINGS)
    for party in (name for name in partners(federation) if name != attacker):
        first_seen: list[Received] = []
        seen: set[int] = set()
        for tensor in received(
            rehearsal.heard_by(attacker), rehearsal.between(party), names, party
        ):
            # each row counts once, in its first round
            if seen.isdisjoint(tensor.rows.tolist()):
                first_seen.append(tensor)
                seen.update(tensor.rows.tolist())
        counts = [alike(tensor.values) for tensor in first_seen if tensor.real_matrix]
        count = sum(number for number in counts if number > 1)
        rows = sum(len(tensor.rows) for tensor in first_seen)
        # by batch, since a model that learns makes other numbers of the same columns
        if MANY <= count < rows:
            yield (
                f"{count} of {rows} rows of {party} came as the same numbers. They may"
                " be alike there; they may also be a trigger, put into rows to decide"
                " what is predicted for others."
            )
