"""Messages as bytes. There is no pickle: a frame can name only message classes that
exist here, and everything in it is checked before use.

    magic "CLN1" | length of the header, 4 bytes | header, JSON | padding to 64
    | bytes of each tensor, each padded to 64

Calls that travel together are whole frames in their order, behind

    magic "CLNJ" | how many, 2 bytes | the length of each, 8 bytes | padding to 64

The header holds the message's class, its plain fields, the sender, the receiver and the
number of the call, and for each tensor its codec, dtype, shape, length and receipt. A
frame that is wrong in any way is refused with WireError. Reading has two steps:

    calls(frame)  -> Incoming...  reads headers alone: who sends which message to whom.
                                  What may not be asked is refused before it is unpacked.
    .unpack(most) -> Envelope     reads tensors. Each is named by one field, lengths fit
                                  shapes, and all of them together unpack to at most
                                  `most` bytes, which is known before memory is taken.
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
"""The beginning of a frame with several calls: the magic, and how many there are."""

AHEAD = 8
"""Calls that may travel ahead of another one in its frame."""

ALIGN = 64
"""Bytes that headers and tensors are padded to a multiple of."""

MAX_FRAME = 1 << 31
MAX_HEADER = 1 << 20
JOINED = 32 << 20
"""Bytes of a frame with several calls, at most. Where a tensor of one call is kept, the
memory of all of them is."""

UNPACKED = 1 << 28
"""Bytes that a frame may unpack to. A longer frame may unpack to its own length."""

EMPTY_VALUES = 1 << 12
"""Values that a ciphertext of any length may say it has, since an empty tensor may have
long sides."""

LONGEST_WORD = 256
"""Characters of a name in a receipt."""

MOST_DIMENSIONS = 16

UNCOMPRESSED = Identity().name
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


# Writing


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
    """The parts of a frame with one call."""
    message = envelope.message
    bodies: list[Buffer] = []
    tensors: list[dict[str, Any]] = []
    fields = {
        name: _written_field(getattr(message, name), bodies, tensors)
        for name in message.hints()
    }
    header = {
        "type": message.kind,
        "from": envelope.sender,
        "to": envelope.receiver,
        "number": envelope.number,
        "fields": fields,
        "tensors": tensors,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    length = len(text).to_bytes(4, "little")
    parts: list[Buffer] = [MAGIC, length, text, _padding(8 + len(text))]
    for body in bodies:
        parts += [body, _padding(len(body))]
    return parts


def _written_field(
    value: Any, bodies: list[Buffer], tensors: list[dict[str, Any]]
) -> Any:
    """A field as JSON. A tensor becomes a reference to its place in `tensors`, and its
    bytes are appended to `bodies`."""
    if isinstance(value, Released):
        about, body = _written_tensor(value)
    elif isinstance(value, Ciphertext):
        about, body = _written_ciphertext(value)
    elif isinstance(value, tuple):
        items = [_written_field(item, bodies, tensors) for item in value]
        return {"$tuple": items}
    elif isinstance(value, dict):
        entries = {
            key: _written_field(item, bodies, tensors) for key, item in value.items()
        }
        return {"$dict": entries}
    else:
        return value
    tensors.append(about)
    bodies.append(body)
    return {"$tensor": len(tensors) - 1}


def _written_tensor(released: Released) -> tuple[dict[str, Any], Buffer]:
    """What a header says of a tensor, and the tensor's bytes."""
    packed = released.packed
    if packed is None:
        dtype = DTYPE_NAMES[released.tensor.dtype]
        packed = Packed(UNCOMPRESSED, b"", released.shape, dtype)
        body = _memory_of(released.tensor)
    else:
        body = packed.data
    about = {
        "codec": packed.codec,
        "dtype": packed.dtype,
        "shape": packed.shape,
        "bytes": len(body),
        "settings": dict(packed.settings),
        "receipt": _written_receipt(released.receipt),
    }
    return about, body


def _written_ciphertext(ciphertext: Ciphertext) -> tuple[dict[str, Any], Buffer]:
    """What a header says of a ciphertext, and its bytes."""
    encrypted = ciphertext.encrypted
    about = {
        "scheme": encrypted.scheme,
        "key": encrypted.key,
        "layout": encrypted.layout,
        "hides": encrypted.hides,
        "bound": encrypted.bound,
        "shape": encrypted.shape,
        "bytes": len(encrypted.data),
        "receipt": _written_receipt(ciphertext.receipt),
    }
    return about, encrypted.data


