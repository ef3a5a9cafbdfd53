"""What is said to be learned fits the settings and what crossed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from colonnade.core import Batches, Organisation
from colonnade.selection import REVEALS, SelectionSettings
from colonnade.selection.leader import Leader
from colonnade.selection.result import by_information, solvable
from colonnade.settings.selection import KEYS, SERVER


def told(leader: str = "leader", **settings: Any) -> dict[str, str]:
    nothing = Batches({}, batch_size=1, epochs=1, seed=0)
    chosen = SelectionSettings(queries=4, **settings)
    led = Leader(Organisation.at(leader, nothing, seed=0), np.arange(20) % 2, chosen)
    led.participants = ("ada", "bob", "cyd")
    led.tested = [("ada", "bob"), ("bob", "cyd"), ("cyd",)]
    return by_information(led)


def test_everybody_is_told_of() -> None:
    assert set(told()) == {"leader", SERVER, KEYS, "ada", "bob", "cyd"}
    for decryptor in ("participants", "leader"):
        assert set(told(decryptor=decryptor)) == {"leader", SERVER, "ada", "bob", "cyd"}
    assert "mutual information" in told(leader="ada")["ada"]


@pytest.mark.parametrize(
    ("settings", "who", "says"),
    [
        ({}, SERVER, "nearest pseudo ids of each query"),
        ({}, KEYS, "of rows without any name"),
        ({}, KEYS, "no single participant's distances follow"),
        ({}, "cyd", "how common the labels are"),
        ({"decryptor": "participants"}, "ada", "the distances of bob, cyd alone"),
        ({"decryptor": "leader"}, "leader", "rebuilt but for a rotation"),
        ({"decryptor": "leader"}, SERVER, "never a distance, an order"),
        ({"scheme": "plain"}, SERVER, "Nothing was encrypted"),
    ],
)
def test_settings_change_what_is_said(
    settings: dict[str, Any], who: str, says: str
) -> None:
    assert says in told(**settings)[who]


def test_without_fagin_no_rankings_cross() -> None:
    assert "each participant's nearest" not in told(fagin=False)[SERVER]


def test_who_decrypts_can_solve_for_whom() -> None:
    """Against trying to rebuild random distances from their sums by least squares."""
    names = ["a", "b", "c", "d", "e"]
    random = np.random.default_rng(0)
    every = [
        group for size in range(2, 6) for group in itertools.combinations(names, size)
    ]
    seen = set()
    for _ in range(60):
        groups = [
            every[at]
            for at in random.choice(len(every), random.integers(1, 7), replace=False)
        ]
        known = names[: random.integers(0, 2)]
        member = np.array([[name in group for name in names] for group in groups])
        member = np.concatenate(
            [member, *(np.eye(5)[[names.index(name)]] for name in known)]
        )
        truth = random.normal(size=(5, 40))
        found = np.linalg.lstsq(member.astype(float), member @ truth, rcond=None)[0]
        exact = [
            n
            for n, a, b in zip(names, found, truth, strict=True)
            if n not in known and np.allclose(a, b)
        ]
        assert sorted(solvable(groups, known)) == exact
        seen.add(len(exact))
    assert {0, 5} <= seen


def test_every_release_has_words() -> None:
    assert all(REVEALS.values())
