"""A driver that has a site prepare for few rows, one of which it does not know, and
guesses that one's id offline from the answer. It chooses the rows by saying what is
common, or by the sides that it tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation.small import frames, quick
from tests.federation.small_sites import ALONE, ask, folders, sites
from tests.security.test_alignment import compare, learn

from colonnade.datasets.table import packed
from colonnade.rows.holdings import LabelledRows
from colonnade.rows.sides import sides_to_tell
from colonnade.sites.messages import Join, Prepare, Prepared
from colonnade.sites.site import Site

PEOPLE = [f"P{number:03d}" for number in range(80)]
KNOWN = 9


def lab_with(base: Path, align: str, secret: str) -> Site:
    """A laboratory with a person that the clinic does not know."""
    given = frames()
    given["lab"]["patient"] = given["lab"]["patient"].replace("P079", secret)
    folders(base, given, quick(**ALONE, data={"align": align}))
    lab = sites(base)["lab"]
    ask(lab, "clinic", Join(lab.own.agreed))
    return lab


def only(lab: Site, ids: list[str], among: list[str]) -> str:
    """Sides that leave all rows out but some."""
    kept = np.array(ids)
    listed = np.array(among)
    assert lab.table is not None
    return sides_to_tell(
        listed,
        LabelledRows(packed(kept), torch.empty(0), {"train": torch.arange(len(kept))}),
    )


def answer(base: Path, align: str, secret: str, guess: str) -> Prepared:
    """What the laboratory says of a few rows, as the clinic wishes."""
    lab = lab_with(base, align, secret)
    assert lab.table is not None
    listed = lab.table.ids.tolist()
    wanted = [*PEOPLE[:KNOWN], secret]
    digest = lab.digest("run", np.array([*PEOPLE[:KNOWN], guess]))
    if align == "private":
        compare(lab, PEOPLE[: KNOWN + 1])
        rows = lab.id_owners["clinic"]
        places = np.flatnonzero(
            np.isin(lab.table.ids[rows.ids.rows[rows._order]], wanted)
        )
        learn(lab, places.tolist())
        sides = only(lab, [secret, PEOPLE[0]], sorted(wanted))
    else:
        sides = only(lab, sorted(wanted), listed)
    found = ask(lab, "clinic", Prepare("run", 1, False, sides=sides, ids=digest))
    assert isinstance(found, Prepared)
    return found


@pytest.mark.parametrize("align", ["private", "exact"])
def test_what_a_site_prepared_says_nothing_of_a_row_that_only_it_knows(
    tmp_path: Path, align: str
) -> None:
    """Two laboratories that differ in one person answer alike, also one whose person
    was guessed."""
    answers = [
        answer(tmp_path / f"{number}", align, secret, guess)
        for number, (secret, guess) in enumerate(
            [("P081", "P081"), ("P081", "P082"), ("P082", "P081")]
        )
    ]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0].rows == (KNOWN + 1 if align == "private" else len(PEOPLE)), (
        "sides leave none out of the count"
    )


def test_who_has_the_whole_list_hears_that_it_is_the_same_and_nothing_for_another_run(
    tmp_path: Path,
) -> None:
    lab = lab_with(tmp_path, "exact", "P081")
    assert lab.table is not None
    ids = lab.table.ids
    told = lab.digest("run", ids)
    assert lab.are_same(ids, "run", told)
    assert not lab.are_same(ids, "other", told)
    assert ask(lab, "clinic", Prepare("run", 1, False, ids=told)) == Prepared(
        80, True, 0, False
    )
