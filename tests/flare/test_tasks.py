"""What a driver is ordered to do besides training: to count, to select, to explain; and
what an engine makes of it."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.runs import few_steps
from tests.federation import small_multi, small_multi_sites
from tests.federation.small import quick, with_models, write
from tests.federation.small_sites import sites

from colonnade.attacks import Audit, audit_run
from colonnade.attacks.at_site import takes_part
from colonnade.errors import AuditFailed, ColonnadeError, ConfigError
from colonnade.explain import Report, explain
from colonnade.federation import Settings, load
from colonnade.federation.choosing import choose
from colonnade.flare.engines import OnThisMachine
from colonnade.flare.job import Job
from colonnade.flare.simulator import Simulator
from colonnade.selection import Selection
from colonnade.settings.party_file import sites_of, write_table
from colonnade.settings.sections import AuditSettings
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: the extra flare")
SETTINGS = quick(
    data={"align": "private"},
    train={"epochs": 1},
    federation={"cohort": "off"},
    selection={"k": 3, "queries": 12, "scheme": "plain", "servers": True},
)
SAME = (
    "labels from residuals",
    "labels by the head it was sent",
    "columns by model inversion",
)
HOW = {"keep": 1, "method": "vf_ps", "given": {}}


def settings_in(base: Path) -> Settings:
    return with_models(
        Settings.from_toml(write(base / "all", settings=SETTINGS)), "seeded"
    )


@dataclass(frozen=True)
class Threads(Simulator):
    """Organisations that call each other directly, in this process, where FLARE would
    start them."""

    def carry_out(self, settings: Settings, job: Job, told: Path, watch: Any) -> str:
        from colonnade.flare.members import _perform, _told_at_home

        every = sites(self.kept, job.sites)
        for site in every.values():
            takes_part(site, lambda _: None)
        try:
            _perform(every[job.driver], job.run, job.do, job.how)
        except ColonnadeError as error:
            _told_at_home(every[job.driver].own.runs, job.driver, error)
        return "done"


def test_a_label_owner_counts_and_selects_with_those_that_a_job_names(
    tmp_path: Path,
) -> None:
    engine = OnThisMachine(Threads(tmp_path / "work"))
    settings = engine.begin(settings_in(tmp_path))
    counting = Job.to_do(settings, "count", "count", {})
    assert counting.sites == ("clinic", "lab")
    assert not counting.trains
    (counted,) = json.loads(
        (engine.perform(settings, counting) / "alignment.json").read_text()
    )
    assert counted["common"] == 80
    selecting = Job.to_select(settings, "choice", HOW)
    assert selecting.sites == ("clinic", "lab", "aggregation_server", "key_server")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of "plain"
        folder = engine.perform(settings, selecting)
        same = choose(settings, 1)
    found = Selection.from_json(json.loads((folder / "selection.json").read_text()))
    assert (found.scores, found.chosen, found.groups) == (
        same.scores,
        same.chosen,
        same.groups,
    )
    with pytest.raises(
        ConfigError,
        match="There is no task 'dance'; there are audit, count, explain, select",
    ):
        engine.perform(settings, replace(counting, do="dance"))


def test_an_audit_that_is_not_passed_is_exit_code_five_and_its_page_is_there(
    tmp_path: Path,
) -> None:
    engine = OnThisMachine(Threads(tmp_path / "work"))
    settings = replace(settings_in(tmp_path), audit=AuditSettings(label_inference=1.0))
    settings = engine.begin(settings)
    drive(sites(engine.machine.kept, sites_of(settings))["clinic"], "run")
    job = Job.to_do(settings, "run", "audit", {"rows": 16}, whole=True)
    with few_steps(), pytest.raises(AuditFailed, match="lab: not told") as failed:
        engine.perform(settings, job)
    assert failed.value.exit_code == 5
    assert (engine.runs("clinic", "run") / "audit" / "audit.json").exists()
    assert (engine.runs("lab", "run") / "audit" / "audit.json").exists()


@pytest.mark.long
def test_in_the_simulator_they_select_and_explain_as_in_one_process(
    tmp_path: Path,
) -> None:
    engine = OnThisMachine(Simulator(tmp_path / "work"))
    settings = engine.begin(settings_in(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = engine.perform(settings, Job.to_select(settings, "choice", HOW))
        same = choose(settings, 1)
    assert json.loads((folder / "selection.json").read_text())["scores"] == same.scores
    engine.train(settings, tmp_path / "run")
    folder = engine.perform(
        settings, Job.to_do(settings, "run", "explain", {"seed": 3})
    )
    found = Report.from_json((folder / "explain" / "explain.json").read_text())
    here = explain(load(tmp_path / "run"), seed=3)
    assert found.measures["permutation"] == here.measures["permutation"]
    assert found.measures["head_change"] == here.measures["head_change"]
    for name in ("clinic", "lab"):
        write_table(
            engine.machine.files(name) / "party.toml", "audit", {"tell": "figures"}
        )
    folder = engine.perform(
        settings, Job.to_do(settings, "run", "audit", {"rows": 16}, whole=True)
    )
    told = Audit.from_json(json.loads((folder / "audit" / "audit.json").read_text()))
    alone = [
        one.score
        for one in audit_run(tmp_path / "run", rows=16).findings
        if one.attack in SAME
    ]
    assert [one.score for one in told.findings if one.attack in SAME] == alone
    assert len(alone) > 2


@pytest.mark.parametrize(
    "machine", [Threads, pytest.param(Simulator, marks=pytest.mark.long)]
)
def test_several_label_owners_audit_where_each_has_its_own_page(
    machine: type[Simulator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colonnade.attacks.report._pictures", lambda *_: [])
    file = small_multi.write(
        tmp_path / "all", small_multi_sites.private(train={"epochs": 1})
    )
    engine = OnThisMachine(machine(tmp_path / "work"))
    settings = engine.begin(with_models(Settings.from_toml(file), "seeded"))
    if machine is Simulator:
        engine.train(settings, tmp_path / "run")
    else:
        drive(sites(engine.machine.kept, sites_of(settings))[SERVER], "run")
    for name in small_multi.COLUMNS:
        write_table(
            engine.machine.files(name) / "party.toml", "audit", {"tell": "figures"}
        )
    job = Job.to_do(settings, "run", "audit", {"rows": 8}, "south", whole=True)
    # whoever's page is wanted, all take part
    assert (job.driver, job.sites) == (SERVER, sites_of(settings))
    with few_steps():
        engine.perform(settings, job)
    for owner in small_multi.LABELS:
        told = json.loads(
            (engine.runs(owner, "run") / "audit" / "audit.json").read_text()
        )
        assert {
            one["attacker"] for one in told["findings"] if one["victim"] == owner
        } == {*small_multi.COLUMNS}
        assert {
            one["victim"] for one in told["findings"] if one["attacker"] == owner
        } == set(small_multi.COLUMNS)
        weights = {
            (one["release"], one["owner"], one["receiver"])
            for one in told["not_attacked"]
        }
        assert weights == {("weights", owner, SERVER), ("weights", SERVER, owner)}
