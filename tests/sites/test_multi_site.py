"""Organisations that know only their own files train what one process would, and the server sees weights alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tests.federation.small import checkpoint_of
from tests.federation.small_multi import COLUMNS, GAUSSIAN, LABELS, frames
from tests.federation.small_multi_sites import EVERY, folders, lines_of, private, public_folders, saved, sites

from colonnade.algorithms import multi_vfl
from colonnade.core import Ledger, Peers
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.federation import MultiFederation
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.owners import SERVER
from colonnade.settings.party_file import AGREED, OWN, read_own
from colonnade.sites.multi_server import Measured, Ready
from colonnade.sites.multi_site import MultiSite, rehearse, site_for
from colonnade.sites.site import Join, Site
from colonnade.transport import Recording
from colonnade.transport.remote import Flare, Line

pytest.importorskip("coincurve", reason='private alignment needs pip install "colonnade[crypto]"')


def test_organisations_train_what_one_process_would(tmp_path: Path) -> None:
    """To the bit; and the aggregation server receives weights and numbers about whole splits, from label owners."""
    file, _ = folders(tmp_path, private())
    here = MultiFederation.from_toml(file).fit(tmp_path / "here").summary
    every = sites(tmp_path)
    server = every[SERVER]
    recording = server.carrier = Recording(Flare({name: lines_of(SERVER, every)[name] for name in LABELS}))
    there = server.drive(lines_of(SERVER, every), "run").summary
    for key in ("metrics", "rows", "rounds", "label_owners", "task"):
        assert there[key] == here[key], key
    for name in EVERY:
        run = tmp_path / name / "runs" / "run"
        assert [folder.name for folder in (run / "parties").iterdir()] == [name]
        assert (RunDirectory(run).mark()["finished"], RunDirectory(run).part()) == (True, name)
        own = json.loads((run / "summary.json").read_text())
        assert (own["bytes"][name], own["parties"][name]) == (here["bytes"][name], here["parties"][name]), name
        blinded = "blinded_ids" in (run / "parties" / name / "ledger.jsonl").read_text()
        assert blinded == (name != SERVER), "what crossed to agree on rows is written down, too"
    one, other = checkpoint_of(tmp_path / "here"), saved(tmp_path, "run")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    seen = recording.of(SERVER)
    assert {one.sender for one in seen} == set(LABELS)
    tensors = [released for one in seen for released in one.message.released()]
    assert {released.receipt.name for released in tensors} == {"weights"}
    assert {len(released.shape) for released in tensors} == {1}
    kinds = {type(one.message) for one in seen if one.message.hints()}
    assert kinds == {multi_vfl.Beginning, multi_vfl.Trained, Ready, Measured}
    assert server.lines.keys() == set(LABELS), "it holds no line to a data owner"


def epochs(base: Path, before: int, after: int) -> None:
    for name in EVERY:
        path = base / name / AGREED
        path.write_text(path.read_text().replace(f"\nepochs = {before}", f"\nepochs = {after}"))


def test_a_run_is_resumed_bit_equal_with_budgets_and_drawn_labels(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    drawn = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 1.0}}}
    owners: Any = {
        "label_owners": [{"name": "north", "outbox": drawn}],
        "data_owners": [{"name": "lab", "budget": {"epsilon": 500.0, "delta": 1e-5}, "outbox": GAUSSIAN}],
    }
    folders(tmp_path, private(train={"epochs": 2, "batch_size": 64}, **owners))
    assert "gaussian" not in "".join((tmp_path / name / AGREED).read_text() for name in EVERY)
    every = sites(tmp_path)
    first = every[SERVER].drive(lines_of(SERVER, every), "run")
    assert first.summary["not_measured"], "measuring training rows again would cost the laboratory"
    before = saved(tmp_path, "run")
    epochs(tmp_path, 2, 3)
    every = sites(tmp_path)
    outcome = every[SERVER].drive(lines_of(SERVER, every), "run", resume=True)
    assert [record["epoch"] for record in outcome.history] == [1, 2, 3]
    after = saved(tmp_path, "run")
    assert torch.equal(before["north/drawn"], after["north/drawn"]), "a second draw would cost again"
    lab = json.loads((tmp_path / "lab" / "runs" / "run" / "summary.json").read_text())
    (told,) = lab["privacy"]
    assert all(0 < one["epsilon"] < 500 for one in told["statements"])
    assert {one["release"]: one["appearances"] for one in told["releases"]}["embedding"] > 3, "of all three rounds"
    assert lab["rounds"] == 3
    north = json.loads((tmp_path / "north" / "runs" / "run" / "summary.json").read_text())
    assert north["metrics"].keys() == {"validation", "test"}
    with pytest.raises(PartyError, match="it takes part in a run already"):
        every[SERVER].drive(lines_of(SERVER, every), "another")


def test_resumed_it_is_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    folders(tmp_path, private(train={"epochs": 2, "batch_size": 64}))
    every = sites(tmp_path)
    every[SERVER].drive(lines_of(SERVER, every), "whole")
    epochs(tmp_path, 2, 1)
    every = sites(tmp_path)
    every[SERVER].drive(lines_of(SERVER, every), "parts")
    epochs(tmp_path, 1, 2)
    every = sites(tmp_path)
    every[SERVER].drive(lines_of(SERVER, every), "parts", resume=True)
    one, other = saved(tmp_path, "whole"), saved(tmp_path, "parts")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


class Cut:
    """A line that is dead while calls number `first` to `last` are made."""

    def __init__(self, line: Line, first: int, last: int) -> None:
        self.line, self.first, self.last, self.calls = line, first, last, 0

    def __call__(self, data: bytes, deadline: float) -> bytes:
        self.calls += 1
        if self.first <= self.calls <= self.last:
            raise ConnectionError("cut")
        return self.line(data, deadline)


def test_a_label_owner_that_is_silent_for_a_while_is_left_out_and_comes_back(tmp_path: Path) -> None:
    """Of the round, its score and its checkpoint; nobody else's are held up by it."""
    folders(tmp_path, private(train={"epochs": 4, "batch_size": 64}, federation={"retries": 0}))
    every = sites(tmp_path)
    lines = lines_of(SERVER, every)
    lines["south"] = Cut(lines["south"], 12, 16)
    outcome = every[SERVER].drive(lines, "run")
    left_out = outcome.summary["label_owners"]["south"]["left_out"]
    assert left_out
    assert left_out[-1] < 4
    assert outcome.summary["label_owners"]["north"]["left_out"] == []
    assert "south" in outcome.history[-1]["losses"]
    models = [saved(tmp_path, "run")[f"{name}/labels/model/{layer}"] for name in LABELS for layer in ("0.weight",)]
    assert torch.equal(*models), "and has everybody's model in the end"


