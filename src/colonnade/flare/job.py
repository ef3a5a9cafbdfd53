"""A federation as a job of NVIDIA FLARE: as data, without code, for a simulation or for sites of their own.

A job names two installed classes (`flare.members`; where it serves, `flare.serving`) and says who drives which
run; a site that allows only these runs nothing that others wrote. The settings stay with the sites.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from colonnade import errors
from colonnade.errors import BudgetExhausted, ColonnadeError, ConfigError, PartyError
from colonnade.runs.layout import ANSWERS, FAILURE, JOURNAL, MARK, METRICS, PARTIES, ROWS, SETTINGS, SUMMARY
from colonnade.runs.run_directory import RunDirectory, write_text
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import (
    OWN,
    STARTUP,
    asked_with,
    asker_of,
    at_sites,
    driver_of,
    read_own,
    sites_of,
    write_agreed,
    write_own,
)
from colonnade.sites.prediction import checked_file

RELAY, MEMBER = (f"colonnade.flare.members.{name}" for name in ("Relay", "Member"))
SERVING = "colonnade.flare.serving.ServingMember"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
ALLOWED = [RELAY, MEMBER, SERVING, CONTROLLER, EXECUTOR]
"""All classes that a site of a federation needs to let a job name."""
NOT_STARTED = ("Failed to create connection to the child process", "Address already in use")
SITES = "COLONNADE_SITES"
LAST = 20.0
"""Seconds for a service of this machine to answer what is under way, and for FLARE to end."""

Watch = Callable[[dict[str, Any]], None]
"""Told each epoch's record when the driver has written it."""


def require() -> None:
    """FLARE, or an error that names the extra."""
    try:
        import cryptography  # noqa: F401
        import nvflare.collab  # noqa: F401
    except ImportError:
        raise ConfigError('This engine needs NVIDIA FLARE. Install it: pip install "colonnade[flare]".') from None


def write_job(
    folder: Path,
    *,
    driver: str,
    sites: int,
    run: str,
    resume: bool = False,
    predict: str = "",
    serve: bool = False,
    model: str = "",
    member: str = MEMBER,
) -> Path:
    """The job's folder: who drives which run; `predict` is the name of a file at the driver, and then nothing is
    trained; neither with `serve`, where the driver answers requests as its own party.toml says. Of several label owners
    one is then the driver, and `model` says with which one it predicts."""
    relay: dict[str, Any] = {"driver": driver, "run": run, "resume": resume}
    relay |= ({"predict": predict} if predict else {}) | ({"serve": True} if serve else {})
    relay |= {"model": model} if model else {}
    member = SERVING if serve else member
    threads = {"max_call_threads": 64}
    timeout = {"sync_task_timeout": 600}
    server = {
        "format_version": 2,
        "workflows": [
            {"id": "controller", "path": CONTROLLER, "args": {"server_obj_id": "relay", **threads, **timeout}}
        ],
        "components": [{"id": "relay", "path": RELAY, "args": relay}],
    }
    executor = {"path": EXECUTOR, "args": {"client_obj_id": "member", **threads}}
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": [{"id": "member", "path": member, "args": {}}],
    }
    meta = {"name": run, "resource_spec": {}, "min_clients": sites, "deploy_map": {"app": ["@ALL"]}}
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    for path, content in (
        (folder / "meta.json", meta),
        (config / "config_fed_server.json", server),
        (config / "config_fed_client.json", client),
    ):
        path.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return folder


def write_sites(folder: Path, settings: Settings) -> None:
    """For a simulation: every party's own folder, with its own files and a certificate."""
    issue({name: folder / name / STARTUP for name in sites_of(settings)})
    for name in sites_of(settings):
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_agreed(folder / name, settings)
        write_own(folder / name, settings, name)
        read_own(folder / name / OWN)


def issue(kits: Mapping[str, Path]) -> None:
    """For sites that are all on this machine: certificates as `provision` has them made, of a root whose key is not
    kept."""
    from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key

    root, key = Identity("rehearsal"), generate_keys()
    issuer = serialize_cert(generate_cert(root, root, *key, ca=True))
    for name, kit in kits.items():
        own, public = generate_keys()
        kit.mkdir(parents=True, exist_ok=True)
        (kit / "rootCA.pem").write_bytes(issuer)
        (kit / "client.crt").write_bytes(serialize_cert(generate_cert(Identity(name), root, key[0], public)))
        (kit / "client.key").touch(mode=0o600)
        (kit / "client.key").write_bytes(serialize_pri_key(own))


