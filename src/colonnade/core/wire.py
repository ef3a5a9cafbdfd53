"""Messages as bytes. No pickle: a frame can name only message classes that exist here,
and is checked before use.

    magic "CLN1" | header length, 4 bytes | header, JSON | padding to 64 | tensor bytes, each padded to 64

Calls that travel together are whole frames in their order, behind

    magic "CLNJ" | how many, 2 bytes | the length of each, 8 bytes | padding to 64

The header holds the class, the plain fields, who sent it as its how-many-th call, and
per tensor its codec, dtype, shape, length and receipt. Whatever is wrong with a frame,
it is refused with WireError. Reading has two steps:

    calls(frame)  -> Incoming...  the header alone: who sends which message, so that who may not is refused unpacked
    .unpack(most) -> Envelope     each tensor is named by one field, lengths fit shapes, and all of it together unpacks
                                  to at most `most` bytes; that is decided before anything is allocated
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from colonnade.core.cipher import Ciphertext, Encrypted
from colonnade.core.message import MESSAGES, Message, Request
from colonnade.core.receipt import DpEvent, Receipt
from colonnade.core.release import (
    CODECS,
    DTYPE_NAMES,
    DTYPES,
    Identity,
    Packed,
    Released,
    Scalar,
)
from colonnade.errors import BoundaryError, WireError

MAGIC = b"CLN1"
JOINT = b"CLNJ"
TOGETHER = struct.Struct("<4sH")
AHEAD = 8
"""Calls that may travel ahead of another one, in its frame."""
ALIGN = 64
MAX_FRAME = 1 << 31
MAX_HEADER = 1 << 20
JOINED = 32 << 20
"""Bytes of a frame with several calls: where a tensor of one is kept, so is the memory
of all."""
UNPACKED = 1 << 28
"""Bytes that all of a frame may unpack to; a frame that is itself longer, as many as it
has."""
FEW = 1 << 12
"""Values of a ciphertext of any length: an empty one may have sides."""
LONGEST_WORD = 256
"""Characters of a name in a receipt; a batch's may be as long."""
IDENTITY = Identity()
HEADER = {"type", "from", "to", "number", "fields", "tensors"}
ABOUT_TENSOR = {"codec", "dtype", "shape", "bytes", "settings", "receipt"}
ABOUT_CIPHERTEXT = {
    "scheme",
    "key",
    "layout",
    "hides",
    "bound",
    "shape",
    "bytes",
    "receipt",
}

M = TypeVar("M", bound=Message)
Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Envelope(Generic[M]):
    """A message on its way: from whom, the number of the call, and to whom.

    A repeated delivery of a call is recognised by its number. Who the sender is decides
    what an outbox may leave out, so a transport between machines must take it from the
    connection it authenticated, never from the frame.
    """

    sender: str
    number: int
    message: M
    receiver: str = ""


def encode(envelope: Envelope[Any]) -> bytes:
    """Write an envelope as one frame."""
    return b"".join(buffers(envelope))


def buffers(*envelopes: Envelope[Any]) -> list[Buffer]:
    """Write calls to one party as one frame, as the parts it is made of.

    Tensors that travel as they are lie in their own memory, uncopied.
    """
    if len(envelopes) == 1:
        return _frame(envelopes[0])
    frames = [_frame(envelope) for envelope in envelopes]
    lengths = [sum(map(len, frame)).to_bytes(8, "little") for frame in frames]
    head = TOGETHER.pack(JOINT, len(frames)) + b"".join(lengths)
    return [head, _padding(len(head)), *(part for frame in frames for part in frame)]


def _frame(envelope: Envelope[Any]) -> list[Buffer]:
    blobs: list[Buffer] = []
    tensors: list[dict[str, Any]] = []
    message = envelope.message
    fields = {
        name: _plain(getattr(message, name), blobs, tensors) for name in message.hints()
    }
    top = {
        "type": message.kind,
        "from": envelope.sender,
        "to": envelope.receiver,
        "number": envelope.number,
    }
    header = json.dumps(
        top | {"fields": fields, "tensors": tensors}, separators=(",", ":")
    ).encode()
    parts: list[Buffer] = [
        MAGIC,
        len(header).to_bytes(4, "little"),
        header,
        _padding(8 + len(header)),
    ]
    for blob in blobs:
        parts += [blob, _padding(len(blob))]
    return parts


