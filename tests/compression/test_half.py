"""Half is the nearest number of half precision, two bytes each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compression.tensors import changed, generator, tensors, trip
from torch import Tensor

from colonnade.compression import Half
from colonnade.errors import ConfigError, WireError


@given(
    tensors(largest=6e4),
    st.sampled_from(
        [("float16", 2.0**-11, 2.0**-25), ("bfloat16", 2.0**-8, 2.0**-134)]
    ),
)
@settings(max_examples=100)
def test_the_relative_error_is_that_of_the_type(
    x: Tensor, kind: tuple[str, float, float]
) -> None:
    name, relative, absolute = kind
    packed, back = trip(Half(name), x)
    assert len(packed.data) == 2 * x.numel()
    assert back.dtype == x.dtype
    assert (
        (back - x).double().abs() <= (relative * x.double().abs()).clamp_min(absolute)
    ).all()
    assert torch.equal(trip(Half(name), back)[1], back)


def test_it_is_what_torch_rounds_to() -> None:
    x = torch.randn(50, 20, generator=generator()) * 100
    assert torch.equal(trip(Half(), x)[1], x.half().float())
    assert torch.equal(trip(Half("bfloat16"), x)[1], x.bfloat16().float())


def test_a_value_that_float16_cannot_hold_is_refused_with_the_cure() -> None:
    assert trip(Half(), torch.tensor([65504.0]))[1].item() == 65504.0
    with pytest.raises(
        ConfigError, match="half: float16 reaches up to 65504; found a value of 65520"
    ):
        Half().encode(torch.tensor([1.0, -65520.0]))
    assert trip(Half("bfloat16"), torch.tensor([-65536.0]))[1].item() == -65536.0


@pytest.mark.parametrize("kind", ["float32", "", None, 16, ["float16"]])
def test_another_type_is_refused_from_inside_and_outside(kind: Any) -> None:
    with pytest.raises(
        ConfigError, match='half: type must be one of "float16", "bfloat16"; found'
    ):
        Half(kind)
    packed, _ = trip(Half(), torch.ones(2, 2))
    with pytest.raises(WireError, match="came without a proper type"):
        Half().decode(changed(packed, type=kind))
