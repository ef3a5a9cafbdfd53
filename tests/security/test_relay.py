"""A relay that does what it wants with the calls of a whole run: it learns sizes and
times, and can only stop the run.

The clinic and the laboratory are sites as between machines, each with its own
certificate. The relay carries their sealed calls, and reads, forges, replays, reorders,
swaps, cuts and drops them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conformance.echo import Multiply, asker, echoes
from tests.federation.small import quick
from tests.federation.small_sites import folders, sites
from tests.transport.certified import channel

from colonnade.core import Envelope, wire
from colonnade.core.message import Ping
from colonnade.errors import ColonnadeError, PartyError
from colonnade.runs.layout import SUMMARY
from colonnade.sites.driving import drive
from colonnade.sites.site import Site
from colonnade.sites.witnessing import unpack
from colonnade.transport.channel import ANSWER, CALL, FINISH, HELLO, REFUSED
from colonnade.transport.remote import HEAD, NONE, WHOLE, Endpoint, Remote

Attack = Callable[["Relay", str, bytes, Callable[[bytes], bytes]], bytes]
LONG_ENOUGH = 16
"""Bytes that do not meet by chance."""


class Relay:
    """Between two sites; `attack` gets every call and how to pass one on, and gives
    what the caller is to receive."""

    def __init__(self, base: Path, attack: Attack | None = None) -> None:
        self.sites: dict[str, Site] = sites(base)
        self.ends = {name: channel(name) for name in self.sites}
        self.seen: list[tuple[bytes, bytes]] = []
        # what the laboratory was asked, and answered, behind its door
        self.plain: list[bytes] = []
        self.attack = attack or (lambda _relay, _to, data, carry: carry(data))
        lab = self.sites["lab"]
        desk = lab.endpoint

        class Watched(Endpoint):
            def __call__(watched, caller: str, data: bytes) -> bytes:  # noqa: N805
                reply = lab.desk(caller, data)
                self.plain += [data, reply]
                return reply

        self.desks: dict[str, Endpoint] = {"clinic": self.sites["clinic"].endpoint}
        self.desks["lab"] = Watched(
            "lab",
            desk.handle,
            admitted=desk.admitted,
            allow=desk.allow,
            refused=desk.refused,
        )

    def deliver(self, to: str, data: bytes) -> bytes:
        return self.ends[to].answer(data, self.desks[to], "who the relay says")

    def train(self, run: str = "run") -> dict[str, Any]:
        def line(data: bytes, _deadline: float) -> bytes:
            reply = self.attack(
                self, "lab", data, lambda given: self.deliver("lab", given)
            )
            self.seen.append((data, reply))
            return reply

        clinic = self.sites["clinic"]
        clinic.routes = {"lab": self.ends["clinic"].line("lab", line)}
        drive(clinic, run)
        found: dict[str, Any] = json.loads(
            (clinic.own.runs / run / SUMMARY).read_text()
        )
        return found

    @property
    def refused(self) -> list[dict[str, Any]]:
        file = self.sites["lab"].own.runs / "refused.jsonl"
        return (
            [json.loads(line) for line in file.read_text().splitlines()]
            if file.exists()
            else []
        )


def small(base: Path, **engine: Any) -> Path:
    changes = {"device": "cpu", "cohort": "off", "deadline": 5, "retries": 1} | engine
    folders(base, settings=quick(federation=changes))
    return base


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Relay, dict[str, Any]]:
    relay = Relay(small(tmp_path_factory.mktemp("honest")))
    return relay, relay.train()


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for key in ("metrics", "bytes", "parties", "rows", "rounds", "privacy"):
        assert one[key] == other[key], key


def test_it_reads_nothing_of_what_it_carries(
    honest: tuple[Relay, dict[str, Any]],
) -> None:
    """No request, no embedding, no gradient, not even which of them it is; nor two
    equal pieces of anything."""
    relay, summary = honest
    assert summary["rounds"] > 2
    calls = [pair for pair in relay.seen if pair[0][:1] == CALL]
    carried = b"".join(part for pair in calls for part in pair)
    assert len(relay.plain) == 2 * len(calls)
    frames = [
        memoryview(bytearray(text[HEAD.size if text[:1] == WHOLE else 1 :]))
        for _, text in map(unpack, relay.plain)
    ]
    kinds = {
        call.kind.kind.rpartition(".")[2]
        for frame in frames
        for call in wire.calls(frame)
    }
    assert kinds >= {"Prepare", "Embed", "Embedding", "Improve"}
    for text in relay.plain:
        pieces = [
            text[at : at + LONG_ENOUGH]
            for at in range(0, len(text) - LONG_ENOUGH + 1, 5)
        ]
        assert not any(piece in carried for piece in pieces)
    for word in (
        wire.MAGIC,
        wire.JOINT,
        b"Embed",
        b"Ping",
        b"messages.",
        b"vimadmm",
        b"clinic",
    ):
        assert word not in carried
    sizes = [len(text) for pair in calls for text in pair]
    assert [
        size - len(text) for size, text in zip(sizes, relay.plain, strict=True)
    ] == [41] * len(sizes), "sizes it sees"
    assert not relay.refused


def test_a_call_that_it_makes_up_in_the_label_owners_name_is_refused(
    honest: tuple[Relay, dict[str, Any]], tmp_path: Path
) -> None:
    """With FLARE's help it may say who it likes: the frame of an embedding's request,
    as the clinic would send it."""
    forged = list[bytes]()

    def attack(
        relay: Relay, to: str, data: bytes, carry: Callable[[bytes], bytes]
    ) -> bytes:
        asked = [text for text in relay.plain if b"Embed" in text]
        for frame in (
            asked[-1] if asked else b"",
            HEAD.pack(WHOLE, NONE, 0, 0) + wire.encode(Envelope("clinic", 9, Ping())),
        ):
            for kind in (b"", CALL, CALL + data[1:17] + bytes(8)):
                forged.append(carry(kind + frame))
        return carry(data)

    relay = Relay(small(tmp_path), attack)
    same(relay.train(), honest[1])
    assert set(forged) == {REFUSED}
    assert len(relay.refused) == len(forged)
    assert {one["caller"] for one in relay.refused} == {"who the relay says"}


def test_what_it_sends_again_is_done_once(
    honest: tuple[Relay, dict[str, Any]], tmp_path: Path
) -> None:
    again = list[bytes]()

    def attack(
        relay: Relay, to: str, data: bytes, carry: Callable[[bytes], bytes]
    ) -> bytes:
        reply = carry(data)
        if data[:1] in (CALL, FINISH):
            again.append(carry(data))
            again.extend(
                carry(before) for before, _ in relay.seen[-3:] if before[:1] == CALL
            )
        return reply

    relay = Relay(small(tmp_path), attack)
    same(relay.train(), honest[1])
    assert set(again) == {REFUSED}
    calls = sum(data[:1] == CALL for data, _ in relay.seen)
    assert len(relay.plain) == 2 * calls


def test_a_whole_run_that_it_recorded_is_worth_nothing_to_the_next(
    honest: tuple[Relay, dict[str, Any]], tmp_path: Path
) -> None:
    """Of a site that started anew, and so has forgotten which numbers it answered."""
    relay = Relay(small(tmp_path))
    for data, _ in honest[0].seen:
        assert relay.deliver("lab", data) == REFUSED or data[:1] == HELLO
    assert not relay.plain
    same(relay.train(), honest[1])


@pytest.mark.parametrize(
    "what", ["older answer", "own call", "nothing", "failure", "plain answer"]
)
def test_an_answer_that_it_swaps_stops_the_run(tmp_path: Path, what: str) -> None:
    def attack(
        relay: Relay, to: str, data: bytes, carry: Callable[[bytes], bytes]
    ) -> bytes:
        reply = carry(data)
        before = [answer for call, answer in relay.seen if call[:1] == CALL]
        if data[:1] != CALL or len(before) < 4:
            return reply
        if what == "failure":
            return REFUSED
        return {
            "older answer": before[-1],
            "own call": ANSWER + data[1:],
            "nothing": b"",
            "plain answer": relay.plain[-1],
        }[what]

    relay = Relay(small(tmp_path), attack)
    with pytest.raises(PartyError, match="'lab' failed while answering"):
        relay.train()


def test_an_older_call_in_the_place_of_a_new_one_stops_the_run(tmp_path: Path) -> None:
    def attack(
        relay: Relay, to: str, data: bytes, carry: Callable[[bytes], bytes]
    ) -> bytes:
        before = [call for call, _ in relay.seen if call[:1] == CALL]
        return carry(before[-1] if len(before) > 4 else data)

    relay = Relay(small(tmp_path), attack)
    with pytest.raises(PartyError, match="'lab' failed while answering"):
        relay.train()
    assert any("came again" in one["why"] for one in relay.refused)


def test_a_call_that_it_holds_back_and_delivers_late_is_not_done(
    honest: tuple[Relay, dict[str, Any]], tmp_path: Path
) -> None:
    """The clinic asks again under the same number, and goes on; the late one is older
    than what the party did since."""
    held = list[bytes]()
    late = list[bytes]()

    def attack(
        relay: Relay, to: str, data: bytes, carry: Callable[[bytes], bytes]
    ) -> bytes:
        calls = sum(call[:1] == CALL for call, _ in relay.seen)
        if calls == 6 and not held:
            held.append(data)
            raise TimeoutError("lost on the way")
        if calls == 9 and not late:
            late.append(carry(held[0]))
        return carry(data)

    relay = Relay(small(tmp_path), attack)
    same(relay.train(), honest[1])
    assert late
    assert len(relay.refused) == 1
    assert (
        "came again" in relay.refused[0]["why"] or "older" in relay.refused[0]["why"]
    ), relay.refused


def test_calls_that_it_drops_are_made_again_or_stop_the_run(
    honest: tuple[Relay, dict[str, Any]], tmp_path: Path
) -> None:
    count = [0]

    def now_and_then(
        relay: Relay, to: str, data: bytes, carry: Callable[[bytes], bytes]
    ) -> bytes:
        count[0] += 1
        if count[0] % 7 == 3:
            raise TimeoutError("dropped")
        reply = carry(data)
        if count[0] % 7 == 5:
            raise TimeoutError("its answer was dropped")
        return reply

    (tmp_path / "some").mkdir()
    same(Relay(small(tmp_path / "some", retries=3), now_and_then).train(), honest[1])

    def always(
        relay: Relay, to: str, data: bytes, carry: Callable[[bytes], bytes]
    ) -> bytes:
        raise TimeoutError("dropped")

    (tmp_path / "all").mkdir()
    relay = Relay(small(tmp_path / "all"), always)
    with pytest.raises(ColonnadeError, match="'lab' failed while answering"):
        relay.train()
    assert not relay.plain


def test_what_is_for_one_recipient_is_refused_by_another() -> None:
    """Two parties of one asker: calls that the relay delivers to the other one, and
    answers that it exchanges."""
    parties = echoes(("ada", "bob"))
    swap = [False]
    desks = {
        name: Endpoint(name, party.handle, admitted=["asker"], allow=party.allow)
        for name, party in parties.items()
    }
    ends = {name: channel(name) for name in parties}
    mine = channel("asker")
    other = {"ada": "bob", "bob": "ada"}

    def carry(to: str) -> Any:
        def one(data: bytes, _deadline: float) -> bytes:
            name = other[to] if swap[0] else to
            return ends[name].answer(data, desks[name])

        return one

    peers, outbox = asker(
        Remote({name: mine.line(name, carry(name)) for name in parties}), ("ada", "bob")
    )

    def ask() -> Any:
        return peers.ask(Multiply(outbox.release(torch.tensor(2.0), "by")))

    assert set(ask()) == {"ada", "bob"}
    done = {name: len(party.ledger.entries) for name, party in parties.items()}
    swap[0] = True
    with pytest.raises(PartyError, match="failed while answering"):
        ask()
    assert {name: len(party.ledger.entries) for name, party in parties.items()} == done


def test_a_large_message_is_sealed_piece_by_piece_and_no_piece_can_be_moved() -> None:
    parties = echoes(("ada",), columns=1000)
    piece = 256
    desk = Endpoint(
        "ada",
        parties["ada"].handle,
        admitted=["asker"],
        allow=parties["ada"].allow,
        piece=piece,
    )
    answerer = channel("ada")
    seen = list[bytes]()
    exchange = [False]

    def carry(data: bytes, _deadline: float) -> bytes:
        # a piece that came before, in the place of this one
        if exchange[0] and len(seen) % 5 == 4:
            data = seen[-1]
        seen.append(data)
        return answerer.answer(data, desk)

    line = channel("asker").line("ada", carry)
    peers, outbox = asker(Remote({"ada": line}, piece=piece), ("ada",))
    large = Multiply(outbox.release(torch.arange(1000.0), "by"))
    assert peers["ada"].ask(large) is not None
    calls = [data for data in seen if data[:1] == CALL]
    assert len(calls) > (4000 + 6 * 4000) / piece, "to it and back"
    assert max(map(len, calls)) <= piece + 41 + HEAD.size
    exchange[0] = True
    entries = len(parties["ada"].ledger.entries)
    with pytest.raises(PartyError):
        peers["ada"].ask(large)
    assert len(parties["ada"].ledger.entries) == entries
