"""RANDOM, the paper's first baseline: participants by chance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator


def random(participants: Sequence[str], generator: Generator) -> dict[str, float]:
    """A random number each."""
    return dict(zip(participants, torch.rand(len(participants), generator=generator).tolist(), strict=True))
