"""A helper compares keyed hashes: the same rows as by Diffie-Hellman, and it learns
what it is said to learn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.transport.one_by_one import OneByOne, only

from colonnade.alignment import (
    REVEALS,
    AlignmentSettings,
    IdOwner,
    Ids,
    KeyedIds,
    align_here,
    helper,
)
from colonnade.alignment.helper import (
    Begin,
    Compare,
    Gather,
    Helper,
    align_by_helper,
    takes_helper,
)
from colonnade.alignment.id_owner import Agree
from colonnade.alignment.keyed import (
    AgreeKeyed,
    EndKeyed,
    Found,
    HandOut,
    HowMany,
    hashes_of,
)
from colonnade.core import Batches, Envelope, Organisation, Peers, Transport
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.transport import InProcess

HELD = {
    "clinic": [f"p{n}" for n in range(0, 30)],
    "lab": [f"p{n}" for n in range(10, 40)][::-1],
    "bank": [f"p{n}" for n in range(5, 25)],
}
BY = AlignmentSettings(protocol="helper", helper="trust")


def ids(held: dict[str, list[str]]) -> dict[str, Ids]:
    return {name: Ids.of(name, [some]) for name, some in held.items()}


@dataclass
class Call:
    sender: str
    receiver: str
    request: Any
    reply: Any


class Heard(OneByOne):
    """Passes calls on, and keeps what was said."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.calls: list[Call] = []

    def one(self, call: Envelope[Any]) -> Any:
        reply = only(self.inner, call)
        self.calls.append(Call(call.sender, call.receiver, call.message, reply))
        return reply


class Meeting:
    """A clinic that drives, others, and the helper, with all that was said between
    them."""

    def __init__(
        self,
        held: dict[str, list[str]] = HELD,
        settings: AlignmentSettings = BY,
        chunk: int = 7,
    ) -> None:
        self.held = held
        self.names = list(held)
        self.chunk = chunk
        nothing = Batches({}, batch_size=1, epochs=1, seed=0)
        self.owners = {
            name: IdOwner(
                Organisation.at(name, nothing), one, settings, among=tuple(held)
            )
            for name, one in ids(held).items()
        }
        self.keyed = {
            name: KeyedIds(
                owner.organisation, [owner], helper="trust", askers={"clinic"}
            )
            for name, owner in self.owners.items()
        }
        seat = Organisation.at("trust", nothing)
        self.helper = Helper(seat, self.line, askers=["clinic"], admitted=self.names)
        self.recording = Heard(
            InProcess({**self.keyed, "trust": self.helper}, through_bytes=True)
        )
        self.peers = Peers(
            "clinic",
            [*self.names[1:], "trust"],
            self.recording,
            self.owners["clinic"].ledger,
        )

    def line(self, names: Any) -> Peers:
        return Peers("trust", names, self.recording, self.helper.ledger)

    def align(self) -> Any:
        return align_by_helper(
            self.keyed["clinic"], self.names, self.peers, chunk=self.chunk
        )

    def agree(self, **changes: Any) -> Any:
        given: dict[str, Any] = {
            "parties": tuple(self.names),
            "ids": "exact",
            "reveal": "rows",
            "helper": "trust",
        }
        given |= {"learners": tuple(self.names), "secret": "ab" * 32} | changes
        return self.peers.ask_one("lab", AgreeKeyed(**given))


@pytest.mark.parametrize("through_bytes", [False, True])
def test_it_finds_the_rows_that_diffie_hellman_finds(through_bytes: bool) -> None:
    by_curve = align_here(ids(HELD))
    found = align_here(ids(HELD), BY, through_bytes=through_bytes)
    assert found.found.common == by_curve.found.common == 15
    rows = {
        name: [HELD[name][row] for row in numbers]
        for name, numbers in found.rows.items()
    }
    assert rows["clinic"] == rows["lab"] == rows["bank"]  # in one order
    assert sorted(rows["lab"]) == sorted(
        HELD["lab"][row] for row in by_curve.rows["lab"]
    )
    assert found.found.protocol == "helper"
    assert "could test ids" in found.to_json()["helper"]["learned"]
    assert "protocol" in by_curve.to_json()
    assert "helper" not in by_curve.to_json()


def test_a_hash_is_blake2b_under_the_key_in_16_bytes() -> None:
    digests = ids(HELD)["clinic"].digests
    made = hashes_of(digests, b"k" * 32)
    assert made.shape == (30, 16)
    assert (
        made[3].tobytes()
        == hashlib.blake2b(digests[3].tobytes(), key=b"k" * 32, digest_size=16).digest()
    )


