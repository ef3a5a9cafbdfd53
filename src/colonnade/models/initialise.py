"""Layers initialised from a seed of one's own.

PyTorch draws initial weights from its global generator. It is forked for the time, so that no global seed is used or
changed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_ONE_AT_A_TIME = threading.RLock()  # torch initialises from a generator of the whole process


@contextmanager
def initialised(seed: int) -> Iterator[None]:
    """Modules made inside have the weights that this seed gives, whatever other threads make meanwhile."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