def ask(site: MultiSite, caller: str, request: Any) -> Any:
    line: Line = lambda data, _: site.desk(caller, data)  # noqa: E731
    name = site.own.name
    return Peers(caller, [name], Flare({name: line}), Ledger(caller)).ask_one(name, request)


def test_everybody_is_asked_by_those_it_works_for_alone(tmp_path: Path) -> None:
    folders(tmp_path, private(train={"epochs": 1, "batch_size": 64}))
    every = sites(tmp_path)
    every[SERVER].drive(lines_of(SERVER, every), "run")
    join = Join(every["lab"].own.agreed)
    for asked, caller, request in (
        ("lab", SERVER, join),
        ("lab", "scan", join),
        ("lab", SERVER, multi_vfl.Embed("north:test[0:5]")),
        ("lab", "scan", multi_vfl.Introduce()),
        ("north", "south", join),
        ("north", "lab", multi_vfl.TrainRound(1)),
        ("north", "south", multi_vfl.Begin()),
        (SERVER, "north", join),
        ("lab", "stranger", join),
    ):
        with pytest.raises(BoundaryError):
            ask(every[asked], caller, request)
    with pytest.raises(PartyError, match=r"the batch north:test.* is not one of 'south'"):
        ask(every["lab"], "south", multi_vfl.Embed("north:test[0:5]"))
    refused = (tmp_path / "lab" / "runs" / "refused.jsonl").read_text().splitlines()
    assert len(refused) == every["lab"].refused.count == 5
    with pytest.raises(BoundaryError, match=f"'north' does not drive; in the federation it agreed to, '{SERVER}' does"):
        every["north"].drive(lines_of("north", every), "run")


