"""The laws of every codec. A codec joins by a line in CODECS_UNDER_TEST, with the error
that it may make."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from colonnade.compression import Half, Integers, Quantize, TopK, VectorQuantize
from colonnade.core import Codec, Envelope, Identity, Message, Outbox, Released, Rule
from colonnade.core.release import CODECS, DTYPES
from colonnade.core.transcript import wire_bytes
from colonnade.core.wire import decode, encode

CODECS_UNDER_TEST: list[tuple[Codec, float]] = [
    (Identity(), 0.0),  # (the codec, the largest error relative to the largest entry)
    (Quantize(256), 1 / 255),
    (Quantize(16, rounding="dithered"), 2 / 15),
    (TopK(0.5), 1.0),
    (TopK(3), 1.0),
    (VectorQuantize(1024), 2 * 0.038),
    (Half(), 2**-11),
    (Half("bfloat16"), 2**-8),
    (Integers(-256, 0.25, 2049), 0.0),
]
SHAPES: list[tuple[int, ...]] = [
    (),
    (1,),
    (5,),
    (0,),
    (0, 4),
    (4, 0),
    (1, 7),
    (33, 7),
    (3, 5, 7),
]

every_codec = pytest.mark.parametrize(
    ("codec", "error"),
    CODECS_UNDER_TEST,
    ids=[repr(codec) for codec, _ in CODECS_UNDER_TEST],
)


class CodecBatteryMessage(Message):
    value: Released


def random(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0
) -> Tensor:
    """Multiples of a quarter, since a codec may ask for values on a grid."""
    generator = Generator().manual_seed(seed)
    values = (torch.randn(shape, generator=generator) * 200).round() / 4
    if dtype == torch.bool:
        return values > 0
    if dtype == torch.uint8:
        return values.abs().to(dtype)
    return values.to(dtype)


@every_codec
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_round_trip_keeps_shape_type_and_values(
    codec: Codec, error: float, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensor = random(shape, dtype)
    kept = tensor.clone()
    back = codec.decode(codec.encode(tensor, Generator().manual_seed(0)))
    assert back.shape == tensor.shape
    assert back.dtype == tensor.dtype
    assert torch.equal(tensor, kept), "the codec changed what it was given"
    if tensor.numel():
        assert float((back - tensor).abs().max()) <= error * float(tensor.abs().max())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_identity_keeps_every_type_to_the_bit(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = random(shape, dtype)
    packed = Identity().encode(tensor)
    assert len(packed.data) == tensor.nbytes
    assert torch.equal(Identity().decode(packed), tensor)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -0.0, 1e-45])
def test_identity_keeps_special_numbers(special: float) -> None:
    tensor = torch.tensor([special, 1.0])
    back = Identity().decode(Identity().encode(tensor))
    assert torch.equal(back.view(torch.int32), tensor.view(torch.int32))


@every_codec
def test_what_is_packed_is_bytes_and_names_its_codec(
    codec: Codec, error: float
) -> None:
    packed = codec.encode(random((9, 4)), Generator().manual_seed(0))
    assert packed.codec == codec.name
    assert isinstance(packed.data, bytes)
    assert packed.shape == (9, 4)
    assert packed.dtype == "float32"
    assert type(CODECS[codec.name]) is type(codec), "a receiver cannot look it up"


@every_codec
def test_any_receiver_reads_it_from_the_packed_form_alone(
    codec: Codec, error: float
) -> None:
    packed = codec.encode(random((9, 4)), Generator().manual_seed(0))
    assert torch.equal(CODECS[codec.name].decode(packed), codec.decode(packed))


@every_codec
def test_the_same_generator_state_packs_the_same_bytes(
    codec: Codec, error: float
) -> None:
    tensor = random((9, 4))
    one, other = (codec.encode(tensor, Generator().manual_seed(7)) for _ in range(2))
    assert one == other


@every_codec
@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_the_layout_in_memory_does_not_matter(
    codec: Codec, error: float, layout: str
) -> None:
    base = random((8, 6))
    tensor = {
        "transposed": base.T,
        "strided": base[::2, ::3],
        "expanded": base[:1].expand(5, 6),
    }[layout]
    one, other = (
        codec.encode(t, Generator().manual_seed(0))
        for t in (tensor, tensor.contiguous())
    )
    assert one == other


@every_codec
def test_what_was_decoded_is_its_own_and_can_be_written_to(
    codec: Codec, error: float
) -> None:
    packed = codec.encode(random((4, 3)), Generator().manual_seed(0))
    one = codec.decode(packed)
    other = codec.decode(packed)
    kept = other.clone()
    one.zero_()
    assert torch.equal(other, kept)
    assert torch.equal(codec.decode(packed), kept)


@every_codec
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_asker_and_answerer_hold_the_same_numbers_after_the_wire(
    codec: Codec, error: float, shape: tuple[int, ...]
) -> None:
    outbox = Outbox("ada", Generator().manual_seed(0), {"x": Rule(codec=codec)})
    sent = outbox.release(random(shape), "x")
    got = decode(encode(Envelope("ada", 1, CodecBatteryMessage(sent)))).message.value
    assert torch.equal(got.tensor, sent.tensor)
    assert got.receipt == sent.receipt
    assert wire_bytes(got) == wire_bytes(sent) == sent.receipt.bytes
