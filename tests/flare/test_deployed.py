"""Organisations as processes of their own, with certificates: the whole way, once, and
what their rules refuse."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import checkpoint_of, quick, with_models, write

from colonnade.errors import ConfigError, PartyError
from colonnade.federation import Federation, Settings
from colonnade.flare.deployed import Poc, Session, _free_ports, carry_out, running
from colonnade.flare.engines import OnThisMachine, conclude, train_on
from colonnade.flare.job import MEMBER, RELAY, Job, write_job
from colonnade.runs.layout import METRICS
from colonnade.settings.party_file import STARTUP

ROOT = Path(__file__).parents[2]
HOSTILE = "tests.federation.hostile_relay.HostileRelay"


def test_a_folder_that_is_no_leads_kit_is_told(tmp_path: Path) -> None:
    pytest.importorskip(
        "nvflare",
        reason="NVIDIA FLARE is not installed: the extra flare",
    )
    with pytest.raises(ConfigError, match="is no startup kit of a lead"):
        Session(tmp_path)


def test_two_ports_that_are_free_differ() -> None:
    one, other = _free_ports()
    assert one != other


@pytest.mark.long
def test_processes_with_certificates_train_what_one_process_would_though_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The laboratory's process is killed with SIGKILL while they train; the run ends,
    and is resumed to the same bits. Afterwards the same sites refuse a job that brings
    code, and one that names another class; and what the relay calls in the label
    owner's name, by a message that FLARE itself takes for the label owner's."""
    pytest.importorskip(
        "nvflare",
        reason="NVIDIA FLARE is not installed: the extra flare",
    )
    # the relay's own class is here
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'src'}")
    changes = {"device": "cpu", "cohort": "off", "deadline": 20, "retries": 0}
    file = write(
        tmp_path / "all",
        settings=quick(train={"epochs": 40, "early_stop": False}, federation=changes),
    )
    settings = with_models(Settings.from_toml(file), "seeded")
    work = tmp_path / "work"
    seen = list[dict[str, Any]]()
    here = Federation.from_toml(file).fit(tmp_path / "here").summary
    work.mkdir()
    lab = work / "kits" / "parties" / "lab"
    killed = list[int]()

    def watch(record: dict[str, Any]) -> None:
        if not killed:
            killed.append(_kill_job_of(lab))

    with pytest.raises(PartyError, match="'lab' failed while answering"):
        OnThisMachine(Poc(work)).train(settings, tmp_path / "run", watch=watch)
    assert killed
    shutil.rmtree(work / "kits" / "relay" / "kept", ignore_errors=True)
    _let_relay_be(work / "kits" / "relay", HOSTILE)
    with running(work / "kits", settings.parties, work):
        driver = work / "kits" / "parties" / "clinic" / "runs" / "run"
        job = Job.to_train(settings, "run", resume=True)
        carry_out(settings, work / "kits" / "lead", job, driver / METRICS, seen.append)
        _hostile(work, settings)
        _forged(work, settings)
    assert seen[-1]["epoch"] == 40
    folders = {
        name: work / "kits" / "parties" / name / "runs" / "run"
        for name in settings.parties
    }
    summary = conclude(settings, folders, tmp_path / "run", work / "clinic.log")
    for key in ("metrics", "bytes", "parties", "rows", "rounds", "privacy"):
        assert summary[key] == here[key], key
    one = checkpoint_of(tmp_path / "here")
    other = checkpoint_of(tmp_path / "run")
    assert all(bool((one[key] == other[key]).all()) for key in one)


@pytest.mark.long
def test_a_run_goes_on_by_itself_when_a_process_dies(tmp_path: Path) -> None:
    pytest.importorskip(
        "nvflare",
        reason="NVIDIA FLARE is not installed: the extra flare",
    )
    changes = {"device": "cpu", "cohort": "off", "deadline": 20, "retries": 0}
    file = write(
        tmp_path / "all",
        settings=quick(train={"epochs": 40, "early_stop": False}, federation=changes),
    )
    settings = with_models(Settings.from_toml(file), "seeded")
    work = tmp_path / "work"
    told = list[str]()
    here = Federation.from_toml(file).fit(tmp_path / "here").summary
    work.mkdir()
    killed = list[int]()

    def watch(record: dict[str, Any]) -> None:
        if not killed:
            killed.append(_kill_job_of(work / "kits" / "parties" / "lab"))

    engine = OnThisMachine(Poc(work))
    summary = train_on(
        engine, settings, tmp_path / "run", watch=watch, restarts=2, say=told.append
    )
    assert killed
    assert "goes on from its last checkpoint" in told[0]
    assert summary is not None
    assert summary["metrics"] == here["metrics"]


