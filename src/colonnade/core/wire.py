"""Messages as bytes. No pickle: a frame can name only message classes that exist here, and is checked before use.

    magic "CLN1" | header length, 4 bytes | header, JSON | padding to 64 | tensor bytes, each padded to 64

The header holds the class, the plain fields, who sent it as its how-many-th call, and per tensor its codec, dtype,
shape, length and receipt. Whatever is wrong with a frame, `decode` raises WireError. Lengths are compared with shapes
before anything is allocated; a tensor has the bytes that came, or what its codec unpacks them to, which is limited.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from colonnade.core.cipher import Ciphertext, Encrypted
from colonnade.core.message import MESSAGES, Message, Request
from colonnade.core.receipt import DpEvent, Receipt
from colonnade.core.release import CODECS, DTYPE_NAMES, DTYPES, Identity, Packed, Released, Scalar
from colonnade.errors import BoundaryError, WireError

MAGIC = b"CLN1"
ALIGN = 64
MAX_FRAME = 1 << 31
MAX_HEADER = 1 << 20
FEW = 1 << 12
"""Values of a ciphertext of any length: an empty one may have sides."""
IDENTITY = Identity()

M = TypeVar("M", bound=Message)
Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Envelope(Generic[M]):
    """A message with its sender and the number of the call, by which a repeated delivery is recognised.

    Who the sender is decides what an outbox may leave out, so a transport between machines must take it from the
    connection it authenticated, never from the frame.
    """

    sender: str
    number: int
    message: M


def encode(envelope: Envelope[Any]) -> bytes:
    """One frame."""
    return b"".join(buffers(envelope))


def buffers(envelope: Envelope[Any]) -> list[Buffer]:
    """One frame, as the parts it is made of: tensors that travel as they are lie in their own memory, uncopied."""
    blobs: list[Buffer] = []
    tensors: list[dict[str, Any]] = []
    message = envelope.message
    fields = {name: _plain(getattr(message, name), blobs, tensors) for name in message.hints()}
    top = {"type": message.kind, "from": envelope.sender, "number": envelope.number}
    header = json.dumps(top | {"fields": fields, "tensors": tensors}, separators=(",", ":")).encode()
    parts: list[Buffer] = [MAGIC, len(header).to_bytes(4, "little"), header, _padding(8 + len(header))]
    for blob in blobs:
        parts += [blob, _padding(len(blob))]
    return parts


def decode(frame: Buffer, *, device: torch.device | str = "cpu", max_frame: int = MAX_FRAME) -> Envelope[Any]:
    """The envelope in a frame, or WireError. Of a frame in writable memory, tensors keep using that memory."""
    if len(frame) > max_frame:
        raise WireError(f"A frame may have at most {max_frame} bytes; this one has {len(frame)}.")
    header, start = _header(frame)
    try:
        tensors = _tensors(frame, start, header["tensors"], device)
        message = _message(header["type"], header["fields"], tensors)
        sender, number = header["from"], header["number"]
    except WireError:
        raise
    except Exception as error:  # whatever a codec or a message makes of hostile bytes
        raise WireError(f"A frame's header does not describe its contents: {type(error).__name__}.") from None
    if not isinstance(sender, str) or not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise WireError("A frame must name its sender and the number of the call.")
    return Envelope(sender, number, message)


def _plain(value: Any, blobs: list[Buffer], tensors: list[dict[str, Any]]) -> Any:
    """A field as JSON; a tensor becomes its index, its bytes go to `blobs`."""
    if isinstance(value, Released):
        packed = value.packed or Packed(IDENTITY.name, b"", value.shape, DTYPE_NAMES[value.tensor.dtype])
        data = packed.data if value.packed else _memory(value.tensor)
        about = {"codec": packed.codec, "dtype": packed.dtype, "shape": packed.shape, "bytes": len(data)}
        tensors.append(about | {"settings": dict(packed.settings), "receipt": _written(value.receipt)})
        blobs.append(data)
        return {"$tensor": len(tensors) - 1}
    if isinstance(value, Ciphertext):
        e = value.encrypted
        about = {"scheme": e.scheme, "key": e.key, "layout": e.layout, "hides": e.hides, "bound": e.bound}
        about |= {"shape": e.shape, "bytes": len(e.data), "receipt": _written(value.receipt)}
        tensors.append(about)
        blobs.append(e.data)
        return {"$tensor": len(tensors) - 1}
    if isinstance(value, tuple):
        return {"$tuple": [_plain(item, blobs, tensors) for item in value]}
    if isinstance(value, dict):
        return {"$dict": {key: _plain(item, blobs, tensors) for key, item in value.items()}}
    return value


def _memory(tensor: Tensor) -> Buffer:
    """A released tensor's own bytes, where they are: nobody changes it any more."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def _written(r: Receipt) -> list[Any]:
    return [r.owner, r.number, r.name, r.batch, r.event.kind, dict(r.event.parameters)]


