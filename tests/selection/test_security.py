"""The paper's three security requirements (Section 3.1), on all that reached each
party, as bytes."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.selection.made import Features, classes

from colonnade.core import Ciphertext, Envelope, Released, Request, wire
from colonnade.core.batches import seed_for
from colonnade.core.message import Message
from colonnade.encryption import make_keys
from colonnade.errors import BoundaryError
from colonnade.selection import REVEALS, Selection, SelectionSettings, select_here
from colonnade.selection.aggregation import AggregationServer, Rank, Scan
from colonnade.selection.in_process import Meeting
from colonnade.selection.neighbours import Columns, shuffled, standardised
from colonnade.selection.participant import (
    Distances,
    Join,
    Participant,
    Prepare,
    RankRows,
)
from colonnade.selection.sorting import Further

ROWS = 60
SERVER = "aggregation_server"
KEYS = "key_server"


def held() -> tuple[Features, NDArray[np.int64]]:
    return classes(ROWS)


@functools.cache
def run(scheme: str = "ckks", fagin: bool = True) -> Selection:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return select_here(
            *held(),
            keep=2,
            record=True,
            through_bytes=True,
            scheme=scheme,
            fagin=fagin,
            queries=30,
        )


def received(found: Selection, party: str) -> list[Message]:
    assert found.recording is not None
    return [seen.message for seen in found.recording.of(party) if seen.sender != party]


def frames(found: Selection, party: str) -> bytes:
    return b"".join(
        wire.encode(Envelope("x", 0, message)) for message in received(found, party)
    )


def secrets_of(name: str) -> NDArray[np.float64]:
    """A participant's cells and partial distances, before and after scaling; zeros and
    the like left out."""
    features, labels = held()
    ready = standardised(features[name])
    columns = Columns(ready[shuffled(len(labels), seed_for(0, "shuffle"))])
    partial = columns.distances(
        np.arange(len(labels)), None, np.full(len(labels), len(labels) - 1, np.int32)
    )
    unit = (
        2.0**16
        / 4
        / max(Columns(standardised(part)).reach() for part in features.values())
    )
    numbers = np.concatenate(
        [
            features[name].ravel(),
            ready.ravel(),
            partial,
            partial * 2.0 ** np.floor(np.log2(unit)),
        ]
    )
    found: NDArray[np.float64] = numbers[np.abs(numbers) > 1e-6]
    return found


def leaks(found: Selection, owner: str, party: str) -> int:
    """How many of the owner's numbers are in what reached a party, at any byte."""
    seen = frames(found, party)
    secrets = secrets_of(owner)
    count = 0
    for start in range(8):
        size = (len(seen) - start) // 8 * 8
        count += int(
            np.isin(
                np.frombuffer(seen[start : start + size], "<u8"), secrets.view("<u8")
            ).sum()
        )
    return count


@pytest.mark.parametrize("fagin", [True, False])
def test_feature_security_no_cell_and_no_partial_distance_reaches_anybody(
    fagin: bool,
) -> None:
    found = run("ckks", fagin)
    for party in (*held()[0], "leader", SERVER, KEYS):
        for owner in held()[0]:
            if owner != party:
                assert leaks(found, owner, party) == 0, (owner, party)


def test_without_encryption_the_search_finds_distances() -> None:
    """Else it could not fail."""
    assert leaks(run("plain"), "ada", SERVER) > 50


def test_only_ciphertexts_and_whole_numbers_cross_but_for_the_reach() -> None:
    found = run()
    for party in (*held()[0], "leader", SERVER, KEYS):
        for message in received(found, party):
            for item in message.crossing():
                name = item.receipt.name
                assert name in REVEALS or name == "public_key"
                if isinstance(item, Released) and name != "public_key":
                    assert item.tensor.dtype == (
                        torch.float32 if name == "reach" else torch.int32
                    )
                    assert name != "reach" or item.tensor.numel() == 1
                if isinstance(item, Ciphertext):
                    assert (item.encrypted.scheme, item.receipt.event.kind) == (
                        "ckks",
                        "encrypted (ckks)",
                    )


def kinds(found: Selection, party: str) -> set[str]:
    return {type(message).__name__ for message in received(found, party)}


def test_aggregation_security_the_server_has_ciphertexts_ranks_and_no_key() -> None:
    found = run()
    names = {
        item.receipt.name
        for message in received(found, SERVER)
        for item in message.crossing()
    }
    assert names - {"unfinished"} == {
        "public_key",
        "queries",
        "stops",
        "ranking",
        "distances",
        "order",
    }
    assert not hasattr(AggregationServer, "sorter")


