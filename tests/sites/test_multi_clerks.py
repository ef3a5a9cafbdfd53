"""What a data owner hears from every label owner it does once; what does not fit is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small_multi import LABELS
from tests.federation.small_multi_sites import folders, private, sites
from tests.federation.test_multi_site import ask

from colonnade.core import roles
from colonnade.errors import PartyError
from colonnade.settings.owners import SERVER
from colonnade.sites.multi_clerks import Align, Bring, Prepare
from colonnade.sites.multi_server import Measure
from colonnade.sites.multi_site import MultiSite
from colonnade.sites.saves import Close, Kept, Save
from colonnade.sites.site import Join

pytest.importorskip("coincurve", reason='private alignment needs pip install "colonnade[crypto]"')


def join(every: Mapping[str, MultiSite]) -> None:
    for name in LABELS:
        ask(every[name], SERVER, Join(every[name].own.agreed))


def aligned(every: Mapping[str, MultiSite]) -> None:
    join(every)
    for name in LABELS:
        ask(every[name], SERVER, Align())


def test_an_error_in_an_organisations_own_table_stays_with_it_and_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders(tmp_path, private())
    table = tmp_path / "all" / "lab.csv"
    table.write_text(table.read_text().replace("P003", "P004"))
    with pytest.raises(
        PartyError, match=r"'lab' failed while answering site\.Join: DataError; the log of 'lab'"
    ) as told:
        join(sites(tmp_path))
    assert "P004" not in str(told.value)
    assert "ids that occur more than once" in caplog.text


def test_the_first_is_obeyed_and_the_others_are_compared(tmp_path: Path) -> None:
    folders(tmp_path, private())
    every = sites(tmp_path)
    lab = every["lab"]
    aligned(every)
    one, other = (ask(lab, name, Bring("run", False, 0)) for name in LABELS)
    assert (one.rows, other.rows) == (90, 80)
    assert one.ids != other.ids
    assert lab.member is not None
    with pytest.raises(PartyError, match="it takes part in a run already"):
        ask(lab, "north", Bring("run", False, 0))
    for name in LABELS:
        ask(lab, name, Save(2, 1, 1))
    assert lab.member.run.mark()["number"] == 2
    for wrong in (Save(1, 1, 1), Save(2, 2, 1)):
        with pytest.raises(PartyError, match="it saved 2 last, and was asked to save"):
            ask(lab, "south", wrong)
    assert ask(lab, "south", Kept("run")).numbers == (2, 1)
    summary = tmp_path / "lab" / "runs" / "run" / "summary.json"
    ask(lab, "north", Close("done"))
    first = summary.read_text()
    ask(lab, "south", Close("done, too"))
    assert summary.read_text() == first


def test_label_owners_who_want_different_runs_are_told(tmp_path: Path) -> None:
    folders(tmp_path, private())
    every = sites(tmp_path)
    aligned(every)
    ask(every["lab"], "north", Bring("run", False, 0))
    with pytest.raises(PartyError, match="another label owner asked for the run 'run', from checkpoint 0"):
        ask(every["lab"], "south", Bring("other", False, 0))


def test_columns_are_not_brought_before_all_have_agreed_on_rows(tmp_path: Path) -> None:
    folders(tmp_path, private())
    every = sites(tmp_path)
    join(every)
    ask(every["north"], SERVER, Align())
    with pytest.raises(PartyError, match="DataError"):
        ask(every["lab"], "north", Bring("run", False, 0))
    assert not (tmp_path / "lab" / "runs" / "run").exists()


def test_what_was_not_prepared_is_refused(tmp_path: Path) -> None:
    folders(tmp_path, private())
    every = sites(tmp_path)
    for request in (Save(2, 1, 1), Close("x")):
        with pytest.raises(PartyError, match="it was not prepared for a run"):
            ask(every["lab"], "north", request)
    with pytest.raises(PartyError, match="it was not prepared for a run"):
        ask(every["north"], SERVER, Measure("test", "aggregated"))
    with pytest.raises(PartyError, match="there is no model 'best'"):
        ask(every["north"], SERVER, Measure("test", "best"))
    named: list[tuple[str, str, Any]] = [
        ("north", SERVER, Prepare("../x", False, 0)),
        ("lab", "north", Bring("../x", False, 0)),
        ("lab", "south", Kept("..")),
    ]
    for asked, caller, wrong in named:
        with pytest.raises(PartyError, match="a run's name has letters"):
            ask(every[asked], caller, wrong)
    for name, caller in (("north", SERVER), ("lab", "south")):
        assert ask(every[name], caller, roles.Ping()) == roles.Pong()