def test_only_the_helper_is_given_lists_and_it_never_sees_the_key() -> None:
    meeting = Meeting()
    meeting.align()
    said = [
        (call.sender, call.receiver, call.request, call.reply)
        for call in meeting.recording.calls
    ]
    keys = {
        request.secret for _, _, request, _ in said if isinstance(request, AgreeKeyed)
    }
    assert len(keys) == 1
    for _, receiver, request, _ in said:
        if receiver == "trust":
            assert not keys & {str(value) for value in vars_of(request)}
    lists = [
        (sender, receiver)
        for sender, receiver, request, _ in said
        if isinstance(request, HandOut)
    ]
    assert {sender for sender, _ in lists} == {"trust"}
    assert {receiver for _, receiver in lists} == set(HELD)


def vars_of(request: Any) -> list[Any]:
    return [getattr(request, name) for name in request.__dataclass_fields__]


def test_what_the_helper_holds_tells_sizes_and_equality_and_with_a_key_ids() -> None:
    """Its lists are in secret orders; without the key a guess cannot be tried, and with
    it every guess can."""
    seen: dict[str, np.ndarray[Any, Any]] = {}
    meeting = Meeting(chunk=100)
    meeting.align()
    key = b""
    for call in meeting.recording.calls:
        if isinstance(call.request, AgreeKeyed):
            key = bytes.fromhex(call.request.secret)
        if isinstance(call.request, HandOut):
            seen[call.receiver] = call.reply.hashes.tensor.numpy()
    assert {name: len(one) for name, one in seen.items()} == {
        name: len(one) for name, one in HELD.items()
    }
    as_held = hashes_of(ids(HELD)["lab"].digests, key)
    # with a party's help
    assert {bytes(one) for one in as_held} == {bytes(one) for one in seen["lab"]}
    assert not (as_held == seen["lab"]).all()  # shuffled: 1 / 30! by chance
    guesses = hashes_of(ids(HELD)["lab"].digests, b"x" * 32)
    assert not {bytes(one) for one in guesses} & {bytes(one) for one in seen["lab"]}


def test_each_alignment_has_a_new_key_and_leaves_nothing_behind() -> None:
    meeting = Meeting()
    meeting.align()
    meeting.align()
    keys = [
        call.request.secret
        for call in meeting.recording.calls
        if isinstance(call.request, AgreeKeyed)
    ]
    assert len(set(keys)) == 2
    assert meeting.helper._comparisons == {}
    assert all(not one._sessions for one in meeting.keyed.values())
    with pytest.raises(PartyError, match="it has no key for this"):
        meeting.line(["lab"]).ask_one("lab", HandOut(tuple(HELD), 20, 0, 1))


def test_a_party_hands_its_list_to_nobody_else() -> None:
    meeting = Meeting()
    meeting.agree()
    with pytest.raises(BoundaryError, match="this is for trust to ask"):
        meeting.peers.ask_one("lab", HandOut(tuple(HELD), 20, 0, 1))
    with pytest.raises(BoundaryError, match="this is for trust to ask"):
        meeting.peers.ask_one("lab", Found(tuple(HELD), 0, None))
    with pytest.raises(BoundaryError, match="this is for clinic to ask"):
        meeting.line(["lab"]).ask_one("lab", EndKeyed(tuple(HELD)))


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ({"helper": "friend"}, "its settings say helper = 'trust'"),
        ({"parties": ("clinic", "lab")}, "it aligns among 'clinic', 'lab', 'bank'"),
        ({"parties": ("clinic", "lab", "bank", "bank")}, "it aligns among"),
        ({"reveal": "ids"}, "its settings say reveal = 'rows'"),
        ({"ids": "normalised"}, "its settings say ids = 'exact'"),
        ({"learners": ("clinic",)}, "its settings say learners"),
        ({"secret": "ab"}, "the parties' key has 32 bytes"),
        ({"secret": "zz" * 32}, "the parties' key has 32 bytes"),
    ],
)
def test_a_party_refuses_what_its_own_settings_do_not_say(
    wish: dict[str, Any], why: str
) -> None:
    with pytest.raises(PartyError, match=why):
        Meeting().agree(**wish)


def test_a_party_that_agreed_to_diffie_hellman_hands_nothing_to_a_helper_and_the_reverse() -> (
    None
):
    with pytest.raises(PartyError, match='protocol = "ecdh", without a helper'):
        Meeting(settings=AlignmentSettings()).agree()
    meeting = Meeting()
    with pytest.raises(
        PartyError, match='protocol = "helper", and it was asked for points'
    ):
        meeting.owners["lab"].answer(Agree(tuple(HELD), "exact", "rows", tuple(HELD)))


