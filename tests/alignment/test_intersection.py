"""The common rows, by brute force; one order for all; who can tell what from what
reached it."""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.alignment.parties import NAMES, Held, meeting

from colonnade.alignment import AlignmentSettings, Ids, curve, id_owner
from colonnade.alignment.id_owner import HIDDEN, Learn, Tell, Trace
from colonnade.alignment.intersection import common_positions
from colonnade.core import Envelope, wire
from colonnade.errors import ConfigError

THREE: Held = {
    "clinic": ["ada", "bob", "cyd", "dan", "eve"],
    "lab": ["fay", "eve", "ada", "bob"],
    "bank": ["bob", "gus", "cyd", "eve", "ada", "hal"],
}
COUNT = AlignmentSettings(reveal="count")


def sets(most: int) -> st.SearchStrategy[dict[str, list[int]]]:
    held = st.lists(st.integers(0, 11), min_size=1, max_size=8, unique=True)
    return st.lists(held, min_size=2, max_size=most).map(
        lambda lists: dict(zip(NAMES, lists, strict=False))
    )


@settings(max_examples=25)
@given(sets(5))
def test_it_is_the_intersection_in_one_order(ids: dict[str, list[int]]) -> None:
    there = meeting(ids)
    found = there.align(chunk=3)
    common = reduce(set.intersection, map(set, ids.values()))
    assert found.common == len(common)
    assert found.sizes == {name: len(held) for name, held in ids.items()}
    for name in ids:
        assert set(there.common(name)) == common
        assert there.common(name) == there.common("clinic")
        assert there.parties[name].common == len(common)


@settings(max_examples=10)
@given(sets(4))
def test_the_count_is_its_size(ids: dict[str, list[int]]) -> None:
    there = meeting(ids, COUNT)
    common = len(reduce(set.intersection, map(set, ids.values())))
    assert there.align(chunk=3).common == common
    assert {party.common for party in there.parties.values()} == {common}
    assert all(party.common_rows is None for party in there.parties.values())


def same_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count(12345)
    monkeypatch.setattr(
        curve, "fresh_secret", lambda: (next(numbers) ** 7).to_bytes(32, "big")
    )


