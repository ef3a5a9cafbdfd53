"""What every site's host says: what it hears from several label owners it does once,
and what does not fit is refused; whole runs are in test_site.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small_multi import LABELS
from tests.federation.small_sites import ask, folders, sites
from tests.sites.kinds import each_kind, made

from colonnade.core import Batches, Organisation
from colonnade.core.message import Ping, Pong
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, PartyError
from colonnade.settings.selection import SERVER
from colonnade.sites.host import Host
from colonnade.sites.messages import (
    Align,
    Close,
    GetReady,
    Join,
    Kept,
    Measure,
    Prepare,
    Save,
)
from colonnade.sites.site import Site

ASKS = {"one": "clinic", "several": "north"}
NEW = Prepare("run", 1, False)


def join(every: Mapping[str, Site]) -> None:
    for name in LABELS:
        ask(every[name], SERVER, Join(every[name].own.agreed))


def aligned(base: Path, *names: str) -> dict[str, Site]:
    made(base, "several")
    every = sites(base)
    join(every)
    for name in names:
        ask(every[name], SERVER, Align())
    return every


def test_it_is_there_for_those_who_may_ask_and_keeps_runs_in_its_own_folder(
    tmp_path: Path,
) -> None:
    folders(tmp_path)
    lab = sites(tmp_path)["lab"]
    host = Host(
        Organisation.at("lab", Batches({}, batch_size=1, epochs=1, seed=0)),
        lab,
        ["clinic"],
    )
    assert host.handle(Envelope("clinic", 1, Ping())) == Pong()
    with pytest.raises(BoundaryError, match="this is for clinic to ask"):
        host.handle(Envelope("bank", 1, Ping()))
    assert host.folder("first") == lab.own.runs / "first"
    for wrong in ("../x", "", ".x", "a/b"):
        with pytest.raises(Exception, match="a run's name has letters"):
            host.folder(wrong)
    host.check_agreed(lab.own.agreed)
    with pytest.raises(Exception, match="it agreed to"):
        host.check_agreed("something else")


@each_kind
def test_an_error_in_an_organisations_own_table_stays_with_it_and_names_it(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, kind)
    table = tmp_path / "all" / "lab.csv"
    whole = table.read_text()
    table.write_text(whole.replace("P003", "P004"))
    every = sites(tmp_path)
    asked = every["lab"] if kind == "one" else every["north"]
    request = Join(asked.own.agreed)
    asker = "clinic" if kind == "one" else SERVER
    with pytest.raises(
        PartyError,
        match=r"'lab' .* answering messages\.Join: DataError; the log of 'lab'",
    ) as told:
        ask(asked, asker, request)
    assert "P004" not in str(told.value)
    assert "ids that occur more than once, such as in rows" in caplog.text
    assert "P004" not in caplog.text, "an id is in no log, its owner's neither"
    table.write_text(whole)
    ask(asked, asker, request)  # and can be tried again


def test_the_first_is_obeyed_and_the_others_are_compared(tmp_path: Path) -> None:
    lab = aligned(tmp_path, *LABELS)["lab"]
    one, other = (ask(lab, name, NEW) for name in LABELS)
    assert (one.rows, other.rows) == (90, 80)
    assert one.same
    assert other.same, "they were compared privately, and nobody is told a digest"
    assert lab.participant is not None
    with pytest.raises(PartyError, match="it takes part in a run already"):
        ask(lab, "north", NEW)
    for name in LABELS:
        ask(lab, name, Save(2, 1, 1))
    assert lab.participant.run.mark()["number"] == 2
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
    lab = aligned(tmp_path, *LABELS)["lab"]
    ask(lab, "north", NEW)
    for wrong in (
        Prepare("other", 1, False),
        Prepare("run", 2, False),
        Prepare("run", 1, True),
    ):
        with pytest.raises(
            PartyError,
            match="another label owner asked for the run 'run', from checkpoint 0",
        ):
            ask(lab, "south", wrong)


def test_columns_are_not_brought_before_all_have_agreed_on_rows(tmp_path: Path) -> None:
    every = aligned(tmp_path, "north")
    with pytest.raises(PartyError, match="DataError"):
        ask(every["lab"], "north", NEW)
    assert not (tmp_path / "lab" / "runs" / "run").exists()
    ask(every["south"], SERVER, Align())
    assert ask(every["lab"], "north", NEW).rows == 90, "and nothing is spoiled"


@each_kind
def test_what_was_not_prepared_or_is_already_running_is_refused(
    tmp_path: Path, kind: str
) -> None:
    made(tmp_path, kind)
    every = sites(tmp_path)
    asker = ASKS[kind]
    for request in (Save(2, 1, 1), Close("x")):
        with pytest.raises(PartyError, match="it was not prepared for a run"):
            ask(every["lab"], asker, request)
    wrong: list[tuple[str, str, Any]] = [
        ("lab", asker, Prepare("../x", 1, False)),
        ("lab", asker, Kept("..")),
    ]
    if kind == "several":
        with pytest.raises(PartyError, match="it was not prepared for a run"):
            ask(every["north"], SERVER, Measure("test", "aggregated"))
        with pytest.raises(PartyError, match="there is no model 'best'"):
            ask(every["north"], SERVER, Measure("test", "best"))
        wrong.append(("north", SERVER, GetReady("../x", False, 0)))
    for asked, caller, request in wrong:
        with pytest.raises(PartyError, match="a run's name has letters"):
            ask(every[asked], caller, request)
    with pytest.raises(PartyError, match="a model cannot have 0 outputs"):
        ask(every["lab"], asker, Prepare("run", 0, False))
    for name, caller in (
        ("lab", asker),
        *([("north", SERVER)] if kind == "several" else []),
    ):
        assert ask(every[name], caller, Ping()) == Pong()
    if kind == "one":
        ask(every["lab"], asker, NEW)
        with pytest.raises(PartyError, match="it takes part in a run already"):
            ask(every["lab"], asker, Prepare("other", 1, False))
