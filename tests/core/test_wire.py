"""Frames: what is encoded comes back. Whatever else arrives is in
`test_wire_hostile.py`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.frames import Everything, Fragile, Noisy, Values, outbox
from torch import Generator, Tensor

from colonnade.core import Envelope, Plain, Released, Rule, wire
from colonnade.core.release import DTYPES


def same(a: Any, b: Any) -> bool:
    """Equal, with tensors compared bit by bit and NaN equal to itself."""
    if isinstance(a, Released):
        bits = torch.equal(_bits(a.tensor), _bits(b.tensor))
        return (
            a.tensor.dtype == b.tensor.dtype
            and bits
            and a.receipt == b.receipt
            and a.packed == b.packed
        )
    if isinstance(a, dict):
        return (
            isinstance(b, dict)
            and list(a) == list(b)
            and all(same(a[key], b[key]) for key in a)
        )
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(*tensor.shape, 1).contiguous().view(torch.uint8)


def crossed(envelope: Envelope[Any]) -> None:
    back = wire.decode(wire.encode(envelope))
    assert (back.sender, back.number) == (envelope.sender, envelope.number)
    assert type(back.message) is type(envelope.message)
    for name in envelope.message.hints():
        assert same(getattr(envelope.message, name), getattr(back.message, name)), name


WORDS = st.text(max_size=5).filter(str.isprintable)
TENSORS = st.builds(
    lambda shape, dtype, seed, name, batch: outbox(Rule(Noisy())).release(
        (torch.randn(shape, generator=Generator().manual_seed(seed)) * 100).to(
            DTYPES[dtype]
        ),
        name,
        batch,
    ),
    shape=st.lists(st.integers(0, 3), max_size=4),
    dtype=st.sampled_from(sorted(DTYPES)),
    seed=st.integers(0, 1000),
    name=WORDS,
    batch=st.none() | WORDS,
)
TEXT = st.text(max_size=8) | st.sampled_from(
    ["\ud800", "\0", "Zürich 東京 🏛", '"', "$tensor"]
)
FLOATS = st.floats() | st.integers(-(2**60), 2**60)
MESSAGES = st.builds(
    Everything,
    text=TEXT,
    count=st.integers() | st.integers(-(10**1000), 10**1000),
    value=FLOATS,
    flag=st.booleans(),
    maybe=st.none() | TEXT,
    one=TENSORS,
    many=st.lists(TENSORS, max_size=3).map(tuple),
    named=st.dictionaries(TEXT, TENSORS, max_size=2),
    numbers=st.lists(FLOATS, max_size=3).map(tuple),
    nested=st.dictionaries(
        TEXT, st.lists(st.integers(), max_size=2).map(tuple), max_size=2
    ),
)


@given(message=MESSAGES, sender=TEXT, number=st.integers(0, 2**70))
@settings(max_examples=150)
def test_what_is_encoded_comes_back(
    message: Everything, sender: str, number: int
) -> None:
    crossed(Envelope(sender, number, message))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 1e-320])
def test_special_numbers_survive_in_tensors_and_scalars(value: float) -> None:
    released = outbox().release(torch.tensor([value, -value]), "x")
    base = Everything("", 0, value, True, None, released, (), {}, (value,), {})
    crossed(Envelope("bank", 1, base))


def test_a_view_travels_as_it_looks() -> None:
    tensor = torch.arange(12).reshape(3, 4).T[1:]
    back = wire.decode(
        wire.encode(Envelope("bank", 1, Values(outbox().release(tensor, "x"))))
    )
    assert torch.equal(back.message.values.tensor, tensor)


def test_what_arrives_can_be_computed_with_and_is_its_own() -> None:
    frame = wire.encode(
        Envelope("bank", 1, Values(outbox().release(torch.ones(3), "x")))
    )
    one = wire.decode(frame).message.values.tensor
    other = wire.decode(frame).message.values.tensor
    one.add_(1)
    assert torch.equal(other, torch.ones(3))


def test_a_packed_tensor_travels_packed(fragile: Fragile) -> None:
    message = Values(outbox(Rule(Plain(), fragile)).release(torch.zeros(100, 100), "x"))
    frame = wire.encode(Envelope("bank", 1, message))
    assert len(frame) < 1000
    crossed(Envelope("bank", 1, message))
    # a receiver that passes it on does not unpack it
    again = wire.encode(wire.decode(frame))
    assert again == frame


def test_tensors_are_aligned() -> None:
    released = outbox().release(torch.arange(5.0), "x")
    frame = wire.encode(Envelope("bank", 1, Values(released)))
    assert len(frame) % wire.ALIGN == 0
    assert frame.index(torch.arange(5.0).numpy().tobytes()) % wire.ALIGN == 0


def test_a_frame_is_little_more_than_its_tensors() -> None:
    frame = wire.encode(
        Envelope("bank", 1, Values(outbox().release(torch.zeros(1000), "embedding")))
    )
    assert 4000 < len(frame) < 4400
