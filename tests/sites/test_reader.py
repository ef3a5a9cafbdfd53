"""What a party lets a driver ask for when it predicts. Whole predictions are in
test_prediction.py."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation.small import quick
from tests.federation.small_sites import ALONE, ask, folders, sites
from tests.sites.kinds import made, trains

from colonnade.algorithms.embedding import Embed
from colonnade.core import Outbox, Released
from colonnade.errors import BoundaryError, BudgetExhausted, PartyError
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import OWN
from colonnade.sites.driving import drive
from colonnade.sites.messages import Join
from colonnade.sites.reader import DIGEST, Enough, Look, Reader, Take, digests_of
from colonnade.sites.site import Site


def sent(values: Any, dtype: torch.dtype) -> Released:
    return Outbox("clinic", torch.Generator()).release(
        torch.tensor(values, dtype=dtype), "asked"
    )


def trained(base: Path) -> Site:
    """The laboratory after a run, with four checkpoints made."""
    made(base, "one")
    trains(base, "one")
    return sites(base)["lab"]


def busy(lab: Site) -> bool:
    return lab.participant is not None


def digests(lab: Site, ids: list[str]) -> Released:
    return sent([list(one) for one in digests_of(lab.own, np.array(ids))], torch.uint8)


def test_it_says_which_rows_it_holds_and_answers_for_those_alone(
    tmp_path: Path,
) -> None:
    lab = trained(tmp_path)
    held = ask(
        lab, "clinic", Look("run", 4, 1, digests(lab, ["P003", "P999", "P001"]))
    ).held
    assert held.tensor.tolist() == [0, 2]
    assert lab.participant is not None
    assert lab.participant.ids.tolist() == ["P003", "P001"]
    ask(lab, "clinic", Take(sent([1], torch.int64)))
    assert lab.participant.federation.agreed["clinic"].rows(
        "predict[0:1]"
    ).tolist() == [1]
    for rows in ([2], [-1], []):
        with pytest.raises(PartyError, match="it has rows 0 to 1"):
            ask(lab, "clinic", Take(sent(rows, torch.int64)))
    ask(lab, "clinic", Enough())
    assert not busy(lab)
    with pytest.raises(PartyError, match="it holds no row that was asked for"):
        ask(lab, "clinic", Take(sent([0], torch.int64)))


NOISE = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 4.0}}}


QUIET = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 900.0}}}


def budget_added(base: Path) -> Site:
    """The laboratory trained with so much noise that it cost hardly anything, and
    without a budget; it has less noise and a budget now."""
    made(base, "one", parties={"lab": {"outbox": QUIET}})
    trains(base, "one")
    path = base / "lab" / OWN
    text = path.read_text()
    assert "sigma = 900.0" in text
    text = text.replace("sigma = 900.0", "sigma = 4.0")
    path.write_text(f"{text}\n[budget]\nepsilon = 2.0\n")
    return sites(base)["lab"]


def test_rows_that_left_without_noise_have_nothing_to_spend(tmp_path: Path) -> None:
    """A budget that comes after a run without rules knows what left in it."""
    trained(tmp_path)
    path = tmp_path / "lab" / OWN
    rule = 'embedding = { mechanism = { name = "gaussian", clip = 1.0, sigma = 4.0 } }'
    path.write_text(f"{path.read_text()}\n[outbox]\n{rule}\n[budget]\nepsilon = 2.0\n")
    lab = sites(tmp_path)["lab"]
    ask(lab, "clinic", Look("run", 4, 1, digests(lab, ["P001"])))
    with pytest.raises(BudgetExhausted, match="epsilon would be infinite"):
        ask(lab, "clinic", Embed("predict[0:1]"))


def test_a_row_is_asked_for_once_in_a_request(tmp_path: Path) -> None:
    """Two hundred copies of one row, each with noise of its own, have a mean with
    hardly any."""
    lab = budget_added(tmp_path)
    why = (
        "'clinic' asked for 200 rows of which only 1 differ, and each is asked for once"
    )
    again = "'clinic' asked for 4 rows of which only 3 differ"
    for ids, told in ((["P001"] * 200, why), (["P001", "P002", "P999", "P001"], again)):
        with pytest.raises(PartyError, match=told):
            ask(lab, "clinic", Look("run", 4, 1, digests(lab, ids)))
        assert not busy(lab)
    ask(lab, "clinic", Look("run", 4, 1, digests(lab, ["P001", "P002"])))
    with pytest.raises(
        PartyError, match="'clinic' asked for 3 rows of which only 2 differ"
    ):
        ask(lab, "clinic", Take(sent([1, 0, 1], torch.int64)))


def test_a_row_pays_once_for_each_copy_however_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where repeats came through all the same, the account knows that they are one row;
    so under every name, and over all requests."""
    lab = budget_added(tmp_path)
    monkeypatch.setattr(Reader, "_each_once", lambda *_: None)
    ask(lab, "clinic", Look("run", 4, 1, digests(lab, ["P001"] * 50)))
    with pytest.raises(BudgetExhausted, match="epsilon would be"):
        ask(lab, "clinic", Embed("predict[0:50]"))
    left = 0
    for start in range(50):
        try:
            ask(lab, "clinic", Embed(f"predict[{start}:{start + 1}]"))
            left += 1
        except BudgetExhausted:
            # and begins anew
            ask(lab, "clinic", Look("run", 4, 1, digests(lab, ["P001"] * 50)))
    assert left == 1
    ask(lab, "clinic", Look("run", 4, 1, digests(lab, ["P002", "P001"])))
    # at once, so that no other party charges its rows for nothing
    with pytest.raises(BudgetExhausted):
        ask(lab, "clinic", Take(sent([1], torch.int64)))
    with pytest.raises(BudgetExhausted):
        ask(lab, "clinic", Embed("predict[0:1]"))
    ask(lab, "clinic", Take(sent([0], torch.int64)))
    ask(lab, "clinic", Embed("predict[0:1]"))


