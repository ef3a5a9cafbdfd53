"""What a hostile sender might make of a frame: bits, lengths, splices, and a header
that says something else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz.corpus import classes

from colonnade.core import wire
from colonnade.core.release import CODECS, DTYPES

HUGE: tuple[Any, ...] = (
    0,
    1,
    -1,
    3,
    255,
    1 << 16,
    1 << 20,
    1 << 31,
    1 << 40,
    1 << 61,
    (1 << 62) - 1,
    1 << 63,
    10**40,
    1e308,
)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "\0",
    "x" * 5000,
    "__class__",
    "../../etc/passwd",
    "os.system",
    "${x}",
    "\ud800",
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    {"$tensor": 0},
    {"$tensor": -1},
    {"$tuple": [1]},
    {"$dict": {"a": 1}},
    {"$tuple": [{"$tensor": 0}] * 50},
    [[[[[[[[[[]]]]]]]]]],
    [1 << 30] * 16,
    [0] * 17,
    [0, 1 << 61],
    [1 << 61, 0],
)
Change = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def mutated(rng: random.Random, frames: Sequence[bytes]) -> bytes:
    """A frame with one to three changes."""
    frame = rng.choice(frames)
    for _ in range(rng.choice((1, 1, 2, 3))):
        frame = rng.choice(CHANGES)(rng, frame, frames)
    return frame


def parts_of(frame: bytes) -> tuple[dict[str, Any], list[bytes]] | None:
    """The header and the tensors' bytes, where they can still be told apart."""
    try:
        end = 8 + int.from_bytes(frame[4:8], "little")
        header = json.loads(frame[8:end])
        start = end + -end % 64
        blobs = []
        for about in header["tensors"]:
            blobs.append(frame[start : start + about["bytes"]])
            start += about["bytes"] + -about["bytes"] % 64
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    return header, blobs


def frame_of(header: Any, blobs: Sequence[bytes]) -> bytes:
    text = json.dumps(header).encode()
    body = b"".join(blob + bytes(-len(blob) % 64) for blob in blobs)
    return (
        wire.MAGIC
        + len(text).to_bytes(4, "little")
        + text
        + bytes(-(8 + len(text)) % 64)
        + body
    )


def flip_bits(rng: random.Random, frame: bytes, frames: Sequence[bytes]) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.randint(1, 8) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, frame: bytes, frames: Sequence[bytes]) -> bytes:
    if rng.random() < 0.3:
        return frame + rng.randbytes(rng.choice((1, 63, 64, 65, 500)))
    return frame[
        : rng.choice(
            (rng.randint(0, len(frame)), 0, 4, 8, len(frame) - 1, len(frame) - 64)
        )
    ]


def edit_length(rng: random.Random, frame: bytes, frames: Sequence[bytes]) -> bytes:
    now = int.from_bytes(frame[4:8], "little")
    length = rng.choice(
        (
            0,
            1,
            now - 1,
            now + 1,
            now + 64,
            len(frame) - 8,
            len(frame),
            1 << 20,
            (1 << 32) - 1,
        )
    )
    return frame[:4] + (max(length, 0) % (1 << 32)).to_bytes(4, "little") + frame[8:]


def splice(rng: random.Random, frame: bytes, frames: Sequence[bytes]) -> bytes:
    other = rng.choice(frames)
    if rng.random() < 0.5:
        return frame[: rng.randint(0, len(frame))] + other[rng.randint(0, len(other)) :]
    mine = parts_of(frame)
    theirs = parts_of(other)
    if mine is None or theirs is None:
        return frame
    header = dict(mine[0])
    key = rng.choice(("type", "fields", "tensors", "from", "number"))
    header[key] = theirs[0].get(key)
    return frame_of(header, theirs[1] if key == "tensors" else mine[1])


def overwrite(rng: random.Random, frame: bytes, frames: Sequence[bytes]) -> bytes:
    size = rng.choice((1, 2, 4, 8, 64))
    at = rng.randint(0, max(len(frame) - size, 0))
    run = rng.choice(
        (
            bytes(size),
            b"\xff" * size,
            rng.randbytes(size),
            (1 << 8 * size - 1).to_bytes(size, "little"),
        )
    )
    return frame[:at] + run + frame[at + size :]


def edit_header(rng: random.Random, frame: bytes, frames: Sequence[bytes]) -> bytes:
    """Anything in the header becomes something else, or goes, or gets a neighbour."""
    parts = parts_of(frame)
    if parts is None:
        return frame
    header, blobs = parts
    holder, key = rng.choice(list(_places(header)))
    what = rng.random()
    if what < 0.15:
        del holder[key]
    elif what < 0.25 and isinstance(holder, dict):
        holder[rng.choice(("more", "$tensor", "batch", "scheme", "settings"))] = (
            rng.choice(ODD)
        )
    elif what < 0.4:
        other = parts_of(rng.choice(frames))
        donor, named = rng.choice(list(_places(other[0] if other else header)))
        holder[key] = donor[named]
    else:
        holder[key] = rng.choice(HUGE) if rng.random() < 0.5 else rng.choice(ODD)
    return frame_of(header, blobs)


