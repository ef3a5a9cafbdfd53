"""What each party learned about the others is told from its ledger: who, what, how often, how much, how protected."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.federation.small import entries, federation, quick, splitnn

from colonnade.algorithms import ALGORITHMS
from colonnade.federation.learned import Learned, learned


def by_key(lines: list[Learned]) -> dict[tuple[str, str, str], Learned]:
    return {(line.party, line.about, line.name): line for line in lines}


def test_every_kind_of_tensor_that_arrived_has_one_line() -> None:
    one = federation()
    list(one.train())
    found = by_key(learned(one))
    assert set(found) == {("clinic", "lab", "embedding"), ("lab", "clinic", "residual"), ("lab", "clinic", "head")}
    embedding = found["clinic", "lab", "embedding"]
    assert (embedding.times, embedding.values, embedding.bytes) == (8, 2 * 56 * 4, 2 * 56 * 4 * 4)
    assert found["lab", "clinic", "head"].times == 9  # the first one, and one per batch
    assert {line.guarantee for line in found.values()} == {"non-private"}
    for (_, _, name), line in found.items():
        assert line.meaning == ALGORITHMS["vimadmm"].reveals[name]


def test_bytes_are_those_that_the_ledgers_count() -> None:
    one = federation(settings=splitnn())
    list(one.train())
    lines = learned(one)
    for party, book in one.ledgers.items():
        assert sum(line.bytes for line in lines if line.party == party) == book.total("in")


def test_a_run_on_disk_is_told_in_full(tmp_path: Path) -> None:
    one = federation(settings=quick())
    one.fit(tmp_path / "run")  # its ledgers are on disk now
    assert learned(one) == []
    found = learned(one, tmp_path / "run")
    arrived = [entry for entry in entries(tmp_path / "run") if entry["direction"] == "in"]
    assert sum(line.times for line in found) == len(arrived) > 0
    one.predict(["P001"])  # not yet on disk, and counted too
    assert sum(line.times for line in learned(one, tmp_path / "run")) == len(arrived) + 1


def test_a_party_alone_learns_nothing_from_others() -> None:
    from tests.federation.small import frames

    one = federation({"clinic": frames()["clinic"]})
    list(one.train())
    assert learned(one) == []


def test_a_release_without_words_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    one = federation()
    list(one.train())
    monkeypatch.setattr(one, "algorithm", dataclasses.replace(one.algorithm, releases={}))
    assert {line.meaning for line in learned(one)} == {"not described"}
