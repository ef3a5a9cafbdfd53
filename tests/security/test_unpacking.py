"""Frames that are valid and hostile: who sends them and what they unpack to is checked
before anything is allocated.

Memory is measured in a process of its own, whose address space is limited: an unbounded
reader dies there.
"""

from __future__ import annotations

import multiprocessing
import re
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conformance.echo import Multiply, Sleep, echoes
from tests.fuzz.mutate import frame_of
from tests.transport.one_by_one import only

from colonnade.algorithms import embedding
from colonnade.compression import TopK
from colonnade.core import Envelope, Outbox, Plain, Rule, wire
from colonnade.core.failure import Failure
from colonnade.errors import PartyError, WireError
from colonnade.transport.remote import ANSWER, HEAD, NONE, WHOLE, Endpoint, Remote

MIB = 1 << 20
RECEIPT = ["eve", 1, "values", "train/0/1", "non-private", {}]


def bomb(
    kind: str,
    field: str,
    mebibytes: float,
    *,
    sender: str = "asker",
    parts: int = 1,
    **more: Any,
) -> tuple[bytes, int]:
    """A frame in which top_k keeps one value in 1024: about 800 times as large once it
    is unpacked, and that size."""
    rows = int(mebibytes * MIB / 10 / parts)
    about = {
        "codec": "top_k",
        "dtype": "float64",
        "shape": [rows, 1024],
        "bytes": 10 * rows,
    }
    about |= {"settings": {"keep": 1}, "receipt": RECEIPT}
    values: Any = (
        {"$tensor": 0}
        if parts == 1
        else {"$tuple": [{"$tensor": at} for at in range(parts)]}
    )
    header = {
        "type": kind,
        "from": sender,
        "to": "ada",
        "number": 1,
        "fields": {field: values, **more},
        "tensors": [about] * parts,
    }
    return frame_of(header, [bytes(10 * rows)] * parts), rows * 8192 * parts


def test_the_frame_is_valid_and_as_large_as_it_says() -> None:
    frame, size = bomb("embedding.Embedding", "values", 0.01)
    assert wire.decode(frame).message.values.tensor.nbytes == size > 700 * len(frame)


def test_ten_megabytes_do_not_become_eight_gigabytes() -> None:
    frame, size = bomb("embedding.Embedding", "values", 10)
    assert size > 8e9
    with pytest.raises(
        WireError,
        match=(
            rf"may unpack to {wire.UNPACKED}; embedding.Embedding of 'asker' would take"
        ),
    ):
        wire.decode(frame)
    with pytest.raises(WireError, match="raise memory_per_call"):
        wire.decode(memoryview(bytearray(frame)))


def test_the_bound_is_on_the_sum_of_all_in_a_frame() -> None:
    more: Any = {"batch": "x", "model": {"$tuple": []}}
    frame, size = bomb("compressed_vfl.Improve", "others", 0.2, parts=20, **more)
    assert wire.decode(frame, most=size).message.others[19].tensor.nbytes == size // 20
    with pytest.raises(WireError, match=f"would take {size}"):
        wire.decode(frame, most=size - 1)


def test_an_owner_may_set_it_and_a_long_frame_may_take_what_it_has() -> None:
    frame = wire.encode(
        Envelope("ada", 1, embedding.Embedding(_released(torch.zeros(1000, 100))))
    )
    assert wire.decode(frame, most=1000).message.values.tensor.nbytes == 400_000
    packed = wire.encode(
        Envelope(
            "ada", 1, embedding.Embedding(_released(torch.zeros(1000, 100), TopK(0.1)))
        )
    )
    with pytest.raises(WireError, match="would take 400000"):
        wire.decode(packed, most=399_999)
    assert wire.decode(packed, most=400_000).message.values.tensor.nbytes == 400_000


def _released(tensor: torch.Tensor, codec: Any = None) -> Any:
    rule = Rule() if codec is None else Rule(Plain(), codec)
    return Outbox("ada", torch.Generator().manual_seed(0), {}, rule).release(
        tensor, "values", "train/0/1"
    )


@pytest.mark.parametrize("shape", [[1 << 40, 0], [0, 1 << 61], [1 << 20, 1 << 20, 0]])
def test_an_empty_tensor_with_long_sides_is_refused(shape: list[int]) -> None:
    """It takes no memory itself; whatever is made for each of its rows would."""
    about = {
        "codec": "identity",
        "dtype": "float32",
        "shape": shape,
        "bytes": 0,
        "settings": {},
        "receipt": RECEIPT,
    }
    header = {
        "type": "embedding.Embedding",
        "from": "a",
        "to": "ada",
        "number": 1,
        "fields": {"values": {"$tensor": 0}},
    }
    with pytest.raises(WireError, match="may unpack to"):
        wire.decode(frame_of(header | {"tensors": [about]}, [b""]))


@pytest.mark.parametrize(
    ("named", "count"), [([], 1), ([0], 2), ([0, 0], 1), ([0, 1, 1], 2)]
)
def test_every_tensor_is_named_by_one_field(named: list[int], count: int) -> None:
    about = {
        "codec": "identity",
        "dtype": "uint8",
        "shape": [1],
        "bytes": 1,
        "settings": {},
        "receipt": RECEIPT,
    }
    fields = {
        "batch": "x",
        "others": {"$tuple": [{"$tensor": at} for at in named]},
        "model": {"$tuple": []},
    }
    header = {
        "type": "compressed_vfl.Improve",
        "from": "a",
        "to": "ada",
        "number": 1,
        "fields": fields,
    }
    with pytest.raises(
        WireError, match=f"Each of a frame's {count} tensors must be named once"
    ):
        wire.decode(frame_of(header | {"tensors": [about] * count}, [b"x"] * count))