@pytest.mark.parametrize("through_bytes", [False, True])
def test_the_order_is_that_of_the_secrets_not_of_the_tables(
    through_bytes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in another order, and real frames between the parties: the same ids in the
    same places."""
    with monkeypatch.context() as patched:
        same_secrets(patched)
        there = meeting(THREE)
        there.align()
    same_secrets(monkeypatch)
    again = meeting(
        {name: [*reversed(held)] for name, held in THREE.items()},
        through_bytes=through_bytes,
    )
    again.align(chunk=2)
    assert there.common("lab") == again.common("lab") == again.common("bank")
    assert set(there.common("lab")) == {"ada", "bob", "eve"}


def test_the_order_is_new_every_time() -> None:
    orders = set()
    for _ in range(12):
        there = meeting(THREE)
        there.align()
        orders.add(tuple(there.common("clinic")))
    assert len(orders) > 1


def test_nothing_in_common() -> None:
    there = meeting({"clinic": ["a", "b"], "lab": ["c"]})
    assert there.align().common == 0
    assert (there.common("clinic"), there.common("lab")) == ([], [])


def test_forms_of_one_name_match_when_normalised() -> None:
    ids = {
        "clinic": ["Zoë", "Max"],
        "lab": ["MAX ", unicodedata.normalize("NFD", "zoë")],
    }
    assert meeting(ids).align().common == 0
    there = meeting(ids, AlignmentSettings(ids="normalised"))
    assert there.align().common == 2
    assert [a.casefold()[0] for a in there.common("clinic")] == [
        b.casefold()[0] for b in there.common("lab")
    ]


@pytest.mark.parametrize("learners", [("clinic",), ("lab",), ("bank", "lab")])
def test_only_learners_learn_rows(learners: tuple[str, ...]) -> None:
    there = meeting(THREE, AlignmentSettings(learners=learners))
    found = there.align()
    assert {
        name for name, party in there.parties.items() if party.common_rows is not None
    } == set(learners)
    assert all(there.common(name) == there.common(learners[0]) for name in learners)
    assert {
        name for name, told in found.learned().items() if "which of its rows" in told
    } == set(learners)
    learnt = [
        seen
        for name in NAMES[:3]
        for seen in there.recording.of(name)
        if isinstance(seen.message, Learn)
    ]
    assert len(learnt) == len(set(learners) - {"clinic"})


@pytest.mark.parametrize("reveal", ["rows", "count"])
def test_no_id_reaches_another_party(reveal: Any) -> None:
    """Neither as text, nor as its digest, nor as the point that anybody could compute:
    only under a secret."""
    ids = {
        name: [f"{one}-of-the-family" for one in held] for name, held in THREE.items()
    }
    there = meeting(ids, AlignmentSettings(reveal=reveal), through_bytes=True)
    there.align(chunk=2)
    frames = {
        name: b"".join(
            wire.encode(Envelope("x", 0, seen.message))
            for seen in there.recording.of(name)
        )
        for name in ids
    }
    assert all(len(received) > 1000 for received in frames.values())
    for held in ids.values():
        for one in held:
            digests = Ids.of("x", [[one]]).digests
            hashed = curve.blind(digests, (1).to_bytes(32, "big"))  # H(id) itself
            for spelling in (one.encode(), digests.tobytes(), hashed.tobytes()[1:]):
                assert not any(spelling in received for received in frames.values())
    for name in ids:
        for seen in there.recording.of(name):
            for released in seen.message.released():
                kind = released.receipt.name
                assert kind in ("blinded_ids", "raised_points", "positions")
                assert (released.receipt.event == HIDDEN) == (kind != "positions")


def test_a_count_never_asks_where() -> None:
    there = meeting(THREE, COUNT)
    there.align()
    kinds = Counter(
        type(seen.message) for name in THREE for seen in there.recording.of(name)
    )
    assert kinds[Trace] == kinds[Learn] == 0
    assert kinds[Tell] == 2


def test_the_driver_cannot_tell_its_ids_apart_in_what_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its secret it can point at the common one in its own list as it came back;
    where that lies must not depend on where it put it: the distance is uniform, to 6
    standard deviations."""
    secrets: list[bytes] = []
    shuffles: list[NDArray[np.int64]] = []
    fresh = curve.fresh_secret
    shuffle = id_owner.shuffled

    def kept_secret() -> bytes:
        secrets.append(fresh())
        return secrets[-1]

    def kept_shuffle(count: int) -> NDArray[np.int64]:
        shuffles.append(shuffle(count))
        return shuffles[-1]

    monkeypatch.setattr(curve, "fresh_secret", kept_secret)
    monkeypatch.setattr(id_owner, "shuffled", kept_shuffle)
    distances: Counter[int] = Counter()
    runs = 160
    for _ in range(runs):
        secrets.clear()
        shuffles.clear()
        there = meeting({"clinic": ["a", "b", "c", "d"], "lab": ["b"]}, COUNT)
        there.align()
        received = there.recording.of("clinic")
        (back,), (theirs,) = (
            received.tensors("raised_points"),
            received.tensors("blinded_ids"),
        )
        common = curve.multiply(theirs.numpy(), secrets[0])[0].tolist()
        sent = shuffles[0].tolist().index(1)
        came = back.tolist().index(common)
        distances[(came - sent) % 4] += 1
    deviation = (runs * 0.25 * 0.75) ** 0.5
    assert all(abs(distances[d] - runs / 4) < 6 * deviation for d in range(4)), (
        distances
    )


def test_what_each_learns_is_said() -> None:
    two = meeting(
        {"clinic": ["a"], "lab": ["a", "b"]},
        AlignmentSettings(reveal="count", learners=("clinic",)),
    )
    assert two.align().learned() == {
        "clinic": "the others' numbers of ids; how many rows are common",
        "lab": "the others' numbers of ids; not how many rows are common",
    }
    assert (
        "how many ids any group of parties shares, not which"
        in meeting(THREE).align().learned()["clinic"]
    )


def test_the_watch_sees_every_multiplication() -> None:
    seen: list[tuple[int, int]] = []
    meeting(THREE).align(watch=lambda done, total: seen.append((done, total)), chunk=2)
    assert {total for _, total in seen} == {15 * 3}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == 15 * 3


def test_ledgers_are_what_the_transcripts_counted() -> None:
    there = meeting(THREE)
    there.align(chunk=2)
    for name, party in there.parties.items():
        assert party.ledger.total("in") == there.recording.of(name).total() > 0
    out = sum(party.ledger.total("out") for party in there.parties.values())
    assert out == sum(party.ledger.total("in") for party in there.parties.values())


def test_parties_have_names_of_their_own() -> None:
    alone = meeting({"clinic": ["a"]})
    with pytest.raises(
        ConfigError, match="two or more parties with names of their own; found"
    ):
        alone.align()


def test_ids_of_different_columns_are_refused() -> None:
    there = meeting({"clinic": ["a"], "lab": ["a"]})
    there.parties["lab"].ids = Ids.of("lab", [["a"], ["b"]])
    with pytest.raises(
        ConfigError, match="'lab' makes its ids of 2 columns and 'clinic' of 1"
    ):
        there.align()
    assert there.recording.of("lab").total() == 0


def test_common_positions_are_sorted_by_point_and_count_all_bytes() -> None:
    """Points that end in zero bytes are told apart from shorter ones."""
    points = [
        bytes([2, *tail]) + bytes(33 - 1 - len(tail))
        for tail in ([7], [7, 1], [3], [0, 1])
    ]
    lists = {
        "a": points,
        "b": [points[2], points[0]],
        "c": [points[0], points[3], points[2]],
    }
    arrays = {
        name: np.frombuffer(b"".join(held), np.uint8).reshape(-1, 33)
        for name, held in lists.items()
    }
    found = common_positions(arrays)
    for name, held in lists.items():
        assert [held[at] for at in found[name].tolist()] == [points[2], points[0]]
