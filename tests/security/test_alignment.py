"""A driver that lies while ids are compared, against a laboratory's site: it has a list
of people and wants to know whom the laboratory knows. It may say who takes part, hand
over any points as anybody's, and ask again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation import small_multi_sites
from tests.federation.small import quick
from tests.federation.small_sites import ALONE, ask, folders, sites
from tests.sites.kinds import made, trains

from colonnade.alignment import curve
from colonnade.alignment.id_owner import Agree, Blind, Fetch, Learn, Raise
from colonnade.alignment.ids import Ids
from colonnade.core import Outbox, Released
from colonnade.errors import ColonnadeError, PartyError
from colonnade.settings.party_file import OWN
from colonnade.sites.messages import Join, Prepare
from colonnade.sites.reader import Look, digests_of
from colonnade.sites.site import Site

BOTH = ("clinic", "lab")
TRUE = "P003"
FALSE = "P999"  # whom the laboratory knows, and whom not


def sent(values: Any) -> Released:
    return Outbox("clinic", torch.Generator()).release(
        torch.as_tensor(values), "points"
    )


def points(ids: list[str]) -> torch.Tensor:
    """H(id), without a secret: what comes back is under the laboratory's alone."""
    return torch.from_numpy(
        curve.blind(Ids.of("clinic", [ids]).digests, (1).to_bytes(32, "big"))
    )


def lab_in(base: Path, **limits: int) -> Site:
    """A laboratory that finds common rows privately, and was joined."""
    if not (base / "lab").exists():
        folders(base, settings=quick(**ALONE, data={"align": "private"}))
        path = base / "lab" / OWN
        told = "".join(f"{key} = {value}\n" for key, value in limits.items())
        path.write_text(f"{path.read_text()}\n[alignments]\n{told}")
    lab = sites(base)["lab"]
    ask(lab, "clinic", Join(lab.own.agreed))
    return lab


def agree(
    lab: Site,
    parties: tuple[str, ...] = BOTH,
    *,
    predict: int = 0,
    caller: str = "clinic",
) -> int:
    return int(ask(lab, caller, Agree(parties, "exact", "rows", parties, predict)).ids)


def holds(
    lab: Site,
    guesses: list[str],
    *,
    predict: bool = False,
    parties: tuple[str, ...] = BOTH,
) -> list[str]:
    """The attack: which of these the laboratory holds. The driver multiplies each guess
    by a number of its own, so that what comes back shuffled tells which it was."""
    size = agree(lab, parties, predict=len(guesses) if predict else 0)
    known = {
        bytes(one) for one in ask(lab, "clinic", Blind(0, size)).points.tensor.numpy()
    }
    numbers = [(number + 2).to_bytes(32, "big") for number in range(len(guesses))]
    each = [
        curve.multiply(points([guess]).numpy(), number)
        for guess, number in zip(guesses, numbers, strict=True)
    ]
    ask(
        lab,
        "clinic",
        Raise("clinic", "clinic", 0, len(each), sent(np.concatenate(each))),
    )
    back = ask(lab, "clinic", Fetch("clinic", 0, len(each))).points.tensor.numpy()
    undo = [
        pow(number + 2, -1, curve.ORDER).to_bytes(32, "big")
        for number in range(len(guesses))
    ]
    return [
        guess
        for guess, inverse in zip(guesses, undo, strict=True)
        if any(bytes(one) in known for one in curve.multiply(back, inverse))
    ]


def test_it_cannot_make_parties_up(tmp_path: Path) -> None:
    """Each would bring a list of its own, and so a guess: thousands in one alignment."""
    lab = lab_in(tmp_path)
    invented = tuple(f"x{number}" for number in range(50))
    for parties in (
        (*BOTH, *invented),
        (*BOTH, "bank"),
        ("lab", "x1"),
        ("lab",),
        (*BOTH, "lab"),
        ("clinic", "x1"),
    ):
        for predict in (0, 1):
            with pytest.raises(
                PartyError,
                match=r"it aligns with 'clinic', 'lab', and was asked to with",
            ):
                agree(lab, parties, predict=predict)
    agree(lab)
    for owner in ("x1", "bank", "lab"):
        with pytest.raises(PartyError, match="no other party"):
            ask(lab, "clinic", Raise(owner, owner, 0, 1, sent(points([TRUE]))))