@dataclass(frozen=True, slots=True)
class Incoming:
    """A frame whose header was read. What it carries is still packed."""

    sender: str
    number: int
    kind: type[Message]
    fields: dict[str, Any]
    described: list[Any]
    body: Buffer
    receiver: str = ""

    def unpack(
        self, *, device: torch.device | str = "cpu", most: int = UNPACKED
    ) -> Envelope[Any]:
        """The envelope, or WireError. Of a frame in writable memory, tensors keep using
        that memory."""
        try:
            _check_named(self.fields, len(self.described))
            parts = _parts(self.body, self.described)
            most = max(most, len(self.body))
            if (size := sum(unpacked for _, _, _, unpacked in parts)) > most:
                raise WireError(
                    f"A frame of {len(self.body)} bytes may unpack to {most};"
                    f" {self.kind.kind} of {self.sender[:80]!r} would take {size}. Send"
                    " less at once, or let the receiver's owner raise memory_per_call."
                )
            tensors = [
                (
                    _ciphertext(about, shape, data)
                    if "scheme" in about
                    else _tensor(about, shape, data, device)
                )
                for about, shape, data, _ in parts
            ]
            message = _message(self.kind, self.fields, tensors)
        except WireError:
            raise
        # whatever a codec or a message makes of hostile bytes
        except Exception as error:
            raise WireError(
                "A frame's header does not describe its contents:"
                f" {type(error).__name__}."
            ) from None
        return Envelope(self.sender, self.number, message, self.receiver)


def calls(frame: Buffer, *, max_frame: int = MAX_FRAME) -> list[Incoming]:
    """The calls that a frame brings, in their order, or WireError: none is looked at
    where one cannot be read."""
    if len(frame) < TOGETHER.size or frame[:4] != JOINT:
        return [read(frame, max_frame=max_frame)]
    _, count = TOGETHER.unpack_from(frame)
    most = min(max_frame, JOINED)
    start = TOGETHER.size + 8 * min(count, AHEAD + 1)
    lengths = [
        int.from_bytes(frame[at : at + 8], "little")
        for at in range(TOGETHER.size, start, 8)
    ]
    ends = list(accumulate(lengths, initial=start + len(_padding(start))))
    if not 1 <= count <= AHEAD + 1 or not ends[-1] == len(frame) <= most:
        raise WireError(
            f"A frame brings a call with up to {AHEAD} ahead of it, in {most} bytes;"
            f" this one has {len(frame)}, and says that it brings {count} in"
            f" {ends[-1]}."
        )
    return [read(memoryview(frame)[at:end]) for at, end in pairwise(ends)]


def read(frame: Buffer, *, max_frame: int = MAX_FRAME) -> Incoming:
    """The sender's name and the message of one call, or WireError."""
    if len(frame) > max_frame:
        raise WireError(
            f"A frame may have at most {max_frame} bytes; this one has {len(frame)}."
        )
    header, start = _header(frame)
    if (
        header.keys() != HEADER
        or not isinstance(header["fields"], dict)
        or not isinstance(header["tensors"], list)
    ):
        raise WireError(
            f"A frame's header has {', '.join(sorted(HEADER))}, and nothing else."
        )
    sender = header["from"]
    receiver = header["to"]
    number = header["number"]
    kind = header["type"]
    if (
        not isinstance(sender, str)
        or not isinstance(receiver, str)
        or not isinstance(number, int)
        or isinstance(number, bool)
        or number < 0
    ):
        raise WireError(
            "A frame must name its sender, its receiver and the number of the call."
        )
    cls = MESSAGES.get(kind) if isinstance(kind, str) else None
    if cls is None or cls in (Message, Request):
        raise WireError(
            f"A frame names a message that does not exist here: {str(kind)[:80]!r}."
        )
    return Incoming(
        sender,
        number,
        cls,
        header["fields"],
        header["tensors"],
        memoryview(frame)[start:],
        receiver,
    )


def decode(
    frame: Buffer,
    *,
    device: torch.device | str = "cpu",
    max_frame: int = MAX_FRAME,
    most: int = UNPACKED,
) -> Envelope[Any]:
    """One call, read and unpacked at once, for callers that do not check the sender
    first."""
    first, *others = calls(frame, max_frame=max_frame)
    if others:
        raise WireError(
            "A frame with one call is expected here; this one brings"
            f" {1 + len(others)}."
        )
    return first.unpack(device=device, most=most)


