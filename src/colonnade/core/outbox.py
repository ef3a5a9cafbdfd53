"""The outbox: the one door out of a party.

A party gives its outbox a private tensor and a name for it. The outbox applies the
owner's rule for that name (`core.release`), counts what it costs the owner's budget,
and gives back a `Released` with a receipt, or a `Ciphertext`. Nothing else fits into a
message.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

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
from colonnade.core.release import Codec, Identity, Packed, Plain, Released, Rule
from colonnade.errors import BoundaryError, ConfigError

UNCOMPRESSED = Identity().name
NO_RULE = Rule()
"""What applies inside an organisation: nothing crosses a boundary there."""


class Meter(Protocol):
    """Counts what each of an owner's rows was released with, and refuses what the
    budget does not cover."""

    def charge(
        self, name: str, batch: str | None, size: int, event: DpEvent
    ) -> float | None:
        """Count a release of `size` rows, or raise BudgetExhausted and count nothing.

        Gives the epsilon of the row that paid most so far, or None where there is no
        guarantee.
        """
        ...

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: dict[str, Any]) -> None: ...


class Guard(Protocol):
    """Knows what an owner's rows were ever used for.

    A batch's name is the asker's word. Where an owner has a rule for one purpose only,
    such as test rows, the guard looks at the rows themselves.
    """

    def rule(
        self,
        as_: str,
        batch: str | None,
        named: str | None,
        rule_for: Callable[[str | None], Rule],
        width: int,
    ) -> Rule:
        """The rule that applies to a batch.

        Args:
            as_: The release's name.
            batch: The batch's name.
            named: The purpose that the batch's name says.
            rule_for: The owner's rule for rows of a purpose.
            width: How many numbers a row has, on which a rule's cost may depend.
        """
        ...


class Seal(Protocol):
    """Hides a tensor from whoever gets it alone, such as by a mask."""

    def on(self, batch: str | None) -> Codec:
        """A codec for one batch. Masks must not meet twice, so each batch has its
        own."""
        ...


class Outbox:
    """The one door out of a party, with its owner's rules by release name.

    A rule may be for one purpose only, as "test.embedding"; it wins over the rule for
    "embedding". Where a release goes to another role of the same organisation, it
    crosses no boundary and no rule applies.

    Args:
        owner: The organisation.
        generator: The party's random numbers, which codecs draw from.
        rules: The owner's rules, by release name.
        default: The rule for all other names. By default tensors leave as they are.
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
        self.rules = dict(rules or {})
        self.noise: Source = generator
        """What mechanisms draw from. A federation puts a source there that nobody can
        repeat."""
        self.meter: Meter | None = None
        self.guard: Guard | None = None
        self.released = 0
        """How many releases there were. Each has its number in its receipt."""
        self.seals: dict[str, Seal] = {}
        """Release names whose tensors leave only in the form that a seal gives them."""
        self.followed = ""
        """A digest of what everybody who seals must have been told alike."""
        self.passed_on: frozenset[str] = frozenset()
        """Names whose releases go on to others, whoever asks for them, so that rules
        apply inside the organisation, too."""
        self._before_seal: dict[str, tuple[int, Tensor]] = {}
        """By name the number of the last sealed release, and its tensor before the
        seal."""

    def rule(self, as_: str, batch: str | None = None, width: int = 1) -> Rule:
        """The rule for a batch whose rows have `width` numbers each."""
        named = purpose(batch)
        if self.guard is None or not self.by_purpose:
            return self.rule_for(as_, named)

        def rule_for(actual_purpose: str | None) -> Rule:
            return self.rule_for(as_, actual_purpose)

        return self.guard.rule(as_, batch, named, rule_for, width)

    @property
    def by_purpose(self) -> bool:
        """Whether some rule is for one purpose only."""
        return any("." in name for name in self.rules)

    def rule_for(self, as_: str, purpose: str | None = None) -> Rule:
        """The owner's rule for rows that have this purpose and no other."""
        return self.rules.get(f"{purpose}.{as_}") or self.rules.get(as_) or self.default

    def seal(self, as_: str, seal: Seal) -> None:
        """Hide what is released under a name, after the owner's mechanism and whoever
        asks for it."""
        for name in [*self.rules, as_]:
            if name.rpartition(".")[2] == as_:
                _check_sealable(self.owner, name, self.rules.get(name, self.default))
        self.seals[as_] = seal

    def follow(self, told: bytes) -> None:
        """Bind sealed releases from here on to something that everybody was told, and
        to all that was told before."""
        self.followed = hashlib.sha256(self.followed.encode() + told).hexdigest()

    def go_on_from(self, other: Outbox) -> None:
        """Continue the random numbers and the numbers of releases of another outbox of
        the same owner."""
        self.generator.set_state(other.generator.get_state())
        self.released = other.released

    def own(self, released: Released) -> Tensor:
        """The tensor that the owner itself goes on with: a sealed release as it was
        before the seal, any other as it left."""
        receipt = released.receipt
        if receipt.name not in self.seals:
            return released.tensor
        number, tensor = self._before_seal.get(receipt.name, (None, released.tensor))
        if number != receipt.number:
            raise BoundaryError(
                f"'{self.owner}' opens only its last sealed release of"
                f" {receipt.name!r}, not {released!r}."
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
        """The tensor as its rule bounds it, without noise.

        A party that is told dloss/d(what it released) takes the derivative through
        this. Where a row is clipped, its model would else follow a gradient that is not
        its own.
        """
        bound = self.bound(as_, batch, to, _numbers_per_row(tensor))
        return tensor if bound is None else bound(tensor)

    def bound(
        self, as_: str, batch: str | None, to: str | None, width: int
    ) -> Callable[[Tensor], Tensor] | None:
        """The function by which the rule bounds what a row may say; None where it has
        none."""
        return self._rule_towards(to, as_, batch, width).bound

    def release(
        self,
        tensor: Tensor,
        as_: str,
        batch: str | None = None,
        *,
        to: str | None = None,
    ) -> Released:
        """Let a tensor leave, after the owner's rule was applied and its cost counted.

        What comes back shares no memory with `tensor` and cannot change later.

        Args:
            tensor: The private tensor.
            as_: The release's name, as the algorithm declares it.
            batch: The batch whose rows it is about.
            to: The party that gets it. By default another organisation.
        """
        rule = self._rule_towards(to, as_, batch, _numbers_per_row(tensor))
        private = tensor.detach()
        if self._changes_nothing(rule, as_):
            copy = private.clone(memory_format=torch.contiguous_format)
            return self._unchanged(copy, as_, batch)
        if as_ in self.seals:
            _check_sealable(self.owner, as_, rule)
            sealed_batch = f"{batch}/{self.followed}" if self.followed else batch
            rule = Rule(rule.mechanism, self.seals[as_].on(sealed_batch))
        safe, event = rule.mechanism.apply(private, self.noise)
        safe = safe.detach()
        epsilon = self._charge(as_, batch, private.shape, event, to)
        self.released += 1
        if as_ in self.seals:
            self._before_seal[as_] = self.released, safe
        packed: Packed | None = None
        if isinstance(rule.codec, Identity):
            if _share_memory(safe, private):
                safe = safe.clone(memory_format=torch.contiguous_format)
            size = safe.nbytes
        else:
            packed = rule.codec.encode(safe, self.generator)
            safe = rule.codec.decode(packed).to(tensor.device)
            size = len(packed.data)
        receipt = Receipt(
            self.owner, self.released, as_, batch, event, rule.codec.name, size, epsilon
        )
        return Released._seal(safe, receipt, packed)

    def release_blocks(
        self, stacked: Tensor, rows: list[int], as_: str, batch: str | None
    ) -> list[Released]:
        """Release consecutive blocks of a tensor, such as each party's head.

        Args:
            stacked: All blocks, one below the other.
            rows: How many rows each block has.
            as_: The release's name.
            batch: The batch that it is about.
        """
        if not self.as_it_is(as_, batch, None):
            blocks = torch.split(stacked, rows)
            return [self.release(block, as_, batch) for block in blocks]
        # Nothing changes on the way out, so one copy serves all blocks.
        copy = stacked.detach().clone(memory_format=torch.contiguous_format)
        return [self._unchanged(block, as_, batch) for block in torch.split(copy, rows)]

    def number(self, value: Tensor) -> float:
        """A plain number of a message, such as a mean loss. No rule applies to it, and
        no ledger has it."""
        return float(value)

    def as_it_is(self, as_: str, batch: str | None, to: str | None) -> bool:
        """Whether a release leaves unchanged and uncounted."""
        return self._changes_nothing(self._rule_towards(to, as_, batch), as_)

    def encrypt(
        self,
        tensor: Tensor,
        as_: str,
        batch: str | None = None,
        *,
        key: Encrypting,
        to: str | None = None,
    ) -> Ciphertext:
        """Let a tensor leave encrypted: only the key's holder can read what the
        mechanism let through.

        Under a secret key of the owner's own it costs nothing, unless a mechanism was
        applied: that is for somebody who will read it, and is counted here.
        """
        rule = self._rule_towards(to, as_, batch, _numbers_per_row(tensor))
        _check_sealable(self.owner, as_, rule)
        safe, event = rule.mechanism.apply(tensor.detach(), self.noise)
        encrypted = key.encrypt(safe.detach(), owner=self.owner)
        is_private = encrypted.scheme != NOT_ENCRYPTED
        only_owner_reads = isinstance(key, Reading) and is_private
        if not (only_owner_reads and event == NON_PRIVATE):
            self._charge(as_, batch, tensor.shape, event, to)
        told = None if event == NON_PRIVATE else event
        return self._sealed(encrypted, as_, batch, told)

    def pass_on(
        self,
        encrypted: Encrypted,
        as_: str,
        batch: str | None = None,
        *,
        event: DpEvent | None = None,
        to: str | None = None,
    ) -> Ciphertext:
        """Let something leave that was computed under encryption.

        A mechanism cannot see into it, so a rule that has one is refused. What somebody
        can read is counted as every release is, also what only calls itself encrypted.

        Args:
            encrypted: What was computed.
            as_: The release's name.
            batch: The batch that it is about.
            event: What the receiver learns where it can undo the encryption. By default
                nothing.
            to: The party that gets it. By default another organisation.
        """
        rule = self._rule_towards(to, as_, batch)
        _check_sealable(self.owner, as_, rule)
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
        """Let a public key leave. It says nothing about anybody's data, so no rule
        applies."""
        self.released += 1
        receipt = Receipt(
            self.owner, self.released, as_, None, PUBLIC, UNCOMPRESSED, len(data)
        )
        tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return Released._seal(tensor, receipt)

    def _rule_towards(
        self, to: str | None, as_: str, batch: str | None, width: int = 1
    ) -> Rule:
        """The rule for a release to somebody. Inside the organisation nothing is
        protected, unless it goes on from there."""
        if to == self.owner and as_ not in self.passed_on:
            return NO_RULE
        return self.rule(as_, batch, width)

    def _changes_nothing(self, rule: Rule, as_: str) -> bool:
        """Whether tensors under a rule leave as they are, without being counted."""
        is_plain = type(rule.mechanism) is Plain and type(rule.codec) is Identity
        return is_plain and as_ not in self.seals and self.meter is None

    def _unchanged(self, copy: Tensor, as_: str, batch: str | None) -> Released:
        """A release of a tensor as it is. The copy is in memory of its own."""
        self.released += 1
        receipt = Receipt(
            self.owner,
            self.released,
            as_,
            batch,
            NON_PRIVATE,
            UNCOMPRESSED,
            copy.nbytes,
        )
        return Released._seal(copy, receipt)

    def _sealed(
        self, encrypted: Encrypted, as_: str, batch: str | None, event: DpEvent | None
    ) -> Ciphertext:
        """A ciphertext with its receipt. Without an event, the receipt says how the
        values are hidden."""
        if event is None and encrypted.scheme == NOT_ENCRYPTED:
            event = NON_PRIVATE
        self.released += 1
        receipt = Receipt(
            self.owner,
            self.released,
            as_,
            batch,
            event or DpEvent(encrypted.guarantee),
            encrypted.scheme,
            len(encrypted.data),
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
        """Count a release before it leaves. What crosses no boundary costs nothing."""
        if self.meter is None or to == self.owner:
            return None
        rows = shape[0] if shape else 1
        return self.meter.charge(as_, batch, rows, event)


def release_stack(
    tensor: Tensor, as_: str, each: Sequence[tuple[Outbox, str | None, str | None]]
) -> tuple[Tensor, list[Released]]:
    """Release one slice of a stacked tensor for each of several owners.

    Args:
        tensor: The slices, stacked along the first dimension.
        as_: The release's name.
        each: For each slice its owner's outbox, the party that gets it, and the batch.

    Gives what left as one tensor, and each owner's release.
    """
    if all(outbox.as_it_is(as_, batch, to) for outbox, to, batch in each):
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        unchanged = [
            outbox._unchanged(part, as_, batch)
            for part, (outbox, _, batch) in zip(copy, each, strict=True)
        ]
        return copy, unchanged
    parts = [
        outbox.release(part, as_, batch, to=to)
        for part, (outbox, to, batch) in zip(tensor.detach(), each, strict=True)
    ]
    return torch.stack([part.tensor for part in parts]), parts


def _check_sealable(owner: str, name: str, rule: Rule) -> None:
    """Refuse a codec for a release that a seal or a key packs in its own way."""
    if not isinstance(rule.codec, Identity):
        raise ConfigError(
            f"The outbox rule for '{name}' of '{owner}' has the codec"
            f" {rule.codec.name!r}, but what is released under this name leaves sealed"
            ' and cannot be packed otherwise. Set codec = "identity"; a mechanism is'
            " welcome."
        )


def _numbers_per_row(tensor: Tensor) -> int:
    return math.prod(tensor.shape[1:])


def _share_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
