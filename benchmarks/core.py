"""What the plumbing costs: a call between parties in one process, and a message as
bytes."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from colonnade.benchmark import Result
from colonnade.core import (
    Batches,
    Done,
    Envelope,
    Ledger,
    Message,
    Organisation,
    Outbox,
    Party,
    Peers,
    Released,
    Request,
    serves,
)
from colonnade.core.wire import decode, encode
from colonnade.transport import InProcess


class Ping(Request[Done]):
    batch: str


class Vector(Message):
    values: Released


class Fetch(Request[Vector]):
    batch: str


class Answerer(Party):
    """Does next to nothing, so that what is measured is the way there and back."""

    values: Tensor = torch.zeros(64, 8)

    @serves
    def ping(self, request: Ping) -> Done:  # noqa: ARG002
        return Done()

    @serves
    def fetch(self, request: Fetch) -> Vector:
        return Vector(self.outbox.release(self.values, "values", request.batch))


def run(quick: bool) -> list[Result]:
    rounds = 500 if quick else 5000
    return [*_calls(rounds), _wire(50 if quick else 300)]


def _calls(rounds: int) -> list[Result]:
    batches = Batches({"train": torch.arange(64)}, batch_size=64, epochs=1, seed=0)
    names = [f"party_{number}" for number in range(14)]
    parties = {name: Answerer(Organisation.at(name, batches)) for name in names}
    ledger = Ledger("driver")
    peers = Peers("driver", names, InProcess(parties), ledger)
    alone = parties[names[0]]
    results = []
    for what, request, direct in (
        ("without a tensor", Ping("train/0/0"), lambda: alone.ping(Ping("train/0/0"))),
        (
            "answered by a 64 x 8 tensor",
            Fetch("train/0/0"),
            lambda: alone.fetch(Fetch("train/0/0")),
        ),
    ):
        call = min(_seconds(direct, rounds) for _ in range(5))
        ask = float("inf")
        for _ in range(5):
            ask = min(
                ask,
                _seconds(lambda request=request: peers.ask(request), rounds // 14) / 14,
            )
            for book in [ledger, *(party.ledger for party in parties.values())]:
                book.entries.clear()  # as a checkpoint does
        extra = (ask - call) * 1e6
        results.append(
            Result(
                f"ask, per party, {what}",
                f"{extra:.1f} µs beyond the call",
                f"the call itself: {call * 1e6:.1f} µs",
                "≤ 20 µs",
                extra <= 20,
                {"microseconds": extra},
            )
        )
    return results


def _wire(rounds: int) -> Result:
    generator = torch.Generator().manual_seed(0)
    released = Outbox("party", generator).release(
        torch.randn(1024, 60, generator=generator), "embedding"
    )
    envelope = Envelope("party", 1, Vector(released))
    both = (
        min(_seconds(lambda: decode(encode(envelope)), rounds) for _ in range(5)) * 1e3
    )
    copy = (
        min(_seconds(lambda: released.tensor.clone(), rounds) for _ in range(5)) * 1e3
    )
    return Result(
        "encode + decode, 1024 x 60 float32",
        f"{both:.3f} ms",
        f"copying the tensor: {copy:.3f} ms",
        "≤ 0.5 ms",
        both <= 0.5,
        {"milliseconds": both},
    )


def _seconds(call: object, rounds: int) -> float:
    assert callable(call)
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    return (time.perf_counter() - start) / rounds
