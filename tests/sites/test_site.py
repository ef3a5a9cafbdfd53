"""Organisations that know only their own files train what one process would, to the bit, and refuse everything else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation.small import QUICK, Tables, checkpoint_of, frames, quick, splitnn, tensors
from tests.federation.small_sites import folders, line, lines_of, sites
from tests.federation.test_fit import scores

from colonnade.algorithms.embedding import Descend, Embed
from colonnade.core import Ledger, Peers, checkpoint, roles
from colonnade.errors import BoundaryError, BudgetExhausted, CheckpointError, ConfigError, DataError, PartyError
from colonnade.federation import Federation, load
from colonnade.runs.run_directory import RunDirectory
from colonnade.sites.saves import Close, Save
from colonnade.sites.site import Join, Prepare, Site
from colonnade.transport.remote import Flare

ALONE = {"federation": {"device": "cpu", "cohort": "off"}}
"""In one process, too, party by party: a cohort rounds otherwise."""


def saved(base: Path, run: str) -> dict[str, torch.Tensor]:
    """Every tensor in the organisations' own last checkpoints."""
    found: dict[str, torch.Tensor] = {}
    for name in ("clinic", "lab"):
        newest = max((base / name / "runs" / run / "parties" / name).glob("checkpoint-*"))
        found |= tensors(checkpoint.read(newest), name)
    return found


def found(run: Path, party: str) -> list[tuple[str, str, str, int]]:
    """What a ledger says of each tensor, but for what differs from run to run."""
    lines = map(json.loads, (run / "parties" / party / "ledger.jsonl").read_text().splitlines())
    return sorted((str(e["direction"]), str(e["batch"]), str(e["name"]), int(e["bytes"])) for e in lines)


@pytest.mark.parametrize("align", ["exact", "private"])
@pytest.mark.parametrize("settings", [quick(**ALONE), splitnn(**ALONE)], ids=["vimadmm", "splitnn"])
def test_organisations_train_what_one_process_would(tmp_path: Path, settings: Tables, align: str) -> None:
    if align == "private":
        pytest.importorskip("coincurve")
    given = frames()
    if align == "private":
        given = {"clinic": given["clinic"].iloc[::-1].iloc[3:], "lab": given["lab"].iloc[5:]}
    file, _ = folders(tmp_path, given, {**settings, "data": {"align": align}})
    here = Federation.from_toml(file).fit(tmp_path / "here")
    every = sites(tmp_path)
    there = every["clinic"].drive(lines_of("clinic", every), "run")
    assert there.summary["metrics"] == here.summary["metrics"]
    assert there.history[-1]["loss"] == here.history[-1]["loss"]
    assert there.summary["bytes"]["clinic"] == here.summary["bytes"]["clinic"], "what agreed on rows is counted, too"
    for name in ("clinic", "lab"):
        noted, alone = (found(run, name) for run in (tmp_path / name / "runs" / "run", tmp_path / "here"))
        assert noted == alone
        assert ("align" in {batch for _, batch, _, _ in noted}) == (align == "private")
    one, other = checkpoint_of(tmp_path / "here"), saved(tmp_path, "run")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_each_organisation_has_its_own_part_of_the_run_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores(monkeypatch, [0.9, 0.8, 0.8, 0.9, 0.8, 0.8])
    file, _ = folders(tmp_path, settings=quick(**ALONE))
    every = sites(tmp_path)
    outcome = every["clinic"].drive(lines_of("clinic", every), "run")
    for name in ("clinic", "lab"):
        run = tmp_path / name / "runs" / "run"
        assert [folder.name for folder in (run / "parties").iterdir()] == [name]
        assert (run / "parties" / name / "ledger.jsonl").stat().st_size > 0
        folder = RunDirectory(run)
        assert [mark["finished"] for mark in folder.marks()] == [True, False], "and the one before is kept"
        assert folder.part() == name
        with pytest.raises(
            CheckpointError, match=f"is the part of '{name}' in a run between sites.*--engine flare-sim"
        ):
            load(run)
    Federation.from_toml(file).fit(tmp_path / "whole")
    assert RunDirectory(tmp_path / "whole").part() is None
    lab = json.loads((tmp_path / "lab" / "runs" / "run" / "summary.json").read_text())
    assert lab["bytes"]["lab"] == {
        "out": outcome.summary["bytes"]["clinic"]["in"],
        "in": outcome.summary["bytes"]["clinic"]["out"],
    }
    assert [one["party"] for one in lab["privacy"]] == ["lab"]
    assert outcome.stopped == "validation accuracy fell from 0.9000 to 0.8000"
    assert (lab["stopped"], lab["refused_calls"]) == ("validation accuracy fell", 0), "scores are the clinic's"


