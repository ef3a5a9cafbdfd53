"""Noise that nobody can draw again."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator

from colonnade.privacy.secret import WORDS, _filled, secret_generator


def test_the_whole_state_is_filled_and_used() -> None:
    """Numpy's own twister with the same words gives the same numbers."""
    words = np.random.default_rng(0).integers(0, 2**32, WORDS, dtype=np.uint32)
    twister = np.random.MT19937()
    state = twister.state
    state["state"] = {"key": words, "pos": WORDS}
    twister.state = state
    raw = twister.random_raw(4000)
    mine = torch.randint(0, 2**31, (2000,), generator=_filled(words)).numpy()
    assert (mine == raw[1::2] % 2**31).all()


def test_a_seed_would_fill_32_bits_only() -> None:
    """Why `manual_seed` is not enough: seeds that differ by 2^32 are the same."""
    one, other = (torch.randn(4, generator=Generator().manual_seed(seed)) for seed in (5, 5 + 2**32))
    assert torch.equal(one, other)


def test_every_generator_is_another_one() -> None:
    draws = [torch.randn(1000, generator=secret_generator()) for _ in range(2)]
    assert not torch.equal(*draws)
    assert abs(float(torch.corrcoef(torch.stack(draws))[0, 1])) < 0.2
