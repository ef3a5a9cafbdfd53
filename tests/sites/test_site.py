"""Organisations that know only their own files train what one process would, to the
bit, and refuse everything else."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tests.federation import small_multi_sites
from tests.federation.small import Tables, frames, quick, splitnn
from tests.federation.small_multi import GAUSSIAN, LABELS
from tests.federation.small_multi import frames as hospitals
from tests.federation.small_multi_sites import EVERY, private, public_folders
from tests.federation.small_sites import ALONE, ask, folders, saved, sites, three
from tests.federation.test_fit import scores
from tests.sites.kinds import (
    as_in_one_process,
    each_kind,
    made,
    same_bits,
    trains,
)

from colonnade.algorithms import multi_vfl
from colonnade.algorithms.embedding import Descend, Embed
from colonnade.core import roles
from colonnade.errors import BoundaryError, CheckpointError, DataError, PartyError
from colonnade.federation import Federation, load
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import AGREED
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive
from colonnade.sites.messages import Close, Join, Measured, Prepare, Ready, Save
from colonnade.transport import Recording
from colonnade.transport.remote import Remote

LOUD = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 50.0}}}
SPENDING: Any = {
    "train": {"epochs": 50, "early_stop": False},
    "parties": {"lab": {"outbox": LOUD, "budget": {"epsilon": 0.5, "delta": 1e-5}}},
}


def found(run: Path, party: str) -> list[tuple[str, str, str, int]]:
    """What a ledger says of each tensor, but for what differs from run to run."""
    lines = map(
        json.loads, (run / "parties" / party / "ledger.jsonl").read_text().splitlines()
    )
    return sorted(
        (str(e["direction"]), str(e["batch"]), str(e["name"]), int(e["bytes"]))
        for e in lines
    )


def summary_of(base: Path, name: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(
        (base / name / "runs" / "run" / "summary.json").read_text()
    )
    return summary


def change(base: Path, before: str, after: str, *names: str) -> None:
    """In the agreed files of these organisations, or of all."""
    for path in [base / name / AGREED for name in names] or base.glob(f"*/{AGREED}"):
        if path.parent.name != "all":
            path.write_text(path.read_text().replace(before, after))


@pytest.mark.parametrize("align", ["exact", "private"])
@pytest.mark.parametrize(
    "settings", [quick(**ALONE), splitnn(**ALONE)], ids=["vimadmm", "splitnn"]
)
def test_organisations_train_what_one_process_would(
    tmp_path: Path, settings: Tables, align: str
) -> None:
    given = frames()
    if align == "private":
        given = {
            "clinic": given["clinic"].iloc[::-1].iloc[3:],
            "lab": given["lab"].iloc[5:],
        }
    file, _ = folders(tmp_path, given, {**settings, "data": {"align": align}})
    here = Federation.from_toml(file).fit(tmp_path / "here")
    there = trains(tmp_path, "one")
    assert there.summary["metrics"] == here.summary["metrics"]
    assert there.history[-1]["loss"] == here.history[-1]["loss"]
    assert there.summary["bytes"]["clinic"] == here.summary["bytes"]["clinic"], (
        "what agreed on rows is counted, too"
    )
    for name in ("clinic", "lab"):
        noted, alone = (
            found(run, name)
            for run in (tmp_path / name / "runs" / "run", tmp_path / "here")
        )
        assert noted == alone
        assert ("align" in {batch for _, batch, _, _ in noted}) == (align == "private")
    as_in_one_process(tmp_path)


def test_so_do_several_label_owners_and_their_server_sees_weights_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregation server receives weights and numbers about whole splits, from
    label owners."""
    here = (
        Federation.from_toml(made(tmp_path, "several")).fit(tmp_path / "here").summary
    )
    server = sites(tmp_path)[SERVER]
    recording = Recording(Remote({name: server.routes[name] for name in LABELS}))
    monkeypatch.setattr(server, "carrier", lambda *_: recording)
    there = drive(server, "run").summary
    for key in ("metrics", "rows", "rounds", "label_owners", "task"):
        assert there[key] == here[key], key
    for name in EVERY:
        run = tmp_path / name / "runs" / "run"
        assert [folder.name for folder in (run / "parties").iterdir()] == [name]
        assert (RunDirectory(run).mark()["finished"], RunDirectory(run).part()) == (
            True,
            name,
        )
        own = summary_of(tmp_path, name)
        assert (own["bytes"], own["parties"]) == (
            {name: here["bytes"][name]},
            {name: here["parties"][name]},
        ), name
        blinded = "blinded_ids" in (run / "parties" / name / "ledger.jsonl").read_text()
        assert blinded == (name != SERVER), (
            "what crossed to agree on rows is written down, too"
        )
    as_in_one_process(tmp_path)
    seen = recording.of(SERVER)
    assert {one.sender for one in seen} == set(LABELS)
    tensors = [released for one in seen for released in one.message.released()]
    assert {released.receipt.name for released in tensors} == {"weights"}
    assert {len(released.shape) for released in tensors} == {1}
    kinds = {type(one.message) for one in seen if one.message.hints()}
    assert kinds == {multi_vfl.Beginning, multi_vfl.Trained, Ready, Measured}
    assert server.routes.keys() == set(LABELS), "it holds no line to a data owner"