def _header(frame: Buffer) -> tuple[dict[str, Any], int]:
    if len(frame) < 8 or frame[:4] != MAGIC:
        raise WireError(f"A frame starts with {MAGIC!r} and a length; this one starts with {bytes(frame[:8])!r}.")
    length = int.from_bytes(frame[4:8], "little")
    if length > MAX_HEADER or 8 + length > len(frame):
        raise WireError(f"A frame of {len(frame)} bytes says that its header has {length}.")
    try:
        header = json.loads(str(frame[8 : 8 + length], "utf-8"))  # of bytes, json would guess the encoding
    except (ValueError, RecursionError):
        raise WireError("A frame's header is not JSON.") from None
    if not isinstance(header, dict):
        raise WireError("A frame's header is not a JSON object.")
    return header, 8 + length + len(_padding(8 + length))


def _tensors(
    frame: Buffer, start: int, described: list[Any], device: torch.device | str
) -> list[Released | Ciphertext]:
    found: list[Released | Ciphertext] = []
    for about in described:
        size, shape = about["bytes"], tuple(about["shape"])
        if not _is_count(size) or len(shape) > 16 or not all(map(_is_count, shape)):
            raise WireError("A frame describes a tensor with an unknown dtype, shape or length.")
        if size > len(frame) - start:
            raise WireError(f"A frame of {len(frame)} bytes says that a tensor has {size} more than it holds.")
        data = frame[start : start + size]
        found.append(_ciphertext(about, shape, data) if "scheme" in about else _tensor(about, shape, data, device))
        start += size + len(_padding(size))
    if start != len(frame):
        raise WireError(f"A frame has {len(frame)} bytes, and its header accounts for {start}.")
    return found


def _tensor(about: Any, shape: tuple[int, ...], data: Buffer, device: torch.device | str) -> Released:
    codec, dtype = CODECS.get(about["codec"]), about["dtype"]
    if codec is None:
        raise WireError(f"A frame uses a codec that is not known here: {str(about['codec'])[:80]!r}.")
    if dtype not in DTYPES:
        raise WireError("A frame describes a tensor with an unknown dtype, shape or length.")
    if codec.name == IDENTITY.name and math.prod(shape) * DTYPES[dtype].itemsize != len(data):
        raise WireError(f"A frame's tensor of shape {list(shape)} and type {dtype} does not have {len(data)} bytes.")
    receipt = _receipt(about["receipt"], codec.name, len(data))
    if codec.name == IDENTITY.name and isinstance(data, memoryview) and not data.readonly and len(data):
        return Released._seal(torch.frombuffer(data, dtype=DTYPES[dtype]).reshape(shape).to(device), receipt)
    packed = Packed(codec.name, bytes(data), shape, dtype, _settings(about["settings"]))
    tensor: Tensor = codec.decode(packed).to(device)
    return Released._seal(tensor, receipt, None if codec.name == IDENTITY.name else packed)


def _ciphertext(about: Any, shape: tuple[int, ...], data: Buffer) -> Ciphertext:
    """Its bytes stay as they are until a key looks at them."""
    words, bound = [about[name] for name in ("scheme", "key", "layout", "hides")], about["bound"]
    bounded = isinstance(bound, float) and 0 < bound < math.inf
    if not all(isinstance(word, str) and len(word) <= 64 for word in words) or not bounded:
        raise WireError("A frame describes a ciphertext with an unknown scheme, key or bound.")
    if math.prod(max(n, 1) for n in shape) > max(len(data), FEW):  # each value takes more than a byte
        raise WireError(f"A frame's ciphertext of shape {list(shape)} cannot have {len(data)} bytes.")
    scheme, key, layout, hides = words
    encrypted = Encrypted(scheme, key, shape, layout, bound, bytes(data), hides)
    return Ciphertext._seal(encrypted, _receipt(about["receipt"], scheme, len(data)))


def _settings(said: Any) -> dict[str, Scalar]:
    if not isinstance(said, dict) or any(isinstance(value, (list, dict)) for value in said.values()):
        raise TypeError("a codec's settings are plain values by name")
    return said


def _receipt(written: Any, codec: str, size: int) -> Receipt:
    owner, number, name, batch, kind, parameters = written
    if not (isinstance(owner, str) and isinstance(name, str) and isinstance(kind, str) and _is_count(number)):
        raise WireError("A frame's tensor came without a proper receipt.")
    event = DpEvent(kind, {str(key): float(value) for key, value in parameters.items()})
    return Receipt(owner, number, name, None if batch is None else str(batch), event, codec, size)


def _message(kind: Any, fields: Mapping[str, Any], tensors: list[Released | Ciphertext]) -> Message:
    cls = MESSAGES.get(kind) if isinstance(kind, str) else None
    if cls is None or cls in (Message, Request):
        raise WireError(f"A frame names a message that does not exist here: {str(kind)[:80]!r}.")
    try:
        return cls(**{name: _value(value, tensors) for name, value in fields.items()})
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
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _padding(length: int) -> bytes:
    return b"\0" * (-length % ALIGN)
