"""The exception tree is what its docstring draws, and each error says what it must."""

from __future__ import annotations

import inspect
import re

import pytest

from colonnade import errors
from colonnade.errors import (
    BudgetExhausted,
    ColonnadeError,
    ConfigError,
    InputError,
    PartyError,
)


def classes() -> dict[str, type[ColonnadeError]]:
    every = inspect.getmembers(errors, inspect.isclass)
    return {name: cls for name, cls in every if issubclass(cls, ColonnadeError)}


def test_the_docstring_draws_every_error_with_its_exit_code() -> None:
    drawn = dict(re.findall(r"(\w+) {2,}(\d)", errors.__doc__ or ""))
    assert {name: cls.exit_code for name, cls in classes().items()} == {
        name: int(code) for name, code in drawn.items()
    }


def test_all_names_every_error_and_nothing_else() -> None:
    assert set(errors.__all__) == set(classes())


def test_an_exit_code_is_never_success() -> None:
    assert all(cls.exit_code > 0 for cls in classes().values())


def test_settings_are_input() -> None:
    assert issubclass(ConfigError, InputError)
    assert not issubclass(BudgetExhausted, InputError)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (
            "train/3/17",
            (
                "'bank' failed while answering splitnn.Embed at batch train/3/17:"
                " ValueError: no"
            ),
        ),
        (None, "'bank' failed while answering splitnn.Embed: ValueError: no"),
    ],
)
def test_a_party_error_says_who_what_when_and_why(batch: str | None, text: str) -> None:
    error = PartyError("bank", "splitnn.Embed", batch, "ValueError: no")
    assert str(error) == text
    assert (error.party, error.request, error.batch, error.cause) == (
        "bank",
        "splitnn.Embed",
        batch,
        "ValueError: no",
    )