def test_each_organisation_has_its_own_part_of_the_run_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores(monkeypatch, [0.9, 0.8, 0.8, 0.9, 0.8, 0.8])
    file = made(tmp_path, "one", train={"patience": 1})
    outcome = trains(tmp_path, "one")
    for name in ("clinic", "lab"):
        run = tmp_path / name / "runs" / "run"
        assert [folder.name for folder in (run / "parties").iterdir()] == [name]
        assert (run / "parties" / name / "ledger.jsonl").stat().st_size > 0
        folder = RunDirectory(run)
        assert [mark["finished"] for mark in folder.marks()] == [
            True,
            False,
        ], "and the one before is kept"
        assert folder.part() == name
        with pytest.raises(
            CheckpointError,
            match=f"is the part of '{name}' in a run between sites.*--engine flare-sim",
        ):
            load(run)
    Federation.from_toml(file).fit(tmp_path / "whole")
    assert RunDirectory(tmp_path / "whole").part() is None
    lab = summary_of(tmp_path, "lab")
    mine = outcome.summary["bytes"]["clinic"]
    assert lab["bytes"]["lab"] == {"out": mine["in"], "in": mine["out"]}
    assert [one["party"] for one in lab["privacy"]] == ["lab"]
    assert (
        outcome.stopped
        == "validation AUC was best, 0.9000 in epoch 1, and did not improve since"
    )
    assert (lab["stopped"], lab["refused_calls"]) == (
        "validation AUC did not improve",
        0,
    ), "scores are the clinic's"