def edit_tensor(rng: random.Random, frame: bytes, frames: Sequence[bytes]) -> bytes:
    """A tensor that is described otherwise: codec, type, shape, settings; its length
    may follow."""
    parts = parts_of(frame)
    if parts is None or not parts[1]:
        return frame
    header, blobs = parts
    at = rng.randrange(len(blobs))
    about = header["tensors"][at]
    what = rng.randrange(7)
    if not isinstance(about, dict):
        return frame
    if what == 0:
        about["codec"] = rng.choice([*CODECS, "zip", "pickle", ""])
    elif what == 1:
        about["dtype"] = rng.choice([*DTYPES, "complex64", "object"])
    elif what == 2:
        about["shape"] = [
            rng.choice((*HUGE[:12], 2, 4, 6, 24)) for _ in range(rng.randint(0, 4))
        ]
    elif what == 3:
        settings = {
            word: rng.choice((*HUGE, *ODD))
            for word in ("levels", "keep", "points", "count", "low", "high", "step")
        }
        told = about.get("settings")
        one = dict([rng.choice([*settings.items()])])
        about["settings"] = (
            told | one if isinstance(told, dict) and rng.random() < 0.5 else settings
        )
    elif what == 4:
        blobs[at] = rng.choice(
            (
                b"",
                blobs[at][: rng.randint(0, len(blobs[at]))],
                blobs[at] * 2,
                rng.randbytes(rng.randint(0, 300)),
            )
        )
        about["bytes"] = len(blobs[at])
    elif what == 5:
        for word in ("scheme", "key", "layout", "hides"):
            about[word] = rng.choice(("plain", "ckks", "rows", "blinded", "x" * 65, 1))
        about["bound"] = rng.choice((0.0, -1.0, 1.5, 1, float("nan")))
    else:
        about["receipt"] = [
            rng.choice(("ada", -1, 7, None, {}, {"sigma": "x"}, {"sigma": 1e400}))
            for _ in range(rng.randint(5, 7))
        ]
    return frame_of(header, blobs)


def edit_kind(rng: random.Random, frame: bytes, frames: Sequence[bytes]) -> bytes:
    parts = parts_of(frame)
    if parts is None:
        return frame
    known = [kind.kind for kind in classes()]
    parts[0]["type"] = rng.choice(
        [*known, "message.Message", "message.Request", "os.system", "builtins.eval", ""]
    )
    return frame_of(*parts)


def expand(rng: random.Random, frame: bytes, frames: Sequence[bytes]) -> bytes:
    """Valid and hostile: a tensor of fitting length that its codec makes as large as it
    can, up to a gigabyte."""
    parts = parts_of(frame)
    if parts is None or not parts[1]:
        return frame
    header, blobs = parts
    at = rng.randrange(len(blobs))
    rows = rng.choice((0, 1, 60, 200, 40_000, 120_000))
    if (
        not isinstance(header["tensors"][at], dict)
        or "codec" not in header["tensors"][at]
    ):
        return frame
    codec, shape, size, settings = rng.choice(
        (
            ("top_k", [rows, 1024], 10 * rows, {"keep": 1}),
            ("top_k", [rows, 4, 256], 10 * rows, {"keep": 1}),
            (
                "quantize",
                [1, 80 * rows],
                10 * rows,
                {"levels": 2, "low": 0.0, "high": 1.0},
            ),
            ("integers", [rows, 80], 10 * rows, {"count": 2, "low": 0.0, "step": 1.0}),
            ("identity", [rows * 1000, 0], 0, {}),
        )
    )
    about = {
        "codec": codec,
        "dtype": "float64",
        "shape": shape,
        "bytes": size,
        "settings": settings,
    }
    header["tensors"][at], blobs[at] = header["tensors"][at] | about, bytes(size)
    return frame_of(header, blobs)


def misname(rng: random.Random, frame: bytes, frames: Sequence[bytes]) -> bytes:
    """Valid tensors that several fields name, or none does, and calls and receipts in
    the name of others."""
    parts = parts_of(frame)
    if parts is None:
        return frame
    header, blobs = parts
    what = rng.randrange(4)
    who = rng.choice(("ada", "bob", "eve", "server", "", "x" * 300))
    if (
        what == 0
        and blobs
        and isinstance(header.get("fields"), dict)
        and header["fields"]
    ):
        header["fields"][rng.choice(list(header["fields"]))] = {
            "$tuple": [{"$tensor": 0}] * rng.choice((1, 2, 5000))
        }
    elif what == 1 and blobs and header.get("tensors"):
        copies = rng.choice((1, 2, 50))
        header["tensors"] += [header["tensors"][0]] * copies
        blobs += [blobs[0]] * copies
    elif what == 2:
        header["from"] = who
    else:
        for about in header.get("tensors", ()):
            if (
                isinstance(about, dict)
                and isinstance(about.get("receipt"), list)
                and about["receipt"]
            ):
                about["receipt"] = [who, *about["receipt"][1:]]
    return frame_of(header, blobs)


def join(rng: random.Random, frame: bytes, frames: Sequence[bytes]) -> bytes:
    """Several calls in one frame: damaged ones among good ones, and counts and lengths
    that may be others."""
    joined = [
        rng.choice(frames)
        for _ in range(rng.choice((0, 1, 2, wire.AHEAD, wire.AHEAD + 1)))
    ]
    joined.insert(rng.randint(0, len(joined)), frame)
    count = len(joined)
    lengths = [len(one) for one in joined]
    if rng.random() < 0.3:
        lengths[rng.randrange(count)] = rng.choice(
            (0, 1, 64, len(frame) + 64, (1 << 64) - 64, (1 << 64) - 1)
        )
    said = rng.choice((count, count, count, 0, 1, 0xFFFF))
    head = wire.TOGETHER.pack(wire.JOINT, said)
    head += b"".join(length.to_bytes(8, "little") for length in lengths)
    return head + bytes(-len(head) % wire.ALIGN) + b"".join(joined)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a header, as what holds it and under which key."""
    items = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    found = [(value, key) for key, _ in items]
    for _, inside in items:
        found += _places(inside)
    return found


CHANGES: tuple[Change, ...] = (
    flip_bits,
    cut,
    edit_length,
    splice,
    overwrite,
    edit_header,
    edit_header,
    edit_tensor,
    edit_tensor,
    edit_kind,
    expand,
    misname,
    join,
)