def test_a_run_is_resumed_bit_equal(tmp_path: Path) -> None:
    folders(tmp_path, settings=quick(train={"epochs": 3, "early_stop": False}, **ALONE))
    every = sites(tmp_path)
    every["clinic"].drive(lines_of("clinic", every), "whole")
    for name in every:
        path = tmp_path / name / "federation.toml"
        path.write_text(path.read_text().replace("epochs = 3", "epochs = 1"))
    every = sites(tmp_path)
    every["clinic"].drive(lines_of("clinic", every), "parts")
    for name in every:
        path = tmp_path / name / "federation.toml"
        path.write_text(path.read_text().replace("epochs = 1", "epochs = 3"))
    every = sites(tmp_path)
    every["clinic"].drive(lines_of("clinic", every), "parts", resume=True)
    one, other = saved(tmp_path, "whole"), saved(tmp_path, "parts")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_with_secret_models_is_resumed_bit_equal_from_its_own_checkpoint(tmp_path: Path) -> None:
    """Dropout, too, goes on where it stood; and no two runs begin with the same weights."""
    model = {"name": "mlp", "hidden": [6], "width": 4, "dropout": 0.3}
    given = splitnn(model=model, train={"epochs": 1, "early_stop": False}, **ALONE)
    folders(tmp_path, settings=given, models=None)
    begun = {}
    for run in ("one", "other"):
        every = sites(tmp_path)
        every["clinic"].drive(lines_of("clinic", every), run)
        begun[run] = saved(tmp_path, run)
        assert json.loads((tmp_path / "lab" / "runs" / run / "summary.json").read_text())["models"] == {"lab": "secret"}
    weights = [place for place in begun["one"] if place.endswith("weight")]
    assert {place.split("/")[1] for place in weights} == {"features", "labels"}
    assert not any(torch.equal(begun["one"][place], begun["other"][place]) for place in weights)
    for name in ("clinic", "lab"):
        path = tmp_path / name / "federation.toml"
        path.write_text(path.read_text().replace("epochs = 1", "epochs = 3"))
        shutil.copytree(tmp_path / name / "runs" / "one", tmp_path / name / "runs" / "twin")
    for run in ("one", "twin"):
        every = sites(tmp_path)
        every["clinic"].drive(lines_of("clinic", every), run, resume=True)
    one, twin = saved(tmp_path, "one"), saved(tmp_path, "twin")
    assert all(torch.equal(one[key], twin[key]) for key in one)


def test_two_different_runs_are_not_taken_for_one(tmp_path: Path) -> None:
    folders(tmp_path, settings=quick(**ALONE))
    every = sites(tmp_path)
    every["clinic"].drive(lines_of("clinic", every), "run")
    mark = tmp_path / "lab" / "runs" / "run" / "checkpoint.json"
    mark.write_text(mark.read_text().replace('"step": 8', '"step": 4'))
    every = sites(tmp_path)
    with pytest.raises(CheckpointError, match="'lab' saved this run at step 4, and 'clinic' at step 8"):
        every["clinic"].drive(lines_of("clinic", every), "run", resume=True)