@each_kind
def test_every_site_keeps_the_models_that_validated_best_also_when_resumed(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three epochs is the best: whoever predicts has its models, and who
    trains further goes on from the third."""
    made(tmp_path, kind, train={"epochs": 2, "early_stop": False})
    trains(tmp_path, kind, "two")
    change(tmp_path, "\nepochs = 2", "\nepochs = 3")
    change(tmp_path, "early_stop = false", "early_stop = true")
    counted = list[int]()
    given = [0.8, 0.9, 0.7]
    real = Federation.score

    def score(self: Federation, split: str, model: str | None = None) -> Any:
        scored = real(self, split, model)
        if (
            split == "validation"
            and self.driver is not None
            and self.peers.owner in ("clinic", SERVER)
        ):
            counted.append(1)
            now = given[len(counted) - 1] if len(counted) <= 3 else 0.9
            return dataclasses.replace(
                scored, all=scored.all | {"auc": now, "loss": 1 - now}
            )
        return scored

    monkeypatch.setattr(Federation, "score", score)
    assert trains(tmp_path, kind, "whole").summary["best_epoch"] == 2
    whole = saved(tmp_path, "whole")
    two = saved(tmp_path, "two")
    models = {
        place: t for place, t in two.items() if "/model" in place or "heads" in place
    }
    assert models
    same_bits(models, {place: whole[place] for place in models})
    assert {place.partition("/")[0] for place in whole if "/last/" in place} >= {
        p.partition("/")[0] for p in models
    }
    counted.clear()
    change(tmp_path, "\nepochs = 3", "\nepochs = 1")
    trains(tmp_path, kind, "parts")
    change(tmp_path, "\nepochs = 1", "\nepochs = 3")
    del counted[1:]
    trains(tmp_path, kind, "parts", resume=True)
    same_bits(whole, saved(tmp_path, "parts"))


@each_kind
def test_a_run_is_resumed_bit_equal(tmp_path: Path, kind: str) -> None:
    made(tmp_path, kind, train={"epochs": 3, "early_stop": False})
    trains(tmp_path, kind, "whole")
    change(tmp_path, "\nepochs = 3", "\nepochs = 1")
    trains(tmp_path, kind, "parts")
    change(tmp_path, "\nepochs = 1", "\nepochs = 3")
    trains(tmp_path, kind, "parts", resume=True)
    same_bits(saved(tmp_path, "whole"), saved(tmp_path, "parts"))


def test_a_run_with_secret_models_is_resumed_bit_equal_from_its_own_checkpoint(
    tmp_path: Path,
) -> None:
    """Dropout, too, goes on where it stood; and no two runs begin with the same
    weights."""
    model = {"name": "mlp", "hidden": [6], "width": 4, "dropout": 0.3}
    given = splitnn(model=model, train={"epochs": 1, "early_stop": False}, **ALONE)
    folders(tmp_path, settings=given, models=None)
    begun = {}
    for run in ("one", "other"):
        drive(sites(tmp_path)["clinic"], run)
        begun[run] = saved(tmp_path, run)
        assert json.loads(
            (tmp_path / "lab" / "runs" / run / "summary.json").read_text()
        )["models"] == {"lab": "secret"}
    weights = [place for place in begun["one"] if place.endswith("weight")]
    assert {place.split("/")[1] for place in weights} == {"features", "labels"}
    assert not any(
        torch.equal(begun["one"][place], begun["other"][place]) for place in weights
    )
    for name in ("clinic", "lab"):
        path = tmp_path / name / "federation.toml"
        path.write_text(path.read_text().replace("epochs = 1", "epochs = 3"))
        shutil.copytree(
            tmp_path / name / "runs" / "one", tmp_path / name / "runs" / "twin"
        )
    for run in ("one", "twin"):
        drive(sites(tmp_path)["clinic"], run, resume=True)
    one = saved(tmp_path, "one")
    twin = saved(tmp_path, "twin")
    assert all(torch.equal(one[key], twin[key]) for key in one)


def test_what_was_spent_and_drawn_stays_so_in_a_resumed_run(tmp_path: Path) -> None:
    drawn = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 1.0}}}
    owners: Any = {
        "label_owners": [{"name": "north", "outbox": drawn}],
        "data_owners": [
            {
                "name": "lab",
                "budget": {"epsilon": 500.0, "delta": 1e-5},
                "outbox": GAUSSIAN,
            }
        ],
    }
    made(tmp_path, "several", train={"epochs": 2, "batch_size": 64}, **owners)
    assert "gaussian" not in "".join(
        (tmp_path / name / AGREED).read_text() for name in EVERY
    )
    first = trains(tmp_path, "several")
    assert first.summary["not_measured"], (
        "measuring training rows again would cost the laboratory"
    )
    before = saved(tmp_path, "run")
    change(tmp_path, "\nepochs = 2", "\nepochs = 3")
    every = sites(tmp_path)
    outcome = drive(every[SERVER], "run", resume=True)
    assert [record["epoch"] for record in outcome.history] == [1, 2, 3]
    place = next(
        place
        for place in before
        if place.startswith("north/") and place.endswith("drawn")
    )
    assert torch.equal(before[place], saved(tmp_path, "run")[place]), (
        "a second draw would cost again"
    )
    lab = summary_of(tmp_path, "lab")
    (told,) = lab["privacy"]
    assert all(0 < one["epsilon"] < 500 for one in told["statements"])
    assert {one["release"]: one["appearances"] for one in told["releases"]}[
        "embedding"
    ] > 3, "of all three rounds"
    assert lab["rounds"] == 3
    assert summary_of(tmp_path, "north")["metrics"].keys() == {"validation", "test"}
    with pytest.raises(PartyError, match="it takes part in a run already"):
        drive(every[SERVER], "another")


def test_two_different_runs_are_not_taken_for_one(tmp_path: Path) -> None:
    made(tmp_path, "one")
    trains(tmp_path, "one")
    lab = RunDirectory(tmp_path / "lab" / "runs" / "run")
    lab.keep_mark(lab.mark() | {"step": 4})
    with pytest.raises(
        CheckpointError, match="'lab' saved this run at step 4, and 'clinic' at step 8"
    ):
        trains(tmp_path, "one", resume=True)


@each_kind
def test_an_organisation_that_agreed_to_something_else_does_not_join(
    tmp_path: Path, kind: str
) -> None:
    made(tmp_path, kind)
    change(tmp_path, "seed = 0", "seed = 1", "lab")
    told = (
        r"'lab' failed while answering messages.Join: it agreed to \w+, and was"
        r" asked to"
    )
    with pytest.raises(PartyError, match=told):
        trains(tmp_path, kind)
    assert not (tmp_path / "lab" / "runs" / "run").exists()


def test_different_ids_are_told_before_anything_is_trained(tmp_path: Path) -> None:
    given = frames()
    given["lab"] = given["lab"].iloc[1:]
    folders(tmp_path, given)
    with pytest.raises(
        DataError, match="'lab' and 'clinic' hold different ids, 79 there and 80 here"
    ):
        trains(tmp_path, "one")


def test_the_drivers_settings_cannot_loosen_a_partys_rules_and_its_budget_is_for_all_runs(
    tmp_path: Path,
) -> None:
    """The clinic's own copy of everything says plain; the laboratory's noise is added
    all the same, and its budget ends the run. Else a driver would only have to start
    another run."""
    made(tmp_path, "one", **SPENDING)
    assert "gaussian" not in "".join(
        path.read_text() for path in (tmp_path / "clinic").glob("*.toml")
    )
    outcome = trains(tmp_path, "one")
    assert outcome.exhausted
    assert outcome.summary["rounds"] > 4
    assert "train" in outcome.summary["not_measured"], (
        "measuring training rows again would have cost the laboratory"
    )
    assert "'lab' will not release" in outcome.stopped
    assert summary_of(tmp_path, "lab")["stopped"] == "a privacy budget is spent"
    ledger = tmp_path / "lab" / "runs" / "run" / "parties" / "lab" / "ledger.jsonl"
    noted = [json.loads(text) for text in ledger.read_text().splitlines()]
    assert {entry["event"] for entry in noted if entry["direction"] == "out"} == {
        "gaussian"
    }
    second = trains(tmp_path, "one", "two")
    assert (second.exhausted, second.summary["rounds"]) == (
        True,
        0,
    ), "nothing is left for the second"


def test_what_a_run_that_broke_off_spent_is_counted_by_the_next(tmp_path: Path) -> None:
    made(tmp_path, "one", parties={"lab": {"outbox": LOUD}})
    spent = []
    for run in ("one", "two"):
        lab = sites(tmp_path)["lab"]
        ask(lab, "clinic", Prepare(run, 1, False))
        assert lab.participant is not None
        spent.append(lab.participant.accounts["lab"].worst)
        ask(lab, "clinic", Embed("train/0/0"))  # and it is never saved
        lab.participant.leave()
    assert spent[0] == 0.0
    assert spent[1] > 0.0


def test_only_the_driver_may_ask_and_others_are_refused_and_written_down(
    tmp_path: Path,
) -> None:
    lab = three(tmp_path)["lab"]
    ask(lab, "clinic", Join(lab.own.agreed))
    ask(lab, "clinic", Prepare("run", 1, False))
    assert ask(lab, "clinic", roles.Introduce()).rows == 80
    for request in (
        Join(lab.own.agreed),
        roles.Introduce(),
        Embed("test[0:5]"),
        Save(2, 1, 1),
        Close("x"),
    ):
        with pytest.raises(BoundaryError, match="this is for clinic to ask"):
            ask(lab, "bank", request)
    with pytest.raises(BoundaryError, match="no party of its federation"):
        ask(lab, "stranger", roles.Introduce())
    gradient = Descend("train/0/0", lab.host.outbox.release(torch.zeros(1), "x"))
    # it agreed to vimadmm
    with pytest.raises(BoundaryError, match=r"'lab' does not serve embedding\.Descend"):
        ask(lab, "clinic", gradient)
    refused = [
        json.loads(text)
        for text in (
            (tmp_path / "lab" / "runs" / "refused.jsonl").read_text().splitlines()
        )
    ]
    assert [one["caller"] for one in refused] == ["bank"] * 5 + ["stranger", "clinic"]
    assert lab.refused.count == 7


def test_of_several_everybody_is_asked_by_those_it_works_for_alone(
    tmp_path: Path,
) -> None:
    made(tmp_path, "several", train={"epochs": 1, "batch_size": 64})
    every = sites(tmp_path)
    drive(every[SERVER], "run")
    join = Join(every["lab"].own.agreed)
    for asked, caller, request in (
        ("lab", SERVER, join),
        ("lab", "scan", join),
        ("lab", SERVER, multi_vfl.Embed("north:test[0:5]")),
        ("lab", "scan", roles.Introduce()),
        ("north", "south", join),
        ("north", "lab", multi_vfl.TrainRound(1)),
        ("north", "south", multi_vfl.Begin()),
        (SERVER, "north", join),
        ("lab", "stranger", join),
    ):
        with pytest.raises(BoundaryError):
            ask(every[asked], caller, request)
    with pytest.raises(
        PartyError, match=r"the batch north:test.* is not one of 'south'"
    ):
        ask(every["lab"], "south", multi_vfl.Embed("north:test[0:5]"))
    refused = (tmp_path / "lab" / "runs" / "refused.jsonl").read_text().splitlines()
    assert len(refused) == every["lab"].refused.count == 5


def test_people_whom_only_some_know_are_left_out_and_numbers_are_measured(
    tmp_path: Path,
) -> None:
    """The centres lack some of the hospitals' people, and the label is a number."""
    given = hospitals()
    ages = pd.Series(
        range(len(given["lab"])), index=sorted(given["lab"]["patient"]), dtype=float
    ).add(0.5)
    for name in LABELS:
        given[name]["diagnosis"] = given[name]["patient"].map(ages)
    given["lab"] = given["lab"].sort_values("patient").iloc[5:]
    given["scan"] = given["scan"].iloc[:-7]
    file, _ = small_multi_sites.folders(
        tmp_path, private(train={"epochs": 1, "batch_size": 64}), given
    )
    here = Federation.from_toml(file).fit().summary
    there = trains(tmp_path, "several").summary
    assert there["rows"] == here["rows"]
    assert there["task"] == "regression"
    for split, told in here["metrics"].items():
        assert there["metrics"][split] == pytest.approx(told, rel=1e-5), split


def test_a_public_data_set_is_cut_and_dealt_by_everybody_for_itself(
    tmp_path: Path,
) -> None:
    whole, _ = public_folders(tmp_path)
    assert (
        trains(tmp_path, "several").summary["metrics"] == whole.fit().summary["metrics"]
    )
