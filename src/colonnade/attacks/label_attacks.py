"""Labels guessed by a feature owner from what it receives.

Some are read off by equations and not by statistics.

FDML sends g = dl/do. For softmax cross-entropy g = (softmax(o) - y)/|B|, with y
one-hot: every entry is a probability, except the label's, which is one minus 1. So
exactly one entry is negative, and it is the label. For the logistic loss g =
(sigmoid(o) - y)/|B| is negative exactly where y = 1.

VIMADMM and VIMADMM-J send r = z - o - lambda/rho, with the new lambda. The z-update is
stationary where

    softmax(z) - y = lambda_old + rho (o - z) = lambda           (Eq. 6, then Eq. 7)

so after every update lambda = softmax(z) - y, which has exactly one negative entry, the
label; and z - o is (lambda_old - lambda)/rho, so that

    rho r = lambda_old - 2 lambda                                 (no o, no z, no head is left in it)

A party knows rho. It keeps an estimate e of every row's lambda and updates it at each
visit: e <- (e - rho r)/2. Its error halves at each visit, whatever it started from,
since lambda obeys the same recursion. The duals start at 0; so a party that listens
from the first round is exact from the first round on, and always right (as far as the
z-update is solved and numbers are not rounded to 0). A party that starts to listen
later and sees a row once has e = -rho r/2 = p - (p_old + y)/2, where p_old and p are
that row's softmax(z) before and now: its smallest entry is the label's whenever 1 +
p_old_y - 2 p_y > p_old_j - 2 p_j for all other classes j; in particular where p =
p_old, near convergence.

For a squared loss g = (o - y)/|B| and lambda = z - y: one number that falls with the
label, and -g or -e is the guess, known up to a scale.

Compressed VFL needs no attack: it sends the labels.

Labels by the model that a party was sent: it has its own part, and completes it with
the label owner's.

VIMADMM sends party k its head W_k, so h_k W_k is its share of the logits. Compressed
VFL sends the whole model g and, for each batch, what the others sent: so every party
has the joint model's outputs. A trained model tells labels; how well says how much of
them the party needs nobody else for. Fu et al., Label Inference Attacks Against
Vertical Federated Learning, USENIX Security 2022, complete a model with rows whose
labels they know. Here none are needed.

Labels solved from a batch's gradient: what vFedCCE gives to every party in every mode,
encrypted or not, and a logistic regression with encryption.

A party ends each round with g = 1/N sum_ij c[i, j] du[i, j]/dtheta, the gradient it
steps with. It can compute its own Jacobian J = du/dtheta, [N (m - 1), weights]; so
where it has at least as many weights as coefficients it solves J^T c = N g for c. These
are dloss/du per row, u being log-odds against the first class: with c_0 = -sum_j c_j in
front, the negative entry is the label, since more log-odds of the label mean less loss.
With fewer weights the smallest c that solves it is what its columns tell of the labels:
so a linear model of its own, learned from sums that it was given.

Encryption hides c from those who listen. It cannot hide it from the party that the
result is for.

Labels guessed from the per-row gradients that split learning sends down (SplitNN,
VIMSGD, VAFL).

Behind a linear head W_k the gradient of a row is dl/dh_k = (p - y) W_k^T / |B|: the
label owner's head is not known to the party, but rows of one label point the same way
as far as their p agree, and all rows lie in a space of as many dimensions as there are
classes. Two classes with one logit lie on one line, each label on its own side of 0.

Li et al., Label Leakage and Protection in Two-party Split Learning, 2022
(arXiv:2102.08504) guess by the direction and by the norm of gradients; Liu and Lyu,
Clustering Label Inference Attack against Practical Split Learning, 2022
(arXiv:2203.05222) by clustering them. The attacker knows the number of classes. What it
finds are groups of rows that share a label.

Labels guessed from which rows fall into the same nodes of trees.

Rows of one node have gradients, and so labels, that are alike: that is what its split
was chosen for. Takahashi, Liu and Liu, Eliminating Label Leakage in Tree-Based Vertical
Federated Learning, 2023 (arXiv:2307.10318) join rows by how often they are in one node
and look for communities in that graph (ID2Graph). Here the graph's main directions are
clustered by k-means, which needs no more than the number of classes. What it finds are
groups of rows that share a label.

Where nodes are hidden, a party still hears that one of its splits is chosen, but not
which rows are where. It can then group rows by its own columns alone: the same attack
on these is the control.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from colonnade.algorithms import Kind
from colonnade.attacks.received import (
    Guess,
    Knowledge,
    no_guess,
    received,
    stacked,
    suspicion,
)
from colonnade.core import Released, Transcript
from colonnade.core.outbox import UNCOMPRESSED
from colonnade.core.receipt import NON_PRIVATE
from colonnade.core.transcript import Seen
from colonnade.optim.jacobians import jacobian_of

# coefficients, and weights: the cost of solving the equations grows with their cube
MOST = 2048
RESTARTS = 8


def from_targets(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """Compressed VFL tells every party the labels, or what randomized response made of
    them."""
    rows, targets = stacked(
        received(transcript, knowledge.batches, knowledge.named(Kind.LABELS))
    )
    if not len(rows):
        return no_guess()
    if knowledge.classes == 0:
        return Guess(rows, targets.reshape(len(rows), 1), named=True)
    said = one_hot(targets.flatten().long(), knowledge.classes).float()
    return Guess(rows, suspicion(said, knowledge.classes), named=True)


def from_logit_gradients(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """FDML: the negative entry of every row's gradient."""
    rows, gradient = stacked(
        received(transcript, knowledge.batches, knowledge.named(Kind.LOGIT_GRADIENT))
    )
    if not len(rows):
        return no_guess()
    return Guess(rows, suspicion(-gradient, knowledge.classes), named=True)