def _written_receipt(receipt: Receipt) -> list[Any]:
    """What of a receipt travels. The codec and the bytes stand beside it, and epsilon is
    the owner's business."""
    event = receipt.event
    return [
        receipt.owner,
        receipt.number,
        receipt.name,
        receipt.batch,
        event.kind,
        dict(event.parameters),
    ]


def _memory_of(tensor: Tensor) -> Buffer:
    """A released tensor's own bytes, where they are: nobody changes them any more."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


# Reading


@dataclass(frozen=True, slots=True)
class Incoming:
    """A call whose header was read. What it carries is still packed."""

    sender: str
    receiver: str
    number: int
    kind: type[Message]
    fields: dict[str, Any]
    described: list[Any]
    """What the header says of each tensor."""
    body: Buffer

    def unpack(
        self, *, device: torch.device | str = "cpu", most: int = UNPACKED
    ) -> Envelope[Any]:
        """Read the tensors and make the envelope, or raise WireError.

        Tensors of a frame in writable memory go on using that memory.

        Args:
            device: Where tensors are put.
            most: How many bytes everything may unpack to.
        """
        try:
            message = self._message(device, most)
        except WireError:
            raise
        # A codec or a message may make anything of hostile bytes.
        except Exception as error:
            raise WireError(
                "A frame's header does not describe its contents:"
                f" {type(error).__name__}."
            ) from None
        return Envelope(self.sender, self.number, message, self.receiver)

    def _message(self, device: torch.device | str, most: int) -> Message:
        _check_each_named_once(self.fields, len(self.described))
        parts = _parts(self.body, self.described)
        self._check_unpacks_to(sum(part.unpacked for part in parts), most)
        values = [part.read(device) for part in parts]
        fields = {
            name: _read_field(value, values) for name, value in self.fields.items()
        }
        try:
            return self.kind(**fields)
        except BoundaryError as error:
            raise WireError(
                f"A frame's fields do not fit its message: {error}"
            ) from None

    def _check_unpacks_to(self, size: int, most: int) -> None:
        allowed = max(most, len(self.body))
        if size > allowed:
            raise WireError(
                f"A frame of {len(self.body)} bytes may unpack to {allowed};"
                f" {self.kind.kind} of {self.sender[:80]!r} would take {size}. Send"
                " less at once, or let the receiver's owner raise memory_per_call."
            )


def calls(frame: Buffer, *, max_frame: int = MAX_FRAME) -> list[Incoming]:
    """Read the headers of the calls that a frame brings, in their order.

    Where one of them cannot be read, WireError is raised and none is looked at.
    """
    if len(frame) < TOGETHER.size or frame[:4] != JOINT:
        return [read(frame, max_frame=max_frame)]
    _, count = TOGETHER.unpack_from(frame)
    start = TOGETHER.size + 8 * min(count, AHEAD + 1)
    lengths = [
        int.from_bytes(frame[place : place + 8], "little")
        for place in range(TOGETHER.size, start, 8)
    ]
    ends = list(accumulate(lengths, initial=start + len(_padding(start))))
    most = min(max_frame, JOINED)
    if not 1 <= count <= AHEAD + 1 or not ends[-1] == len(frame) <= most:
        raise WireError(
            f"A frame brings a call with up to {AHEAD} ahead of it, in {most} bytes;"
            f" this one has {len(frame)}, and says that it brings {count} in"
            f" {ends[-1]}."
        )
    return [read(memoryview(frame)[begin:end]) for begin, end in pairwise(ends)]


def read(frame: Buffer, *, max_frame: int = MAX_FRAME) -> Incoming:
    """Read the header of a frame with one call, or raise WireError."""
    if len(frame) > max_frame:
        raise WireError(
            f"A frame may have at most {max_frame} bytes; this one has"
            f" {len(frame)}. Send less at once."
        )
    header, start = _header(frame)
    fields = header.get("fields")
    described = header.get("tensors")
    is_complete = header.keys() == HEADER
    if not (is_complete and isinstance(fields, dict) and isinstance(described, list)):
        raise WireError(
            f"A frame's header has {', '.join(sorted(HEADER))}, and nothing else."
        )
    sender = header["from"]
    receiver = header["to"]
    number = header["number"]
    are_named = isinstance(sender, str) and isinstance(receiver, str)
    is_number = isinstance(number, int) and not isinstance(number, bool)
    if not (are_named and is_number and number >= 0):
        raise WireError(
            "A frame must name its sender, its receiver and the number of the call."
        )
    kind = _message_class(header["type"])
    body = memoryview(frame)[start:]
    return Incoming(sender, receiver, number, kind, fields, described, body)


def decode(
    frame: Buffer,
    *,
    device: torch.device | str = "cpu",
    max_frame: int = MAX_FRAME,
    most: int = UNPACKED,
) -> Envelope[Any]:
    """Read and unpack a frame with one call at once, for callers that do not check the
    sender first."""
    first, *others = calls(frame, max_frame=max_frame)
    if others:
        raise WireError(
            "A frame with one call is expected here; this one brings"
            f" {1 + len(others)}."
        )
    return first.unpack(device=device, most=most)


def _header(frame: Buffer) -> tuple[dict[str, Any], int]:
    """A frame's header, and where its tensors begin."""
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
        # Of bytes, json would guess the encoding.
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


