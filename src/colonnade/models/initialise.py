"""Layers initialised from a seed or a generator of one's own.

PyTorch draws initial weights from its global generator. It is forked for the time, so that no global seed is used or
changed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator

_ONE_AT_A_TIME = threading.RLock()  # torch initialises from a generator of the whole process


@contextmanager
def initialised(seed: int | Generator) -> Iterator[None]:
    """Modules made inside have the weights that follow from this seed, or from where this generator stands, whatever
    other threads make meanwhile."""
    start = seed if isinstance(seed, Generator) else Generator().manual_seed(seed)
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(start.get_state())
        yield