def _plain(value: Any, blobs: list[Buffer], tensors: list[dict[str, Any]]) -> Any:
    """A field as JSON; a tensor becomes its index, its bytes go to `blobs`."""
    if isinstance(value, Released):
        packed = value.packed or Packed(
            IDENTITY.name, b"", value.shape, DTYPE_NAMES[value.tensor.dtype]
        )
        data = packed.data if value.packed else _memory(value.tensor)
        about = {
            "codec": packed.codec,
            "dtype": packed.dtype,
            "shape": packed.shape,
            "bytes": len(data),
        }
        tensors.append(
            about
            | {
                "settings": dict(packed.settings),
                "receipt": _written(value.receipt),
            }
        )
        blobs.append(data)
        return {"$tensor": len(tensors) - 1}
    if isinstance(value, Ciphertext):
        e = value.encrypted
        about = {
            "scheme": e.scheme,
            "key": e.key,
            "layout": e.layout,
            "hides": e.hides,
            "bound": e.bound,
        }
        about |= {
            "shape": e.shape,
            "bytes": len(e.data),
            "receipt": _written(value.receipt),
        }
        tensors.append(about)
        blobs.append(e.data)
        return {"$tensor": len(tensors) - 1}
    if isinstance(value, tuple):
        return {"$tuple": [_plain(item, blobs, tensors) for item in value]}
    if isinstance(value, dict):
        return {
            "$dict": {key: _plain(item, blobs, tensors) for key, item in value.items()}
        }
    return value


