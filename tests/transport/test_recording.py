"""What each party received is kept beside the calls."""

from __future__ import annotations

import pytest
import torch
from tests.conformance.echo import Break, Multiply, Nest, Value, asker, echoes
from torch import Generator

from colonnade.core import Ledger, Outbox, Peers
from colonnade.errors import PartyError
from colonnade.transport import Fault, Faulty, InProcess, Recording


def test_both_directions_are_recorded_in_order() -> None:
    recording = Recording(InProcess(echoes()))
    peers, outbox = asker(recording)
    by = outbox.release(torch.full((6, 4), 2.0), "by")
    peers.ask(Multiply(by, batch="train/0/0"))
    peers["bob"].ask(Multiply(by, batch="train/0/1"))
    assert [seen.sender for seen in recording.of("asker")] == [
        "ada",
        "bob",
        "cyd",
        "bob",
    ]
    assert [type(seen.message) for seen in recording.of("asker")] == [Value] * 4
    assert [(seen.sender, seen.batch) for seen in recording.of("bob")] == [
        ("asker", "train/0/0"),
        ("asker", "train/0/1"),
    ]
    assert len(recording.of("cyd").seen) == 1


def test_bytes_are_counted_from_the_tensors_and_per_sender() -> None:
    recording = Recording(InProcess(echoes(), through_bytes=True))
    peers, outbox = asker(recording)
    parts = tuple(outbox.release(torch.ones(n), "part") for n in (1, 2, 3))
    peers["ada"].ask(Nest(parts[:1], {"x": parts[0]}))
    peers.ask(Multiply(parts[0]))
    assert (
        recording.of("ada").total() == recording.of("ada").total("asker") == 4 + 4 + 4
    )
    assert recording.of("ada").total("bob") == 0
    assert recording.of("asker").total("ada") == 4 * 96 + 96
    assert recording.of("asker").total() == 4 * 96 + 3 * 96
    assert peers.ledger.total("in") == recording.of("asker").total()


def test_tensors_are_found_by_their_release_name() -> None:
    recording = Recording(InProcess(echoes()))
    peers, outbox = asker(recording)
    peers.ask(Multiply(outbox.release(torch.tensor(2.0), "by")))
    assert [float(t[0, 0]) for t in recording.of("asker").tensors("value")] == [
        2.0,
        4.0,
        6.0,
    ]
    assert [float(t[0, 0]) for t in recording.of("asker").tensors("value", "bob")] == [
        4.0
    ]
    assert recording.of("asker").tensors("by") == []
    assert [float(t) for t in recording.of("cyd").tensors("by")] == [2.0]


def test_what_an_organisation_tells_itself_is_seen_but_not_counted() -> None:
    recording = Recording(InProcess(echoes()))
    peers = Peers("ada", ["ada", "bob"], recording, Ledger("ada"))
    outbox = Outbox("ada", Generator().manual_seed(0))
    peers.ask(Multiply(outbox.release(torch.tensor(2.0), "by")))
    assert [seen.sender for seen in recording.of("ada")] == ["ada", "ada", "bob"]
    assert recording.of("ada").total() == recording.of("ada").total("bob") == 96
    assert recording.of("bob").total() == 4


def test_a_party_nobody_wrote_to_has_an_empty_transcript() -> None:
    assert Recording(InProcess(echoes())).of("ada").seen == []


def test_failures_pass_through_and_what_arrived_before_stays() -> None:
    recording = Recording(InProcess(echoes()))
    peers, _ = asker(recording)
    with pytest.raises(PartyError, match="'ada'"):
        peers["ada"].ask(Break(2.5))
    assert len(recording.of("ada").seen) == 1
    assert recording.of("asker").seen == []


def test_inside_or_outside_a_faulty_network() -> None:
    """Outside it records what a caller and a callee mean to exchange; inside, what
    really arrives."""
    inside = Recording(InProcess(echoes()))
    outside = Recording(Faulty(inside, [Fault("duplicate", "ada")]))
    peers, _ = asker(outside)
    peers.ask(Break(0.0))
    assert len(outside.of("ada").seen) == 1
    assert len(inside.of("ada").seen) == 2
    assert len(inside.of("bob").seen) == 1