def test_an_organisation_that_agreed_to_something_else_does_not_join(tmp_path: Path) -> None:
    folders(tmp_path)
    path = tmp_path / "lab" / "federation.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 1"))
    every = sites(tmp_path)
    with pytest.raises(PartyError, match=r"'lab' failed while answering site.Join: it agreed to \w+, and was asked to"):
        every["clinic"].drive(lines_of("clinic", every), "run")
    assert not (tmp_path / "lab" / "runs" / "run").exists()


def test_different_ids_are_told_before_anything_is_trained(tmp_path: Path) -> None:
    given = frames()
    given["lab"] = given["lab"].iloc[1:]
    folders(tmp_path, given)
    every = sites(tmp_path)
    with pytest.raises(DataError, match="'lab' and 'clinic' hold different ids, 79 there and 80 here"):
        every["clinic"].drive(lines_of("clinic", every), "run")


def test_the_drivers_settings_cannot_loosen_a_partys_rules(tmp_path: Path) -> None:
    """The clinic's own copy of everything says plain; the laboratory's noise is added all the same, and its budget ends
    the run."""
    pytest.importorskip("dp_accounting")
    rules = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 50.0}}}
    private = {"lab": {"outbox": rules, "budget": {"epsilon": 0.5, "delta": 1e-5}}}
    settings = quick(train={"epochs": 50, "early_stop": False}, parties=private, **ALONE)
    folders(tmp_path, settings=settings)
    assert "gaussian" not in "".join(path.read_text() for path in (tmp_path / "clinic").glob("*.toml"))
    every = sites(tmp_path)
    outcome = every["clinic"].drive(lines_of("clinic", every), "run")
    assert outcome.exhausted
    assert "train" in outcome.summary["not_measured"], "measuring training rows again would have cost the laboratory"
    assert "'lab' will not release" in outcome.stopped
    summary = json.loads((tmp_path / "lab" / "runs" / "run" / "summary.json").read_text())
    assert summary["stopped"] == "a privacy budget is spent"
    ledger = [json.loads(text) for text in _ledger(tmp_path, "lab")]
    assert {entry["event"] for entry in ledger if entry["direction"] == "out"} == {"gaussian"}
    assert BudgetExhausted.exit_code == 4


def test_a_budget_is_for_all_runs_together(tmp_path: Path) -> None:
    """Else a driver would only have to start another run."""
    pytest.importorskip("dp_accounting")
    rules = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 50.0}}}
    private = {"lab": {"outbox": rules, "budget": {"epsilon": 0.5, "delta": 1e-5}}}
    folders(tmp_path, settings=quick(train={"epochs": 50, "early_stop": False}, parties=private, **ALONE))
    rounds = []
    for run in ("one", "two"):
        every = sites(tmp_path)
        outcome = every["clinic"].drive(lines_of("clinic", every), run)
        assert outcome.exhausted
        rounds.append(outcome.summary["rounds"])
    assert rounds[0] > 4
    assert rounds[1] == 0, "nothing is left for the second"


def test_what_a_run_that_broke_off_spent_is_counted_by_the_next(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    rules = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 50.0}}}
    folders(tmp_path, settings=quick(parties={"lab": {"outbox": rules}}, **ALONE))
    spent = []
    for run in ("one", "two"):
        lab = sites(tmp_path)["lab"]
        ask(lab, "clinic", Prepare(run, 1, False))
        assert lab.member is not None
        spent.append(lab.member.accounts["lab"].worst)
        with pytest.raises(PartyError, match="ConfigError"):  # while this one is under way, no other
            ask(sites(tmp_path)["lab"], "clinic", Prepare("beside", 1, False))
        ask(lab, "clinic", Embed("train/0/0"))  # and it is never saved
        lab.member.purse.leave()
    assert spent[0] == 0.0
    assert spent[1] > 0.0


def _ledger(base: Path, name: str) -> list[str]:
    return (base / name / "runs" / "run" / "parties" / name / "ledger.jsonl").read_text().splitlines()


