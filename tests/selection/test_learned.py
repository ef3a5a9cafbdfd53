"""What is said to be learned fits the settings and what crossed."""

from __future__ import annotations

from typing import Any

import pytest

from colonnade.selection import REVEALS, SelectionSettings
from colonnade.selection.learned import by_information


def told(leader: str = "leader", **settings: Any) -> dict[str, str]:
    return by_information(
        SelectionSettings(**settings), leader=leader, server="adder", keys="keys", participants=["ada", "bob"]
    )


def test_everybody_is_told_of() -> None:
    assert set(told()) == {"leader", "adder", "keys", "ada", "bob"}
    assert set(told(decryptor="participants")) == {"leader", "adder", "ada", "bob"}
    assert "mutual information" in told(leader="ada")["ada"]


@pytest.mark.parametrize(
    ("settings", "who", "says"),
    [
        ({}, "adder", "nearest pseudo ids of each query"),
        ({}, "keys", "of rows without any name"),
        ({"decryptor": "participants"}, "ada", "it may compute another participant's"),
        ({"scheme": "plain"}, "adder", "Nothing was encrypted"),
    ],
)
def test_settings_change_what_is_said(settings: dict[str, Any], who: str, says: str) -> None:
    assert says in told(**settings)[who]


def test_without_fagin_no_rankings_cross() -> None:
    assert "each participant's nearest" not in told(fagin=False)["adder"]


def test_every_release_has_words() -> None:
    assert all(REVEALS.values())