def _message_class(kind: Any) -> type[Message]:
    found = MESSAGES.get(kind) if isinstance(kind, str) else None
    if found is None or found in (Message, Request):
        raise WireError(
            f"A frame names a message that does not exist here: {str(kind)[:80]!r}."
        )
    return found


def _check_each_named_once(fields: Mapping[str, Any], count: int) -> None:
    """Refuse tensors that no field names, or several do.

    The first would be unpacked for nobody. The second would be small in the frame and
    large wherever it is put together.
    """
    times = [0] * count
    to_visit: list[Any] = list(fields.values())
    while to_visit:
        value = to_visit.pop()
        if isinstance(value, list):
            to_visit += value
        elif isinstance(value, dict):
            place = value.get("$tensor", count)
            if _is_count(place) and place < count:
                times[place] += 1
            to_visit += value.values()
    if any(number != 1 for number in times):
        raise WireError(
            f"Each of a frame's {count} tensors must be named once by its fields; found"
            f" {times[:20]}."
        )


@dataclass(frozen=True)
class Part:
    """One tensor or ciphertext in a frame, still packed.

    Args:
        about: What the header says of it.
        shape: Its shape.
        data: Its bytes.
        unpacked: How many bytes it unpacks to.
    """

    about: dict[str, Any]
    shape: tuple[int, ...]
    data: Buffer
    unpacked: int

    def read(self, device: torch.device | str) -> Released | Ciphertext:
        if "scheme" in self.about:
            return _read_ciphertext(self)
        return _read_tensor(self, device)


def _parts(body: Buffer, described: list[Any]) -> list[Part]:
    """Cut a frame's body into its tensors, as the header describes them."""
    found: list[Part] = []
    start = 0
    for about in described:
        part = _part(body, start, about)
        found.append(part)
        size = len(part.data)
        start += size + len(_padding(size))
    if start != len(body):
        raise WireError(
            f"A frame has {len(body)} bytes of tensors, and its header accounts for"
            f" {start}."
        )
    return found


def _part(body: Buffer, start: int, about: Any) -> Part:
    """The tensor at a place of a frame's body. Nothing is unpacked."""
    size = about["bytes"]
    shape = tuple(about["shape"])
    if about.keys() not in (ABOUT_TENSOR, ABOUT_CIPHERTEXT):
        raise WireError(
            f"A frame says of a tensor {', '.join(sorted(ABOUT_TENSOR))}, and nothing"
            " else."
        )
    has_shape = len(shape) <= MOST_DIMENSIONS and all(map(_is_count, shape))
    if not (_is_count(size) and has_shape):
        raise _unknown_tensor()
    if size > len(body) - start:
        raise WireError(
            f"A frame with {len(body)} bytes of tensors says that one of them has"
            f" {size}."
        )
    # An empty tensor counts by its sides, since somebody may loop over them.
    values = math.prod(max(side, 1) for side in shape)
    if "scheme" in about:
        # Each value of a ciphertext takes more than a byte.
        if values > max(size, EMPTY_VALUES):
            raise WireError(
                f"A frame's ciphertext of shape {list(shape)} cannot have {size} bytes."
            )
        unpacked = size
    else:
        unpacked = values * _dtype(about["dtype"]).itemsize
    return Part(about, shape, body[start : start + size], unpacked)


