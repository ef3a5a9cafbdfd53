"""Tensors for codecs, and the way of a tensor through a codec."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Generator, Tensor

from colonnade.core import Codec, Packed


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def trip(codec: Codec, tensor: Tensor, seed: int = 0) -> tuple[Packed, Tensor]:
    """The packed tensor, and the tensor that a receiver decodes."""
    packed = codec.encode(tensor, generator(seed))
    return packed, codec.decode(packed)


def changed(packed: Packed, **settings: Any) -> Packed:
    """A packed tensor with other settings, as a stranger could send it."""
    return dataclasses.replace(packed, settings={**packed.settings, **settings})


@st.composite
def tensors(draw: st.DrawFn, largest: float = 1e6) -> Tensor:
    """Draw tensors [rows, P] of float32 or float64, at any scale.

    There are equal entries, zeros and extremes among them.
    """
    rows = draw(st.integers(1, 6))
    values = draw(st.integers(1, 12))
    seed = draw(st.integers(0, 10**6))
    numbers = (
        torch.rand(rows, values, generator=generator(seed), dtype=torch.float64) * 2 - 1
    )
    numbers *= draw(st.sampled_from([largest, 100.0, 1.0, 1e-3, 1e-30]))
    special = st.sampled_from([0.0, 1.0, -1.0, largest, float(numbers[0, 0])])
    for row, column, value in draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 11), special), max_size=4)
    ):
        numbers[row % rows, column % values] = value
    return numbers.to(torch.float32).to(
        draw(st.sampled_from([torch.float32, torch.float64]))
    )
