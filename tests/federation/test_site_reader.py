"""What a party lets a driver ask for when it predicts. Whole predictions are in test_site_predict.py."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tests.federation.small import frames, quick
from tests.federation.small_sites import folders, lines_of, sites
from tests.federation.test_site import ALONE, ask

from colonnade.core import Outbox, Released
from colonnade.errors import BoundaryError, PartyError
from colonnade.federation.member import own_holdings
from colonnade.federation.party_file import OWN, read_own
from colonnade.federation.site import Site
from colonnade.federation.site_reader import DIGEST, Enough, Look, Take, digests_of, own_rows


def sent(values: Any, dtype: torch.dtype) -> Released:
    return Outbox("clinic", torch.Generator()).release(torch.tensor(values, dtype=dtype), "asked")


def trained(base: Path) -> Site:
    """The laboratory after a run, with four checkpoints made."""
    folders(base, settings=quick(**ALONE))
    every = sites(base)
    every["clinic"].drive(lines_of("clinic", every), "run")
    return sites(base)["lab"]


def busy(lab: Site) -> bool:
    return lab.member is not None


def digests(lab: Site, ids: list[str]) -> Released:
    import numpy as np

    return sent([list(one) for one in digests_of(lab.own, np.array(ids))], torch.uint8)


def test_it_says_which_rows_it_holds_and_answers_for_those_alone(tmp_path: Path) -> None:
    lab = trained(tmp_path)
    held = ask(lab, "clinic", Look("run", 4, 1, digests(lab, ["P003", "P999", "P001"]))).held
    assert held.tensor.tolist() == [0, 2]
    assert lab.member is not None
    assert lab.member.holdings.ids.tolist() == ["P003", "P001"]
    ask(lab, "clinic", Take(sent([1], torch.int64)))
    assert lab.member.batches.rows("predict[0:1]").tolist() == [1]
    for rows in ([2], [-1], []):
        with pytest.raises(PartyError, match="it has rows 0 to 1"):
            ask(lab, "clinic", Take(sent(rows, torch.int64)))
    ask(lab, "clinic", Enough())
    assert not busy(lab)
    with pytest.raises(PartyError, match="it holds no row that was asked for"):
        ask(lab, "clinic", Take(sent([0], torch.int64)))


def test_rows_do_not_change_while_an_answer_about_them_is_made(tmp_path: Path) -> None:
    """Else a row that is released is not the one that pays."""
    lab = trained(tmp_path)
    ask(lab, "clinic", Look("run", 4, 1, digests(lab, ["P003", "P001"])))
    ask(lab, "clinic", Take(sent([1], torch.int64)))
    assert lab.member is not None
    later = threading.Thread(target=ask, args=(lab, "clinic", Take(sent([0], torch.int64))))
    with lab.member.owner.undisturbed():  # as it is while it embeds
        later.start()
        later.join(0.2)
        assert lab.member.batches.rows("predict[0:1]").tolist() == [1]
    later.join(20)
    assert lab.member.batches.rows("predict[0:1]").tolist() == [0]


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
    assert lab.member is None


def test_columns_are_prepared_as_in_training_whatever_the_table_holds_now(tmp_path: Path) -> None:
    folders(tmp_path)
    own = read_own(tmp_path / "lab" / OWN)
    before = own_holdings(own, None)
    fitted = before.state_of("lab")
    table = tmp_path / "all" / "lab.csv"
    more = frames(rows=90, seed=5)["lab"]
    pd.concat([pd.read_csv(table), more[more["patient"] >= "P080"] * 1]).assign(extra=1.0).to_csv(table, index=False)
    known, columns = own_rows(own, fitted)
    assert len(known) == 90
    features = before.parties["lab"].features
    assert features is not None
    assert torch.equal(columns(before.ids), features)
