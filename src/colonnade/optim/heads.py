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


def norms(stacked: Tensor, widths: Mapping[str, int]) -> dict[str, float]:
    """The Frobenius norm of each party's block."""
    return {party: float(block.norm()) for party, block in zip(widths, blocks(stacked, widths.values()), strict=True)}
