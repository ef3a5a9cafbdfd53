"""A short run of the fuzzer (a long one: `python -m tests.fuzz.wire`), and hostile
calls against every algorithm."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from tests.conformance.battery import every_algorithm
from tests.conformance.toy import federation
from tests.fuzz.calls import trial
from tests.fuzz.ciphertexts import attack
from tests.fuzz.corpus import classes, corpus
from tests.fuzz.mutate import frame_of, parts_of
from tests.fuzz.wire import fuzz

from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import wire
from colonnade.errors import WireError

TRIALS = 8


@pytest.fixture(scope="module")
def frames() -> list[bytes]:
    return corpus(encrypted=False)


def test_the_corpus_has_every_message_class_and_every_codec(
    frames: list[bytes],
) -> None:
    parts = [part for frame in frames if (part := parts_of(frame)) is not None]
    assert len(parts) == len(frames)
    assert {header["type"] for header, _ in parts} >= {kind.kind for kind in classes()}
    codecs = {
        tensor.get("codec") for header, _ in parts for tensor in header["tensors"]
    }
    assert codecs >= {
        "identity",
        "half",
        "integers",
        "quantize",
        "top_k",
        "vector_quantize",
    }


@pytest.mark.parametrize("count", [1000, pytest.param(4000, marks=pytest.mark.long)])
def test_mutated_frames_are_messages_or_refused_soon_and_in_little_memory(
    frames: list[bytes], count: int
) -> None:
    found = fuzz(frames, count, seed=1)
    assert found.problems == []
    assert min(found.ends["decoded"], found.ends["refused"]) > count // 20, (
        "mutations must be neither all good nor all bad"
    )


@every_algorithm
def test_a_refused_call_leaves_no_trace(
    algorithm: AnyAlgorithm, frames: list[bytes]
) -> None:
    honest = federation(algorithm).run(2)
    ends: Counter[str] = Counter()
    for seed in range(TRIALS):
        losses, seen = trial(algorithm, seed, frames)
        ends += seen
        assert not losses or losses == honest, seed
    assert ends.total() > TRIALS


@pytest.mark.parametrize("scheme", ["ckks", "bfv", "plain"])
def test_damaged_ciphertexts_and_keys_crash_nothing(scheme: str) -> None:
    ends = attack(scheme, 60, seed=1)
    assert ends["computed"] + ends["refused"] == 60, (
        "no bare exception, and none that is slow"
    )
    assert ends["refused"] > 10
    assert ends["named"] > 10


@pytest.mark.parametrize("shape", [[1 << 61, 0], [1 << 40], [0, 1 << 13]])
def test_a_ciphertext_cannot_say_that_it_has_more_values_than_bytes(
    shape: list[int], frames: list[bytes]
) -> None:
    """Such a shape once made a key's holder loop over 2^61 rows."""
    frame = next(
        one
        for one in frames
        if (parts := parts_of(one)) and any("scheme" in t for t in parts[0]["tensors"])
    )
    parts = parts_of(frame)
    assert parts is not None
    wire.decode(frame_of(*parts))
    parts[0]["tensors"][0]["shape"] = shape
    with pytest.raises(WireError, match="A frame's ciphertext of shape"):
        wire.decode(frame_of(*parts))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_header_is_utf_8_and_nothing_is_guessed(
    encoding: str, frames: list[bytes]
) -> None:
    """Guessing an encoding once imported a codec for whoever asked."""
    text = json.dumps(
        {"type": "message.Done", "from": "a", "number": 1, "fields": {}, "tensors": []}
    ).encode(encoding)
    frame = (
        wire.MAGIC
        + len(text).to_bytes(4, "little")
        + text
        + bytes(-(8 + len(text)) % 64)
    )
    with pytest.raises(WireError, match="not JSON"):
        wire.decode(frame)


@pytest.mark.parametrize("number", [True, -1, 1.5, None])
def test_a_call_s_number_is_a_whole_one(number: object, frames: list[bytes]) -> None:
    parts = parts_of(frames[0])
    assert parts is not None
    parts[0]["number"] = number
    with pytest.raises(WireError, match="number of the call"):
        wire.decode(frame_of(*parts))


def test_few_bytes_cannot_ask_for_a_large_codebook(frames: list[bytes]) -> None:
    """A thousand tensors of one value each, with as many levels as there may be."""
    parts = next(
        p
        for f in frames
        if (p := parts_of(f)) and p[0]["type"] == "compressed_vfl.Improve"
    )
    for codec in ("quantize", "vector_quantize"):
        seconds: dict[int, list[float]] = {257: [], 65536: []}
        for size in 3 * list(seconds):
            settings = {"levels": size, "points": size, "low": 0.0, "high": 1.0}
            about = parts[0]["tensors"][0] | {
                "codec": codec,
                "shape": [1],
                "bytes": 2,
                "settings": settings,
            }
            fields = {
                "batch": "x",
                "others": {"$tuple": [{"$tensor": at} for at in range(1000)]},
                "model": {"$tuple": []},
            }
            frame = frame_of(
                parts[0] | {"tensors": [about] * 1000, "fields": fields},
                [bytes(2)] * 1000,
            )
            start = time.process_time()
            wire.decode(frame)
            seconds[size].append(time.process_time() - start)
        # the fastest of three: the machine may be busy
        assert min(seconds[65536]) < 2 * min(seconds[257]), codec
