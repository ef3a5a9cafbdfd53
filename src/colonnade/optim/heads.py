"""One linear head per party, kept as one matrix: party k's head is its block of rows.

So the logits sum_k h_k W_k are a single product of the concatenated embeddings with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Generator, Tensor


def uniform_heads(widths: Iterable[int], outputs: int, generator: Generator) -> Tensor:
    """Each block uniform in +-1/sqrt(width), as a linear layer starts."""
    blocks = (torch.rand(width, outputs, generator=generator) * 2 - 1 for width in widths)
    return torch.cat([block / len(block) ** 0.5 for block in blocks])


def blocks(stacked: Tensor, widths: Iterable[int]) -> tuple[Tensor, ...]:
    """The rows that belong to each party."""
    return torch.split(stacked, list(widths))


def beside(h: Mapping[str, Tensor], widths: Mapping[str, int]) -> Tensor:
    """The embeddings side by side, [rows, all widths]. A party that is not in `h` has zeros there, so that its term
    h_k W_k is left out of the sum."""
    if len(h) == len(widths):
        return torch.cat(list(h.values()), dim=-1)
    one = next(iter(h.values()))
    return torch.cat([h[k] if k in h else one.new_zeros(*one.shape[:-1], width) for k, width in widths.items()], dim=-1)


def norms(stacked: Tensor, widths: Mapping[str, int]) -> dict[str, float]:
    """The Frobenius norm of each party's block."""
    parts = blocks(stacked.detach(), widths.values())
    return {party: float(block.norm()) for party, block in zip(widths, parts, strict=True)}