def test_it_cannot_ask_about_a_single_id_in_an_alignment(tmp_path: Path) -> None:
    lab = lab_in(tmp_path)
    others = [f"nobody {number}" for number in range(20)]
    for guesses in ([TRUE], [TRUE, FALSE], [TRUE, *others[:8]]):
        with pytest.raises(
            PartyError, match="it compares lists of 10 ids or more, and 'clinic' has"
        ):
            holds(lab, guesses)
    agree(lab)
    with pytest.raises(PartyError, match="of 10 points of 'clinic' only 1 differ"):
        ask(
            lab,
            "clinic",
            Raise("clinic", "clinic", 0, 10, sent(points([TRUE]).repeat(10, 1))),
        )
    with pytest.raises(PartyError, match="it holds no raised points of 'clinic'"):
        ask(lab, "clinic", Fetch("clinic", 0, 1))


def test_how_often_it_guesses_is_bounded_over_all_its_tricks_and_restarts(
    tmp_path: Path,
) -> None:
    """A list that is long enough tells a liar which of its guesses are held; what
    bounds it is the day's allowance. It is the same after a restart, and nothing is
    left of it for who hides behind predictions."""
    limits = {"per_day": 3, "predicted_per_day": 4}
    others = [f"nobody {number}" for number in range(20)]
    guessed = 0
    why = set[bool]()
    for trial in range(12):
        lab = lab_in(tmp_path, **limits)
        for predict, guesses in (
            (True, [TRUE if trial % 2 else FALSE]),
            (False, [TRUE, *others]),
        ):
            try:
                assert holds(lab, guesses, predict=predict) == [
                    one for one in guesses if one == TRUE
                ]
                guessed += 1
            except PartyError as error:
                why.add("today and was asked for" in str(error))
    assert why == {True}
    assert guessed == 3 + 4, "times a day, and ids a day"
    with pytest.raises(
        PartyError, match="compares 4 ids a day with 'clinic' to predict, had 4 today"
    ):
        holds(lab, [f"nobody {number}" for number in range(3000)], predict=True)


def test_a_damaged_count_is_no_new_allowance(tmp_path: Path) -> None:
    lab = lab_in(tmp_path)
    agree(lab)
    path = lab.own.runs / "store" / "state.db"
    lab.store.close()
    damaged = path.read_bytes().replace(b'"kind":"alignments"', b'"kind":"alignmentz"')
    path.write_bytes(damaged)
    assert b"alignmentz" in damaged
    for predict in (False, True):
        with pytest.raises(PartyError, match="StoreError"):
            holds(lab_in(tmp_path), [TRUE], predict=predict)


def learn(lab: Site, positions: list[int]) -> None:
    ask(lab, "clinic", Learn(sent(torch.tensor(positions, dtype=torch.int32))))


def compare(lab: Site, ids: list[str], *, predict: bool = False) -> None:
    """An alignment up to what is found: the clinic's list goes through the laboratory."""
    agree(lab, predict=len(ids) if predict else 0)
    ask(lab, "clinic", Raise("clinic", "clinic", 0, len(ids), sent(points(ids))))
    ask(lab, "clinic", Fetch("clinic", 0, len(ids)))


def test_an_allowance_of_nothing_lets_nothing_be_said_to_be_common(
    tmp_path: Path,
) -> None:
    """It would have every row released by saying that all are common, and compares no
    id for it."""
    lab = lab_in(tmp_path, per_day=0, predicted_per_day=0)
    for predict in (0, 1, 80, -1):
        with pytest.raises(
            PartyError,
            match=r"had 0 today and was asked for|was asked to compare -1 ids",
        ):
            agree(lab, predict=predict)
        with pytest.raises(PartyError, match="do not let 'lab' learn"):
            learn(lab, [0])
    assert lab.id_owners["clinic"].common_rows is None


