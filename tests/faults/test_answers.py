"""A party that answers nonsense is named, and nobody has learned from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.federation.small import QUICK, equal, federation, learned_of, splitnn
from torch import Tensor

from colonnade.algorithms.embedding import Embedding
from colonnade.core import Envelope, Released, Transport
from colonnade.core.peers import Answer
from colonnade.errors import PartyError
from colonnade.federation import Federation


class Lying:
    """Passes calls on; from the time it lies, one party's embeddings are something
    else."""

    def __init__(self, inner: Transport, lie: Callable[[Released], Released]) -> None:
        self.inner = inner
        self.lie = lie
        self.lies = False

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        answers = self.inner.exchange(calls)
        for place, (call, answer) in enumerate(zip(calls, answers, strict=True)):
            of_lab = call.receiver == "lab"
            if self.lies and of_lab and isinstance(answer, Embedding):
                answers[place] = Embedding(self.lie(answer.values))
        return answers


def changed(change: Callable[[Tensor], Tensor]) -> Callable[[Released], Released]:
    return lambda released: Released._seal(
        change(released.tensor.clone()), released.receipt
    )


def one_nan(tensor: Tensor) -> Tensor:
    tensor[3, 1] = torch.nan
    return tensor


class Stuck:
    """The same answer to every question."""

    def __init__(self) -> None:
        self.first: Released | None = None

    def __call__(self, released: Released) -> Released:
        self.first = self.first or released
        return self.first


LIES: dict[str, tuple[Callable[[Released], Released], str]] = {
    "NaN": (
        changed(one_nan),
        r"1 of the 64 values it sent as embedding are no numbers",
    ),
    "infinite": (changed(lambda t: t / 0), r"are no numbers \(NaN or infinite\)"),
    "fewer rows": (
        changed(lambda t: t[1:]),
        r"it sent \[15, 4\] values, and \[16, 4\] were asked for",
    ),
    "wider": (
        changed(lambda t: torch.cat([t, t], -1)),
        r"it sent \[16, 8\] values, and \[16, 4\] were asked for",
    ),
    "another batch": (Stuck(), r"it answered for batch train/0/2"),
}


@pytest.mark.parametrize("settings", [QUICK, splitnn()], ids=["vimadmm", "splitnn"])
@pytest.mark.parametrize("kind", LIES)
def test_nonsense_is_named_and_harms_nobody(kind: str, settings: Any) -> None:
    lie, cause = LIES[kind]
    near = federation(settings=settings)
    lying: list[Lying] = []

    def between(_: str, here: Transport) -> Transport:
        lying.append(Lying(here, lie))
        return lying[0]

    far = Federation(near.settings, near.holdings, between=between)
    training = far.train()
    next(training)
    next(training)
    if kind == "another batch":
        lying[0].lies = True
        next(training)
    before = learned_of(far)
    lying[0].lies = True
    with pytest.raises(PartyError, match=cause) as caught:
        next(training)
    assert caught.value.party == "lab"
    assert caught.value.request == "embedding.Embed"
    assert caught.value.batch == (
        "train/0/3" if kind == "another batch" else "train/0/2"
    )
    assert equal(before, learned_of(far))
