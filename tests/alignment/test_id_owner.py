"""What a party answers, what it refuses, and that a party that fails or lies is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.alignment.parties import meeting, owner

from colonnade.alignment import AlignmentSettings, IdOwner, Ids, curve
from colonnade.alignment.id_owner import (
    BLINDED,
    NUMBERS,
    POSITIONS,
    RAISED,
    REVEALS,
    Agree,
    Blind,
    End,
    Fetch,
    Learn,
    Points,
    Raise,
    Tell,
    Trace,
    shuffled,
)
from colonnade.core import Outbox, Released
from colonnade.errors import BoundaryError, PartyError
from colonnade.transport import Fault

BOTH = ("clinic", "lab")


def released(values: Any) -> Released:
    outbox = Outbox("lab", torch.Generator())
    return outbox.release(torch.as_tensor(values), "anything")


def points(*texts: str) -> torch.Tensor:
    return torch.from_numpy(curve.blind(Ids.of("lab", [texts]).digests, b"\x05" * 32))


def agreed(settings: AlignmentSettings | None = None) -> IdOwner:
    party = owner("clinic", ["a", "b", "c"], settings)
    own = party.settings
    party.answer(Agree(BOTH, own.ids, own.reveal, own.learners_among(BOTH)))
    return party


def taken(settings: AlignmentSettings | None = None) -> IdOwner:
    """A party that raised two points of the lab's and handed them out."""
    party = agreed(settings)
    party.answer(Raise("lab", "lab", 0, 2, released(points("x", "y"))))
    party.answer(Fetch("lab", 0, 2))
    return party


def test_it_blinds_each_of_its_ids_once_under_one_secret() -> None:
    party = agreed()
    parts = [party.answer(Blind(0, 2)).points, party.answer(Blind(2, 1)).points]
    found = {row.numpy().tobytes() for part in parts for row in part.tensor}
    assert found == {
        row.tobytes() for row in curve.blind(party.ids.digests, party._secret)
    }
    assert {part.receipt.name for part in parts} == {BLINDED} <= REVEALS.keys()
    assert [(part.receipt.bytes, part.receipt.event.kind) for part in parts] == [
        (66, "blinded (secp256k1)"),
        (33, "blinded (secp256k1)"),
    ]


def test_every_alignment_has_a_secret_of_its_own_that_is_forgotten_and_never_saved() -> (
    None
):
    party = agreed()
    first = party.answer(Blind(0, 3)).points.tensor
    secret = party._secret
    party.answer(Agree(BOTH, "exact", "rows", BOTH))
    assert party._secret != secret
    assert not {*map(bytes, first.numpy())} & {
        *map(bytes, party.answer(Blind(0, 3)).points.tensor.numpy())
    }
    assert party.state() == {}
    assert "secret" not in repr(party.outbox.rules[BLINDED].mechanism)
    party.answer(End())
    assert party._secret == b""
    assert BLINDED not in party.outbox.rules
    with pytest.raises(
        PartyError, match="it has no secret for this; an alignment starts with agree"
    ):
        party.answer(Blind(0, 1))


def test_the_partys_seed_does_not_decide_its_shuffle() -> None:
    orders = {tuple(shuffled(6).tolist()) for _ in range(20)}
    assert len(orders) > 10
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert sorted(shuffled(1000).tolist()) == list(range(1000))


def test_it_multiplies_and_shuffles_what_others_hand_it_and_can_trace_it_back() -> None:
    party = agreed()
    given = points("u", "v", "w", "x", "y")
    for start in range(0, 5, 2):
        party.answer(Raise("lab", "lab", start, 5, released(given[start : start + 2])))
    out = torch.cat(
        [
            party.answer(Fetch("lab", 0, 3)).points.tensor,
            party.answer(Fetch("lab", 3, 2)).points.tensor,
        ]
    )
    expected = curve.multiply(given.numpy(), party._secret)
    traced = party.answer(
        Trace("lab", released(torch.tensor([4, 0, 2], dtype=torch.int32)))
    ).positions
    assert traced.receipt.event.kind == "non-private"
    assert [expected[at].tolist() for at in traced.tensor.tolist()] == [
        out[at].tolist() for at in (4, 0, 2)
    ]
    assert sorted(map(bytes, out.numpy())) == sorted(map(bytes, expected))


OTHER = [
    (
        {"ids": "normalised"},
        "its settings say ids = 'exact', and it was asked for 'normalised'",
    ),
    ({"reveal": "ids"}, "its settings say reveal = 'rows', and it was asked for 'ids'"),
    (
        {"learners": ("lab",)},
        (
            r"its settings say learners = \('clinic', 'lab'\), and it was asked for"
            r" \('lab',\)"
        ),
    ),
]


