"""Random numbers that nobody else can know.

A federation's seed is agreed, so noise drawn from it could be drawn again and subtracted by whoever knows it. Noise
that protects therefore comes from a generator filled by the operating system, new in every process and never saved:
one that continued from a checkpoint would hide two different rows behind the same noise.

It is torch's Mersenne twister with all of its 19,937 bits filled (`manual_seed` would fill 32). That is not a
cryptographic generator, and floating-point Gaussian noise is not exactly Gaussian in its last bits.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Generator

WORDS = 624
START = 24  # in torch's saved state: seed, left, seeded, next, then the twister's words as 64-bit numbers


def secret_generator() -> Generator:
    """A CPU generator whose whole state is from the operating system."""
    words = np.frombuffer(os.urandom(4 * WORDS), dtype=np.uint32)
    return _filled(words)


def _filled(words: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> Generator:
    generator = Generator().manual_seed(0)
    state = generator.get_state()
    state[START : START + 8 * WORDS] = torch.from_numpy(words.astype("<u8").view(np.uint8))
    generator.set_state(state)
    return generator