def test_only_a_count_is_told_where_only_that_is_agreed() -> None:
    settings = AlignmentSettings(protocol="helper", helper="trust", reveal="count")
    meeting = Meeting(settings=settings)
    found = meeting.align()
    assert found.common == 15
    assert all(
        owner.common == 15 and owner.common_rows is None
        for owner in meeting.owners.values()
    )
    assert all(
        call.request.positions is None
        for call in meeting.recording.calls
        if isinstance(call.request, Found)
    )


def test_who_is_no_learner_is_told_nothing() -> None:
    settings = AlignmentSettings(
        protocol="helper", helper="trust", learners=("clinic",)
    )
    meeting = Meeting(settings=settings)
    found = meeting.align()
    assert meeting.owners["lab"].common is None
    assert meeting.owners["clinic"].common == 15
    assert found.learned()["lab"] == "the shortest list's number of ids; nothing more"


def test_a_helper_that_lies_about_places_is_refused() -> None:
    meeting = Meeting()
    meeting.agree()
    told = meeting.helper.outbox
    for places, why in (
        ([0, 0], "distinct"),
        ([0, 99], "below 30"),
        ([0], "2 common ids and 1 places"),
    ):
        positions = told.release(
            torch.tensor(places, dtype=torch.int32), "found_positions"
        )
        with pytest.raises(PartyError, match=why):
            meeting.line(["lab"]).ask_one("lab", Found(tuple(HELD), 2, positions))
    with pytest.raises(PartyError, match="it was told otherwise"):
        meeting.line(["lab"]).ask_one("lab", Found(tuple(HELD), 2, None))


def test_the_helper_takes_lists_whole_in_turn_and_of_those_it_knows() -> None:
    meeting = Meeting()
    meeting.align()
    parties = tuple(HELD)
    ask = meeting.peers.ask_one
    with pytest.raises(PartyError, match="it was not told of such an alignment"):
        ask("trust", Compare(parties))
    for wrong in (
        ("clinic",),
        ("lab", "bank"),
        ("clinic", "stranger"),
        ("clinic", "lab", "lab"),
    ):
        with pytest.raises(
            PartyError, match="of who asks and others of the agreed file"
        ):
            ask("trust", Begin(wrong, "rows", ()))
    with pytest.raises(PartyError, match="who learns takes part"):
        ask("trust", Begin(parties, "rows", ("stranger",)))
    ask("trust", Begin(parties, "rows", parties))
    with pytest.raises(PartyError, match="is fetched in turn: it has 0 of 30"):
        ask("trust", Gather(parties, "lab", 5, 5))
    with pytest.raises(PartyError, match="takes no part in it"):
        ask("trust", Gather(parties, "stranger", 0, 5))
    with pytest.raises(PartyError, match="is not there yet"):
        ask("trust", Compare(parties))


def test_auto_takes_the_helper_for_many_ids_where_one_is_named_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(helper, "MANY", 29)
    auto = AlignmentSettings(protocol="auto", helper="trust")
    assert takes_helper(auto, [3, 30])
    assert not takes_helper(auto, [3, 29])
    assert not takes_helper(AlignmentSettings(protocol="auto"), [10**9])
    assert not takes_helper(AlignmentSettings(), [10**9])
    assert align_here(ids(HELD), auto).found.helper == "trust"
    few = {name: some[:29] for name, some in HELD.items()}
    assert align_here(ids(few), auto).found.protocol == "ecdh"


def test_settings_name_a_helper_who_is_no_party() -> None:
    with pytest.raises(
        ConfigError, match=r"needs somebody who compares.*could test ids if it colludes"
    ):
        AlignmentSettings(protocol="helper")
    with pytest.raises(
        ConfigError, match='helper = "trust" is for protocol = "helper" or "auto"'
    ):
        AlignmentSettings(helper="trust")
    with pytest.raises(ConfigError, match="is a party, who knows the key"):
        align_here(ids(HELD), AlignmentSettings(protocol="helper", helper="lab"))


def test_ledgers_say_what_went_to_the_helper() -> None:
    found = align_here(ids(HELD), BY)
    sent = [entry for entry in found.ledgers["lab"].entries if entry.direction == "out"]
    assert {(entry.peer, entry.name) for entry in sent} == {("trust", "keyed_ids")}
    assert sum(entry.bytes for entry in sent) == 16 * 30
    assert "test every id" in REVEALS["keyed_ids"]
    assert {entry.peer for entry in found.ledgers["trust"].entries} == set(HELD)


def test_how_many_is_told_to_who_may_know() -> None:
    meeting = Meeting()
    assert meeting.peers.ask_one("lab", HowMany(tuple(HELD))).ids == 30
    with pytest.raises(BoundaryError, match="for clinic, trust to ask"):
        Peers(
            "bank", ["lab"], meeting.recording, meeting.owners["bank"].ledger
        ).ask_one("lab", HowMany(tuple(HELD)))
