"""Labels guessed from the per-row gradients that split learning sends down (SplitNN, VIMSGD, VAFL).

Behind a linear head W_k the gradient of a row is dl/dh_k = (p - y) W_k^T / |B|: the label owner's head is not known to
the party, but rows of one label point the same way as far as their p agree, and all rows lie in a space of as many
dimensions as there are classes. Two classes with one logit lie on one line, each label on its own side of 0.

Li et al., Label Leakage and Protection in Two-party Split Learning, 2022 (arXiv:2102.08504) guess by the direction and
by the norm of gradients; Liu and Lyu, Clustering Label Inference Attack against Practical Split Learning, 2022
(arXiv:2203.05222) by clustering them. The attacker knows the number of classes. What it finds are groups of rows that
share a label.

Labels guessed from which rows fall into the same nodes of trees.

Rows of one node have gradients, and so labels, that are alike: that is what its split was chosen for. Takahashi, Liu
and Liu, Eliminating Label Leakage in Tree-Based Vertical Federated Learning, 2023 (arXiv:2307.10318) join rows by how
often they are in one node and look for communities in that graph (ID2Graph). Here the graph's main directions are
clustered by k-means, which needs no more than the number of classes. What it finds are groups of rows that share a
label.

Where nodes are hidden, a party still hears that one of its splits is chosen, but not which rows are where. It can then
group rows by its own columns alone: the same attack on these is the control.
"""

from __future__ import annotations

import torch
from torch import Tensor

from colonnade.algorithms import Kind
from colonnade.attacks.received import Guess, Knowledge, received, stacked
from colonnade.core import Transcript

RESTARTS = 8


def by_direction(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """k-means on the gradients' directions; for numbers as labels, the position along their main direction."""
    rows, gradient = stacked(received(transcript, knowledge.batches, knowledge.named(Kind.GRADIENT)))
    if not len(rows):
        return Guess(rows, rows, named=False)
    flat = main_directions(gradient.flatten(1).double(), max(knowledge.classes, 1))
    unit = torch.nn.functional.normalize(flat, dim=1, eps=torch.finfo(flat.dtype).tiny)
    return Guess(rows, groups(unit, knowledge.classes) if knowledge.classes else flat[:, 0], named=False)


def by_norm(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """Two classes: rows of the rarer one are fitted worse, so their gradients are longer."""
    rows, gradient = stacked(received(transcript, knowledge.batches, knowledge.named(Kind.GRADIENT)))
    if not len(rows):
        return Guess(rows, rows, named=False)
    lengths = gradient.flatten(1).double().norm(dim=1, keepdim=True).clamp_min(1e-300).log()
    return Guess(rows, groups(lengths, 2), named=False)


def main_directions(rows: Tensor, dimensions: int) -> Tensor:
    """The rows along their main directions, by singular values."""
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    projected: Tensor = rows @ directions[:dimensions].T
    return projected


def groups(points: Tensor, count: int) -> Tensor:
    """k-means: the best of a few starts."""
    from sklearn.cluster import KMeans

    count = min(count, len(torch.unique(points, dim=0)))
    numbers = KMeans(count, n_init=RESTARTS, random_state=0).fit_predict(points.numpy())
    return torch.from_numpy(numbers).long()


def from_nodes(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """k-means on the rows' paths through known trees; for numbers as labels, the place along their main direction."""
    rows, paths = memberships(transcript, knowledge)
    if not len(rows) or not paths.shape[1]:
        return from_columns(transcript, knowledge)
    nodes = [torch.nn.functional.one_hot(column)[:, :-1] for column in paths.T]  # the last follows from the others
    known = torch.cat(nodes, 1).double()
    flat = main_directions(known - known.mean(0), max(knowledge.classes - 1, 1))
    return Guess(rows, groups(flat, knowledge.classes) if knowledge.classes else flat[:, 0], named=False)


def from_columns(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """The control: the party's own columns of the rows that trees are grown on, grouped in the same way."""
    heard = next(received(transcript, knowledge.batches, knowledge.named(Kind.NODES)), None)
    if heard is None or knowledge.columns is None:
        nothing = torch.empty(0, dtype=torch.int64)
        return Guess(nothing, nothing, named=False)
    rows = heard.rows
    own = knowledge.columns[rows].flatten(1).double().nan_to_num()
    flat = main_directions((own - own.mean(0)) / own.std(0).clamp_min(1e-12), max(knowledge.classes - 1, 1))
    return Guess(rows, groups(flat, knowledge.classes) if knowledge.classes else flat[:, 0], named=False)


def memberships(transcript: Transcript, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Rows, and for each tree and level, or sample, the number of the node that a row is in, [rows, trees and levels].
    The way of a row below its node comes level by level."""
    places: dict[int, int] = {}
    columns: list[Tensor] = []
    before: dict[tuple[str, int, int], Tensor] = {}
    for name in knowledge.named(Kind.NODES):
        for nodes in received(transcript, knowledge.batches, (name,)):
            if nodes.values.dim() != 2 or len(nodes.values) != len(nodes.rows):
                continue
            places = places or {row: place for place, row in enumerate(nodes.rows.tolist())}
            if len(places) != len(nodes.rows):
                continue
            place = torch.tensor([places[row] for row in nodes.rows.tolist()])
            for tree, way in enumerate(nodes.values.T.long()):
                key = nodes.batch, tree, len(nodes.values.T)
                path = torch.zeros_like(way)
                path[place] = way
                path = before.get(key, torch.zeros_like(path)) * 3 + path
                before[key] = torch.unique(path, return_inverse=True)[1]
                columns.append(before[key])
    rows = torch.tensor(list(places), dtype=torch.int64)
    return rows, torch.stack(columns, 1) if columns else torch.zeros(len(rows), 0, dtype=torch.int64)
