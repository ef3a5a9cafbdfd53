"""What a participant answers, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from colonnade.core import Batches, Organisation, Released, Request
from colonnade.encryption import make_keys
from colonnade.errors import BoundaryError, PartyError
from colonnade.selection.neighbours import shuffled, standardised
from colonnade.selection.participant import (
    Distances,
    FurtherOwn,
    Join,
    Participant,
    Prepare,
    RankRows,
    SortOwn,
)
from colonnade.selection.sorting import AskPublicKey, Further

NOTHING = Batches({}, batch_size=1, epochs=1, seed=0)
SEAT = Organisation.at("somebody", NOTHING)
FEATURES = np.random.default_rng(0).normal(size=(12, 2))
SECRET = make_keys("ckks", limit=2.0**14)
AGREED: dict[str, Any] = {"scheme": "ckks", "readers": ["keys"], "parties": 4}


def numbers(*values: int) -> Released:
    return SEAT.outbox.release(torch.tensor(values, dtype=torch.int32), "candidates")


def joined() -> Participant:
    party = Participant(Organisation.at("ada", NOTHING), FEATURES, **AGREED)
    card = party.answer(Join(5))
    assert card.rows == 12
    party.answer(
        Prepare(
            {"keys": SEAT.outbox.publish(SECRET.public.to_bytes(), "public_key")}, 64.0
        )
    )
    return party


def test_pseudo_ids_are_places_after_the_shuffle() -> None:
    x = standardised(FEATURES)[shuffled(12, 5)]
    found = joined().answer(RankRows(numbers(3), 0, 11)).ids.tensor[0].tolist()
    assert found == sorted(
        (row for row in range(12) if row != 3),
        key=lambda row: float(((x[row] - x[3]) ** 2).sum()),
    )


def test_distances_are_squared_scaled_and_encrypted_for_the_reader() -> None:
    party = joined()
    x = standardised(FEATURES)[shuffled(12, 5)]
    sent = party.answer(
        Distances(numbers(3, 0), numbers(1, 2, 7), numbers(2, 1), "keys")
    ).distances
    expected = [64 * ((x[a] - x[b]) ** 2).sum() for a, b in ((3, 1), (3, 2), (0, 7))]
    assert SECRET.decrypt(sent.encrypted).tolist() == pytest.approx(expected, abs=1e-5)
    assert sent.receipt.event.kind == "encrypted (ckks)"
    assert party.operations == {"encryptions": 1}


def test_alone_it_sorts_its_own() -> None:
    party = joined()
    ranking = party.answer(RankRows(numbers(3), 0, 11)).ids.tensor[0].tolist()
    candidates = [4, 8, 9, 11, 0, 2]
    found = (
        party.answer(SortOwn(numbers(3), numbers(*candidates), numbers(6), 4))
        .order.tensor[0]
        .tolist()
    )
    rest = party.answer(FurtherOwn(numbers(0), 4, 9)).order.tensor[0].tolist()
    assert [candidates[place] for place in found + rest] == [
        row for row in ranking if row in candidates
    ]


def test_columns_as_they_are() -> None:
    party = Participant(
        Organisation.at("ada", NOTHING),
        FEATURES * [1.0, 100.0],
        scaling="none",
        **AGREED,
    )
    party.answer(Join(5))
    second = FEATURES[shuffled(12, 5), 1]
    found = party.answer(RankRows(numbers(0), 0, 3)).ids.tensor[0].tolist()
    assert (
        found == sorted(range(1, 12), key=lambda row: abs(second[row] - second[0]))[:3]
    )


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (lambda: RankRows(numbers(3), 0, 12), "it has no rows 0 to 12 of 11"),
        (lambda: RankRows(numbers(12), 0, 3), "pseudo ids must be below 12"),
        (
            lambda: Distances(numbers(1), numbers(2), numbers(1), "eve"),
            r"no key of 'eve'; there are \['keys'\]",
        ),
        (
            lambda: Distances(numbers(1), numbers(2), numbers(2), "keys"),
            "counts and candidates do not fit",
        ),
        (lambda: AskPublicKey(), "it has made no keys"),
        (lambda: Further(0, numbers(0), 0, 1), "it has made no keys"),
        (lambda: FurtherOwn(numbers(0), 0, 1), "it has sorted no distances of its own"),
    ],
)
def test_what_does_not_fit_is_refused(request_: Any, says: str) -> None:
    request: Request[Any] = request_()
    with pytest.raises(PartyError, match=says):
        joined().answer(request)


def unprepared() -> Participant:
    party = Participant(Organisation.at("ada", NOTHING), FEATURES, **AGREED)
    party.answer(Join(5))
    return party


def key(scheme: str = "ckks", limit: float = 2.0**14, use: str = "sums") -> Released:
    return SEAT.outbox.publish(
        make_keys(scheme, use=use, limit=limit).public.to_bytes(), "public_key"
    )


@pytest.mark.filterwarnings('ignore:The encryption scheme "plain"')
@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (
            lambda: Prepare({"keys": key("plain")}, 64.0),
            "of the scheme 'plain' came, .* it is 'ckks'",
        ),
        (lambda: Prepare({"keys": key("bfv")}, 64.0), "of the scheme 'bfv' came"),
        (
            lambda: Prepare({"keys": key(limit=1.0)}, 64.0),
            "of the limit '1.0' came, .* it is '16384.0'",
        ),
        (
            lambda: Prepare({"keys": key(use="combinations")}, 64.0),
            "of the use 'combinations' came",
        ),
        (
            lambda: Prepare({"leader": key()}, 64.0),
            r"\['leader'\] may not decrypt by its own settings; \['keys'\] may",
        ),
        (
            lambda: Prepare({"keys": key()}, 1e9),
            "a distance times this unit would not fit",
        ),
        (
            lambda: Prepare({"keys": key()}, -1.0),
            "a distance times this unit would not fit",
        ),
    ],
)
def test_a_lying_leader_or_key_server_cannot_choose_how_distances_are_encrypted(
    request_: Any, says: str
) -> None:
    party = unprepared()
    with pytest.raises((BoundaryError, PartyError), match=says):
        party.answer(request_())
    with pytest.raises(PartyError, match="it was given no key of 'keys'"):
        party.answer(Distances(numbers(1), numbers(2), numbers(1), "keys"))


def test_keys_are_given_once() -> None:
    with pytest.raises(PartyError, match="it was given keys before, and keeps to them"):
        joined().answer(Prepare({"keys": key()}, 64.0))
