"""Layers initialised from a seed of one's own.

PyTorch draws initial weights from its global generator. It is forked for the time, so that no global seed is used or
changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def initialised(seed: int) -> Iterator[None]:
    """Modules made inside have the weights that this seed gives."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
