"""All codecs alike: refused numbers, the wire, hostile bytes, and whole federations
under an outbox rule."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compression.tensors import generator
from tests.conformance.battery import Everything
from tests.conformance.toy import (
    TRANSPORTS,
    Toy,
    assert_bit_equal,
    difference,
    federation,
)
from tests.core.frames import Values
from tests.federation import small

from colonnade.algorithms import splitnn, vimadmm
from colonnade.compression import Half, Integers, Quantize, TopK, VectorQuantize
from colonnade.core import Codec, Envelope, Outbox, Rule, wire
from colonnade.core.release import CODECS
from colonnade.errors import ConfigError, PartyError, WireError
from colonnade.federation import rules

SMALL: list[tuple[Codec, int]] = [  # with the bytes of 32 rows of 8 float64 values
    (Quantize(16), 32 * 4),
    (Quantize(5, rounding="dithered"), 32 * 3),
    (TopK(0.25), 32 * (2 * 8 + 1)),
    (VectorQuantize(256, -1.0, 4.0), 32 * 4),
    (Half(), 32 * 16),
    (Half("bfloat16"), 32 * 16),
]
each_codec = pytest.mark.parametrize(("codec", "size"), SMALL, ids=repr)


def test_who_imports_the_package_can_read_and_write_all_of_them() -> None:
    ours = {
        "half": Half,
        "integers": Integers,
        "quantize": Quantize,
        "top_k": TopK,
        "vector_quantize": VectorQuantize,
    }
    for name, codec in ours.items():
        assert type(CODECS[name]) is codec
        assert CODECS[name].name == name
        assert rules.CODECS[name] is codec


@each_codec
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_name(
    codec: Codec, size: int, bad: float
) -> None:
    with pytest.raises(
        ConfigError, match=f"The codec '{codec.name}' encodes finite numbers; 1 of 6"
    ):
        codec.encode(torch.tensor([[1.0, bad, 0.0], [1.0, 2.0, 3.0]]), generator())


# Bytes from outside


def framed(codec: Codec) -> bytes:
    tensor = torch.arange(24.0).reshape(4, 6)
    released = Outbox("bank", generator(), default=Rule(codec=codec)).release(
        tensor, "x"
    )
    return wire.encode(Envelope("bank", 1, Values(released)))


FRAMES = [
    framed(codec)
    for codec in (Quantize(5), TopK(2), VectorQuantize(30), Half(), Integers(0, 1, 24))
]


def header_and_body(frame: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(frame[4:8], "little")
    return json.loads(frame[8:end]), frame[end + -end % 64 :]


def with_header(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return (
        wire.MAGIC
        + len(text).to_bytes(4, "little")
        + text
        + bytes(-(8 + len(text)) % 64)
        + body
    )


def decodes_or_refuses(frame: bytes) -> bool:
    try:
        message = wire.decode(frame).message
    except WireError:
        return False
    assert isinstance(message, Values)
    return True


JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        2,
        3,
        7,
        2**31,
        2**40,
        2**62,
        10**30,
        0.5,
        -1e308,
        1e308,
        math.nan,
        math.inf,
        "16",
        [],
        {},
    ]
)
SHAPES = st.lists(
    st.sampled_from([0, 1, 2, 4, 6, 12, 24, 2**20, 2**40, 2**61]), max_size=4
)


@given(
    st.sampled_from(FRAMES),
    JUNK,
    st.integers(0, 9),
    SHAPES | st.none(),
    st.sampled_from(["float32", "float64"]),
)
@settings(max_examples=100)
def test_no_setting_shape_or_length_from_outside_does_harm(
    frame: bytes, junk: Any, place: int, shape: list[int] | None, dtype: str
) -> None:
    header, body = header_and_body(frame)
    about = header["tensors"][0]
    keys = [*about["settings"]]
    if place < len(keys):
        about["settings"][keys[place]] = junk
    elif place == 9:
        about["settings"] = junk
    about["dtype"] = dtype
    if shape is not None:
        about["shape"] = shape
    tracemalloc.start()
    decodes_or_refuses(with_header(header, body))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30_000_000


@given(st.sampled_from(FRAMES), st.integers(0, 63), st.integers(1, 255))
@settings(max_examples=100)
def test_any_byte_of_the_data_may_be_any_other(
    frame: bytes, place: int, flip: int
) -> None:
    header, body = header_and_body(frame)
    changed = bytearray(body)
    changed[place % len(body)] ^= flip
    decodes_or_refuses(with_header(header, bytes(changed)))


@pytest.mark.parametrize(
    "frame", FRAMES, ids=["quantize", "top_k", "vector_quantize", "half", "integers"]
)
def test_too_few_and_too_many_bytes_are_refused(frame: bytes) -> None:
    header, body = header_and_body(frame)
    assert decodes_or_refuses(with_header(header, body))
    size = header["tensors"][0]["bytes"]
    for other in {0, 1, size - 1, size + 1}:
        header["tensors"][0]["bytes"] = other
        assert not decodes_or_refuses(
            with_header(header, body[:other] + bytes(-other % 64))
        )


# Federations


def compressed(algorithm: Any, codec: Codec, transport: str) -> Toy:
    toy = federation(algorithm, TRANSPORTS[transport], dtype=torch.float64)
    for party in toy.parties.values():
        party.outbox.rules = Everything(Rule(codec=codec))
    return toy


@each_codec
@pytest.mark.parametrize(
    "algorithm", [splitnn.ALGORITHM, vimadmm.ALGORITHM], ids=["splitnn", "vimadmm"]
)
def test_an_algorithm_streams_through_a_codec_whatever_carries_it(
    algorithm: Any, codec: Codec, size: int
) -> None:
    toys = {
        name: compressed(algorithm, codec, name)
        for name in ("by reference", "through bytes", "cohorts")
    }
    plain = federation(algorithm, dtype=torch.float64)
    losses = {name: toy.run(4) for name, toy in toys.items()}
    assert losses["by reference"] == losses["through bytes"] != plain.run(4)
    assert losses["cohorts"] == pytest.approx(losses["by reference"], rel=1e-6)
    assert_bit_equal(toys["by reference"].states(), toys["through bytes"].states())
    assert difference(toys["by reference"].states(), toys["cohorts"].states()) <= 1e-6
    for toy in toys.values():
        for name, party in toy.parties.items():
            sent = [entry for entry in party.ledger.entries if entry.direction == "out"]
            assert [(entry.bytes, entry.codec) for entry in sent] == [
                (size, codec.name)
            ] * 4
            assert toy.driver.ledger.total("in", name) == 4 * size


OUTBOX = {
    "quantize": {
        "name": "quantize",
        "levels": 4,
        "low": 0.0,
        "high": 2.0,
        "rounding": "dithered",
    },
    "top_k": {"name": "top_k", "keep": 2},
    "vector_quantize": {"name": "vector_quantize", "points": 64},
    "half": {"name": "half", "type": "bfloat16"},
}
BYTES = {
    "quantize": 16 * 1,
    "top_k": 16 * (2 * 4 + 1),
    "vector_quantize": 16 * 2,
    "half": 16 * 8,
}


@pytest.mark.parametrize("name", OUTBOX)
def test_a_federation_file_chooses_a_codec(name: str) -> None:
    outbox = {"embedding": {"codec": OUTBOX[name]}}
    federation = small.federation(
        settings=small.quick(parties={"lab": {"outbox": outbox}})
    )
    federation.fit()
    entries = [
        e
        for e in federation.ledgers["lab"].entries
        if e.direction == "out" and e.shape == (16, 4)
    ]
    assert {(entry.codec, entry.bytes) for entry in entries} == {(name, BYTES[name])}
    assert {
        e.codec for e in federation.ledgers["clinic"].entries if e.direction == "out"
    } == {"identity"}


def test_a_mistake_in_a_rule_is_named_with_its_place() -> None:
    given: dict[str, Any] = {"embedding": {"codec": {"name": "quantize", "levels": 1}}}
    with pytest.raises(
        ConfigError,
        match=(
            r"\[parties\.lab\.outbox\] embedding: codec: quantize: levels must be .*"
            r" found 1"
        ),
    ):
        rules.rules_from(
            given, owner="lab", releases=("embedding",), from_columns=("embedding",)
        )
    with pytest.raises(ConfigError, match=r"codec 'integers' cannot be made: .*'low'"):
        rules.rules_from(
            {"embedding": {"codec": "integers"}},
            owner="lab",
            releases=("embedding",),
            from_columns=("embedding",),
        )


def test_a_party_whose_training_diverged_says_so() -> None:
    toy = compressed(splitnn.ALGORITHM, Quantize(16), "by reference")
    toy.parties["bob"].features.fill_(math.nan)
    with pytest.raises(
        PartyError,
        match=r"'bob' failed while .* The codec 'quantize' encodes finite numbers",
    ):
        toy.run(1)