@pytest.mark.parametrize(("change", "message"), OTHER)
def test_it_does_only_what_its_own_settings_say(
    change: dict[str, Any], message: str
) -> None:
    asked: dict[str, Any] = {
        "parties": BOTH,
        "ids": "exact",
        "reveal": "rows",
        "learners": BOTH,
    } | change
    with pytest.raises(
        PartyError, match=f"'clinic' failed while answering id_owner.Agree: {message}"
    ):
        owner("clinic", ["a"]).answer(Agree(**asked))


def test_who_may_be_told_which_rows_are_common_may_be_told_how_many_and_not_the_other_way() -> (
    None
):
    asked = Agree(BOTH, "exact", "count", BOTH)
    counting = owner("clinic", ["a"])
    counting.answer(asked)
    with pytest.raises(
        PartyError, match="do not let 'clinic' learn which rows are common"
    ):
        counting.answer(Learn(released(torch.tensor([0], dtype=torch.int32))))
    with pytest.raises(
        PartyError,
        match="its settings say reveal = 'count', and it was asked for 'rows'",
    ):
        owner("clinic", ["a"], AlignmentSettings(reveal="count")).answer(
            Agree(BOTH, "exact", "rows", BOTH)
        )


@pytest.mark.parametrize(
    "parties",
    [("bank", "lab"), ("clinic",), ("clinic", "lab", "bank"), ("clinic", "lab", "lab")],
)
def test_it_aligns_with_those_alone_that_it_knows(parties: tuple[str, ...]) -> None:
    """A driver that made others up could hand it as many lists as it likes."""
    with pytest.raises(
        PartyError, match=r"it aligns with 'clinic', 'lab', and was asked to with \['"
    ):
        owner("clinic", ["a"]).answer(Agree(parties, "exact", "rows", parties))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            torch.zeros(2, 32, dtype=torch.uint8),
            r"must be points of 33 bytes, uint8 \[n, 33\]; found uint8 \[2, 32\]",
        ),
        (torch.zeros(2, 33), r"found float32 \[2, 33\]"),
        (torch.zeros(33, dtype=torch.uint8), r"found uint8 \[33\]"),
        (
            torch.zeros(2, 33, dtype=torch.uint8),
            "point 0 of what 'bank' handed out of 'lab' is not on the curve",
        ),
        (
            torch.zeros(0, 33, dtype=torch.uint8),
            "'lab' has more points than it announced, or none",
        ),
    ],
)
def test_malformed_points_are_refused(wrong: torch.Tensor, message: str) -> None:
    with pytest.raises(PartyError, match=message):
        agreed().answer(Raise("lab", "bank", 0, 2, released(wrong)))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            Raise("lab", "lab", 1, 2, released(points("x"))),
            "came out of turn, at 1 of 2",
        ),
        (
            Raise("lab", "lab", 0, 2, released(points("x", "y", "z"))),
            "more points than it announced",
        ),
        (
            Raise("clinic", "lab", 0, 1, released(points("x"))),
            "it was given points of 'clinic', no other party",
        ),
        (
            Raise("shop", "lab", 0, 1, released(points("x"))),
            "it was given points of 'shop', no other party",
        ),
        (
            Fetch("lab", 0, 1),
            "it holds no raised points of 'lab' any more, or not all yet",
        ),
        (Blind(2, 2), r"there is no part 2\+2 of 3"),
        (Blind(-1, 1), r"there is no part -1\+1 of 3"),
        (
            Trace("lab", released(torch.tensor([0], dtype=torch.int32))),
            "traced once, after all were fetched",
        ),
        (
            Learn(released(torch.tensor([3], dtype=torch.int32))),
            "positions must be distinct and below 3",
        ),
        (
            Learn(released(torch.tensor([-1], dtype=torch.int32))),
            "positions must be distinct and below 3",
        ),
        (
            Learn(released(torch.tensor([1, 1], dtype=torch.int32))),
            "positions must be distinct and below 3",
        ),
        (Learn(released(torch.tensor([0.0]))), "positions must be a list of int32"),
        (Tell(3), "it agreed that rows are revealed, and it was told a count"),
    ],
)
def test_requests_that_do_not_fit_are_refused(request_: Any, message: str) -> None:
    with pytest.raises(PartyError, match=message):
        agreed().answer(request_)


def test_a_count_is_told_once_after_every_list_was_compared_and_is_no_more_than_the_shortest_has() -> (
    None
):
    only_a_count = AlignmentSettings(reveal="count")
    with pytest.raises(PartyError, match="once all other lists went through it"):
        agreed(only_a_count).answer(Tell(2))
    party = taken(only_a_count)
    for count in (-1, 3):
        with pytest.raises(
            PartyError,
            match=f"{count} rows cannot be common: the shortest list compared has 2",
        ):
            party.answer(Tell(count))
    party.answer(Tell(2))
    assert party.common == 2
    with pytest.raises(PartyError, match="already; they are learned once"):
        party.answer(Tell(1))


