"""What crosses of a failure: enough for the asker to go on, and none of the text that
may quote data."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from colonnade.core import (
    Batches,
    Done,
    Envelope,
    Organisation,
    Party,
    Request,
    serves,
    wire,
)
from colonnade.core.failure import Failure, failure_of, raised, redacted
from colonnade.errors import (
    BoundaryError,
    BudgetExhausted,
    ColonnadeError,
    DataError,
    PartyError,
    WireError,
)

SECRET = "4711.0815-canary"


class Break(Request[Done]):
    batch: str
    how: str


class Breaking(Party):
    @serves
    def fail(self, request: Break) -> Done:
        self.expect(request.how != "refuse", "a gradient came for another batch")
        raise {
            "value": ValueError(SECRET),
            "data": DataError(f"'bank' has {SECRET}"),
            "out": BudgetExhausted("spent"),
        }[request.how]


def crossed(how: str) -> tuple[Failure, ColonnadeError]:
    """What a failure looks like once it went through a frame, and what the asker
    raises."""
    party = Breaking(
        Organisation.at(
            "bank", Batches({"train": torch.arange(4)}, batch_size=2, epochs=1, seed=0)
        )
    )
    envelope: Envelope[Any] = Envelope("shop", 1, Break("train/0/1", how))
    with pytest.raises(ColonnadeError) as caught:
        party.handle(envelope)
    frame = wire.encode(
        Envelope("bank", 1, failure_of(caught.value, "bank", envelope.message))
    )
    assert SECRET.encode() not in frame
    failure = wire.decode(frame).message
    assert isinstance(failure, Failure)
    return failure, raised(failure)


@pytest.mark.parametrize(
    ("how", "kind"), [("value", "ValueError"), ("data", "DataError")]
)
def test_an_exception_s_text_stays_and_its_reference_stands_in_the_log(
    how: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    failure, error = crossed(how)
    assert isinstance(error, PartyError)
    assert (error.party, error.request, error.batch) == (
        "bank",
        "test_failure.Break",
        "train/0/1",
    )
    assert kind in error.cause
    reference = failure.cause.rpartition(" ")[2]
    (record,) = [
        record for record in caplog.records if reference in record.getMessage()
    ]
    assert (record.name, record.levelname) == ("colonnade.party", "ERROR")
    assert "test_failure.py" in record.getMessage()
    assert SECRET not in caplog.text


def test_a_refusal_was_written_for_the_asker_and_crosses() -> None:
    _, error = crossed("refuse")
    assert "a gradient came for another batch" in str(error)
    assert isinstance(error, PartyError)


def test_a_spent_budget_is_still_one_at_the_asker() -> None:
    assert str(crossed("out")[1]) == "spent"
    assert isinstance(crossed("out")[1], BudgetExhausted)


@pytest.mark.parametrize("kind", [BoundaryError, WireError])
def test_errors_about_the_call_keep_their_type_and_text(
    kind: type[ColonnadeError],
) -> None:
    error = raised(failure_of(kind("not over here"), "bank", None))
    assert (type(error), str(error)) == (kind, "not over here")


def test_what_nobody_foresaw_is_redacted_too() -> None:
    # somebody's own, and not written for the asker
    alike = type("WireError", (Exception,), {})(SECRET)
    assert SECRET not in failure_of(alike, "bank", None).cause
    error = raised(failure_of(KeyError(SECRET), "bank", None))
    assert str(error).startswith(
        "'bank' failed while answering a frame: KeyError; the log of 'bank' has it"
        " under"
    )


def test_a_failure_of_a_party_behind_the_party_keeps_its_name_and_is_redacted_once() -> (
    None
):
    inner = PartyError("clinic", "x.Y", None, f"ValueError: {SECRET}", private=True)
    once = redacted(inner)
    assert SECRET not in str(once)
    assert once.party == "clinic"
    assert redacted(once) is once


def test_a_failure_from_outside_cannot_name_another_exception() -> None:
    error = raised(Failure("SystemExit", "bank", "x.Y", None, "now"))
    assert type(error) is PartyError


def test_a_text_from_elsewhere_does_nothing_to_a_terminal() -> None:
    """A cause is written by whoever failed, and ends in the asker's log and on its
    screen."""
    sent = "\x1b[2Jall is well\r\x07\x9b\ud800\nsecond" + "x" * 10_000
    for name in ("PartyError", "BoundaryError", "WireError"):
        frame = wire.encode(
            Envelope("bank", 1, Failure(name, f"bank{sent}", sent, sent, sent))
        )
        failure = wire.decode(frame).message
        assert isinstance(failure, Failure)
        told = str(raised(failure))
        assert "all is well" in told
        assert all(sign.isprintable() or sign == "\n" for sign in told)
        assert len(told) < 20_000
