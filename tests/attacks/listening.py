"""A toy federation that is recorded, and what one of its parties heard."""

from __future__ import annotations

from typing import Any

import torch
from tests.conformance.toy import LOSSES, Task, Toy, federation, sequential

from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.attacks.received import Guess, Knowledge
from colonnade.attacks.scores import LabelScore, score_classes
from colonnade.core import Rule, Transcript
from colonnade.optim.losses import CrossEntropy, Logistic
from colonnade.privacy.gaussian import Gaussian
from colonnade.transport import Recording

EPOCH = 5  # batches
NOISE = Rule(Gaussian(clip=1.0, sigma=1e4))


def heard(
    algorithm: AnyAlgorithm,
    steps: int = EPOCH,
    task: Task = "classes",
    *,
    noise: str = "",
    **settings: Any,
) -> tuple[Toy, Transcript, Knowledge]:
    """After so many steps: the federation, what 'ada' received, and what she holds.
    `noise` names a release of the label owner's that is drowned in noise."""
    toy = federation(
        algorithm, lambda parties: Recording(sequential(parties)), task=task, **settings
    )
    if noise:
        toy.driver.outbox.rules = {noise: NOISE}
    toy.run(steps)
    loss = LOSSES[task]
    classes = {CrossEntropy: loss.outputs, Logistic: 2}.get(type(loss), 0)
    return (
        toy,
        toy.transport.of("ada"),
        Knowledge("ada", toy.batches, toy.driver.config, classes, algorithm.releases),
    )


def scored(toy: Toy, guess: Guess, classes: int = 3) -> LabelScore:
    truth = toy.driver.labels[guess.rows]
    return score_classes(guess.scores, truth, classes, named=guess.named)


def accuracy(toy: Toy, guess: Guess, classes: int = 3) -> float:
    plain = scored(toy, guess, classes).plain
    assert plain is not None
    return plain.accuracy


def late(transcript: Transcript, seen: int) -> Transcript:
    """The same party, had it begun to listen after so many messages."""
    return Transcript(transcript.party, transcript.seen[seen:])


def squared(guess: torch.Tensor, truth: torch.Tensor) -> float:
    return float(
        torch.corrcoef(torch.stack([guess.double(), truth.double()]))[0, 1] ** 2
    )
