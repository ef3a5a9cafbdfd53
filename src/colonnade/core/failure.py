"""A failure as it may cross: what the asker needs to go on, and no text that could
quote the party's data.

    party:   failure_of(error, party, request)   a message, for `wire.encode`; what it leaves out is in the party's log
    asker:   raised(failure)                      the error that an asker in the same process would have got

The text of a refusal was written for the asker and crosses. Any other exception may
quote a value, an id or a path; of it only the type crosses, with a reference. The
party's own log has the reference and the lines of code it came through, and no text
either: a log is read by more people than a table.
"""

from __future__ import annotations

import logging
import secrets
import traceback

from colonnade.core.message import Message, batch_of
from colonnade.errors import (
    BoundaryError,
    BudgetExhausted,
    ColonnadeError,
    PartyError,
    WireError,
    printable,
)

log = logging.getLogger("colonnade.party")

FOR_THE_ASKER: tuple[type[ColonnadeError], ...] = (
    BoundaryError,
    BudgetExhausted,
    WireError,
)
"""Errors about the call itself, whose text says nothing about data."""


class Failure(Message):
    """What is sent where there is no answer."""

    error: str  # the name of one of ours
    party: str
    request: str
    batch: str | None
    cause: str


def failure_of(error: BaseException, party: str, request: Message | None) -> Failure:
    """What a party sends instead of an answer. `request` is None where not even that
    could be read."""
    kind = "a frame" if request is None else request.kind
    batch = None if request is None else batch_of(request)
    if type(error) in FOR_THE_ASKER:
        return Failure(type(error).__name__, party, kind, batch, str(error))
    if isinstance(error, PartyError):
        safe = redacted(error)
        return Failure("PartyError", safe.party, safe.request, safe.batch, safe.cause)
    return Failure(
        "PartyError", party, kind, batch, _referred(error, party, kind, batch)
    )


def raised(failure: Failure) -> ColonnadeError:
    """The error behind a failure that arrived, to be raised at the asker, whose log and
    terminal will have its text."""
    party, request, cause = (
        printable(text) for text in (failure.party, failure.request, failure.cause)
    )
    for kind in FOR_THE_ASKER:
        if kind.__name__ == failure.error:
            return kind(cause)
    return PartyError(
        party,
        request,
        None if failure.batch is None else printable(failure.batch),
        cause,
    )


def redacted(error: PartyError) -> PartyError:
    """The same failure without the text of the exception behind it."""
    if not error.private:
        return error
    cause = _referred(error.__cause__ or error, error.party, error.request, error.batch)
    return PartyError(error.party, error.request, error.batch, cause)


def _referred(error: BaseException, party: str, request: str, batch: str | None) -> str:
    """An exception's type and a reference, under which the party's own log says where
    it came from."""
    reference = secrets.token_hex(4)
    frames = reversed(traceback.extract_tb(error.__traceback__))
    kind = type(error).__name__
    places = " < ".join(
        f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames
    )
    log.error(
        "%s: reference %s: %s at %s at batch %.80r: %s",
        party,
        reference,
        kind,
        request,
        batch,
        places,
    )
    return f"{kind}; the log of '{party}' has it under reference {reference}"
