"""Every error a user can meet, and the exit code the command line gives it.

    ColonnadeError                    1
    ├── InputError                    2   something the user wrote or supplied is wrong
    │   ├── ConfigError               2   a setting: in a TOML file, on the command line, or in a Config
    │   │   └── Diverged              2   with these settings the loss is no number any more
    │   └── DataError                 2   a table, a column, an id, a label
    ├── BoundaryError                 1   code tried to let something leave a party that may not
    ├── WireError                     3   bytes that are not a message of ours
    ├── CheckpointError               2   a saved state that cannot be used
    ├── StoreError                    2   what an organisation remembers is missing, damaged, or an older copy
    ├── PartyError                    3   a party failed while answering
    │   └── NoAnswer                  3   nothing came back: it may be asked again, or done without
    ├── BudgetExhausted               4   a party will not release any more
    ├── AuditFailed                   5   an attack did better than the owner's threshold allows
    └── NotAsSigned                   7   what was signed has changed, or somebody else signed it

A message gives the rule, the value found, whose it is, and the cure.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

__all__ = [
    "AuditFailed",
    "BoundaryError",
    "BudgetExhausted",
    "CheckpointError",
    "ColonnadeError",
    "ConfigError",
    "DataError",
    "Diverged",
    "InputError",
    "NoAnswer",
    "NotAsSigned",
    "PartyError",
    "StoreError",
    "WireError",
]


class ColonnadeError(Exception):
    """The root: `except ColonnadeError` catches all that this package raises on
    purpose."""

    exit_code = 1


class InputError(ColonnadeError):
    """Something the user wrote or supplied is wrong; nothing was sent."""

    exit_code = 2


class ConfigError(InputError):
    """A setting breaks its rule."""


class Diverged(ConfigError):  # noqa: N818 - the name of the condition
    """Training with these settings does not converge."""


class DataError(InputError):
    """A table, column, id or label cannot be used."""


class BoundaryError(ColonnadeError):
    """Code tried to move something across a party's boundary that may not cross it."""


class WireError(ColonnadeError):
    """Bytes that arrived are not a message of ours: malformed, truncated, oversized or
    unknown."""

    exit_code = 3


class CheckpointError(ColonnadeError):
    """A saved state is missing, damaged, or belongs to another run."""

    exit_code = 2


class StoreError(ColonnadeError):
    """What an organisation remembers cannot be used, or cannot be trusted: it is
    missing, damaged, an older copy, or in use in a way that could lose counts."""

    exit_code = 2


class PartyError(ColonnadeError):
    """A party failed while answering; says which party, which request, at which batch.

    `private`: the cause is another exception's own text, which may quote data;
    `core.failure` takes it out before it crosses.
    """

    exit_code = 3

    def __init__(
        self,
        party: str,
        request: str,
        batch: str | None,
        cause: str,
        *,
        private: bool = False,
    ) -> None:
        self.party = party
        self.request = request
        self.batch = batch
        self.cause = cause
        self.private = private
        at = f" at batch {batch}" if batch else ""
        super().__init__(f"'{party}' failed while answering {request}{at}: {cause}")


class NoAnswer(PartyError):  # noqa: N818 - the name of the condition
    """No answer came, in time or at all: nobody knows whether the party did what it was
    asked. The same call may be made again, since a party carries it out once however
    often it arrives."""


class BudgetExhausted(ColonnadeError):  # noqa: N818 - the name of the condition, as in the design
    """A party refuses a release that would exceed its owner's privacy budget."""

    exit_code = 4


class AuditFailed(ColonnadeError):  # noqa: N818 - the name of the condition
    """An attack scored above a threshold in [audit], or one is set and something that
    can be read was not attacked, or attacked on too few rows to say."""

    exit_code = 5


class NotAsSigned(ColonnadeError):  # noqa: N818 - the name of the condition
    """A signature does not hold: the statement, or a file that it covers, is not as it
    was signed, or the key is not the one that it should be."""

    exit_code = 7


LONGEST = 4_096
"""Characters that are shown of a text from elsewhere."""


def printable(text: str) -> str:
    """Text from elsewhere that is safe to show: without signs that a terminal would
    obey, and not too long."""
    return "".join(
        sign if sign.isprintable() or sign == "\n" else "\ufffd"
        for sign in text[:LONGEST]
    )


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The words " (did you mean 'epochs'?)" where something known is near, else nothing."""
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_named(what: str, name: str, known: Sequence[str]) -> None:
    """Raise unless something of this kind is known by that name."""
    if name not in known:
        raise ConfigError(
            f"There is no {what} {name!r}{did_you_mean(name, known)}; there are"
            f" {', '.join(known)}."
        )