def from_residuals(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """VIMADMM and VIMADMM-J: follow every row's lambda, and read its negative entry."""
    rows, duals = follow_duals(transcript, knowledge)
    if not len(rows):
        return no_guess()
    return Guess(rows, suspicion(-duals, knowledge.classes), named=True)


def follow_duals(transcript: Transcript, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """The rows whose residuals came, and the estimate e of the lambda of each."""
    residuals = list(
        received(transcript, knowledge.batches, knowledge.named(Kind.RESIDUAL))
    )
    if not residuals:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, 0)
    rows = torch.unique(torch.cat([residual.rows for residual in residuals]))
    duals = torch.zeros(
        int(rows.max()) + 1,
        residuals[0].values.shape[-1],
        dtype=residuals[0].values.dtype,
    )
    for residual in residuals:
        duals[residual.rows] = (
            duals[residual.rows] - knowledge.config.rho * residual.values
        ) / 2
    return rows, duals[rows]


def from_head(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """Labels by the first head that came, for all rows that were trained on meanwhile."""
    heads = [head for seen in transcript for head in _of(seen, knowledge, Kind.HEAD)]
    batches = dict.fromkeys(
        seen.batch for seen in transcript if (seen.batch or "").startswith("train/")
    )
    if not heads or not batches:
        return no_guess()
    rows = torch.cat([knowledge.batches.rows(name) for name in batches if name])
    embeddings = _embedded(knowledge, rows)
    head = heads[0].tensor.cpu()
    if embeddings is None or head.dim() != 2:
        return no_guess()
    if embeddings.shape[-1] != head.shape[0]:
        return no_guess()
    return Guess(rows, suspicion(embeddings @ head, knowledge.classes), named=True)


def from_model(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """Labels by the model that came for each batch, and the others' embeddings of it."""
    layouts = [
        layout
        for seen in (*knowledge.begun, *transcript)
        for layout in _of(seen, knowledge, Kind.LAYOUT)
    ]
    if not layouts:
        return no_guess()
    input_places = layouts[0].tensor.cpu().view(torch.int64)
    rows: list[Tensor] = []
    scores: list[Tensor] = []
    for seen in transcript:
        made = _joint_outputs(seen, knowledge, input_places)
        if made is None or seen.batch is None:
            continue
        rows.append(knowledge.batches.rows(seen.batch))
        scores.append(suspicion(made, knowledge.classes))
    if not rows:
        return no_guess()
    return Guess(torch.cat(rows), torch.cat(scores), named=True)


def _joint_outputs(
    seen: Seen, knowledge: Knowledge, input_places: Tensor
) -> Tensor | None:
    """The joint model's outputs for a batch whose message brought the model and what
    the other parties sent; None where something is missing or does not fit."""
    layers = [layer.tensor.cpu() for layer in _of(seen, knowledge, Kind.MODEL)]
    if not layers or seen.batch is None:
        return None
    own = _embedded(knowledge, knowledge.batches.rows(seen.batch))
    if own is None:
        return None
    others = [part.tensor.cpu() for part in _of(seen, knowledge, Kind.EMBEDDING)]
    joined = torch.cat([own, *others], dim=-1)
    if not joined.shape[-1] == len(input_places) == layers[0].shape[-1]:
        return None
    inputs = torch.empty_like(joined).index_copy_(1, input_places, joined)
    return outputs(inputs, layers)


def outputs(x: Tensor, layers: Sequence[Tensor]) -> Tensor:
    """What linear layers give, with ReLU between them; `layers` has weights and biases
    in turn."""
    for number, (weight, bias) in enumerate(
        zip(layers[::2], layers[1::2], strict=True)
    ):
        x = (x.relu() if number else x) @ weight.T + bias
    return x


def _of(seen: Seen, knowledge: Knowledge, kind: Kind) -> list[Released]:
    """The releases of this kind in a message that are not the party's own."""
    names = knowledge.named(kind)
    parts = seen.message.released()
    return [
        part
        for part in parts
        if part.receipt.name in names and part.receipt.owner != knowledge.party
    ]


def _embedded(knowledge: Knowledge, rows: Tensor) -> Tensor | None:
    """The party's own embeddings: as it first sent them, where neither noise nor a
    codec changed them; otherwise by its model as it was when it began to listen."""
    arrived = received(
        knowledge.shown,
        knowledge.batches,
        knowledge.named(Kind.EMBEDDING),
        knowledge.party,
    )
    sent_rows, sent = stacked(
        part
        for part in arrived
        if part.event == NON_PRIVATE and part.codec == UNCOMPRESSED
    )
    places = {
        row: place for place, row in reversed(list(enumerate(sent_rows.tolist())))
    }
    known = [places.get(row, -1) for row in rows.tolist()]
    if known and min(known) >= 0:
        return sent[known]
    if knowledge.model is None or knowledge.columns is None:
        return None
    with torch.no_grad():
        model = knowledge.model.cpu().eval()
        h: Tensor = model(knowledge.columns[rows])
    return h


def from_batch_gradient(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """The first batch's labels, from the gradient that arrived for it, or that the
    party decrypted."""
    first_batch = next(
        (seen.batch for seen in transcript if (seen.batch or "").startswith("train/")),
        None,
    )
    arrived = next(
        received(transcript, knowledge.batches, knowledge.named(Kind.BATCH_GRADIENT)),
        None,
    )
    gradient = knowledge.stepped if arrived is None else arrived.values
    if first_batch is None or gradient is None:
        return no_guess()
    if knowledge.model is None or knowledge.columns is None:
        return no_guess()
    rows = knowledge.batches.rows(first_batch)
    width = knowledge.model.cpu().eval()(knowledge.columns[rows[:1]]).shape[-1]
    coefficients = len(rows) * width
    weights = gradient.numel()
    if coefficients * weights * min(coefficients, weights) > MOST**3:
        return no_guess()
    jacobian = own_jacobian(knowledge.model, knowledge.columns[rows])
    slopes = solve(jacobian, len(rows) * gradient.flatten()).reshape(len(rows), -1)
    if width == knowledge.classes - 1:  # log-odds against the first class
        slopes = torch.cat([-slopes.sum(1, keepdim=True), slopes], 1)
    return Guess(rows, suspicion(-slopes, knowledge.classes), named=True)


def own_jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """du/dtheta for rows that do not depend on each other, [rows * outputs, weights],
    in float64."""
    exact = copy.deepcopy(model).cpu().double().eval()
    weights = [weight for weight in exact.parameters() if weight.requires_grad]
    return torch.cat(
        [jacobian_of(exact(part.double()), weights) for part in torch.split(x, MOST)]
    )


def solve(jacobian: Tensor, gradient: Tensor) -> Tensor:
    """The smallest c with J^T c = gradient, by least squares; directions that are lost
    in rounding are left out."""
    solution: Tensor = torch.linalg.lstsq(
        jacobian.T, gradient.double()[:, None], rcond=1e-5, driver="gelsd"
    ).solution
    return solution[:, 0]


def by_direction(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """Groups of rows whose gradients point the same way, by k-means. A row is suspected
    by how far its gradient reaches along the direction of a group.

    For numbers as labels, the position along the gradients' main direction.
    """
    rows, gradient = stacked(
        received(transcript, knowledge.batches, knowledge.named(Kind.GRADIENT))
    )
    if not len(rows):
        return no_guess(named=False)
    reduced = main_directions(gradient.flatten(1).double(), max(knowledge.classes, 1))
    if not knowledge.classes:
        return Guess(rows, reduced[:, :1], named=False)
    directions = normalize(reduced, dim=1, eps=torch.finfo(reduced.dtype).tiny)
    centres = cluster_centres(directions, knowledge.classes)
    along = reduced @ normalize(centres, dim=1).T
    return Guess(rows, suspicion(along, knowledge.classes), named=False)


def by_norm(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """Two classes: rows of the rarer one are fitted worse, so their gradients are
    longer."""
    rows, gradient = stacked(
        received(transcript, knowledge.batches, knowledge.named(Kind.GRADIENT))
    )
    if not len(rows):
        return no_guess(named=False)
    lengths = gradient.flatten(1).double().norm(dim=1, keepdim=True)
    nearness = nearness_to_groups(lengths.clamp_min(1e-300).log(), 2)
    return Guess(rows, suspicion(nearness, 2), named=False)


def main_directions(rows: Tensor, dimensions: int) -> Tensor:
    """The rows along their main directions, by singular values."""
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    projected: Tensor = rows @ directions[:dimensions].T
    return projected


def nearness_to_groups(points: Tensor, count: int) -> Tensor:
    """How near each point is to the centre of each of so many groups: minus the squared
    distance, so that the highest says the group."""
    centres = cluster_centres(points, count)
    return -(points[:, None] - centres).square().sum(-1)


def cluster_centres(points: Tensor, count: int) -> Tensor:
    """The centres of k-means, the best of a few starts. Where there are fewer different
    points than groups, the last centre is repeated and its copies stay empty."""
    from sklearn.cluster import KMeans

    distinct = min(count, len(torch.unique(points, dim=0)))
    fitted = KMeans(distinct, n_init=RESTARTS, random_state=0).fit(points.numpy())
    centres = torch.from_numpy(fitted.cluster_centers_)
    return torch.cat([centres, centres[-1:].expand(count - distinct, -1)])


def from_nodes(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """k-means on the rows' paths through known trees; for numbers as labels, the place
    along their main direction."""
    rows, paths = memberships(transcript, knowledge)
    if not len(rows) or not paths.shape[1]:
        return from_columns(transcript, knowledge)
    # the last follows from the others
    known = torch.cat([one_hot(column)[:, :-1] for column in paths.T], 1).double()
    return _grouped(rows, known - known.mean(0), knowledge.classes)


def from_columns(transcript: Transcript, knowledge: Knowledge) -> Guess:
    """The control: the party's own columns of the rows that trees are grown on, grouped
    in the same way."""
    heard = next(
        received(transcript, knowledge.batches, knowledge.named(Kind.NODES)), None
    )
    if heard is None or knowledge.columns is None:
        return no_guess(named=False)
    own = knowledge.columns[heard.rows].flatten(1).double().nan_to_num()
    return _grouped(
        heard.rows, (own - own.mean(0)) / own.std(0).clamp_min(1e-12), knowledge.classes
    )


def _grouped(rows: Tensor, centred: Tensor, classes: int) -> Guess:
    """Groups of rows that lie near each other; for numbers as labels, the place along
    their main direction."""
    reduced = main_directions(centred, max(classes - 1, 1))
    if not classes:
        return Guess(rows, reduced[:, :1], named=False)
    nearness = nearness_to_groups(reduced, classes)
    return Guess(rows, suspicion(nearness, classes), named=False)


def memberships(transcript: Transcript, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Rows, and for each tree and level, or sample, the number of the node that a row
    is in, [rows, trees and levels]. The way of a row below its node comes level by
    level."""
    places: dict[int, int] = {}
    columns: list[Tensor] = []
    before: dict[tuple[str, int, int], Tensor] = {}
    for name in knowledge.named(Kind.NODES):
        for nodes in received(transcript, knowledge.batches, (name,)):
            if nodes.values.dim() != 2 or len(nodes.values) != len(nodes.rows):
                continue
            places = places or {
                row: place for place, row in enumerate(nodes.rows.tolist())
            }
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
    return rows, (
        torch.stack(columns, 1)
        if columns
        else torch.zeros(len(rows), 0, dtype=torch.int64)
    )