class Unpacked(Exception):  # noqa: N818 - what must not happen
    """A codec was asked to decode."""


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever unpacks fails the test."""

    def decode(*_: Any) -> Any:
        raise Unpacked

    monkeypatch.setattr("colonnade.core.wire._read_tensor", decode)


def _asked(frame: bytes, caller: str = "asker", **more: Any) -> Failure:
    ada = echoes(("ada",))["ada"]
    ada.serves_for = frozenset({"asker"})
    endpoint = Endpoint(
        "ada", ada.handle, admitted=["asker", "bob"], allow=ada.allow, **more
    )
    message = wire.decode(
        endpoint(caller, HEAD.pack(WHOLE, NONE, 0, 0) + frame)[1:]
    ).message
    assert isinstance(message, Failure)
    return message


@pytest.mark.usefixtures("sealed")
def test_the_sender_and_the_role_are_checked_before_a_payload_is_unpacked() -> None:
    multiply = wire.encode(
        Envelope("bob", 1, Multiply(_released(torch.zeros(3, 3))), "ada")
    )
    assert "this is for asker to ask" in _asked(multiply, "bob").cause
    assert "says it is from 'bob', over the line of 'asker'" in _asked(multiply).cause
    frame, _ = bomb("embedding.Embedding", "values", 0.01)
    assert "which is no request" in _asked(frame).cause
    frame, _ = bomb(
        "multi_vfl.Adopt", "weights", 0.01, round=1, took_part={"$tuple": []}
    )
    assert "does not serve multi_vfl.Adopt" in _asked(frame).cause
    asked = wire.encode(
        Envelope("asker", 1, Multiply(_released(torch.zeros(3, 3))), "ada")
    )
    assert "Unpacked" in _asked(asked).cause, (
        "what asker may ask is unpacked: this test can tell"
    )


def test_what_may_be_asked_is_still_bounded_by_the_owner() -> None:
    frame = wire.encode(
        Envelope(
            "asker", 1, Multiply(_released(torch.zeros(100, 1024), TopK(1))), "ada"
        )
    )
    told = _asked(frame, most=1000)
    assert told.error == "WireError"
    assert "echo.Multiply of 'asker' would take 409600" in told.cause


@pytest.mark.usefixtures("sealed")
@pytest.mark.parametrize(
    ("sender", "kind", "why"),
    [
        ("eve", "echo.Value", "as 'eve'"),
        ("ada", "embedding.Embedding", "it answered with embedding.Embedding"),
    ],
)
def test_an_answer_is_checked_before_it_is_unpacked(
    sender: str, kind: str, why: str
) -> None:
    def answer(data: bytes, deadline: float) -> bytes:
        number = wire.read(data[HEAD.size :]).number
        frame, _ = bomb(kind, "values", 0.01, sender=sender)
        return ANSWER + frame.replace(b'"number": 1', b'"number": %d' % number, 1)

    with pytest.raises(PartyError, match=why):
        only(Remote({"ada": answer}), Envelope("asker", 7, Sleep(0.0), "ada"))


def _within(room: int) -> None:
    """This process's address space may grow by so many bytes from now on."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room,) * 2)


def _largest() -> int:
    """The most memory that this process had. What getrusage says of it survives exec:
    it may be the starter's."""
    return (
        int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])  # type: ignore[index]
        * 1024
    )


def _measured() -> tuple[str, int, int, str, int]:
    """What two bombs are answered with and how much memory each takes, and the first
    one's length."""
    frame, size = bomb("echo.Remember", "value", 10)
    fits, nearly = bomb("echo.Remember", "value", wire.UNPACKED / 8192 * 10 / MIB)
    assert size > 8e9
    assert wire.UNPACKED - 8192 < nearly <= wire.UNPACKED
    _asked(bomb("echo.Remember", "value", 0.01)[0])  # whatever is imported on first use
    before = _largest()
    refused = _asked(frame)
    between = _largest()
    # unpacked, and then of another shape than what the party holds
    asked = _asked(fits)
    return (
        refused.error,
        between - before,
        len(frame),
        asked.error,
        _largest() - between,
    )


@pytest.mark.skipif(
    sys.platform != "linux", reason="needs /proc and a limit on the address space"
)
def test_a_party_that_is_sent_a_bomb_takes_little_memory() -> None:
    """8 GB in 10 MB are refused; the largest frame that is not takes about what the
    owner allows. All within a GiB.

    The process is a new one: one that was forked from here starts with the largest size
    that this one had.
    """
    with ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), _within, (1 << 30,)
    ) as alone:
        error, first, sent, other, second = alone.submit(_measured).result()
    assert (error, other) == ("WireError", "PartyError")
    assert first < 5 * sent, "the frame itself, and copies of it"
    assert wire.UNPACKED / 2 < second < 2 * wire.UNPACKED, (
        "what is unpacked, and no more of the kind"
    )
