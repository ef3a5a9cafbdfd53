"""The one door out of a party: what a tensor becomes before it leaves, and the proof
that it went through.

    private tensor --mechanism--> what may be known --codec--> what travels      = Released, with its Receipt

A mechanism sees the private tensor; a codec sees only the mechanism's output, so
compression is post-processing and costs no privacy. Rules belong to the owner: the
party that asks can neither see nor change them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from colonnade.core.batches import purpose
from colonnade.core.chance import Source
from colonnade.core.cipher import (
    NOT_ENCRYPTED,
    Ciphertext,
    Encrypted,
    Encrypting,
    Reading,
)
from colonnade.core.receipt import NON_PRIVATE, PUBLIC, DpEvent, Receipt
from colonnade.errors import BoundaryError, ConfigError

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor as its codec sends it: the bytes, and what the same codec needs to read
    them."""

    codec: str
    data: bytes
    shape: tuple[int, ...]
    dtype: str
    settings: Mapping[str, Scalar] = field(default_factory=dict)


class Mechanism(Protocol):
    """Makes a tensor safe to know, and says what that cost."""

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]: ...


@runtime_checkable
class Bounding(Protocol):
    """A mechanism that first bounds what a row may say."""

    def bounded(self, tensor: Tensor) -> Tensor:
        """What noise is then added to, as a function that can be differentiated."""
        ...


class Meter(Protocol):
    """Keeps an owner's account of what each row was released with, and refuses what its
    budget does not cover."""

    def charge(
        self, name: str, batch: str | None, size: int, event: DpEvent
    ) -> float | None:
        """Count a release of `size` rows, or raise BudgetExhausted and count nothing.
        Gives the epsilon of the row that paid most so far, None where there is no
        guarantee."""
        ...

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: dict[str, Any]) -> None: ...


class Guard(Protocol):
    """Knows what an owner's rows were ever used for: rules follow that, and not only
    the name they are asked for by."""

    def rule(
        self,
        as_: str,
        batch: str | None,
        named: str | None,
        rule_for: Callable[[str | None], Rule],
        width: int,
    ) -> Rule:
        """The one that applies to a batch, of the rules for the purposes there are;
        `named` is the asker's. A row has `width` numbers, on which it may depend what a
        rule costs it."""
        ...


class Seal(Protocol):
    """Hides a tensor from whoever gets it alone; a codec of its own for each batch, as
    masks must not meet twice."""

    def on(self, batch: str | None) -> Codec: ...


class Codec(Protocol):
    """Makes a tensor small to send. `name` is what the receiver looks it up by."""

    @property
    def name(self) -> str: ...

    def encode(self, tensor: Tensor, generator: Generator) -> Packed: ...

    def decode(self, packed: Packed) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Plain:
    """No protection: the tensor itself, reported as non-private (epsilon is infinite)."""

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
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Identity:
    """No compression: the tensor's own bytes, row-major, little-endian."""

    name: str = "identity"

    def encode(self, tensor: Tensor, generator: Generator | None = None) -> Packed:  # noqa: ARG002
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return Packed(self.name, data, tuple(tensor.shape), DTYPE_NAMES[tensor.dtype])

    def decode(self, packed: Packed) -> Tensor:
        dtype = DTYPES[packed.dtype]
        if not packed.data:
            return torch.empty(packed.shape, dtype=dtype)
        return torch.frombuffer(bytearray(packed.data), dtype=dtype).reshape(
            packed.shape
        )


CODECS: dict[str, Codec] = {"identity": Identity()}
"""How a receiver reads what a codec packed; `compression` adds its own."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to one kind of release."""

    mechanism: Mechanism = Plain()
    codec: Codec = Identity()
    bound: Callable[[Tensor], Tensor] | None = field(
        init=False, compare=False, repr=False, default=None
    )

    # once: `isinstance` of a protocol takes as long as the rest of a release
    def __post_init__(self) -> None:
        if isinstance(self.mechanism, Bounding):
            object.__setattr__(self, "bound", self.mechanism.bounded)