def ask(site: Site, caller: str, request: Any) -> Any:
    return Peers(caller, [site.own.name], Flare({site.own.name: line(site, caller)}), Ledger(caller)).ask_one(
        site.own.name, request
    )


def three(tmp_path: Path, settings: Tables = QUICK) -> dict[str, Site]:
    given = frames()
    given["bank"] = given["lab"].rename(columns={"iron": "income", "zinc": "loans"})
    folders(tmp_path, given, settings)
    return sites(tmp_path, ("clinic", "lab", "bank"))


def test_only_the_driver_may_ask_and_others_are_refused_and_written_down(tmp_path: Path) -> None:
    every = three(tmp_path)
    lab = every["lab"]
    ask(lab, "clinic", Join(lab.own.agreed))
    ask(lab, "clinic", Prepare("run", 1, False))
    assert ask(lab, "clinic", roles.Introduce()).rows == 80
    for request in (Join(lab.own.agreed), roles.Introduce(), Embed("test[0:5]"), Save(2, 1, 1), Close("x")):
        with pytest.raises(BoundaryError, match="this is for clinic to ask"):
            ask(lab, "bank", request)
    with pytest.raises(BoundaryError, match="no party of its federation"):
        ask(lab, "stranger", roles.Introduce())
    gradient = Descend("train/0/0", lab.clerk.outbox.release(torch.zeros(1), "x"))
    with pytest.raises(BoundaryError, match=r"'lab' does not serve embedding\.Descend"):  # it agreed to vimadmm
        ask(lab, "clinic", gradient)
    refused = [json.loads(text) for text in (tmp_path / "lab" / "runs" / "refused.jsonl").read_text().splitlines()]
    assert [one["caller"] for one in refused] == ["bank"] * 5 + ["stranger", "clinic"]
    assert lab.refused.count == 7


def test_a_party_that_does_not_drive_cannot(tmp_path: Path) -> None:
    folders(tmp_path)
    every = sites(tmp_path)
    with pytest.raises(BoundaryError, match="'lab' does not drive; in the federation it agreed to, 'clinic' does"):
        every["lab"].drive(lines_of("lab", every), "run")


@pytest.mark.parametrize("run", ["../elsewhere", "", ".hidden", "a/b", "x" * 101])
def test_a_run_cannot_be_named_so_that_it_lies_elsewhere(tmp_path: Path, run: str) -> None:
    folders(tmp_path)
    every = sites(tmp_path)
    with pytest.raises(ConfigError, match="A run's name has letters"):
        every["clinic"].drive(lines_of("clinic", every), run)
    with pytest.raises(PartyError, match="a run's name has letters"):
        ask(every["lab"], "clinic", Prepare(run, 1, False))


def test_what_was_not_prepared_or_is_already_running_is_refused(tmp_path: Path) -> None:
    folders(tmp_path)
    lab = sites(tmp_path)["lab"]
    with pytest.raises(PartyError, match="it was not prepared for a run"):
        ask(lab, "clinic", Save(2, 1, 1))
    with pytest.raises(PartyError, match="a model cannot have 0 outputs"):
        ask(lab, "clinic", Prepare("run", 0, False))
    ask(lab, "clinic", Prepare("run", 1, False))
    with pytest.raises(PartyError, match="it takes part in a run already"):
        ask(lab, "clinic", Prepare("other", 1, False))


def test_an_error_in_an_organisations_own_table_stays_with_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders(tmp_path)
    lab = sites(tmp_path)["lab"]
    table = tmp_path / "all" / "lab.csv"
    table.write_text(table.read_text().replace("P003", "P004"))
    with pytest.raises(PartyError, match=r"answering site\.Prepare: DataError; the log of 'lab' has it") as told:
        ask(lab, "clinic", Prepare("run", 1, False))
    assert "P004" not in str(told.value)
    assert "ids that occur more than once" in caplog.text
