"""Ledgers sorted by batch: nothing is lost, and ciphertexts are recognised."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.planning.three import federation

from colonnade.planning.measure import TRAINING, Traffic, encrypted, take_traffic, total


def test_pieces_add_up_to_the_ledgers() -> None:
    built = federation()
    list(built.train())
    sums = {
        (name, way): book.total(way)
        for name, book in built.ledgers.items()
        for way in ("out", "in")
    }
    pieces = take_traffic(built.ledgers)
    assert total(pieces.values()) == Counter(sums)
    assert len([name for name in pieces if name and TRAINING.fullmatch(name)]) == 12
    assert take_traffic(built.ledgers) == {}  # each entry is taken once


def test_traffic_is_taken_so_many_times() -> None:
    one = Traffic({("lab", "out"): 3, ("lab", "in"): 5})
    assert one * 4 == Counter({("lab", "out"): 12, ("lab", "in"): 20})
    assert one * 0.5 == Counter({("lab", "out"): 2, ("lab", "in"): 2})
    assert one.by_party(["lab", "scan"]) == {
        "lab": {"out": 3, "in": 5},
        "scan": {"out": 0, "in": 0},
    }


@pytest.mark.parametrize(
    ("name", "found"),
    [("train/3/17", (None, "3", "17")), ("north:train/0/1", ("north", "0", "1"))],
)
def test_a_training_batch_is_known_by_its_name(
    name: str, found: tuple[str | None, str, str]
) -> None:
    match = TRAINING.fullmatch(name)
    assert match is not None
    assert match.groups() == found
    assert TRAINING.fullmatch("train[0:16]") is None


def test_ciphertexts_are_told_from_tensors() -> None:
    for mode, is_hidden in (("plain", False), ("encrypted", True)):
        built = federation(algorithm={"name": "knn", "aggregation": mode})
        built.evaluate("test")
        assert encrypted(built.ledgers) is is_hidden
