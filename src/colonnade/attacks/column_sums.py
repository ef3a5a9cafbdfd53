"""Columns from sums over unknown groups of rows, as a label owner of trees is told them.

Each sum is an equation in which rows are in the group (`Equations`). There are far fewer equations than rows, so the
attacker takes the bits nearest to what every row would have if the group were drawn by chance; what is left of the
truth in them is regressed on known rows, as in `learned_model`, beside what it holds anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from colonnade.algorithms import Kind
from colonnade.algorithms.algorithm import Equations
from colonnade.attacks.finding import Finding
from colonnade.attacks.learned_model import learned_from
from colonnade.attacks.received import Attacked, side_by_side
from colonnade.attacks.rehearsal import Rehearsal

RIDGE = 1e-6
"""Of the equations' own size: rounded sums may contradict each other a little."""


def sums_findings(federation: Attacked, rehearsal: Rehearsal, party: str | None) -> Iterator[Finding]:
    """The label owner against every party that told it sums."""
    attacker, make = federation.holdings.label_owner, federation.algorithm.equations
    if make is None or attacker not in rehearsal.transcripts or federation.driver is None:  # it is elsewhere
        return
    for victim in federation.owners:
        if victim == attacker or party not in (None, attacker, victim) or victim not in rehearsal.transcripts:
            continue
        heard, told = rehearsal.transcripts[attacker], rehearsal.transcripts[victim]
        found, batches = make(federation.driver, heard, told), rehearsal.between(victim)
        rows, values = side_by_side((batches.rows(one.batch).cpu(), bits(one)) for one in found)
        if len(rows):
            yield from learned_from(
                federation, victim, rehearsal.moment, rows, values, federation.algorithm.named(Kind.HISTOGRAMS),
                attack="columns from sums over bins",
            )  # fmt: skip


def bits(given: Equations) -> Tensor:
    """For each row and candidate how likely the row is on the left, [rows, candidates]: of all that fit the equations
    the nearest to equal shares."""
    weights, sums = given.weights.double(), given.sums.double()
    share = (sums[1:2] / weights[1].sum().clamp_min(1e-12)).nan_to_num(0.5).clamp(0, 1)  # of the root's Hessians
    left = (sums - weights.sum(1, keepdim=True) * share).nan_to_num(0.0)  # what was not told says nothing
    square = weights @ weights.T
    square = square + RIDGE * square.diagonal().mean().clamp_min(1e-12) * torch.eye(len(square), dtype=square.dtype)
    solved: Tensor = torch.linalg.solve(square, left)
    return share + weights.T @ solved