def test_the_key_server_sees_sums_and_no_ids() -> None:
    found = run()
    assert kinds(found, KEYS) <= {"AskPublicKey", "Sort", "Further"}
    for message in received(found, KEYS):
        for item in message.crossing():
            if isinstance(item, Ciphertext):
                assert item.encrypted.bound >= 2 * 2.0**16 / 4, (
                    "of two or more participants"
                )
            else:
                # how many candidates, or which of the queries go on
                assert item.shape in ((30,), (len(item.tensor),))


def test_the_leader_gets_ranks_and_only_as_many_as_it_needs() -> None:
    found = run()
    names = {
        item.receipt.name
        for message in received(found, "leader")
        for item in message.crossing()
    }
    assert names == {"public_key", "reach", "seen", "sorted_ids"}
    assert not any(
        isinstance(item, Ciphertext)
        for m in received(found, "leader")
        for item in m.crossing()
    )
    assert found.recording is not None
    told = max(
        tensor.shape[-1]
        for tensor in found.recording.of("leader").tensors("sorted_ids")
    )
    assert told < found.cost.candidates, "not the whole order"


def test_identity_security_servers_see_pseudo_ids_and_never_the_shuffle() -> None:
    found = run()
    seed = seed_for(0, "shuffle")
    features, labels = held()
    for party in (SERVER, KEYS):
        assert str(seed).encode() not in frames(found, party)
        assert "Join" not in kinds(found, party)
    for name in features:
        assert str(seed).encode() in frames(found, name)
    assert found.recording is not None
    (pages,) = (
        m for m in received(found, "ada") if isinstance(m, RankRows) and m.start == 0
    )
    ranking = next(
        t
        for t in found.recording.of(SERVER).tensors("ranking", "ada")
        if t.shape[0] == 30
    ).numpy()
    queries = pages.queries.tensor.numpy()
    order = shuffled(len(labels), seed)
    ready = standardised(features["ada"])

    def by_rows(names: Any) -> bool:
        """Whether the ranking fits the columns, if pseudo ids stand for these rows."""
        distance = ((ready[names[queries], None] - ready[names[ranking]]) ** 2).sum(-1)
        return bool((np.diff(distance, axis=1) >= -1e-12).all())

    assert by_rows(order)
    assert not by_rows(np.arange(len(labels)))


def test_labels_reach_nobody() -> None:
    """All that depends on them is where a scan stops, which queries need more places,
    and how many are asked for."""
    found = run()
    plain = {"seed", "unit", "rows", "page", "first", "start", "stop"}
    allowed = {"queries", "stops", "unfinished", "public_key"}
    assert found.recording is not None
    for party in (*held()[0], SERVER, KEYS):
        from_leader = [
            seen.message
            for seen in found.recording.of(party)
            if seen.sender == "leader"
        ]
        assert {
            item.receipt.name for message in from_leader for item in message.crossing()
        } <= allowed
        values = [
            (name, getattr(message, name))
            for message in from_leader
            for name in message.hints()
        ]
        assert {
            name for name, value in values if isinstance(value, (int, float))
        } <= plain


def test_participants_learn_queries_and_candidates_only() -> None:
    found = run()
    for name in held()[0]:
        names = {
            item.receipt.name
            for message in received(found, name)
            for item in message.crossing()
        }
        assert names - {"unfinished"} == {"public_key", "candidates", "queries"}
        assert kinds(found, name) <= {
            "Join",
            "Prepare",
            "RankRows",
            "Distances",
            "SortOwn",
            "FurtherOwn",
        }
    assert {Scan, Rank} <= set(AggregationServer.served())
    assert {Join, Distances} <= set(Participant.served())


def test_the_server_cannot_have_distances_encrypted_for_itself() -> None:
    """Keys and the shuffle come from the leader: whoever adds up could else hand out
    its own, and read."""
    features, labels = held()
    there = Meeting(features, labels, SelectionSettings(queries=5))
    own = make_keys("ckks", use="sums", limit=1.0).public.to_bytes()
    keys = {SERVER: there.server.outbox.publish(own, "public_key")}
    someone = next(iter(features))
    asked: list[Request[Any]] = [Prepare(keys, 1.0), Join(0)]
    for request in asked:
        with pytest.raises(BoundaryError, match="this is for leader to ask"):
            there.server.peers.ask_one(someone, request)
    with pytest.raises(BoundaryError, match="this is for aggregation_server to ask"):
        there.leader.peers.ask_one(
            KEYS, Further(0, there.leader._release(np.zeros(1, np.int64), "x"), 0, 1)
        )
