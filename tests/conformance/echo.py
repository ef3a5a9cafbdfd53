"""Parties that only answer, for testing what carries the calls; all their messages are
here."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import torch
from torch import Generator, Tensor, nn

from colonnade.core import (
    Batches,
    Done,
    Ledger,
    Message,
    Organisation,
    Outbox,
    Peers,
    Released,
    Request,
    Transport,
    roles,
    serves,
)
from colonnade.models import build

NAMES = ("ada", "bob", "cyd")


class Value(Message):
    value: Released


class Multiply(Request[Value]):
    """Everything times `by`, plus `plus`."""

    by: Released
    plus: float = 0.0
    batch: str | None = None


class Nested(Message):
    listed: tuple[Released, ...]
    named: dict[str, Released]
    both: dict[str, tuple[Released, ...]]
    count: int


class Nest(Request[Nested]):
    listed: tuple[Released, ...]
    named: dict[str, Released]


class Sleep(Request[Value]):
    """Answer after a while, and remember in which thread."""

    seconds: float


class Remember(Request[Done]):
    value: Released


class Break(Request[Value]):
    """Parties whose first number is below `below` fail; the others add 1 to what they
    hold."""

    below: float
    batch: str = "train/0/0"


class Unserved(Request[Done]):
    """Nobody answers this."""


class Echo(roles.FeatureOwner):
    """Holds numbers and a linear model; a different delay for each party."""

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: object = None,
    ) -> None:
        super().__init__(organisation, features, model, config)
        self.optimizer = torch.optim.SGD(model.parameters(), 0.1)
        self.held = torch.zeros_like(features)
        self.delay = 0.0
        self.threads: list[int] = []

    @serves
    def multiply(self, request: Multiply) -> Value:
        return Value(
            self.outbox.release(
                self.features * request.by.tensor + request.plus, "value", request.batch
            )
        )

    @serves
    def nest(self, request: Nest) -> Nested:
        listed = tuple(
            self.outbox.release(self.features * part.tensor, "listed")
            for part in request.listed
        )
        named = {
            k: self.outbox.release(self.features + part.tensor, "named")
            for k, part in request.named.items()
        }
        again = self.outbox.release(-self.features, "again")
        return Nested(listed, named, {"two": (again, again), "none": ()}, len(listed))

    @serves
    def sleep(self, request: Sleep) -> Value:
        time.sleep(request.seconds + self.delay)
        self.threads.append(threading.get_ident())
        return Value(self.outbox.release(self.features, "value"))

    @serves
    def remember(self, request: Remember) -> Done:
        self.held = self.held + request.value.tensor
        return Done()

    @serves
    def break_(self, request: Break) -> Value:
        if float(self.features.flatten()[0]) < request.below:
            raise ArithmeticError("too small")
        self.held = self.held + 1
        return Value(self.outbox.release(self.held, "value"))

    def state(self) -> dict[str, object]:
        return super().state() | {"held": self.held}

    def load_state(self, state: Mapping[str, object]) -> None:
        super().load_state(dict(state))
        held = state["held"]
        assert isinstance(held, Tensor)
        self.held = held


def echoes(names: tuple[str, ...] = NAMES, columns: int = 4) -> dict[str, Echo]:
    """Party k holds the number k + 1 in 6 rows."""
    batches = Batches({"train": torch.arange(6)}, batch_size=6, epochs=1, seed=0)
    return {
        name: Echo(
            Organisation.at(name, batches),
            torch.full((6, columns), k + 1.0),
            build({"name": "linear", "width": 2}, (columns,), seed=k, owner=name),
        )
        for k, name in enumerate(names)
    }


def asker(transport: Transport, names: tuple[str, ...] = NAMES) -> tuple[Peers, Outbox]:
    """Somebody who may ask them, and who releases what it sends."""
    return Peers("asker", names, transport, Ledger("asker")), Outbox(
        "asker", Generator().manual_seed(0)
    )