def _kill_job_of(kit: Path) -> int:
    """The process that FLARE started at a site for the run; the site itself stays."""
    import os
    import signal

    for one in Path("/proc").glob("[0-9]*"):
        try:
            words = (one / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            any(word.endswith(b"worker_process") for word in words)
            and str(kit).encode() in words
        ):
            os.kill(int(one.name), signal.SIGKILL)
            return int(one.name)
    raise AssertionError("there is no such process")


def _hostile(work: Path, settings: Settings) -> None:
    code = write_job(
        work / "code",
        Job("clinic", ("clinic", "lab"), "code"),
        work / "kits" / "lead" / STARTUP,
    )
    (code / "app" / "custom").mkdir()
    (code / "app" / "custom" / "mine.py").write_text("print('I run at your site')\n")
    other = write_job(
        work / "other",
        Job("clinic", ("clinic", "lab"), "other"),
        work / "kits" / "lead" / STARTUP,
    )
    client = other / "app" / "config" / "config_fed_client.json"
    client.write_text(
        client.read_text().replace(MEMBER, "nvflare.app_common.np.np_trainer.NPTrainer")
    )
    session = Session(work / "kits" / "lead")
    try:
        session.wait_for(settings.parties, 180.0)
        for job in (code, other):
            state = _ended(session, job)
            assert state != "FINISHED:COMPLETED", job.name
    finally:
        session.close()
    assert not (work / "kits" / "parties" / "lab" / "runs" / "code").exists()


def _let_relay_be(kit: Path, name: str) -> None:
    """What runs at the relay is for its owner to say."""
    path = kit / "local" / "resources.json"
    resources = json.loads(path.read_text())
    resources["class_allow_list"].append(name)
    path.write_text(json.dumps(resources))


def _forged(work: Path, settings: Settings) -> None:
    job = write_job(
        work / "forged",
        Job("clinic", ("clinic", "lab"), "forged"),
        work / "kits" / "lead" / STARTUP,
    )
    server = job / "app" / "config" / "config_fed_server.json"
    server.write_text(server.read_text().replace(RELAY, HOSTILE))
    session = Session(work / "kits" / "lead")
    try:
        session.wait_for(settings.parties, 180.0)
        assert _ended(session, job) == "FINISHED:COMPLETED"
    finally:
        session.close()
    refused = (
        (work / "kits" / "parties" / "lab" / "runs" / "refused.jsonl")
        .read_text()
        .splitlines()
    )
    found = [(one["caller"], one["why"]) for one in map(json.loads, refused)]
    assert any(caller == "clinic" and "comes sealed" in why for caller, why in found), (
        found
    )


def _ended(session: Session, job: Path) -> str:
    try:
        number = session.submit(job)
    except Exception as error:  # refused when it is submitted
        return type(error).__name__
    until = time.monotonic() + 120
    while time.monotonic() < until:
        state = session.state(number)
        if not state.startswith(("RUNNING", "SUBMITTED", "DISPATCHED")):
            return state
        time.sleep(1.0)
    raise AssertionError(f"{job.name} is still {json.dumps(state)}")


def test_who_is_waited_for_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    said = list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds)
    )
    session = object.__new__(Session)
    session.say = said.append
    monkeypatch.setattr(
        session, "sites", lambda: {"clinic"} if clock[0] < 75 else {"clinic", "lab"}
    )
    session.wait_for(["clinic", "lab"], 180.0)
    words = "Waiting for 'lab', not connected to the relay yet; {} s more at most."
    assert said == [words.format(left) for left in (170, 140, 110)]
    monkeypatch.setattr(session, "sites", lambda: {"clinic"})
    with pytest.raises(
        PartyError, match="'lab' failed while answering a run: it is not connected"
    ):
        session.wait_for(["clinic", "lab"], 20.0)