def simulate(
    settings: Settings,
    work: Path,
    out: Path,
    *,
    resume: bool = False,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Train in FLARE's simulator: every site a process of this machine. Gives the driver's summary."""
    require()
    settings = at_sites(settings)
    driver, names = driver_of(settings), sites_of(settings)
    sites, run = work / "sites", out.name
    write_sites(sites, settings)
    shutil.rmtree(work / "job", ignore_errors=True)
    job = write_job(work / "job", driver=driver, sites=len(names), run=run, resume=resume)
    for _ in starts(work / "flare.log"):
        with simulator(job, work, names, {SITES: str(sites.resolve())}) as process:
            follow(lambda: process.poll() is None, sites / driver / "runs" / run / METRICS, watch)
    return conclude(settings, {name: sites / name / "runs" / run for name in names}, out, work / "flare.log")


def simulate_prediction(
    settings: Settings, work: Path, run: str, rows: Path, *, owner: str | None = None, model: str = ""
) -> Path:
    """Predict with a run that `simulate` trained, as `owner` of several label owners; gives its file of predictions."""
    require()
    driver, sites = asker_of(settings, owner), work / "sites"
    folder, names = sites / driver / "runs" / run, asked_with(settings, driver)
    shutil.rmtree(work / "job", ignore_errors=True)
    job = write_job(work / "job", driver=driver, sites=len(names), run=run, predict=rows.name, model=model)
    with asked_and_told(folder, rows) as out:
        for _ in starts(work / "flare.log"):
            with simulator(job, work, names, {SITES: str(sites.resolve())}) as process:
                process.wait()
    return told(folder, out, work / "flare.log")


def simulate_service(
    settings: Settings, work: Path, run: str, watch: Watch, *, owner: str | None = None, model: str = ""
) -> None:
    """Serve a run that `simulate` trained, until KeyboardInterrupt; `watch` is told where it listens."""
    require()
    driver, sites = asker_of(settings, owner), work / "sites"
    folder, names = sites / driver / "runs" / run, asked_with(settings, driver)
    shutil.rmtree(work / "job", ignore_errors=True)
    job = write_job(work / "job", driver=driver, sites=len(names), run=run, serve=True, model=model)
    with listening(folder) as answers:
        for _ in starts(work / "flare.log"):
            with simulator(job, work, names, {SITES: str(sites.resolve())}) as process:
                try:
                    follow(lambda: process.poll() is None, answers, watch)
                except KeyboardInterrupt:
                    answers.unlink(missing_ok=True)  # so the service ends, and with it the job
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(LAST)
                    raise
    raise failure_in(folder.parent / FAILURE) or ColonnadeError(f"FLARE ended. What it said is in {work}/flare.log.")


@contextmanager
def listening(folder: Path) -> Iterator[Path]:
    """Where a driver on this machine says that it listens, as long as it does."""
    answers = folder / ANSWERS
    answers.unlink(missing_ok=True)
    (folder.parent / FAILURE).unlink(missing_ok=True)
    try:
        yield answers
    finally:
        answers.unlink(missing_ok=True)


@contextmanager
def asked_and_told(folder: Path, rows: Path) -> Iterator[Path]:
    """Puts a file of ids where the driver of this machine looks for it; gives where its predictions will be."""
    (folder / ROWS).mkdir(exist_ok=True)
    shutil.copyfile(rows, folder / ROWS / rows.name)
    _, out = checked_file(folder, rows.name)
    out.unlink(missing_ok=True)
    yield out


def told(folder: Path, out: Path, log: Path) -> Path:
    """The predictions of a driver on this machine, or its error."""
    if not out.exists():
        raise failure_in(folder.parent / FAILURE) or ColonnadeError(
            f"FLARE ended without a result. What it said is in {log}."
        )
    return out


def starts(log: Path, most: int = 3) -> Iterator[int]:
    """FLARE's simulator gives a site a minute to start and takes ports that were free a moment ago; on a busy machine
    that fails now and then, before anything has begun. Then once more."""
    for number in range(most):
        yield number
        said = log.read_text(encoding="utf-8", errors="replace")
        if not any(words in said for words in NOT_STARTED):
            return


@contextmanager
def simulator(
    job: Path, work: Path, names: Sequence[str], environment: Mapping[str, str], *, allowed: Sequence[str] = ALLOWED
) -> Iterator[subprocess.Popen[bytes]]:
    """FLARE's simulator with this job, a process per site; none of them outlives the block."""
    shutil.rmtree(work / "flare", ignore_errors=True)
    policy = work / "flare" / "local"
    policy.mkdir(parents=True)
    (policy / "resources.json").write_text(json.dumps({"format_version": 2, "class_allow_list": list(allowed)}))
    command = [sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator", str(job), "-w", str(work / "flare")]
    command += ["-c", ",".join(names), "-t", str(len(names)), "-l", "WARNING"]
    with (work / "flare.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | dict(environment), start_new_session=True
        )
        try:
            yield process
        finally:
            stop(process)


def follow(running: Callable[[], bool], metrics: Path, watch: Watch | None, pause: float = 0.2) -> None:
    """Wait, and pass on what the driver writes after each epoch."""
    seen = 0
    going = True
    while going:
        going = running()
        text = metrics.read_text(encoding="utf-8", errors="replace") if metrics.exists() else ""
        lines = text.split("\n")[:-1]  # the last may be half-written
        for line in lines[seen:]:
            if watch is not None:
                watch(json.loads(line))
        seen = max(seen, len(lines))
        time.sleep(pause if going else 0.0)


def stop(process: subprocess.Popen[Any], grace: float = 5.0) -> None:
    """End a process that was started with a session of its own, and all that it started."""
    for sign, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def conclude(settings: Settings, folders: Mapping[str, Path], out: Path, log: Path) -> dict[str, Any]:
    """The summary of a run whose organisations are all on this machine, with its folder; or the driver's error."""
    driver = driver_of(settings)
    error = failure_in(folders[driver].parent / FAILURE)
    if not (folders[driver] / SUMMARY).exists():
        found = (failure_in(folder.parent / FAILURE) for folder in folders.values())  # others, that could not start
        others = [one for one in found if one is not None]
        unknown = ColonnadeError(f"FLARE ended without a result. What it said is in {log}.")
        raise error or next(iter(others), unknown)
    summary = gather(settings, folders, driver, out)
    if error is not None and not isinstance(error, BudgetExhausted):
        raise error
    return summary | {"exhausted": error is not None}


def failure_in(path: Path) -> ColonnadeError | None:
    """What ended the driver's run, as its own process raised it."""
    if not path.exists():
        return None
    about = json.loads(path.read_text(encoding="utf-8"))
    kind = _kinds().get(str(about["error"]), ColonnadeError)
    if issubclass(kind, PartyError):
        return kind(about["party"], about["request"], about["batch"], about["cause"])
    found: ColonnadeError = kind(about["message"])
    return found


def _kinds() -> dict[str, type[ColonnadeError]]:
    """Our errors by name: a file may name these, and no other class."""
    known = (getattr(errors, name) for name in errors.__all__)
    return {kind.__name__: kind for kind in known if isinstance(kind, type) and issubclass(kind, ColonnadeError)}


def gather(settings: Settings, folders: Mapping[str, Path], driver: str, out: Path) -> dict[str, Any]:
    """One run directory, as if all had run here: where all organisations are on one machine."""
    summary: dict[str, Any] = json.loads((folders[driver] / SUMMARY).read_text(encoding="utf-8"))
    shutil.rmtree(out / PARTIES, ignore_errors=True)
    shutil.copytree(folders[driver], out, dirs_exist_ok=True)
    parts = {name: json.loads((folder / SUMMARY).read_text(encoding="utf-8")) for name, folder in folders.items()}
    for name, folder in folders.items():
        if name != driver:
            shutil.copytree(folder / PARTIES / name, out / PARTIES / name, dirs_exist_ok=True)
        if (folder.parent / JOURNAL).exists():  # a site has it beside its runs
            shutil.copyfile(folder.parent / JOURNAL, out / PARTIES / name / JOURNAL)
    for key in ("parties", "bytes", "models"):
        summary[key] = {name: parts[name][key][name] for name in folders if name in parts[name][key]}
    summary["privacy"] = [one for name in folders for one in parts[name]["privacy"]]
    if settings.label_owners:  # of all rows together, data owners know
        rows = RunDirectory(folders[next(iter(settings.parties))]).mark()["rows"]
        write_text(out / MARK, json.dumps(RunDirectory(out).mark() | {"rows": rows}))
    write_text(out / SETTINGS, settings.to_toml())
    RunDirectory(out).write_summary(summary)
    return summary
