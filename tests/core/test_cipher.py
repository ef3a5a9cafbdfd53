"""Ciphertexts cross only through an outbox, with a receipt, a ledger line and a place
in the frame."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from colonnade.core import (
    NON_PRIVATE,
    Ciphertext,
    DpEvent,
    Encrypted,
    Envelope,
    Ledger,
    Message,
    Outbox,
    Packed,
    Released,
    Rule,
    Transcript,
)
from colonnade.core.chance import Source
from colonnade.core.wire import decode, encode
from colonnade.errors import BoundaryError, ConfigError, WireError

PACKAGE = Path(__file__).parents[2] / "src" / "colonnade"


class Sealed(Message):
    one: Ciphertext
    more: dict[str, tuple[Ciphertext, ...]]
    tensor: Released
    either: Released | Ciphertext


class Xor:
    """Encrypts as a toy: the key is one byte."""

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        data = bytes(byte ^ 77 for byte in values.numpy().tobytes())
        return Encrypted("xor", owner, tuple(values.shape), "values", 5.0, data)


class Halve:
    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        return tensor / 2, DpEvent("halved", {"by": 2.0})


class Small:
    name = "small"

    def encode(self, tensor: Tensor, generator: Generator) -> Packed:
        raise NotImplementedError

    def decode(self, packed: Packed) -> Tensor:
        raise NotImplementedError


def outbox(**rules: Rule) -> Outbox:
    return Outbox("ada", Generator().manual_seed(0), rules)


def message(box: Outbox) -> Sealed:
    one, two = (
        box.encrypt(torch.ones(n), "sums", "train/0/0", key=Xor()) for n in (2, 3)
    )
    return Sealed(one, {"x": (two, one)}, box.release(torch.ones(1), "plain"), two)


def test_none_is_made_by_hand_or_changed() -> None:
    with pytest.raises(BoundaryError, match="made by an outbox"):
        Ciphertext()
    sealed = outbox().encrypt(torch.ones(2), "sums", key=Xor())
    with pytest.raises(BoundaryError, match="is final"):
        sealed.receipt = sealed.receipt
    assert repr(sealed) == "Ciphertext('sums' of 'ada', [2], encrypted (xor), 8 bytes)"


def test_what_did_not_go_through_an_outbox_does_not_fit_a_message() -> None:
    sealed = message(outbox())
    with pytest.raises(BoundaryError, match="must be Ciphertext; found Encrypted"):
        dataclasses.replace(sealed, one=sealed.one.encrypted)  # type: ignore[arg-type]
    with pytest.raises(BoundaryError, match="Ciphertext"):
        dataclasses.replace(sealed, one=sealed.tensor)  # type: ignore[arg-type]


def test_only_an_outbox_and_the_wire_seal_ciphertexts() -> None:
    users = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if "Ciphertext._seal(" in path.read_text(encoding="utf-8")
    }
    assert users == {"outbox.py", "wire.py"}


def test_a_mechanism_comes_before_encryption_and_is_in_the_receipt() -> None:
    box = outbox(sums=Rule(Halve()))
    sealed = box.encrypt(torch.full((2,), 4.0), "sums", key=Xor())
    assert (
        bytes(byte ^ 77 for byte in sealed.encrypted.data)
        == torch.full((2,), 2.0).numpy().tobytes()
    )
    assert sealed.receipt.event == DpEvent("halved", {"by": 2.0})
    assert outbox().encrypt(torch.ones(2), "sums", key=Xor()).receipt.event == DpEvent(
        "encrypted (xor)"
    )


def test_a_rule_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="outbox rule for 'sums' of 'ada' has the codec 'small'"
    ):
        outbox(sums=Rule(codec=Small())).encrypt(torch.ones(2), "sums", key=Xor())
    box = outbox(total=Rule(Halve()))
    computed = box.encrypt(torch.ones(2), "sums", key=Xor()).encrypted
    with pytest.raises(
        ConfigError,
        match=r"outbox rule for 'total' of 'ada' has the mechanism .* leaves encrypted",
    ):
        box.pass_on(computed, "total")
    assert box.pass_on(computed, "sums", event=NON_PRIVATE).receipt.event == NON_PRIVATE


def test_receipts_are_numbered_with_the_other_releases() -> None:
    box = outbox()
    numbers = [item.receipt.number for item in message(box).crossing()]
    assert numbers == [1, 2, 1, 3, 2]
    assert box.released == 3
    key = box.publish(b"public bytes", "public_key")
    assert (key.receipt.number, key.receipt.event.kind, key.receipt.bytes) == (
        4,
        "public",
        12,
    )
    assert key.tensor.numpy().tobytes() == b"public bytes"


def test_a_line_per_ciphertext_in_the_ledger_and_its_bytes_in_the_transcript() -> None:
    ledger = Ledger("ada")
    transcript = Transcript("bob")
    sent = message(outbox())
    ledger.write("out", "bob", sent)
    transcript.add("ada", sent)
    lines = [(e.name, e.shape, e.bytes, e.codec, e.event) for e in ledger.entries]
    assert lines[0] == ("sums", (2,), 8, "xor", "encrypted (xor)")
    assert len(lines) == 5
    assert ledger.total("out") == transcript.total() == 8 + 12 + 8 + 4 + 12
    assert [tuple(t.shape) for t in transcript.tensors("plain")] == [(1,)]


def test_frames_carry_ciphertexts_and_bad_ones_are_refused() -> None:
    sent = message(outbox())
    frame = encode(Envelope("ada", 1, sent))
    got: Sealed = decode(frame).message
    for mine, theirs in zip(sent.crossing(), got.crossing(), strict=True):
        assert mine.receipt == theirs.receipt
        assert isinstance(mine, Ciphertext) is isinstance(theirs, Ciphertext)
        if isinstance(mine, Ciphertext) and isinstance(theirs, Ciphertext):
            assert mine.encrypted == theirs.encrypted
    for good, bad in (
        (b'"bound":5.0', b'"bound":"x"'),
        (b'"scheme":"xor"', b'"scheme":[1,2]'),
        (b'"ada"', b'"adaa'),
    ):
        with pytest.raises(WireError):
            decode(frame.replace(good, bad))
    for cut in (9, 60, len(frame) - 1):
        with pytest.raises(WireError):
            decode(frame[:cut])


class Counting:
    """A meter that writes down what it is asked to count."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, str | None, int, str]] = []

    def charge(
        self, name: str, batch: str | None, size: int, event: DpEvent
    ) -> float | None:
        self.counted.append((name, batch, size, event.kind))
        return None

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


def test_what_is_passed_on_and_can_be_read_is_counted() -> None:
    box = outbox()
    box.meter = meter = Counting()
    hidden = Encrypted("xor", "k", (3,), "flat", 1.0, b"123")
    box.pass_on(hidden, "sums", "train/0/0")
    assert meter.counted == [], "nobody can read it"
    box.pass_on(hidden, "sums", "train/0/0", event=NON_PRIVATE)
    box.pass_on(dataclasses.replace(hidden, scheme="plain"), "sums", "train/0/1")
    assert meter.counted == [
        ("sums", "train/0/0", 3, "non-private"),
        ("sums", "train/0/1", 3, "non-private"),
    ]
    box.pass_on(dataclasses.replace(hidden, scheme="plain"), "sums", to="ada")
    assert len(meter.counted) == 2, "inside an organisation nothing crosses"