def test_who_agreed_to_something_else_does_not_join(tmp_path: Path) -> None:
    folders(tmp_path, private())
    path = tmp_path / "scan" / AGREED
    path.write_text(path.read_text().replace("seed = 0", "seed = 1"))
    every = sites(tmp_path)
    with pytest.raises(PartyError, match=r"'scan' failed while answering site.Join: it agreed to \w+, and was asked"):
        every[SERVER].drive(lines_of(SERVER, every), "run")


def test_people_whom_only_some_know_are_left_out_and_numbers_are_measured(tmp_path: Path) -> None:
    """The centres lack some of the hospitals' people, and the label is a number."""
    given = frames()
    ages = pd.Series(range(len(given["lab"])), index=sorted(given["lab"]["patient"]), dtype=float).add(0.5)
    for name in LABELS:
        given[name]["diagnosis"] = given[name]["patient"].map(ages)
    given["lab"] = given["lab"].sort_values("patient").iloc[5:]
    given["scan"] = given["scan"].iloc[:-7]
    file, _ = folders(tmp_path, private(train={"epochs": 1, "batch_size": 64}), given)
    here = MultiFederation.from_toml(file).fit().summary
    every = sites(tmp_path)
    there = every[SERVER].drive(lines_of(SERVER, every), "run").summary
    assert there["rows"] == here["rows"]
    assert there["task"] == "regression"
    for split, scores in here["metrics"].items():
        assert there["metrics"][split] == pytest.approx(scores, rel=1e-5), split


def test_a_public_data_set_is_cut_and_dealt_by_everybody_for_itself(tmp_path: Path) -> None:
    whole, names = public_folders(tmp_path)
    every = sites(tmp_path, names)
    assert every[SERVER].drive(lines_of(SERVER, every), "run").summary["metrics"] == whole.fit().summary["metrics"]


def test_an_organisation_can_check_itself_before_anybody_calls(tmp_path: Path) -> None:
    folders(tmp_path, private())
    found = {name: rehearse(read_own(tmp_path / name / OWN)) for name in EVERY}
    assert {name: (rows, numbers) for name, (rows, numbers, _) in found.items()} == {
        "north": (90, 0), "south": (80, 0), "lab": (150, 2), "scan": (150, 2), SERVER: (0, 0)
    }  # fmt: skip
    assert [name for name, (_, _, member) in found.items() if member is None] == [SERVER]
    path = tmp_path / "lab" / OWN
    before = path.read_text()
    for wrong, message in (
        ('[outbox]\nembeding = { mechanism = "plain" }', "which is never released"),
        ('model = "mlpp"', "mlpp"),
        ('columns = ["copper"]', "copper"),
        ("[budget]\nepsilon = 1.0", "can never be kept"),
    ):
        path.write_text(f"{before}\n{wrong}\n")
        with pytest.raises(Exception, match=message):
            rehearse(read_own(path))


def test_each_kind_of_federation_has_its_kind_of_site(tmp_path: Path) -> None:
    from tests.federation import small_sites

    folders(tmp_path / "several", private())
    small_sites.folders(tmp_path / "one")
    assert isinstance(site_for(read_own(tmp_path / "several" / "lab" / OWN)), MultiSite)
    assert isinstance(site_for(read_own(tmp_path / "one" / "lab" / OWN)), Site)
    assert COLUMNS == ("lab", "scan")


@pytest.mark.parametrize("run", ["../elsewhere", "", "a/b"])
def test_a_run_cannot_be_named_so_that_it_lies_elsewhere(tmp_path: Path, run: str) -> None:
    folders(tmp_path, private())
    every = sites(tmp_path)
    with pytest.raises(ConfigError, match="A run's name has letters"):
        every[SERVER].drive(lines_of(SERVER, every), run)
