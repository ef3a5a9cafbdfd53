"""Labels by the model that a party was sent: it has its own part, and completes it with the label owner's.

VIMADMM sends party k its head W_k, so h_k W_k is its share of the logits. Compressed VFL sends the whole model g and,
for each batch, what the others sent: so every party has the joint model's outputs. A trained model tells labels; how
well says how much of them the party needs nobody else for. Fu et al., Label Inference Attacks Against Vertical
Federated Learning, USENIX Security 2022, complete a model with rows whose labels they know. Here none are needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from colonnade.algorithms import Kind
from colonnade.attacks.received import Guess, Holdings
from colonnade.core import Released, Transcript
from colonnade.core.transcript import Seen


def from_head(transcript: Transcript, holdings: Holdings) -> Guess:
    """With the first head that came, for all rows that were trained on meanwhile."""
    heads = [one for seen in transcript for one in _of(seen, holdings, Kind.HEAD)]
    batches = dict.fromkeys(seen.batch for seen in transcript if (seen.batch or "").startswith("train/"))
    if not heads or not batches:
        return _nothing()
    rows = torch.cat([holdings.batches.rows(name) for name in batches if name])
    h, head = _embedded(holdings, rows), heads[0].tensor.cpu()
    if h is None or head.dim() != 2 or h.shape[-1] != head.shape[0]:
        return _nothing()
    return Guess(rows, told(h @ head, holdings.classes), named=True)


def from_model(transcript: Transcript, holdings: Holdings) -> Guess:
    """With the model that came for each batch, and what the others embedded of it."""
    layouts = [one for seen in (*holdings.begun, *transcript) for one in _of(seen, holdings, Kind.LAYOUT)]
    rows: list[Tensor] = []
    labels: list[Tensor] = []
    for seen in transcript:
        layers = [one.tensor.cpu() for one in _of(seen, holdings, Kind.MODEL)]
        if not layers or not layouts or seen.batch is None:
            continue
        places = layouts[0].tensor.cpu().view(torch.int64)
        at = holdings.batches.rows(seen.batch)
        others = [one.tensor.cpu() for one in _of(seen, holdings, Kind.EMBEDDING)]
        h = _embedded(holdings, at)
        if h is None:
            continue
        joined = torch.cat([h, *others], dim=-1)
        if joined.shape[-1] != len(places) or len(places) != layers[0].shape[-1]:
            continue
        rows.append(at)
        labels.append(told(outputs(torch.empty_like(joined).index_copy_(1, places, joined), layers), holdings.classes))
    return Guess(torch.cat(rows), torch.cat(labels), named=True) if rows else _nothing()


def outputs(x: Tensor, layers: Sequence[Tensor]) -> Tensor:
    """Through weights and biases one after the other, with ReLU between them."""
    for number, (weight, bias) in enumerate(zip(layers[::2], layers[1::2], strict=True)):
        x = (x.relu() if number else x) @ weight.T + bias
    return x


def told(logits: Tensor, classes: int) -> Tensor:
    """The label that outputs mean."""
    if classes == 0:
        return logits[:, 0]
    return logits.argmax(-1) if logits.shape[-1] > 1 else (logits[:, 0] > 0).long()


def _of(seen: Seen, holdings: Holdings, kind: Kind) -> list[Released]:
    """What a message has of this kind that is not the party's own."""
    names = holdings.named(kind)
    parts = seen.message.released()
    return [one for one in parts if one.receipt.name in names and one.receipt.owner != holdings.party]


def _embedded(holdings: Holdings, rows: Tensor) -> Tensor | None:
    """The party's own embeddings, by its model as it was when it began to listen."""
    if holdings.model is None or holdings.columns is None:
        return None
    with torch.no_grad():
        model = holdings.model.cpu().eval()
        h: Tensor = model(holdings.columns[rows])
    return h


def _nothing() -> Guess:
    return Guess(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), named=True)
