"""What an outbox asks of whoever keeps its owner's account, and what a seat and a
ledger remember of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from colonnade.core import (
    Batches,
    DpEvent,
    Encrypted,
    Ledger,
    Message,
    Organisation,
    Released,
    Rule,
    wire,
)
from colonnade.core.chance import Source, uniform
from colonnade.core.outbox import Meter
from colonnade.errors import BudgetExhausted


class Answer(Message):
    x: Released


class Draws:
    """A mechanism that shows what it drew."""

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        return tensor + uniform(tensor.shape, source).float(), DpEvent(
            "drawn", {"times": 1.0}
        )


class Counts:
    """A meter that allows so many releases."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.charged: list[tuple[str, str | None, int, str]] = []

    def charge(
        self, name: str, batch: str | None, size: int, event: DpEvent
    ) -> float | None:
        if len(self.charged) == self.most:
            raise BudgetExhausted("spent")
        self.charged.append((name, batch, size, event.kind))
        return float(len(self.charged))

    def state(self) -> dict[str, Any]:
        return {"charged": len(self.charged)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.most -= state["charged"]


def organisation(meter: Meter | None = None) -> Organisation:
    agreed = Batches({"train": torch.arange(8)}, batch_size=4, epochs=1, seed=0)
    made = Organisation.at("ada", agreed, rules={"x": Rule(Draws())})
    made.outbox.meter = meter
    return made


def test_it_is_charged_what_leaves_once_with_its_rows_and_event() -> None:
    meter = Counts(9)
    box = organisation(meter).outbox
    box.release(torch.zeros(4, 2), "x", "train/0/0")
    box.release(torch.zeros(3, 5), "head")
    assert meter.charged == [
        ("x", "train/0/0", 4, "drawn"),
        ("head", None, 3, "non-private"),
    ]
    box.release(torch.zeros(4, 2), "x", "train/0/0", to="ada")
    box.release(torch.tensor(1.0), "x", to="bob")
    assert meter.charged[2:] == [("x", None, 1, "drawn")]


class Toy:
    """Encrypts as a toy; with `decrypt`, as the secret key does."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        return Encrypted(
            self.scheme,
            owner,
            tuple(values.shape),
            "values",
            1.0,
            values.numpy().tobytes(),
        )


class Secret(Toy):
    def decrypt(self, x: Encrypted) -> Tensor:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("key", "name", "charged"),
    [
        (Secret("toy"), "y", []),  # nobody but its owner can read it
        (Toy("toy"), "y", ["non-private"]),  # somebody else can
        (Secret("plain"), "y", ["non-private"]),  # everybody can
        # a mechanism let it through, so it is meant for somebody
        (Secret("toy"), "x", ["drawn"]),
        (Toy("toy"), "x", ["drawn"]),
    ],
)
def test_what_only_its_owner_can_read_costs_nothing(
    key: Toy, name: str, charged: list[str]
) -> None:
    meter = Counts(1)
    organisation(meter).outbox.encrypt(torch.zeros(4, 2), name, "train/0/0", key=key)
    assert [kind for *_, kind in meter.charged] == charged


def test_what_it_refuses_is_not_released() -> None:
    box = organisation(Counts(1)).outbox
    box.release(torch.zeros(4, 2), "x")
    with pytest.raises(BudgetExhausted):
        box.release(torch.zeros(4, 2), "x")
    assert box.released == 1


def test_noise_may_come_from_a_generator_of_its_own() -> None:
    """Then what else is drawn does not depend on it."""
    one = organisation()
    other = organisation()
    one.outbox.noise = Generator().manual_seed(9)
    before = one.generator.get_state()
    mine = one.outbox.release(torch.zeros(4, 2), "x").tensor
    assert torch.equal(one.generator.get_state(), before)
    assert not torch.equal(mine, other.outbox.release(torch.zeros(4, 2), "x").tensor)


def test_the_spend_is_in_the_owners_ledger_and_does_not_travel() -> None:
    made = organisation(Counts(9))
    answer = Answer(made.outbox.release(torch.zeros(4, 2), "x"))
    mine = Ledger("ada")
    theirs = Ledger("bob")
    mine.write("out", "bob", answer)
    theirs.write("in", "ada", answer)
    assert [entry.epsilon for entry in (*mine.entries, *theirs.entries)] == [1.0, None]
    assert json.loads(mine.entries[0].to_json())["epsilon"] == 1.0
    arrived = wire.decode(wire.encode(wire.Envelope("ada", 1, answer))).message
    assert arrived.x.receipt.epsilon is None


def test_a_checkpoint_holds_it_and_not_the_secret_noise() -> None:
    first = organisation(Counts(3))
    first.outbox.noise = Generator().manual_seed(9)
    first.outbox.release(torch.zeros(4, 2), "x")
    saved = first.state()
    assert saved["seat"]["meter"] == {"charged": 1}
    meter = Counts(3)
    again = organisation(meter)
    again.outbox.noise = Generator().manual_seed(10)
    noise = again.outbox.noise.get_state()
    again.load_state(saved)
    assert meter.most == 2
    assert torch.equal(again.outbox.noise.get_state(), noise)
    assert "meter" not in organisation().state()["seat"]
    organisation().load_state(saved)  # whoever keeps no account can read it, too
    organisation(Counts(3)).load_state(organisation().state())
