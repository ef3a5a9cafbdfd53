"""Everybody has the same chance."""

from __future__ import annotations

from collections import Counter

from torch import Generator

from colonnade.selection.methods import random
from colonnade.selection.result import ranked


def test_everybody_is_first_equally_often() -> None:
    generator = Generator().manual_seed(0)
    first = Counter(ranked(random("abcd", generator))[0] for _ in range(2000))
    deviation = (2000 * 0.25 * 0.75) ** 0.5
    assert all(abs(first[name] - 500) < 5 * deviation for name in "abcd")
