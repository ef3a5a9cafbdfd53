"""What a label owner of boosted trees can work out from sums: equations in the side of
a border that each row is on.

It knows every gradient and every node, so a sum over the rows of a node that go left by
a candidate is an equation in as many unknown bits as the node has rows: with 1 where a
row goes left,

    sum of g over the node's rows that go left = sum over the node's rows of g times the row's bit

and the same for h. A candidate keeps its place for a round, so all nodes of a round
have equations in the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from colonnade.algorithms.algorithm import Equations
from colonnade.algorithms.tree_growing import Growing, PlainSlopes
from colonnade.algorithms.tree_histograms import Binning, Floats
from colonnade.algorithms.tree_owner import HALF, Divide, Start, Sums
from colonnade.core import Ciphertext, Transcript
from colonnade.encryption.elgamal import ElGamalSecretKey

NO_COLUMNS = Binning((), np.zeros(0, dtype=np.bool_), 1)


def equations(
    secret: ElGamalSecretKey | None, answers: Transcript, requests: Transcript
) -> Iterator[Equations]:
    """The equations of each round, from what a party answered a label owner and what it
    was asked, by transcripts."""
    asked = [
        seen.message for seen in requests if isinstance(seen.message, (Start, Divide))
    ]
    replies = [
        seen.message
        for seen in answers
        if isinstance(seen.message, Sums)
        and seen.message.sums.receipt.owner == requests.party
    ]
    growing: Growing | None = None
    levels: list[tuple[Floats, Floats]] = []
    start: Start | None = None
    for request, reply in zip(asked, replies, strict=False):
        if isinstance(request, Start):
            if start is not None and request.number != start.number:
                yield _joined(start.batch, levels)
                levels = []
            start = request
            growing = _without_columns(secret, request)
        elif growing is not None:
            growing = growing.divided(
                request.nodes.tensor.cpu().numpy().astype(np.uint8)
            )
        if growing is not None and growing.reported:
            levels.append(_level(secret, growing, reply))
    if start is not None and levels:
        yield _joined(start.batch, levels)


def _without_columns(secret: ElGamalSecretKey | None, request: Start) -> Growing:
    """What a party that is asked to start a round keeps of it, without its columns."""
    if isinstance(request.gradients, Ciphertext):
        assert secret is not None
        values = secret.decrypt(request.gradients.encrypted).double().numpy()
        slopes = PlainSlopes(values[:, ::2], values[:, 1::2])
    else:
        assert request.hessians is not None
        g, h = (
            released.tensor.cpu().double().numpy()
            for released in (request.gradients, request.hessians)
        )
        slopes = PlainSlopes(g, h)
    sampled = np.arange(slopes.rows)
    rows = slopes.rows
    if request.sample is not None:
        rows = len(request.sample.tensor)
        sampled = np.flatnonzero(request.sample.tensor.cpu().numpy()[:, 0] > HALF)
    no_bins = np.zeros((0, rows), dtype=np.uint8)
    return Growing.begin(
        request.batch,
        request.number,
        slopes,
        sampled,
        no_bins,
        NO_COLUMNS,
        NO_COLUMNS.candidates(),
        1,
    )


def _level(
    secret: ElGamalSecretKey | None, growing: Growing, reply: Sums
) -> tuple[Floats, Floats]:
    """Weights of rows, [equations, rows of the batch], and the sums reported,
    [equations, candidates]; NaN: none."""
    slopes = growing.slopes
    assert isinstance(slopes, PlainSlopes)
    nodes = [(node, part.tree) for part in growing.reported for node in part.nodes]
    weights = np.zeros((len(nodes), 2, growing.node.shape[1]))
    for at, (node, tree) in enumerate(nodes):
        inside = growing.node[tree, growing.sampled] == node
        for part, values in zip(weights[at], (slopes.g, slopes.h), strict=True):
            part[growing.sampled[inside]] = values[inside, tree]
    if isinstance(reply.sums, Ciphertext):
        assert secret is not None
        blocks = [(2 * tree, 2 * tree + 1) for _, tree in nodes]
        both = secret.decrypt_sums(
            reply.sums.encrypted, blocks, may_be_negative=(True, False)
        ).numpy()
        sums = both.reshape(len(nodes), -1, 2)
    else:
        sums = reply.sums.tensor.cpu().double().numpy()
    sums = np.where(sums[..., 1:] < 0, np.nan, sums).transpose(0, 2, 1)
    return weights.reshape(2 * len(nodes), -1), sums.reshape(2 * len(nodes), -1)


def _joined(batch: str, levels: list[tuple[Floats, Floats]]) -> Equations:
    weights, sums = (
        torch.from_numpy(np.concatenate(parts)) for parts in zip(*levels, strict=True)
    )
    return Equations(batch, weights, sums)