class Released:
    """A tensor that went through an outbox, detached and final. There is no public way
    to make one."""

    __slots__ = ("packed", "receipt", "tensor")
    tensor: Tensor
    receipt: Receipt
    packed: Packed | None  # what travels, where it is not simply the tensor's own bytes

    def __init__(self) -> None:
        raise BoundaryError(
            "A Released tensor is made by an outbox, not by hand.\n"
            '    Release it: self.outbox.release(tensor, as_="embedding").'
        )

    @classmethod
    def _seal(
        cls, tensor: Tensor, receipt: Receipt, packed: Packed | None = None
    ) -> Released:
        self = object.__new__(cls)
        put = object.__setattr__
        put(self, "tensor", tensor)
        put(self, "receipt", receipt)
        put(self, "packed", packed)
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def at_rows(self, rows: Tensor, scale: float = 1.0) -> Released:
        """Only these lines of it, times a number, for who holds only these rows: less
        leaves than was released."""
        if self.packed is not None:
            raise ConfigError(
                f"What '{self.receipt.owner}' sends as '{self.receipt.name}' is packed"
                f" by the codec {self.receipt.codec!r} for all rows of a batch, and not"
                ' everybody holds them all. Set codec = "identity" for it, or [data]'
                ' rows = "common".'
            )
        lines = self.tensor.index_select(0, rows)
        lines = lines if scale == 1.0 else lines * scale
        return Released._seal(lines, self.receipt._replace(bytes=lines.nbytes))

    def among(self, rows: Tensor, size: int) -> Released:
        """The same lines at these places of `size`, for its receiver to go on with;
        zeros elsewhere."""
        lines = self.tensor.new_zeros(size, *self.tensor.shape[1:]).index_copy_(
            0, rows, self.tensor
        )
        return Released._seal(lines, self.receipt)

    def __setattr__(self, name: str, value: object) -> None:
        raise BoundaryError(
            f"A Released tensor is final; its {name} cannot be replaced."
        )

    def __repr__(self) -> str:
        r = self.receipt
        return (
            f"Released({r.name!r} of {r.owner!r}, {list(self.tensor.shape)},"
            f" {r.event.kind}, {r.bytes} bytes)"
        )


