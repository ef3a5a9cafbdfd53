"""A driver that has paid for one alignment, and asks more than once for it: by a later
key again and again, by having the helper compare another list, or by putting the rows
of one alignment into another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.alignment.people import settings
from tests.federation.small_sites import ask, sites, taken_at
from tests.security.test_alignment import compare, learn, sent
from tests.sites.test_helper import lab_in
from tests.sites.test_keys import made

from colonnade.alignment import curve
from colonnade.alignment.helper import Begin, Compare, Gather
from colonnade.alignment.id_owner import Agree, Blind, Fetch, Raise
from colonnade.alignment.ids import Ids
from colonnade.alignment.keyed import AgreeKeyed
from colonnade.errors import PartyError
from colonnade.sites.messages import Join
from colonnade.sites.site import Site

BOTH = ("clinic", "lab")
KEY = "ab" * 32


def holds(lab: Site, key: int, guesses: list[str]) -> set[str]:
    """Which of these guesses the laboratory has as its values of a key, by one
    alignment of that key."""
    texts = np.array([*guesses, *(f"nobody {number}" for number in range(10))])
    size = ask(lab, "clinic", Agree(BOTH, "exact", "rows", BOTH, 0, key)).ids
    known = {
        bytes(one) for one in ask(lab, "clinic", Blind(0, size)).points.tensor.numpy()
    }
    bare = curve.blind(Ids.of_texts("clinic", texts).digests, (1).to_bytes(32, "big"))
    marked = [
        curve.multiply(one[None], (at + 2).to_bytes(32, "big"))
        for at, one in enumerate(bare)
    ]
    ask(
        lab,
        "clinic",
        Raise("clinic", "clinic", 0, len(texts), sent(np.concatenate(marked))),
    )
    back = ask(lab, "clinic", Fetch("clinic", 0, len(texts))).points.tensor.numpy()
    undone = [
        curve.multiply(back, pow(at + 2, -1, curve.ORDER).to_bytes(32, "big"))
        for at in range(len(guesses))
    ]
    return {
        guess
        for guess, one in zip(guesses, undone, strict=True)
        if known & {bytes(point) for point in one}
    }


def test_a_later_key_is_compared_once(tmp_path: Path) -> None:
    """It is paid with the first one; asked again and again, each time with other
    guesses, it would be an oracle."""
    made(tmp_path, settings())
    lab = sites(tmp_path)["lab"]
    ask(lab, "clinic", Join(lab.own.agreed))
    assert holds(lab, 0, ["p0@x.org", "nobody@x.org"]) == {"p0@x.org"}
    learn(lab, [])
    assert holds(lab, 1, ["zoe muller b1 | 1951-01-02", "nobody"]) == {
        "zoe muller b1 | 1951-01-02"
    }
    for key in (1, 2):
        with pytest.raises(
            PartyError,
            match="keys are compared in turn, each once: 2 were begun, and 1 compared",
        ):
            holds(lab, key, ["zoe muller c2 | 1952-01-03"])
    assert taken_at(tmp_path, "lab")["clinic"]["alignments"] == 1


def begin(every: dict[str, Site], ids: list[str]) -> None:
    """The driver has the helper fetch both lists, with ids of its choice as its own,
    under the key agreed on."""
    clinic = every["clinic"]
    helper = every["trust"]
    clinic.id_owners["clinic"].ids = Ids.of("clinic", [ids])
    assert clinic.keyed is not None
    clinic.keyed.answer(AgreeKeyed(BOTH, "exact", "rows", BOTH, "trust", KEY))
    for name, size in ask(
        helper, "clinic", Begin(BOTH, "rows", ("lab", "clinic"))
    ).ids.items():
        ask(helper, "clinic", Gather(BOTH, name, 0, size))


def test_a_list_leaves_once_for_each_alignment_by_the_helper(tmp_path: Path) -> None:
    """One that is handed out again is compared with another list of the driver's, for
    which nobody has paid."""
    every = lab_in(tmp_path, per_day=1)
    ask(every["lab"], "clinic", AgreeKeyed(BOTH, "exact", "rows", BOTH, "trust", KEY))
    others = [f"nobody {number}" for number in range(20)]
    begin(every, ["P003", *others])
    assert ask(every["trust"], "clinic", Compare(BOTH)).common == 1
    for guess in ("P004", "P999"):
        with pytest.raises(
            PartyError, match="its list of 80 is handed out once, in turn: 80 were"
        ):
            begin(every, [guess, *others])


def test_rows_that_the_helper_found_to_train_are_not_predicted(tmp_path: Path) -> None:
    """A prediction that begins meanwhile would have all of them predicted for the price
    of one id."""
    every = lab_in(tmp_path)
    lab = every["lab"]
    ask(lab, "clinic", AgreeKeyed(BOTH, "exact", "rows", BOTH, "trust", KEY))
    begin(every, [f"P{number:03d}" for number in range(80)])
    ask(lab, "clinic", Agree(BOTH, "exact", "rows", BOTH, 1))
    with pytest.raises(
        PartyError, match="another alignment has begun, and this one has ended"
    ):
        ask(every["trust"], "clinic", Compare(BOTH))
    assert lab.common_ids("clinic") is None


def test_nor_does_a_list_to_predict_end_in_an_alignment_to_train(
    tmp_path: Path,
) -> None:
    """It may be shorter than any list to train, and so tell about a single id."""
    lab = lab_in(tmp_path)["lab"]
    compare(lab, ["P003"], predict=True)
    ask(lab, "clinic", AgreeKeyed(BOTH, "exact", "rows", BOTH, "trust", KEY))
    with pytest.raises(PartyError, match="do not let 'lab' learn"):
        learn(lab, [0])