def _memory(tensor: Tensor) -> Buffer:
    """A released tensor's own bytes, where they are: nobody changes it any more."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def _written(r: Receipt) -> list[Any]:
    return [r.owner, r.number, r.name, r.batch, r.event.kind, dict(r.event.parameters)]


def _header(frame: Buffer) -> tuple[dict[str, Any], int]:
    if len(frame) < 8 or frame[:4] != MAGIC:
        raise WireError(
            f"A frame starts with {MAGIC!r} and a length; this one starts with"
            f" {bytes(frame[:8])!r}."
        )
    length = int.from_bytes(frame[4:8], "little")
    if length > MAX_HEADER or 8 + length > len(frame):
        raise WireError(
            f"A frame of {len(frame)} bytes says that its header has {length}."
        )
    try:
        # of bytes, json would guess the encoding
        header = json.loads(str(frame[8 : 8 + length], "utf-8"))
    except (ValueError, RecursionError):
        raise WireError("A frame's header is not JSON.") from None
    if not isinstance(header, dict):
        raise WireError("A frame's header is not a JSON object.")
    start = 8 + length + len(_padding(8 + length))
    if start > len(frame):
        raise WireError(
            f"A frame has {len(frame)} bytes, and its header accounts for {start}."
        )
    return header, start


def _check_named(fields: Mapping[str, Any], count: int) -> None:
    """Each tensor belongs to one place of one field: what no field names would be
    unpacked for nobody, and what several name would be small here and large wherever it
    is put together."""
    named = [0] * count
    left: list[Any] = list(fields.values())
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            at = value.get("$tensor", count)
            if _is_count(at) and at < count:
                named[at] += 1
            left += value.values()
    if any(times != 1 for times in named):
        raise WireError(
            f"Each of a frame's {count} tensors must be named once by its fields; found"
            f" {named[:20]}."
        )


def _parts(
    body: Buffer, described: list[Any]
) -> list[tuple[dict[str, Any], tuple[int, ...], Buffer, int]]:
    """Of each tensor what is said about it, its shape, its bytes, and how many it
    unpacks to."""
    found = []
    start = 0
    for about in described:
        size = about["bytes"]
        shape = tuple(about["shape"])
        if about.keys() not in (ABOUT_TENSOR, ABOUT_CIPHERTEXT):
            raise WireError(
                f"A frame says of a tensor {', '.join(sorted(ABOUT_TENSOR))}, and"
                " nothing else."
            )
        if not _is_count(size) or len(shape) > 16 or not all(map(_is_count, shape)):
            raise WireError(
                "A frame describes a tensor with an unknown dtype, shape or length."
            )
        if size > len(body) - start:
            raise WireError(
                f"A frame with {len(body)} bytes of tensors says that one of them has"
                f" {size}."
            )
        # an empty one counts by its sides: others may loop over them
        values = math.prod(max(n, 1) for n in shape)
        # each value takes more than a byte
        if "scheme" in about and values > max(size, FEW):
            raise WireError(
                f"A frame's ciphertext of shape {list(shape)} cannot have {size} bytes."
            )
        unpacked = (
            size if "scheme" in about else values * _dtype(about["dtype"]).itemsize
        )
        found.append((about, shape, body[start : start + size], unpacked))
        start += size + len(_padding(size))
    if start != len(body):
        raise WireError(
            f"A frame has {len(body)} bytes of tensors, and its header accounts for"
            f" {start}."
        )
    return found


def _dtype(name: Any) -> torch.dtype:
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise WireError(
            "A frame describes a tensor with an unknown dtype, shape or length."
        )
    return dtype


def _tensor(
    about: Any, shape: tuple[int, ...], data: Buffer, device: torch.device | str
) -> Released:
    codec = CODECS.get(about["codec"])
    dtype = _dtype(about["dtype"])
    if codec is None:
        raise WireError(
            "A frame uses a codec that is not known here:"
            f" {str(about['codec'])[:80]!r}."
        )
    if codec.name == IDENTITY.name and math.prod(shape) * dtype.itemsize != len(data):
        raise WireError(
            f"A frame's tensor of shape {list(shape)} and type {dtype} does not have"
            f" {len(data)} bytes."
        )
    receipt = _receipt(about["receipt"], codec.name, len(data))
    if (
        codec.name == IDENTITY.name
        and isinstance(data, memoryview)
        and not data.readonly
        and len(data)
    ):
        return Released._seal(
            torch.frombuffer(data, dtype=dtype).reshape(shape).to(device), receipt
        )
    packed = Packed(
        codec.name, bytes(data), shape, about["dtype"], _settings(about["settings"])
    )
    tensor: Tensor = codec.decode(packed).to(device)
    return Released._seal(
        tensor, receipt, None if codec.name == IDENTITY.name else packed
    )


def _ciphertext(about: Any, shape: tuple[int, ...], data: Buffer) -> Ciphertext:
    """Its bytes stay as they are until a key looks at them."""
    words = [about[name] for name in ("scheme", "key", "layout", "hides")]
    bound = about["bound"]
    bounded = isinstance(bound, float) and 0 < bound < math.inf
    if (
        not all(isinstance(word, str) and len(word) <= 64 for word in words)
        or not bounded
    ):
        raise WireError(
            "A frame describes a ciphertext with an unknown scheme, key or bound."
        )
    scheme, key, layout, hides = words
    receipt = _receipt(about["receipt"], scheme, len(data))
    return Ciphertext._seal(
        Encrypted(scheme, key, shape, layout, bound, bytes(data), hides, receipt.owner),
        receipt,
    )


def _settings(said: Any) -> dict[str, Scalar]:
    if not isinstance(said, dict) or any(
        isinstance(value, (list, dict)) for value in said.values()
    ):
        raise TypeError("a codec's settings are plain values by name")
    return said


def _receipt(written: Any, codec: str, size: int) -> Receipt:
    owner, number, name, batch, kind, parameters = written
    words = [owner, name, kind, *parameters, *([] if batch is None else [batch])]
    plain = all(
        isinstance(word, str) and len(word) <= LONGEST_WORD and word.isprintable()
        for word in words
    )
    if not (plain and _is_count(number) and all(map(_is_number, parameters.values()))):
        raise WireError("A frame's tensor came without a proper receipt.")
    event = DpEvent(kind, {key: float(value) for key, value in parameters.items()})
    return Receipt(owner, number, name, batch, event, codec, size)


def _message(
    kind: type[Message], fields: Mapping[str, Any], tensors: list[Released | Ciphertext]
) -> Message:
    try:
        return kind(**{name: _value(value, tensors) for name, value in fields.items()})
    except BoundaryError as error:
        raise WireError(f"A frame's fields do not fit its message: {error}") from None


def _value(value: Any, tensors: list[Released | Ciphertext]) -> Any:
    if not isinstance(value, dict):
        return value
    ((tag, inside),) = value.items()
    if tag == "$tensor" and _is_count(inside):
        return tensors[inside] if inside < len(tensors) else None
    if tag == "$tuple" and isinstance(inside, list):
        return tuple(_value(item, tensors) for item in inside)
    if tag == "$dict" and isinstance(inside, dict):
        return {key: _value(item, tensors) for key, item in inside.items()}
    raise ValueError(tag)


def _is_count(value: Any) -> bool:
    return (
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _padding(length: int) -> bytes:
    return b"\0" * (-length % ALIGN)
