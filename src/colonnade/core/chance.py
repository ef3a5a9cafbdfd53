"""Random numbers that nobody else can know or work out: for noise, and where a party's
own generator begins.

A federation's seed is agreed, so noise drawn from it could be drawn again and
subtracted. And what torch's generator draws can be worked out from what it drew before:
the Mersenne twister is linear, and the leading bits of noise that is larger than what
it hides can be read off. So noise that protects comes from the system's cryptographic
source, number by number; there is no state that could be guessed, saved, or copied by a
fork. A torch generator in its place repeats a run, for tests and for `noise =
"seeded"`, and protects nobody.

Initial weights and dropout need a torch generator, since torch draws them.
`secret_generator` gives one that begins where nobody can know.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor

# and a half: what a float64 holds exactly, between 0 and 1 and neither of them
BITS = 52
WORDS = slice(3, 3 + 624)
"""Of a generator's state, in 64 bits each: its seed, two counters, then the twister's
624 words."""


class Secret:
    """The operating system's source."""

    def uniform(self, shape: Sequence[int]) -> Tensor:
        words = np.frombuffer(
            os.urandom(8 * math.prod(shape)), dtype=np.uint64
        ) >> np.uint64(64 - BITS)
        return torch.from_numpy((words + 0.5) * 2.0**-BITS).reshape(tuple(shape))


Source = Generator | Secret


def secret_generator() -> Generator:
    """A generator whose whole state comes from the operating system. `manual_seed`
    would not do: torch takes 32 bits of a seed, and whoever sees what a model makes of
    rows can try them all."""
    generator = Generator().manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
    state = generator.get_state()
    words = state.numpy().view(np.uint64)
    words[WORDS] = np.frombuffer(os.urandom(4 * 624), dtype=np.uint32)
    generator.set_state(state)
    return generator


def uniform(shape: Sequence[int], source: Source) -> Tensor:
    """Numbers above 0 and below 1, in float64, on the CPU or where the generator is."""
    if isinstance(source, Secret):
        return source.uniform(shape)
    drawn = torch.rand(
        tuple(shape), generator=source, dtype=torch.float64, device=source.device
    )
    return drawn.clamp_min(2.0 ** -(BITS + 1))


def normal(shape: Sequence[int], source: Source) -> Tensor:
    """N(0, 1) in float64, by Box and Muller."""
    count = math.prod(shape)
    radius, angle = uniform((2, (count + 1) // 2), source)
    radius = (-2 * radius.log()).sqrt()
    angle = 2 * math.pi * angle
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].reshape(
        tuple(shape)
    )