class Outbox:
    """Privatise, compress, write down. One per party, with the owner's rules by release
    name.

    A rule may be set for one purpose only, as "test.embedding"; it wins over the one
    for "embedding". What a batch is called is the asker's word: where there is a
    `guard`, it says which rule its rows get. `to` is who gets a release: for another
    role of the same organisation it crosses no boundary, so no rule applies to it.
    Where nobody is named, it is for others. A role may seal a name: whatever is
    released under it then leaves only in the form that the seal gives it.
    """

    def __init__(
        self,
        owner: str,
        generator: Generator,
        rules: Mapping[str, Rule] | None = None,
        default: Rule | None = None,
    ) -> None:
        self.owner = owner
        self.generator = generator
        self.default = default or Rule()
        # what mechanisms draw from; a federation gives one that nobody can repeat
        self.noise: Source = generator
        self.meter: Meter | None = None
        self.guard: Guard | None = None
        self.rules = dict(rules or {})
        self.released = 0
        self.seals: dict[str, Seal] = {}
        # a digest of what sealed releases depend on, and all who seal must have been
        # told alike
        self.followed = ""
        # names whose releases go on to others, whoever asks for them
        self.passed_on: frozenset[str] = frozenset()
        # the last sealed release of a name, before the seal
        self._own: dict[str, tuple[int, Tensor]] = {}

    def rule(self, as_: str, batch: str | None = None, width: int = 1) -> Rule:
        """What applies to a batch whose rows have so many numbers."""
        named = purpose(batch)
        if self.guard is None or not self.by_purpose:
            return self.rule_for(as_, named)
        return self.guard.rule(
            as_, batch, named, lambda purpose: self.rule_for(as_, purpose), width
        )

    @property
    def by_purpose(self) -> bool:
        """Whether some rule is for one purpose only."""
        return any("." in name for name in self.rules)

    def rule_for(self, as_: str, purpose: str | None = None) -> Rule:
        """What its owner wants for rows that have this purpose and no other."""
        return self.rules.get(f"{purpose}.{as_}") or self.rules.get(as_) or self.default

    def seal(self, as_: str, seal: Seal) -> None:
        """Hide what is released under a name, after the owner's mechanism and whoever
        asks for it."""
        for name in [*self.rules, as_]:
            if name.rpartition(".")[2] == as_:
                _sealable(self.owner, name, self.rules.get(name, self.default))
        self.seals[as_] = seal

    def follow(self, told: bytes) -> None:
        """Bind what leaves sealed from here on to something that everybody was told,
        and to all before it."""
        self.followed = hashlib.sha256(self.followed.encode() + told).hexdigest()

    def go_on_from(self, other: Outbox) -> None:
        """Draw and number on where another of the same owner stands."""
        self.generator.set_state(other.generator.get_state())
        self.released = other.released

    def own(self, released: Released) -> Tensor:
        """What the owner itself goes on with: a sealed release as it was before the
        seal, any other as it left."""
        r = released.receipt
        if r.name not in self.seals:
            return released.tensor
        number, tensor = self._own.get(r.name, (None, released.tensor))
        if number != r.number:
            raise BoundaryError(
                f"'{self.owner}' opens only its last sealed release of {r.name!r}, not"
                f" {released!r}."
            )
        return tensor

    def bounded(
        self,
        tensor: Tensor,
        as_: str,
        batch: str | None = None,
        *,
        to: str | None = None,
    ) -> Tensor:
        """What its rule leaves of a tensor but for the noise. A party that is told
        dloss/d(what it released) takes the derivative through this: where a row is cut
        to a norm, its model else follows a gradient that is not its own."""
        bound = self.bound(as_, batch, to, _width(tensor))
        if bound is None:
            return tensor
        return bound(tensor)

    def bound(
        self, as_: str, batch: str | None, to: str | None, width: int
    ) -> Callable[[Tensor], Tensor] | None:
        """How its rule bounds what a row may say to somebody, before noise is added;
        None where it does not."""
        return self._applying(as_, batch, to, width).bound

    def release(
        self,
        tensor: Tensor,
        as_: str,
        batch: str | None = None,
        *,
        to: str | None = None,
    ) -> Released:
        """The only way to a Released: what comes back shares no memory with `tensor`
        and cannot change later."""
        rule = self._applying(as_, batch, to, _width(tensor))
        private = tensor.detach()
        if self._changes_nothing(rule, as_):
            copy = private.clone(memory_format=torch.contiguous_format)
            return self._unchanged(copy, as_, batch)
        if as_ in self.seals:
            _sealable(self.owner, as_, rule)
            rule = Rule(
                rule.mechanism,
                self.seals[as_].on(
                    f"{batch}/{self.followed}" if self.followed else batch
                ),
            )
        safe, event = rule.mechanism.apply(private, self.noise)
        epsilon = self._charge(as_, batch, private.shape, event, to)
        packed = None
        if as_ in self.seals:
            self._own[as_] = self.released + 1, safe.detach()
        if isinstance(rule.codec, Identity):
            shared = safe is private or _same_memory(safe, private)
            safe = (
                safe.detach().clone(memory_format=torch.contiguous_format)
                if shared
                else safe.detach()
            )
            size = safe.nbytes
        else:
            packed = rule.codec.encode(safe.detach(), self.generator)
            safe = rule.codec.decode(packed).to(tensor.device)
            size = len(packed.data)
        self.released += 1
        receipt = Receipt(
            self.owner, self.released, as_, batch, event, rule.codec.name, size, epsilon
        )
        return Released._seal(safe, receipt, packed)

    def release_blocks(
        self, stacked: Tensor, rows: list[int], as_: str, batch: str | None
    ) -> list[Released]:
        """So many rows at a time, such as each party's head; where they leave as they
        are, in one copy."""
        if not self.as_it_is(as_, batch, None):
            return [
                self.release(block, as_, batch) for block in torch.split(stacked, rows)
            ]
        copies = torch.split(
            stacked.detach().clone(memory_format=torch.contiguous_format), rows
        )
        return [self._unchanged(copy, as_, batch) for copy in copies]

    def _unchanged(self, copy: Tensor, as_: str, batch: str | None) -> Released:
        """What leaves as it is, in memory of its own."""
        self.released += 1
        receipt = Receipt(
            self.owner, self.released, as_, batch, NON_PRIVATE, IDENTITY, copy.nbytes
        )
        return Released._seal(copy, receipt)

    def number(self, value: Tensor) -> float:
        """A plain number of a message, such as a mean loss: no rule applies to it, and
        it is in no ledger."""
        return float(value)

    def _applying(
        self, as_: str, batch: str | None, to: str | None, width: int = 1
    ) -> Rule:
        """Inside the organisation nothing is protected, unless its label owner passes
        it on."""
        inside = to == self.owner and as_ not in self.passed_on
        return INSIDE if inside else self.rule(as_, batch, width)

    def as_it_is(self, as_: str, batch: str | None, to: str | None) -> bool:
        """Whether what is released under a name to somebody leaves unchanged and
        uncounted."""
        return self._changes_nothing(self._applying(as_, batch, to), as_)

    def _changes_nothing(self, rule: Rule, as_: str) -> bool:
        plain = (
            type(rule.mechanism) is Plain
            and type(rule.codec) is Identity
            and as_ not in self.seals
        )
        return plain and self.meter is None

    def encrypt(
        self,
        tensor: Tensor,
        as_: str,
        batch: str | None = None,
        *,
        key: Encrypting,
        to: str | None = None,
    ) -> Ciphertext:
        """As `release`, with encryption in the codec's place: the key's holder can read
        what the mechanism let through, and nobody else anything. Under a secret key of
        the owner's own it costs nothing, unless a mechanism let it through: that was
        meant for somebody, and is counted here, once."""
        rule = self._applying(as_, batch, to, _width(tensor))
        _sealable(self.owner, as_, rule)
        safe, event = rule.mechanism.apply(tensor.detach(), self.noise)
        # refuses what is out of range
        encrypted = key.encrypt(safe.detach(), owner=self.owner)
        own = isinstance(key, Reading) and encrypted.scheme != NOT_ENCRYPTED
        if not (own and event == NON_PRIVATE):
            self._charge(as_, batch, tensor.shape, event, to)
        return self._sealed(
            encrypted, as_, batch, None if event == NON_PRIVATE else event
        )

    def pass_on(
        self,
        encrypted: Encrypted,
        as_: str,
        batch: str | None = None,
        *,
        event: DpEvent | None = None,
        to: str | None = None,
    ) -> Ciphertext:
        """Something computed under encryption. A mechanism cannot see into it, so a
        rule that has one is refused.

        `event` says what the receiver learns where it can undo the encryption; without
        it, nothing. What somebody can read is counted, as every release is: also what
        only calls itself encrypted.
        """
        rule = self._applying(as_, batch, to)
        _sealable(self.owner, as_, rule)
        if not isinstance(rule.mechanism, Plain):
            raise ConfigError(
                f"The outbox rule for '{as_}' of '{self.owner}' has the mechanism"
                f" {rule.mechanism!r}, but it leaves encrypted and was never readable"
                ' here. Set mechanism = "plain", and protect what it is computed'
                " from."
            )
        if event is not None or encrypted.scheme == NOT_ENCRYPTED:
            self._charge(as_, batch, encrypted.shape, event or NON_PRIVATE, to)
        return self._sealed(encrypted, as_, batch, event)

    def publish(self, data: bytes, as_: str) -> Released:
        """A public key. It says nothing about anybody's data, so no rule applies."""
        self.released += 1
        receipt = Receipt(
            self.owner, self.released, as_, None, PUBLIC, Identity().name, len(data)
        )
        return Released._seal(
            torch.frombuffer(bytearray(data), dtype=torch.uint8), receipt
        )

    def _sealed(
        self, encrypted: Encrypted, as_: str, batch: str | None, event: DpEvent | None
    ) -> Ciphertext:
        hidden = (
            NON_PRIVATE
            if encrypted.scheme == NOT_ENCRYPTED
            else DpEvent(encrypted.guarantee)
        )
        self.released += 1
        size = len(encrypted.data)
        receipt = Receipt(
            self.owner,
            self.released,
            as_,
            batch,
            event or hidden,
            encrypted.scheme,
            size,
        )
        return Ciphertext._seal(replace(encrypted, sender=self.owner), receipt)

    def _charge(
        self,
        as_: str,
        batch: str | None,
        shape: Sequence[int],
        event: DpEvent,
        to: str | None,
    ) -> float | None:
        """Before anything leaves: what crosses no boundary costs nothing."""
        if self.meter is None or to == self.owner:
            return None
        return self.meter.charge(as_, batch, shape[0] if shape else 1, event)