def test_rows_are_learned_once_after_every_list_was_compared_and_no_more_than_the_shortest_has() -> (
    None
):
    def learn(party: IdOwner, *positions: int) -> None:
        party.answer(Learn(released(torch.tensor(positions, dtype=torch.int32))))

    party = agreed()
    with pytest.raises(
        PartyError,
        match="rows are common once all other lists went through it and were fetched",
    ):
        learn(party, 0)
    party.answer(Raise("lab", "lab", 0, 2, released(points("x", "y"))))
    party.answer(Fetch("lab", 0, 1))
    with pytest.raises(
        PartyError, match="once all other lists went through it and were fetched"
    ):
        learn(party, 0)
    party = taken()
    with pytest.raises(
        PartyError, match="3 rows cannot be common: the shortest list compared has 2"
    ):
        learn(party, 0, 1, 2)
    assert party.common_rows is None
    learn(party, 2)
    with pytest.raises(PartyError, match="they are learned once"):
        learn(party, 1)
    assert party.common == 1


def test_points_are_raised_fetched_and_traced_once() -> None:
    party = taken()
    where = released(torch.tensor([0], dtype=torch.int32))
    with pytest.raises(PartyError, match="came out of turn"):
        party.answer(Raise("lab", "lab", 0, 2, released(points("x", "y"))))
    with pytest.raises(PartyError, match="it holds no raised points of 'lab' any more"):
        party.answer(Fetch("lab", 0, 2))
    party.answer(Trace("lab", where))
    with pytest.raises(PartyError, match="traced once"):
        party.answer(Trace("lab", where))


@pytest.mark.parametrize(
    "settings",
    [AlignmentSettings(reveal="count"), AlignmentSettings(learners=("clinic",))],
)
def test_it_helps_nobody_to_learn_more_than_agreed(settings: AlignmentSettings) -> None:
    with pytest.raises(
        PartyError, match="its settings do not let 'lab' learn which rows are common"
    ):
        taken(settings).answer(
            Trace("lab", released(torch.tensor([0], dtype=torch.int32)))
        )


def test_a_missing_answer_names_the_party() -> None:
    there = meeting(
        {"clinic": ["a"], "lab": ["a"], "bank": ["a"]},
        faults=[Fault("drop", "bank", at=3)],
        through_bytes=True,
    )
    with pytest.raises(
        PartyError,
        match=r"'bank' failed while answering id_owner\.Raise: the call never arrived",
    ):
        there.align()


def test_a_repeated_delivery_does_no_harm() -> None:
    there = meeting(
        {"clinic": ["a", "b"], "lab": ["b", "a"]}, faults=[Fault("duplicate", "lab")]
    )
    assert there.align(chunk=1).common == 2
    assert there.common("clinic") == there.common("lab")


class Liar(IdOwner):
    """Hands out what it did not compute."""

    lie: torch.Tensor

    def fetch(self, request: Fetch) -> Points:
        super().fetch(request)
        return Points(self.outbox.release(self.lie, RAISED))

    fetch.__serves__ = True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (
            torch.zeros(2, 33, dtype=torch.uint8),
            "'lab' .* point 0 is not on the curve secp256k1, of what it handed out",
        ),
        (
            torch.zeros(2, 32, dtype=torch.uint8),
            r"'lab' .* the answer must be points of 33 bytes",
        ),
        (points("x"), "'lab' failed .* it was asked for 2 points and gave 1"),
        (
            points("x").repeat(2, 1),
            "'lab' .* it handed out points of 'clinic' more than once",
        ),
    ],
)
def test_a_party_that_hands_out_nonsense_is_named(
    lie: torch.Tensor, message: str
) -> None:
    there = meeting({"clinic": ["a", "b"], "lab": ["b", "c"]})
    liar = there.parties["lab"]
    liar.__class__ = Liar
    liar.lie = lie  # type: ignore[attr-defined]
    with pytest.raises(PartyError, match=message):
        there.align()


def test_only_an_alignment_is_served() -> None:
    assert {request.__name__ for request in IdOwner.served()} == {
        "Agree",
        "Blind",
        "Raise",
        "Fetch",
        "Trace",
        "Learn",
        "Tell",
        "End",
    }
    with pytest.raises(BoundaryError):
        Points(np.zeros((1, 33)))  # type: ignore[arg-type]
    assert {BLINDED, RAISED, POSITIONS, NUMBERS} == REVEALS.keys()


def test_with_other_ids_what_was_found_among_the_old_ones_is_forgotten() -> None:
    """Row numbers of the old table would name other rows of the new one."""
    there = meeting({"clinic": ["b", "c"], "lab": ["b", "c", "d"]})
    there.align()
    assert there.common("lab") == there.common("clinic")
    lab = there.parties["lab"]
    lab.ids = Ids.of("lab", [["a", "b", "c", "d"]])
    assert lab.common is None
    assert lab.common_rows is None
    party = taken()
    party.ids = Ids.of("clinic", [["z"]])
    with pytest.raises(PartyError, match="it has no secret for this"):
        party.answer(Blind(0, 1))
