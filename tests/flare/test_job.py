"""A federation as a FLARE job: data without code; and the whole way in FLARE's
simulator where it is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.federation import small_multi
from tests.federation.small import checkpoint_of, frames, quick, with_models, write
from tests.federation.small_multi_sites import EVERY, private
from tests.federation.small_sites import ALONE, saved, sites
from tests.sites.kinds import each_kind, made, same_bits

from colonnade.errors import (
    BudgetExhausted,
    ColonnadeError,
    ConfigError,
    NoAnswer,
    PartyError,
)
from colonnade.federation import Federation, Settings, load
from colonnade.federation.guarantees import of_run
from colonnade.flare import job as engine
from colonnade.flare.engines import OnThisMachine, gather
from colonnade.flare.orders import lead_of
from colonnade.flare.simulator import NOT_STARTED, Simulator, runs, starts, write_sites
from colonnade.installation import hint
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive

WITHOUT = "NVIDIA FLARE is not installed: the extra flare"


@pytest.fixture
def lead(tmp_path: Path) -> Path:
    """Where the certificate of who starts runs at the clinic is."""
    pytest.importorskip("nvflare", reason=WITHOUT)
    engine.issue({}, (lead_of("clinic"), tmp_path / "lead"))
    return tmp_path / "lead"


def ordered(job: Path) -> dict[str, Any]:
    """What a job has the lead say, without when and the number used once."""
    server = json.loads((job / "app/config/config_fed_server.json").read_text())
    (relay,) = server["components"]
    assert relay["args"].keys() == {"driver", "order"}
    said = json.loads(json.loads(relay["args"]["order"])["said"])
    return {key: value for key, value in said.items() if key not in ("at", "once")}


def simulated(work: Path) -> OnThisMachine:
    return OnThisMachine(Simulator(work))


def test_a_job_brings_no_code_and_no_settings(tmp_path: Path, lead: Path) -> None:
    """So a site may forbid code altogether, and nothing about data can be said to it."""
    job = engine.write_job(
        tmp_path / "job", engine.Job("clinic", ("clinic", "lab"), "run"), lead
    )
    files = sorted(
        path.relative_to(job).as_posix() for path in job.rglob("*") if path.is_file()
    )
    assert files == [
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
        "meta.json",
    ]
    client = json.loads((job / "app/config/config_fed_client.json").read_text())
    assert client["components"] == [{"id": "member", "path": engine.MEMBER, "args": {}}]
    paths = [one["path"] for one in client["components"]] + [
        one["executor"]["path"] for one in client["executors"]
    ]
    server = json.loads((job / "app/config/config_fed_server.json").read_text())
    paths += [one["path"] for one in server["components"] + server["workflows"]]
    assert sorted([*paths, engine.SERVING]) == sorted(engine.ALLOWED)
    nothing = {
        "resume": False,
        "predict": "",
        "strict": False,
        "serve": False,
        "model": "",
        "do": "",
        "how": {},
    }
    assert ordered(job) == {"driver": "clinic", "run": "run", **nothing}


def test_a_job_that_serves_says_so_and_names_the_class_that_can(
    tmp_path: Path, lead: Path
) -> None:
    """Where to listen, and for whom, is no part of it."""
    job = engine.write_job(
        tmp_path / "job",
        engine.Job("clinic", ("clinic", "lab"), "run", serve=True),
        lead,
    )
    client = json.loads((job / "app/config/config_fed_client.json").read_text())
    assert client["components"] == [
        {"id": "member", "path": engine.SERVING, "args": {}}
    ]
    assert (ordered(job)["run"], ordered(job)["serve"]) == ("run", True)


def test_a_job_to_predict_names_a_label_owner_and_a_model_and_needs_no_other(
    tmp_path: Path, lead: Path
) -> None:
    settings = Settings.from_toml(small_multi.write(tmp_path / "all", private()))
    assert engine.Job.of_one(settings, "run", serve=True).driver == "north"
    asked = engine.Job.of_one(settings, "run", "south", predict="new.csv", model="own")
    assert asked.sites == ("south", "lab", "scan")
    job = engine.write_job(tmp_path / "job", asked, lead)
    said = {
        "driver": "south",
        "run": "run",
        "resume": False,
        "predict": "new.csv",
        "strict": False,
        "serve": False,
        "model": "own",
    } | {"do": "", "how": {}}
    assert ordered(job) == said


@pytest.mark.parametrize("several", [False, True])
def test_sites_have_their_own_files_and_nobody_elses(
    tmp_path: Path, several: bool
) -> None:
    pytest.importorskip("nvflare", reason=WITHOUT)
    file = (
        small_multi.write(tmp_path / "all", private())
        if several
        else write(tmp_path / "all")
    )
    write_sites(tmp_path / "sites", Settings.from_toml(file))
    names = EVERY if several else ("clinic", "lab")
    keys = set[str]()
    for name in names:
        paths = [
            path for path in (tmp_path / "sites" / name).rglob("*") if path.is_file()
        ]
        files = [path.read_text(errors="replace") for path in paths]
        text = "".join(files)
        assert [other for other in names if f"{other}.csv" in text] == (
            [] if name == SERVER else [name]
        )
        keys |= {file for file in files if "PRIVATE KEY" in file}
    assert len(keys) == 2 * len(names), (
        "its own and its store's, and none of the root's"
    )


def test_sites_of_one_machine_get_certificates_of_one_root(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason=WITHOUT)
    from colonnade.transport.identity import Identity

    engine.issue({name: tmp_path / name for name in ("clinic", "lab")})
    clinic, lab = (Identity.load(tmp_path / name, name) for name in ("clinic", "lab"))
    clinic.check("lab", lab.certificate)
    lab.check("clinic", clinic.certificate)
    assert (tmp_path / "lab" / "client.key").stat().st_mode & 0o077 == 0


def test_one_folder_made_of_all_organisations_has_their_accounts(
    tmp_path: Path,
) -> None:
    """A site has its store beside its runs; in one folder each party has its own in
    its part."""
    rules = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 50.0}}
    }
    settings = Settings.from_toml(
        write(tmp_path / "all", settings=quick(parties={"lab": {"outbox": rules}}))
    )
    write_sites(tmp_path / "sites", settings)
    every = sites(tmp_path / "sites")
    drive(every["clinic"], "run")
    gather(
        settings,
        {name: site.own.runs / "run" for name, site in every.items()},
        "clinic",
        tmp_path / "out",
    )
    (lab,) = [
        one for one in of_run(RunDirectory(tmp_path / "out")) if one.party == "lab"
    ]
    (there,) = of_run(RunDirectory(every["lab"].own.runs / "run"))
    assert lab.to_json() == there.to_json()
    again = load(tmp_path / "out")
    before = again.accounts["lab"].worst
    assert before > 0.0
    again.predict(["P001"])
    (there,) = of_run(RunDirectory(every["lab"].own.runs / "run"))
    assert lab.to_json() == there.to_json(), "it is a copy"


def test_one_folder_has_the_sizes_that_sites_found_for_their_rows(
    tmp_path: Path,
) -> None:
    """The file leaves them open, and who exports the models has no rows to find them
    by."""
    left_open = {**quick(), "model": {"name": "mlp"}, "train": {"epochs": 1}}
    settings = Settings.from_toml(write(tmp_path / "all", settings=left_open))
    write_sites(tmp_path / "sites", settings)
    every = sites(tmp_path / "sites")
    drive(every["clinic"], "run")
    gather(
        settings,
        {name: site.own.runs / "run" for name, site in every.items()},
        "clinic",
        tmp_path / "out",
    )
    kept, there = (
        RunDirectory(one).settings()
        for one in (tmp_path / "out", every["clinic"].own.runs / "run")
    )
    assert settings.model["width"] == "auto" != there.model["width"]
    assert (kept.model, kept.train) == (there.model, there.train)
    assert {*kept.parties} == {*settings.parties}


@pytest.mark.parametrize(
    ("about", "error"),
    [
        ({"error": "ConfigError", "message": "no"}, ConfigError("no")),
        ({"error": "BudgetExhausted", "message": "spent"}, BudgetExhausted("spent")),
        (
            {"error": "ZeroDivisionError", "message": "by zero"},
            ColonnadeError("by zero"),
        ),
        (
            {
                "error": "PartyError",
                "message": "x",
                "party": "lab",
                "request": "a.B",
                "batch": None,
                "cause": "c",
            },
            PartyError("lab", "a.B", None, "c"),
        ),
        (
            {
                "error": "NoAnswer",
                "message": "x",
                "party": "lab",
                "request": "a.B",
                "batch": None,
                "cause": "c",
            },
            NoAnswer("lab", "a.B", None, "c"),
        ),
    ],
    ids=lambda value: value["error"] if isinstance(value, dict) else "",
)
def test_the_drivers_error_is_raised_as_it_was_there(
    tmp_path: Path, about: dict[str, Any], error: Exception
) -> None:
    path = tmp_path / "failed.json"
    assert engine.failure_in(path) is None
    path.write_text(json.dumps(about))
    found = engine.failure_in(path)
    assert (type(found), str(found)) == (type(error), str(error))


def test_what_was_started_does_not_outlive_its_end() -> None:
    text = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import"
        " time; time.sleep(60)']); "
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text + "print(1, flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    engine.stop(process)
    assert process.returncode is not None
    assert process.stdout.read() == b"", "its child has closed the pipe, too"


def test_what_did_not_start_is_started_again_and_what_failed_later_is_not(
    tmp_path: Path,
) -> None:
    log = tmp_path / "flare.log"
    said = [f"RuntimeError: {NOT_STARTED[0]} in SimulatorClientRunner", "failed", ""]
    tried = []
    for number in starts(log):
        tried.append(number)
        log.write_text(said[number])
    assert tried == [0, 1]
    assert [log.write_text(said[0]) and number for number in starts(log, most=2)] == [
        0,
        1,
    ]


def test_a_site_that_did_not_start_is_not_waited_for(tmp_path: Path) -> None:
    """FLARE's simulator goes on without it, and never ends."""
    log = tmp_path / "flare.log"
    log.write_text("a warning", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    assert runs(process, log)
    log.write_text(f"OSError: [Errno 98] {NOT_STARTED[1]}", encoding="utf-8")
    assert not runs(process, log)
    engine.stop(process)
    log.write_text("", encoding="utf-8")
    assert not runs(process, log)


def test_each_record_is_passed_on_once(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    path = tmp_path / "metrics.jsonl"
    # a long record is written in pieces
    lines = iter(['{"epoch": 1}\n', '{"epo', 'ch": 2}\n{', '"epo'])

    def running() -> bool:
        line = next(lines, None)
        if line:
            with path.open("a") as file:
                file.write(line)
        return line is not None

    engine.follow(running, path, seen.append, pause=0.0)
    assert [record["epoch"] for record in seen] == [1, 2]


def test_without_flare_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvflare.collab", None)
    with pytest.raises(ConfigError, match=re.escape(hint("flare"))):
        engine.require()


@pytest.mark.long
def test_encrypted_trees_in_the_simulator_are_those_of_one_process(
    tmp_path: Path,
) -> None:
    pytest.importorskip("nvflare", reason=WITHOUT)
    trees = {
        "name": "boosted_trees",
        "depth": 2,
        "bins": 6,
        "learning_rate": 0.5,
        "min_rows": 2,
    }
    tables = {**quick(train={"epochs": 2, "early_stop": False}), "algorithm": trees}
    settings = with_models(
        Settings.from_toml(write(tmp_path, frames(90), tables)), "seeded"
    )
    here = Federation.from_settings(settings).fit(tmp_path / "here").summary
    summary = simulated(tmp_path / "work").train(settings, tmp_path / "run")
    for key in ("metrics", "bytes", "parties", "rows", "rounds"):
        assert summary[key] == here[key], key
    assert load(tmp_path / "run").evaluate("test") == here["metrics"]["test"]


@pytest.mark.long
@each_kind
def test_a_federation_in_the_simulator_is_the_federation_in_one_process(
    tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("nvflare", reason=WITHOUT)
    settings = Settings.from_toml(made(tmp_path, kind, train={"epochs": 2}))
    seen = list[dict[str, Any]]()
    asks = {}
    settings = with_models(settings, "seeded")
    if kind == "several":
        # a process less
        settings = replace(settings, parties={"lab": settings.parties["lab"]})
        asks = {"owner": "south", "model": "own"}
    here = Federation.from_settings(settings).fit(tmp_path / "here").summary
    summary = simulated(tmp_path / "work").train(
        settings, tmp_path / "run", watch=seen.append
    )
    for key in (
        "metrics",
        "bytes",
        "parties",
        "rows",
        "rounds",
        "privacy",
        *(["label_owners"] if asks else []),
    ):
        assert summary[key] == here[key], key
    assert not summary["exhausted"]
    assert [record["epoch"] for record in seen] == [1, 2]
    same_bits(checkpoint_of(tmp_path / "here"), checkpoint_of(tmp_path / "run"))
    ids = ["P003", "P001"]
    (tmp_path / "ids.csv").write_text("\n".join(["patient", *ids, ""]))
    out = simulated(tmp_path / "work").predict(
        settings,
        "run",
        tmp_path / "ids.csv",
        **asks,  # type: ignore[arg-type]
    )
    mine = load(tmp_path / "run", ids=ids, owner=asks.get("owner")).predict(
        ids, owner=asks.get("owner"), model=asks.get("model")
    )
    assert out.read_text() == mine.to_frame().rename(columns={"id": "patient"}).to_csv(
        index=False
    )
    assert load(tmp_path / "run").evaluate("test") == here["metrics"]["test"]


@pytest.mark.long
def test_a_run_in_the_simulator_whose_sites_saved_at_different_steps_is_resumed(
    tmp_path: Path,
) -> None:
    """As after a kill while they saved: the driver has a checkpoint that the laboratory
    has not."""
    pytest.importorskip("nvflare", reason=WITHOUT)
    settings = Settings.from_toml(write(tmp_path / "all", settings=quick(**ALONE)))
    there = tmp_path / "work" / "sites"
    write_sites(there, settings)
    drive(sites(there)["clinic"], "run")
    before = saved(there, "run")
    lab = RunDirectory(there / "lab" / "runs" / "run")
    lab.back_to(lab.marks()[1]["number"])
    simulated(tmp_path / "work").train(settings, tmp_path / "run", resume=True)
    same_bits(before, saved(there, "run"))