def release_stack(
    tensor: Tensor, as_: str, each: Sequence[tuple[Outbox, str | None, str | None]]
) -> tuple[Tensor, list[Released]]:
    """What several owners release at once, each its slice, `to` whom and for which
    batch: all of it, and each one's.

    Each slice is released by its owner's outbox under its rules; where all leave as
    they are, in one copy.
    """
    if all(outbox.as_it_is(as_, batch, to) for outbox, to, batch in each):
        final = tensor.detach().clone(memory_format=torch.contiguous_format)
        return final, [
            outbox._unchanged(share, as_, batch)
            for share, (outbox, _, batch) in zip(final, each, strict=True)
        ]
    shares = zip(tensor.detach(), each, strict=True)
    parts = [
        outbox.release(share, as_, batch, to=to)
        for share, (outbox, to, batch) in shares
    ]
    return torch.stack([part.tensor for part in parts]), parts


IDENTITY = Identity().name


def _sealable(owner: str, name: str, rule: Rule) -> None:
    if not isinstance(rule.codec, Identity):
        raise ConfigError(
            f"The outbox rule for '{name}' of '{owner}' has the codec"
            f" {rule.codec.name!r}, but what is released under this name leaves sealed"
            ' and cannot be packed otherwise. Set codec = "identity"; a mechanism is'
            " welcome."
        )


def _width(tensor: Tensor) -> int:
    """How many numbers a row has."""
    return math.prod(tensor.shape[1:])


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


INSIDE = Rule()
