"""What a party may not answer, and that it is told by name before it is used."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from colonnade.algorithms.algorithm import KEY, Kind, Release
from colonnade.algorithms.embedding import EMBEDDING, Embed, Embedding
from colonnade.core import Batches, Outbox
from colonnade.core.answers import Answers
from colonnade.errors import PartyError

BATCH = "train/0/0"


def batches() -> Batches:
    return Batches({"train": torch.arange(10)}, batch_size=4, epochs=2, seed=0)


def reply(values: Tensor, batch: str = BATCH, name: str = "embedding") -> Embedding:
    return Embedding(Outbox("lab", Generator()).release(values, name, batch))


@pytest.fixture
def answers() -> Answers:
    per_row = Release(Kind.LOGITS, of="columns", per_row=True)
    releases = {
        "embedding": EMBEDDING,
        "log_odds": per_row,
        "distances": per_row,
        "jacobian": Release(Kind.EMBEDDING, of="columns", per_row=False),
        "key": KEY,
    }
    return Answers(
        batches().rows, {"lab": 3}, releases=releases, wide={"embedding", "log_odds"}
    )


@pytest.fixture
def rows() -> int:
    return len(batches().rows(BATCH))


def test_what_fits_is_taken(answers: Answers, rows: int) -> None:
    answers.check("lab", Embed(BATCH), reply(torch.randn(rows, 3)))
    answers.check("lab", Embed(BATCH), reply(torch.zeros(rows, 3, dtype=torch.int64)))
    # has another shape by nature
    answers.check("lab", Embed(BATCH), reply(torch.randn(2, 9), name="jacobian"))
    # as wide as there are rows
    answers.check("lab", Embed(BATCH), reply(torch.randn(rows, 77), name="distances"))


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        (
            lambda rows: reply(torch.randn(rows, 3), "train/0/1"),
            r"it answered for batch train/0/1",
        ),
        (
            lambda rows: reply(torch.randn(rows - 1, 3)),
            r"it sent \[\d+, 3\] values, and \[\d+, 3\] were asked for",
        ),
        (lambda rows: reply(torch.randn(rows, 4)), r"it sent \[\d+, 4\] values"),
        (
            lambda rows: reply(torch.randn(9, 9), name="log_odds"),
            r"it sent \[9, 9\] values, .* asked for as log_odds",
        ),
        (
            lambda rows: reply(torch.randn(9, 9), name="distances"),
            r"it sent \[9, 9\] values, and \[4, \.\.\.\] were",
        ),
        (
            lambda rows: reply(torch.randn(9, 9), name="slope"),
            r"it sent \[9, 9\] values in embedding.Embedding.values as",
        ),
        (
            lambda rows: reply(torch.randn(9, 9), name="key"),
            r"as 'key', and only what .* as 'embedding' or 'log_odds' or",
        ),
        (lambda rows: reply(torch.randn(rows)), r"it sent \[\d+\] values"),
        (
            lambda rows: reply(torch.full((rows, 3), float("nan"))),
            r"(\d+) of the \1 values it sent as embedding",
        ),
        (
            lambda rows: reply(torch.eye(rows, 3) / 0),
            r"are no numbers \(NaN or infinite\)",
        ),
        (
            lambda rows: reply(torch.full((2, 9), torch.inf), name="jacobian"),
            r"sent as jacobian are no numbers",
        ),
    ],
)
def test_what_does_not_fit_names_party_request_and_batch(
    answers: Answers, rows: int, made: object, cause: str
) -> None:
    with pytest.raises(PartyError, match=cause) as caught:
        answers.check("lab", Embed(BATCH), made(rows))  # type: ignore[operator]
    assert (caught.value.party, caught.value.request, caught.value.batch) == (
        "lab",
        "embedding.Embed",
        BATCH,
    )