def _dtype(name: Any) -> torch.dtype:
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise _unknown_tensor()
    return dtype


def _unknown_tensor() -> WireError:
    return WireError(
        "A frame describes a tensor with an unknown dtype, shape or length."
    )


def _read_tensor(part: Part, device: torch.device | str) -> Released:
    about = part.about
    size = len(part.data)
    codec = CODECS.get(about["codec"])
    if codec is None:
        raise WireError(
            "A frame uses a codec that is not known here:"
            f" {str(about['codec'])[:80]!r}."
        )
    receipt = _read_receipt(about["receipt"], codec.name, size)
    if codec.name != UNCOMPRESSED:
        settings = _read_settings(about["settings"])
        data = bytes(part.data)
        packed = Packed(codec.name, data, part.shape, about["dtype"], settings)
        return Released._seal(codec.decode(packed).to(device), receipt, packed)
    dtype = _dtype(about["dtype"])
    if math.prod(part.shape) * dtype.itemsize != size:
        raise WireError(
            f"A frame's tensor of shape {list(part.shape)} and type {dtype} does not"
            f" have {size} bytes."
        )
    flat = _tensor_over(part.data, dtype)
    return Released._seal(flat.reshape(part.shape).to(device), receipt)


def _tensor_over(data: Buffer, dtype: torch.dtype) -> Tensor:
    """A tensor over these bytes; over a copy of them, where they may not be written."""
    if not len(data):
        return torch.empty(0, dtype=dtype)
    if isinstance(data, memoryview) and not data.readonly:
        return torch.frombuffer(data, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype)


def _read_ciphertext(part: Part) -> Ciphertext:
    """A ciphertext. Its bytes stay as they are until a key looks at them."""
    words = [part.about[name] for name in ("scheme", "key", "layout", "hides")]
    bound = part.about["bound"]
    are_words = all(isinstance(word, str) and len(word) <= 64 for word in words)
    is_bound = isinstance(bound, float) and 0 < bound < math.inf
    if not (are_words and is_bound):
        raise WireError(
            "A frame describes a ciphertext with an unknown scheme, key or bound."
        )
    scheme, key, layout, hides = words
    data = bytes(part.data)
    receipt = _read_receipt(part.about["receipt"], scheme, len(data))
    encrypted = Encrypted(
        scheme, key, part.shape, layout, bound, data, hides, receipt.owner
    )
    return Ciphertext._seal(encrypted, receipt)


def _read_settings(settings: Any) -> dict[str, Scalar]:
    if not isinstance(settings, dict):
        raise TypeError("a codec's settings are values by name")
    if any(isinstance(value, (list, dict)) for value in settings.values()):
        raise TypeError("a codec's settings are plain values")
    return settings


def _read_receipt(written: Any, codec: str, size: int) -> Receipt:
    owner, number, name, batch, kind, parameters = written
    words = [owner, name, kind, *parameters]
    if batch is not None:
        words.append(batch)
    are_words = all(map(_is_word, words))
    are_numbers = all(map(_is_number, parameters.values()))
    if not (are_words and are_numbers and _is_count(number)):
        raise WireError("A frame's tensor came without a proper receipt.")
    event = DpEvent(kind, {key: float(value) for key, value in parameters.items()})
    return Receipt(owner, number, name, batch, event, codec, size)


def _read_field(value: Any, tensors: list[Released | Ciphertext]) -> Any:
    """A field's value, with tensors in place of the references to them."""
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "$tensor" and _is_count(content):
        return tensors[content] if content < len(tensors) else None
    if tag == "$tuple" and isinstance(content, list):
        return tuple(_read_field(item, tensors) for item in content)
    if tag == "$dict" and isinstance(content, dict):
        return {key: _read_field(item, tensors) for key, item in content.items()}
    raise ValueError(tag)


def _is_word(value: Any) -> bool:
    is_short = isinstance(value, str) and len(value) <= LONGEST_WORD
    return is_short and value.isprintable()


def _is_count(value: Any) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and 0 <= value < 1 << 62


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _padding(length: int) -> bytes:
    return b"\0" * (-length % ALIGN)
