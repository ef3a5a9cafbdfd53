"""Released tensors: what an owner's rules make of a private tensor before it leaves.

    private tensor --mechanism--> what may be known --codec--> what travels
                                  = Released, with its Receipt

A mechanism sees the private tensor. A codec sees only what the mechanism gives, so
compression is post-processing and costs no privacy. The rules belong to the owner: the
party that asks can neither see nor change them. `core.outbox` is the door that applies
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from colonnade.core.chance import Source
from colonnade.core.receipt import NON_PRIVATE, DpEvent, Receipt
from colonnade.errors import BoundaryError, ConfigError

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor as its codec sends it.

    Args:
        codec: The name by which the receiver finds the codec.
        data: The bytes.
        shape: The tensor's shape.
        dtype: The tensor's type, as in `DTYPES`.
        settings: What the codec needs besides, to read the bytes.
    """

    codec: str
    data: bytes
    shape: tuple[int, ...]
    dtype: str
    settings: Mapping[str, Scalar] = field(default_factory=dict)


class Mechanism(Protocol):
    """Makes a tensor safe to know, and says what it did as a `DpEvent`."""

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]: ...


@runtime_checkable
class Bounding(Protocol):
    """A mechanism that bounds what a row may say before it adds noise."""

    def bounded(self, tensor: Tensor) -> Tensor:
        """The tensor that noise is added to, as a function that can be
        differentiated."""
        ...


class Codec(Protocol):
    """Makes a tensor small to send. Receivers look a codec up by its name."""

    @property
    def name(self) -> str: ...

    def encode(self, tensor: Tensor, generator: Generator) -> Packed: ...

    def decode(self, packed: Packed) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Plain:
    """No protection: the tensor itself leaves, and its epsilon is infinite."""

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:  # noqa: ARG002
        return tensor, NON_PRIVATE


DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""The types of tensors that may cross, by their names on the wire."""

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Identity:
    """No compression: the tensor's own bytes, row by row, little-endian."""

    name: str = "identity"

    def encode(self, tensor: Tensor, generator: Generator | None = None) -> Packed:  # noqa: ARG002
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return Packed(self.name, data, tuple(tensor.shape), DTYPE_NAMES[tensor.dtype])

    def decode(self, packed: Packed) -> Tensor:
        dtype = DTYPES[packed.dtype]
        if not packed.data:
            return torch.empty(packed.shape, dtype=dtype)
        flat = torch.frombuffer(bytearray(packed.data), dtype=dtype)
        return flat.reshape(packed.shape)


CODECS: dict[str, Codec] = {"identity": Identity()}
"""The codecs that a receiver can read, by name. `compression` adds its own."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What an owner does with one kind of release: a mechanism, then a codec.

    `bound` is the mechanism's bound on what a row may say, or None where it has none.
    """

    mechanism: Mechanism = Plain()
    codec: Codec = Identity()
    bound: Callable[[Tensor], Tensor] | None = field(
        init=False, compare=False, repr=False, default=None
    )

    def __post_init__(self) -> None:
        # Asked once: to ask a protocol takes as long as the rest of a release.
        if isinstance(self.mechanism, Bounding):
            object.__setattr__(self, "bound", self.mechanism.bounded)


class Released:
    """A tensor that went through an outbox. It is detached and final, and there is no
    public way to make one."""

    __slots__ = ("packed", "receipt", "tensor")
    tensor: Tensor
    receipt: Receipt
    packed: Packed | None
    """What travels, where that is not simply the tensor's own bytes."""

    def __init__(self) -> None:
        raise BoundaryError(
            "A Released tensor is made by an outbox, not by hand.\n"
            '    Release it: self.outbox.release(tensor, as_="embedding").'
        )

    @classmethod
    def _seal(
        cls, tensor: Tensor, receipt: Receipt, packed: Packed | None = None
    ) -> Released:
        """Make a Released. Only an outbox, the wire and this class may."""
        released = object.__new__(cls)
        object.__setattr__(released, "tensor", tensor)
        object.__setattr__(released, "receipt", receipt)
        object.__setattr__(released, "packed", packed)
        return released

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def at_rows(self, rows: Tensor, scale: float = 1.0) -> Released:
        """Some lines of the tensor, for a party that holds only these rows.

        Args:
            rows: The places of the lines.
            scale: A number that they are multiplied with.
        """
        if self.packed is not None:
            raise ConfigError(
                f"What '{self.receipt.owner}' sends as '{self.receipt.name}' is packed"
                f" by the codec {self.receipt.codec!r} for all rows of a batch, and not"
                ' everybody holds them all. Set codec = "identity" for it, or [data]'
                ' rows = "common".'
            )
        lines = self.tensor.index_select(0, rows)
        if scale != 1.0:
            lines = lines * scale
        return Released._seal(lines, self.receipt._replace(bytes=lines.nbytes))

    def among(self, rows: Tensor, size: int) -> Released:
        """The tensor's lines at these places of a larger tensor that is else zero.

        Args:
            rows: The place of each line.
            size: How many lines the larger tensor has.
        """
        lines = self.tensor.new_zeros(size, *self.tensor.shape[1:])
        lines.index_copy_(0, rows, self.tensor)
        return Released._seal(lines, self.receipt)

    def __setattr__(self, name: str, value: object) -> None:
        raise BoundaryError(
            f"A Released tensor is final; its {name} cannot be replaced."
        )

    def __repr__(self) -> str:
        receipt = self.receipt
        return (
            f"Released({receipt.name!r} of {receipt.owner!r},"
            f" {list(self.tensor.shape)}, {receipt.event.kind}, {receipt.bytes} bytes)"
        )
