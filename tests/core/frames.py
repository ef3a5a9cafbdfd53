"""Messages of every kind of field, and what is released into them, for testing frames."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from colonnade.core import DpEvent, Message, Outbox, Packed, Released, Request, Rule
from colonnade.core.chance import Source


class Everything(Message):
    text: str
    count: int
    value: float
    flag: bool
    maybe: str | None
    one: Released
    many: tuple[Released, ...]
    named: dict[str, Released]
    numbers: tuple[float, ...]
    nested: dict[str, tuple[int, ...]]


class Ask(Request[Everything]):
    batch: str


class Values(Message):
    values: Released


class Noisy:
    """A mechanism whose event has parameters."""

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        return tensor, DpEvent("gaussian", {"sigma": 1.5, "clip": math.inf})


class Fragile:
    """A codec that fails in its own way on bytes it did not make."""

    name = "test-fragile"

    def encode(self, tensor: Tensor, generator: Generator) -> Packed:
        return Packed(
            self.name,
            bytes([1, 2, 3, 4]),
            tuple(tensor.shape),
            "float32",
            {"levels": 4, "word": "x"},
        )

    def decode(self, packed: Packed) -> Tensor:
        levels = packed.settings["levels"]
        assert packed.data == bytes([1, 2, 3, 4])
        assert isinstance(levels, int)
        return (
            torch.full(packed.shape, 12.0 / levels) + [0.0, 1.0, 2.0, 3.0, 4.0][levels]
        )


def outbox(rule: Rule | None = None) -> Outbox:
    return Outbox("bank", Generator(), default=rule)