def test_no_more_rows_are_said_to_be_common_than_ids_were_paid_for(
    tmp_path: Path,
) -> None:
    lab = lab_in(tmp_path, predicted_per_day=3)
    guesses = [TRUE, FALSE, "P010"]
    agree(lab, predict=1)
    with pytest.raises(PartyError, match="once all other lists went through it"):
        learn(lab, [0])
    with pytest.raises(
        PartyError, match="'clinic' announced 1 ids to predict, and its list has 3"
    ):
        ask(lab, "clinic", Raise("clinic", "clinic", 0, 3, sent(points(guesses))))
    compare(lab, guesses[:2], predict=True)
    with pytest.raises(
        PartyError, match="3 rows cannot be common: the shortest list compared has 2"
    ):
        learn(lab, [0, 1, 2])
    learn(lab, [0, 1])
    with pytest.raises(PartyError, match="they are learned once"):
        learn(lab, [2, 3])
    # rows to predict are none to train on, which costs otherwise
    with pytest.raises(PartyError, match="DataError"):
        ask(lab, "clinic", Prepare("run", 1, False, 0))
    with pytest.raises(PartyError, match="had 3 today"):
        agree(lab, predict=1)


def test_rows_that_were_compared_to_train_are_not_predicted(tmp_path: Path) -> None:
    made(tmp_path, "one", data={"align": "private"})
    trains(tmp_path, "one")
    lab = sites(tmp_path)["lab"]
    ask(lab, "clinic", Join(lab.own.agreed))
    compare(lab, [f"P{number:03d}" for number in range(20)])
    learn(lab, list(range(20)))
    with pytest.raises(PartyError, match="no alignment found any"):
        ask(lab, "clinic", Look("run", 4, 1, None))


def test_digests_are_no_way_around_it(tmp_path: Path) -> None:
    """Where ids are compared privately, who knows the agreed file cannot have digests
    of its guesses looked up."""
    made(tmp_path, "one", data={"align": "private"})
    trains(tmp_path, "one")
    lab = sites(tmp_path)["lab"]
    ask(lab, "clinic", Join(lab.own.agreed))
    digests = torch.tensor(
        [list(one) for one in digests_of(lab.own, np.array([TRUE, FALSE]))],
        dtype=torch.uint8,
    )
    with pytest.raises(PartyError, match="ids are compared privately"):
        ask(lab, "clinic", Look("run", 4, 1, sent(digests)))


def test_of_several_label_owners_each_aligns_with_its_own_partners_and_has_its_own_allowance(
    tmp_path: Path,
) -> None:
    small_multi_sites.folders(tmp_path, small_multi_sites.private())
    lab = sites(tmp_path)["lab"]
    ask(lab, "north", Join(lab.own.agreed))
    own = lab.own
    mine = {name: (name, *own.feature_owners) for name in own.label_owners}
    assert {agree(lab, mine[name], caller=name) for name in own.label_owners} == {
        len(lab.id_owners["north"].ids)
    }
    for parties in (
        (*own.label_owners, *own.feature_owners),
        mine["south"],
        ("south", "lab"),
    ):
        for predict in (0, 1):
            with pytest.raises(PartyError, match="and was asked to with"):
                agree(lab, parties, predict=predict, caller="north")
    with pytest.raises(ColonnadeError):
        agree(lab, mine["north"], caller="aggregation_server")


def test_the_log_says_who_asked_what_and_no_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="colonnade")
    lab = lab_in(tmp_path, per_day=1)
    holds(lab, [TRUE, FALSE], predict=True)
    agree(lab)
    with pytest.raises(PartyError):
        agree(lab)
    for told in (
        "lab: 'clinic' aligns 2 ids to predict, 2 of 1000 today",
        "lab: 'clinic' aligns ids to train, 1 of 1 times today",
        "lab: refused 1 more of 'clinic': it aligns with 'clinic' 1 times a day",
    ):
        assert told in caplog.text
    assert not [one for one in (TRUE, FALSE, "P00") if one in caplog.text]
