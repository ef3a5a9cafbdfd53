"""Bytes that are no message of ours: whatever they are, a WireError, cheaply."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.frames import Everything, Fragile, Noisy, Values, outbox

from colonnade.core import Envelope, Message, Plain, Rule, wire
from colonnade.errors import WireError


def sample() -> bytes:
    box = outbox(Rule(Noisy()))
    tensors = [
        box.release(torch.randn(3, 2), "x", "train/0/1"),
        box.release(torch.arange(3), "y"),
    ]
    message = Everything(
        "é",
        5,
        0.5,
        True,
        None,
        tensors[0],
        tuple(tensors),
        {"a": tensors[1]},
        (1.0, math.nan),
        {"b": (1, 2)},
    )
    return wire.encode(Envelope("bank", 3, message))


FRAME = sample()


def decodes_or_refuses(frame: bytes) -> bool:
    """Whether a frame decodes; anything but a message or a WireError escapes and fails
    the test."""
    try:
        envelope = wire.decode(frame)
    except WireError:
        return False
    assert isinstance(envelope.message, Message)
    assert isinstance(envelope.sender, str)
    assert isinstance(envelope.number, int)
    wire.encode(envelope)
    return True


def refused(frame: bytes) -> None:
    with pytest.raises(WireError):
        wire.decode(frame)


def test_the_sample_itself_is_good() -> None:
    assert decodes_or_refuses(FRAME)


def test_a_frame_cut_at_any_length_is_refused() -> None:
    assert [
        length for length in range(len(FRAME)) if decodes_or_refuses(FRAME[:length])
    ] == []


def test_a_frame_with_anything_after_it_is_refused() -> None:
    for extra in (1, 63, 64, 65, 1000):
        refused(FRAME + bytes(extra))


def test_each_byte_of_the_header_may_be_any_other() -> None:
    generator = torch.Generator().manual_seed(0)
    end = 8 + int.from_bytes(FRAME[4:8], "little")
    for place in range(end):
        for flip in (
            1,
            0x80,
            0xFF,
            int(torch.randint(1, 256, (), generator=generator)),
        ):
            decodes_or_refuses(
                FRAME[:place] + bytes([FRAME[place] ^ flip]) + FRAME[place + 1 :]
            )


CUT = st.tuples(st.integers(0, len(FRAME)), st.integers(0, 8), st.binary(max_size=8))


@given(edits=st.lists(CUT, min_size=1, max_size=4))
@settings(max_examples=500)
def test_bytes_changed_removed_and_inserted_anywhere(
    edits: list[tuple[int, int, bytes]],
) -> None:
    frame = FRAME
    for place, remove, insert in edits:
        frame = frame[:place] + insert + frame[place + remove :]
    decodes_or_refuses(frame)


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_random_bytes_are_refused(data: bytes) -> None:
    for frame in (data, wire.MAGIC + data, framed(data)):
        assert not decodes_or_refuses(frame)


def framed(header: bytes, body: bytes = b"") -> bytes:
    return (
        wire.MAGIC
        + len(header).to_bytes(4, "little")
        + header
        + bytes(-(8 + len(header)) % 64)
        + body
    )


def header_of(frame: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(
        frame[8 : 8 + int.from_bytes(frame[4:8], "little")]
    )
    return header


VALUES = wire.encode(
    Envelope("bank", 1, Values(outbox(Rule(Noisy())).release(torch.ones(4), "x")))
)


def changed(*path: Any, to: Any) -> bytes:
    """The frame of a Values with one entry of its header replaced."""
    header = header_of(VALUES)
    place: Any = header
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return framed(json.dumps(header).encode(), VALUES[-64:])


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
PLACES: list[tuple[Any, ...]] = [
    ("type",),
    ("from",),
    ("number",),
    ("fields",),
    ("tensors",),
    ("fields", "values"),
    ("fields", "values", "$tensor"),
    ("fields", "more"),
    ("tensors", 0),
    *((("tensors", 0, key)) for key in header_of(VALUES)["tensors"][0]),
    *(("tensors", 0, "receipt", place) for place in range(6)),
    ("tensors", 0, "shape", 0),
]


def test_the_unchanged_header_is_good() -> None:
    assert decodes_or_refuses(changed("from", to="shop"))


@given(place=st.sampled_from(PLACES), junk=JUNK)
@settings(max_examples=500)
def test_any_part_of_the_header_may_be_any_json(
    place: tuple[Any, ...], junk: Any
) -> None:
    decodes_or_refuses(changed(*place, to=junk))


@given(JUNK)
@settings(max_examples=100)
def test_a_header_that_is_any_json_is_refused(junk: Any) -> None:
    assert not decodes_or_refuses(framed(json.dumps(junk).encode()))


@pytest.mark.parametrize("part", ["type", "from", "number", "fields", "tensors"])
def test_no_part_of_the_header_may_be_missing(part: str) -> None:
    header = header_of(VALUES)
    del header[part]
    refused(framed(json.dumps(header).encode(), VALUES[-64:]))


HUGE = [2**31, 2**40, 2**61, 2**62, 2**63, 2**64, 10**30, -1, 1e18]


@pytest.mark.parametrize("size", HUGE)
def test_enormous_sizes_are_refused_without_allocating_them(size: float) -> None:
    frames = [
        changed("tensors", 0, "bytes", to=size),
        changed("tensors", 0, "shape", to=[size]),
        changed("tensors", 0, "shape", to=[size, size, size]),
        changed("tensors", 0, "shape", to=[1] * 100_000),
        changed("fields", "values", "$tensor", to=size),
        VALUES[:4]
        + min(max(int(size), 0), 2**32 - 1).to_bytes(4, "little")
        + VALUES[8:],
    ]
    header = header_of(VALUES)
    header["tensors"][0] |= {"shape": [size], "bytes": size * 4}
    frames.append(framed(json.dumps(header).encode(), VALUES[-64:]))
    if 0 < size < 2**60 and isinstance(size, int):
        with pytest.raises(WireError, match=f"says that one of them has {size * 4}"):
            wire.decode(frames[-1])
    tracemalloc.start()
    start = time.perf_counter()
    for frame in frames:
        refused(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000
    assert time.perf_counter() - start < 5


def test_an_empty_tensor_may_have_a_long_side_but_takes_no_memory() -> None:
    for shape in ([0, 2**40], [2**61, 2**61, 0], [0] * 16):
        header = header_of(VALUES)
        header["tensors"][0] |= {"shape": shape, "bytes": 0}
        decodes_or_refuses(framed(json.dumps(header).encode()))


@pytest.mark.parametrize("depth", [100, 900, 5_000, 200_000])
@pytest.mark.parametrize(
    ("left", "right"),
    [('{"$tuple":[', "]}"), ('{"$dict":{"a":', "}}"), ("[", "]"), ('{"a":', "}")],
)
def test_deeply_nested_headers_are_refused(depth: int, left: str, right: str) -> None:
    deep = left * depth + "1" + right * depth
    for text in (
        deep,
        '{"type":"frames.Ask","from":"a","number":1,"tensors":[],"fields":{"batch":'
        + deep
        + "}}",
    ):
        refused(framed(text.encode()))


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"", "starts with"),
        (b"CLN1", "starts with"),
        (b"CLN2" + VALUES[4:], "starts with"),
        (b"\x80\x04" + VALUES, "starts with"),
        (wire.MAGIC + b"\xff\xff\xff\xff", "says that its header has"),
        (
            wire.MAGIC + (len(VALUES) - 7).to_bytes(4, "little") + VALUES[8:],
            "says that its header has",
        ),
        (framed(b"\xff\xfe{}"), "not JSON"),
        (framed(b'{"type": "\xff"}'), "not JSON"),
        (framed(b"{"), "not JSON"),
        (framed(b"[]"), "not a JSON object"),
        (framed(b"1" * 10_000), "not JSON"),
        (changed("type", to="os.system"), "does not exist here: 'os.system'"),
        (changed("type", to="message.Message"), "does not exist here"),
        (changed("type", to="message.Request"), "does not exist here"),
        (changed("type", to=["a"]), "does not exist here"),
        (
            changed("tensors", 0, "codec", to="zip"),
            "codec that is not known here: 'zip'",
        ),
        (changed("tensors", 0, "dtype", to="complex64"), "unknown dtype"),
        (changed("tensors", 0, "shape", to=[-4]), "unknown dtype, shape or length"),
        (changed("tensors", 0, "shape", to=[True]), "unknown dtype, shape or length"),
        (changed("tensors", 0, "shape", to=[3]), "does not have 16 bytes"),
        (changed("tensors", 0, "dtype", to="float64"), "does not have 16 bytes"),
        (changed("tensors", 0, "bytes", to=12), "does not have 12 bytes"),
        (changed("tensors", to=[]), "header accounts for"),
        (changed("tensors", 0, "receipt", 0, to=None), "without a proper receipt"),
        (
            changed("tensors", 0, "receipt", to=[]),
            "does not describe its contents: ValueError",
        ),
        (changed("fields", "more", to=1), "does not describe its contents: TypeError"),
        (
            changed("fields", "values", to={"$tuple": [{"$tensor": 0}]}),
            r"frames.Values.values must be Released; found",
        ),
        (
            changed("fields", "values", to=1),
            "must be named once by its fields; found .0.",
        ),
        (
            changed("fields", "values", to={"$tensor": 1}),
            "must be named once by its fields; found .0.",
        ),
        (
            changed("fields", "values", to={"$tuple": [{"$tensor": 0}] * 2}),
            "must be named once by its fields; found .2.",
        ),
        (
            changed("more", to=1),
            (
                "A frame's header has fields, from, number, tensors, to, type, and nothing"
                " else"
            ),
        ),
        (changed("tensors", 0, "more", to=1), "and nothing else"),
        (changed("fields", "values", to={"$tensor": 0, "$tuple": []}), "ValueError"),
        (changed("fields", "values", to={"$pickle": {"$tensor": 0}}), "ValueError"),
        (changed("tensors", 0, "receipt", 2, to="x" * 300), "without a proper receipt"),
        (
            changed("tensors", 0, "receipt", 2, to="a\x1b[2J"),
            "without a proper receipt",
        ),
        (changed("tensors", 0, "receipt", 3, to=["a"]), "without a proper receipt"),
        (
            changed("tensors", 0, "receipt", 5, to={"sigma": "1"}),
            "without a proper receipt",
        ),
        (changed("from", to=3), "must name its sender"),
        (changed("number", to="3"), "must name its sender"),
        (changed("number", to=None), "must name its sender"),
    ],
)
def test_a_refusal_says_what_is_wrong(frame: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        wire.decode(frame)


def test_a_frame_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(
        WireError, match=f"at most 100 bytes; this one has {len(FRAME)}"
    ):
        wire.decode(FRAME, max_frame=100)
    assert wire.decode(FRAME, max_frame=len(FRAME)).sender == "bank"


def test_a_header_over_the_limit_is_refused() -> None:
    header = header_of(VALUES) | {"from": "x" * wire.MAX_HEADER}
    with pytest.raises(WireError, match="says that its header has"):
        wire.decode(framed(json.dumps(header).encode(), VALUES[-64:]))


def test_whatever_a_codec_does_with_hostile_bytes_is_a_wire_error(
    fragile: Fragile,
) -> None:
    message = Values(outbox(Rule(Plain(), fragile)).release(torch.zeros(2), "x"))
    good = header_of(wire.encode(Envelope("bank", 1, message)))
    wire.decode(framed(json.dumps(good).encode(), bytes([1, 2, 3, 4]) + bytes(60)))
    with pytest.raises(WireError, match="AssertionError"):
        wire.decode(framed(json.dumps(good).encode(), bytes(64)))
    # division, index, key, type
    hostile: list[Any] = [
        {"levels": 0},
        {"levels": 9},
        {"levels": "9"},
        {},
        None,
        [],
        3,
    ]
    for about in hostile:
        good["tensors"][0]["settings"] = about
        with pytest.raises(WireError, match="does not describe its contents"):
            wire.decode(
                framed(json.dumps(good).encode(), bytes([1, 2, 3, 4]) + bytes(60))
            )


@given(shape=st.lists(st.integers(0, 300), max_size=3), size=st.integers(0, 300))
@settings(max_examples=100)
def test_a_tensor_decodes_only_if_shape_and_length_agree(
    shape: list[int], size: int
) -> None:
    header = header_of(VALUES)
    header["tensors"][0] |= {"shape": shape, "bytes": size, "dtype": "uint8"}
    frame = framed(json.dumps(header).encode(), bytes(size + -size % 64))
    assert decodes_or_refuses(frame) == (math.prod(shape) == size)
