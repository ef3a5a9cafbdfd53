"""Hostile calls against parties: each is answered or refused with an error of ours, and
a refused one leaves no trace.

A trial lets a federation train. Before one of its calls, the party that is about to be
asked gets mutants of that call that still decode. When all of them are refused,
training goes on as if nothing had been: the same losses, bit by bit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.toy import federation
from tests.fuzz.mutate import mutated
from tests.transport.one_by_one import OneByOne, only

from colonnade.algorithms import secure_sum
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import Envelope, Message, Party, roles, wire
from colonnade.core.peers import NUMBERS
from colonnade.errors import ColonnadeError, WireError
from colonnade.transport import InProcess

TRIES = 150
USED_UP = (secure_sum.AgreeKeys,)
"""Whose refusal leaves a trace on purpose: a private key serves one agreement, then the
driver asks for new ones."""


def _said(message: Message) -> tuple[Any, ...]:
    """What a party could refuse a message for: all but the numbers in its tensors,
    which are the sender's business."""
    plain = {
        name: value
        for name in message.hints()
        if isinstance(value := getattr(message, name), (str, int, float))
    }
    return (
        type(message),
        plain,
        [(item.shape, item.tensor.dtype) for item in message.released()],
    )


class Answered(Exception):  # noqa: N818 - the end of a trial, not an error
    """A mutant was good enough to be answered, so the party's state is another now."""


class Hostile(OneByOne):
    """Passes calls on; before the `at`-th one (counted from 0), its receiver gets
    mutants of it."""

    def __init__(
        self,
        parties: Mapping[str, Party],
        rng: random.Random,
        at: int,
        others: Sequence[bytes],
    ) -> None:
        self.inner = InProcess(parties, parallel="never")
        self.parties = parties
        self.rng = rng
        self.at = at
        self.others = others
        self.calls = 0
        self.ends: Counter[str] = Counter()

    def one(self, call: Envelope[Any]) -> Any:
        if self.calls == self.at:
            self.attack(self.parties[call.receiver], call)
        self.calls += 1
        return only(self.inner, call)

    def attack(self, party: Party, honest: Envelope[Any]) -> None:
        frame = wire.encode(honest)
        for _ in range(TRIES):
            try:
                mutant = wire.decode(
                    mutated(
                        self.rng, [frame] if self.rng.random() < 0.8 else self.others
                    )
                ).message
            except WireError:
                continue
            if isinstance(mutant, USED_UP) or _said(mutant) == _said(honest.message):
                continue
            try:
                party.handle(Envelope(honest.sender, next(NUMBERS), mutant))
            except ColonnadeError as error:
                self.ends[type(error).__name__] += 1
                continue
            self.ends["answered"] += 1
            if roles.Introduce in party.served():  # it still answers
                party.handle(Envelope(honest.sender, next(NUMBERS), roles.Introduce()))
            raise Answered


def trial(
    algorithm: AnyAlgorithm, seed: int, others: Sequence[bytes], *, steps: int = 2
) -> tuple[list[float], Counter[str]]:
    """The losses of so many steps with hostile calls in between, or none where one of
    them was answered."""
    rng = random.Random(seed)
    made = list[Hostile]()

    def hostile(parties: Mapping[str, Party]) -> Hostile:
        made.append(Hostile(parties, rng, rng.randrange(3, 14), others))
        return made[0]

    try:
        losses = federation(algorithm, hostile).run(steps)
    except Answered:
        losses = []
    return losses, made[0].ends