def test_ids_that_differ_in_their_spelling_alone_are_one_row(tmp_path: Path) -> None:
    """Where ids are normalised, they are when a table is read: a row has one digest,
    and one place in the account."""
    parties = {"lab": {"outbox": NOISE, "budget": {"epsilon": 20.0}}}
    folders(
        tmp_path,
        settings=quick(alignment={"ids": "normalised"}, parties=parties, **ALONE),
    )
    drive(sites(tmp_path)["clinic"], "run")
    lab = sites(tmp_path)["lab"]
    spellings = ["P001", "p001", " P001 ", "\uff300\uff101"]
    held = ask(lab, "clinic", Look("run", 4, 1, digests(lab, spellings))).held
    assert held.tensor.tolist() == [1], "as it is compared"
    assert lab.participant is not None
    account = lab.participant.accounts["lab"]
    (before,) = account.counts.values()
    ask(lab, "clinic", Embed("predict[0:1]"))
    (after,) = account.counts.values()
    assert after.sum() == before.sum() + 1
    assert len(after) == 80, "no row is there under another name"


def test_rows_do_not_change_while_an_answer_about_them_is_made(tmp_path: Path) -> None:
    """Else a row that is released is not the one that pays."""
    lab = trained(tmp_path)
    ask(lab, "clinic", Look("run", 4, 1, digests(lab, ["P003", "P001"])))
    ask(lab, "clinic", Take(sent([1], torch.int64)))
    assert lab.participant is not None
    later = threading.Thread(
        target=ask, args=(lab, "clinic", Take(sent([0], torch.int64)))
    )
    with lab.participant.role.undisturbed():  # as it is while it embeds
        later.start()
        later.join(0.2)
        assert lab.participant.federation.agreed["clinic"].rows(
            "predict[0:1]"
        ).tolist() == [1]
    later.join(20)
    assert lab.participant.federation.agreed["clinic"].rows(
        "predict[0:1]"
    ).tolist() == [0]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    lab = trained(tmp_path)
    with pytest.raises(PartyError, match="it has no checkpoint 2 of it"):
        ask(lab, "clinic", Look("run", 2, 1, digests(lab, ["P001"])))
    with pytest.raises(PartyError, match="a run's name has letters"):
        ask(lab, "clinic", Look("../run", 4, 1, digests(lab, ["P001"])))
    with pytest.raises(PartyError, match=f"digests are {DIGEST} bytes each"):
        ask(lab, "clinic", Look("run", 4, 1, sent([[1, 2, 3]], torch.uint8)))
    with pytest.raises(PartyError, match="a model cannot have 2097152 outputs"):
        ask(lab, "clinic", Look("run", 4, 1 << 21, digests(lab, ["P001"])))
    with pytest.raises(PartyError, match="no alignment found any"):
        ask(lab, "clinic", Look("run", 4, 1, None))
    with pytest.raises(BoundaryError, match=r"no party of its federation"):
        ask(lab, "bank", Look("run", 4, 1, None))
    assert lab.participant is None


def test_another_takes_over_from_one_that_has_gone_and_never_while_it_is_answered(
    tmp_path: Path,
) -> None:
    made(tmp_path, "several", train={"epochs": 1, "batch_size": 64})
    trains(tmp_path, "several")
    lab = sites(tmp_path)["lab"]
    assert lab.reader is not None
    mark = RunDirectory(tmp_path / "lab" / "runs" / "run").mark()["number"]
    ask(lab, "north", Join(lab.own.agreed))

    def look(owner: str, id_: str) -> None:
        """As after the two aligned."""
        assert lab.table is not None
        lab.id_owners[owner].rows_by_key = [np.flatnonzero(lab.table.ids == id_)]
        lab.id_owners[owner].predicts = True
        ask(lab, owner, Look("run", mark, 1, None))

    look("north", "P002")  # and then it dies
    with pytest.raises(PartyError, match="it answers 'north' now"):
        look("south", "P100")
    lab.reader.patience = 0.0
    with (
        lab.reader.answering("north"),
        pytest.raises(PartyError, match="it answers 'north' now"),
    ):
        look("south", "P100")
    before = lab.participant
    look("south", "P100")
    assert lab.participant is not None
    assert lab.participant is not before
    assert lab.participant.ids.tolist() == ["P100"]
    lab.reader.patience = 60.0
    for late in (Take(sent([0], torch.int64)), Enough()):
        with pytest.raises(PartyError, match="it answers 'south' now"):
            ask(lab, "north", late)
    ask(lab, "south", Enough())
    look("north", "P002")
    ask(lab, "north", Enough())
