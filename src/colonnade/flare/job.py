"""A federation as a job of NVIDIA FLARE: as data, without code, for a simulation or for
sites of their own.

A job names two installed classes (`flare.members`; where it serves, `flare.serving`)
and brings the lead's order; a site that allows only these runs nothing that others
wrote. The settings stay with the sites.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from colonnade import errors
from colonnade.core import files
from colonnade.errors import ColonnadeError, ConfigError, PartyError
from colonnade.installation import hint
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import (
    all_sites,
    asked_with,
    asker_of,
    driver_of,
    sites_of,
)
from colonnade.settings.selection import KEYS, SERVER

RELAY, MEMBER = (f"colonnade.flare.members.{name}" for name in ("Relay", "Member"))
SERVING = "colonnade.flare.serving.ServingMember"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
SITES = "COLONNADE_SITES"
"""The environment's word for where a simulation has its sites."""
ALLOWED = [RELAY, MEMBER, SERVING, CONTROLLER, EXECUTOR]
"""All classes that a site of a federation needs to let a job name."""
LAST = 20.0
"""Seconds for a service of this machine to answer what is under way, and for FLARE to
end."""
KINDS: dict[str, type[ColonnadeError]] = {
    name: vars(errors)[name] for name in errors.__all__
}
"""Our errors by name: a file may name these, and no other class."""

Watch = Callable[[dict[str, Any]], None]
"""Told each epoch's record when the driver has written it."""


def require() -> None:
    """FLARE, or an error that names the extra."""
    try:
        import nvflare.collab  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"This engine needs NVIDIA FLARE. Install it: {hint('flare')}"
        ) from None


@dataclass(frozen=True)
class Job:
    """What a driver is to do with which run: train it; or predict the ids of a file that
    it has, all of them or none where it is `strict`; or serve it as its own party.toml
    says; or something else that it is to `do`, and how (`members.TASKS`). Of several
    label owners one predicts or serves, and `model` says with which of its two models."""

    driver: str
    sites: tuple[str, ...]
    run: str
    resume: bool = False
    predict: str = ""
    strict: bool = False
    serve: bool = False
    model: str = ""
    do: str = ""
    how: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def to_train(cls, settings: Settings, run: str, *, resume: bool = False) -> Job:
        return cls(driver_of(settings), sites_of(settings), run, resume)

    @classmethod
    def to_select(
        cls,
        settings: Settings,
        run: str,
        how: Mapping[str, Any],
        owner: str | None = None,
    ) -> Job:
        """A job that selects for a label owner, or for several jointly where none is
        named."""
        if owner is None:
            return cls(
                driver_of(settings), all_sites(settings), run, do="select", how=how
            )
        sites = (*asked_with(settings, asker_of(settings, owner)), SERVER, KEYS)
        return cls(asker_of(settings, owner), sites, run, do="select", how=how)

    @classmethod
    def to_do(
        cls,
        settings: Settings,
        run: str,
        do: str,
        how: Mapping[str, Any],
        owner: str | None = None,
        *,
        whole: bool = False,
    ) -> Job:
        """Something that one label owner does with those who hold columns; or who
        drives does with all who train."""
        job = cls.of_one(settings, run, owner, do=do, how=how)
        return (
            replace(job, driver=driver_of(settings), sites=sites_of(settings))
            if whole
            else job
        )

    @classmethod
    def of_one(
        cls, settings: Settings, run: str, owner: str | None = None, **what: Any
    ) -> Job:
        """A job of one label owner, with those who hold columns; `what` are the fields
        that say what it does."""
        asker = asker_of(settings, owner)
        return cls(asker, asked_with(settings, asker), run, **what)

    @property
    def trains(self) -> bool:
        return not (self.predict or self.serve or self.do)


def write_job(folder: Path, job: Job, lead: Path, member: str = MEMBER) -> Path:
    """A job's folder, as FLARE takes it: which classes, who drives, and what the lead
    orders, signed by the folder `startup` of its kit; nothing else."""
    from colonnade.flare.orders import signed

    wish = {key: value for key, value in asdict(job).items() if key != "sites"}
    relay = {"driver": job.driver, "order": signed(lead, wish)}
    member = SERVING if job.serve else member
    controls = {
        "server_obj_id": "relay",
        "max_call_threads": 64,
        "sync_task_timeout": 600,
    }
    server = {
        "format_version": 2,
        "workflows": [{"id": "controller", "path": CONTROLLER, "args": controls}],
        "components": [{"id": "relay", "path": RELAY, "args": relay}],
    }
    executor = {
        "path": EXECUTOR,
        "args": {"client_obj_id": "member", "max_call_threads": 64},
    }
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": [{"id": "member", "path": member, "args": {}}],
    }
    meta = {
        "name": job.run,
        "resource_spec": {},
        "min_clients": len(job.sites),
        "deploy_map": {"app": ["@ALL"]},
    }
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    sides = {
        config / "config_fed_server.json": server,
        config / "config_fed_client.json": client,
    }
    for path, content in {folder / "meta.json": meta, **sides}.items():
        path.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return folder


def issue(kits: Mapping[str, Path], lead: tuple[str, Path] | None = None) -> None:
    """For sites that are all on this machine: certificates as `provision` has them
    made, of a root whose key is not kept; and one for the lead of this name."""
    from nvflare.lighter.utils import (
        Identity,
        generate_cert,
        generate_keys,
        serialize_cert,
        serialize_pri_key,
    )

    from colonnade.transport.identity import CERTIFICATE, KEY, LEAD, ROOT

    root = Identity("rehearsal")
    key = generate_keys()
    issuer = serialize_cert(generate_cert(root, root, *key, ca=True))
    every = [(Identity(name), kit) for name, kit in kits.items()]
    every += [] if lead is None else [(Identity(lead[0], role=LEAD), lead[1])]
    for whose, kit in every:
        own, public = generate_keys()
        kit.mkdir(parents=True, exist_ok=True)
        (kit / ROOT).write_bytes(issuer)
        (kit / CERTIFICATE).write_bytes(
            serialize_cert(generate_cert(whose, root, key[0], public))
        )
        (kit / KEY).touch(mode=0o600)
        (kit / KEY).write_bytes(serialize_pri_key(own))


def follow(
    running: Callable[[], bool], metrics: Path, watch: Watch | None, pause: float = 0.2
) -> None:
    """Wait, and pass on what the driver writes after each epoch."""
    seen = 0
    going = True
    while going:
        going = running()
        text = (
            metrics.read_text(encoding="utf-8", errors="replace")
            if metrics.exists()
            else ""
        )
        lines = text.split("\n")[:-1]  # the last may be half-written
        for line in lines[seen:]:
            if watch is not None:
                watch(json.loads(line))
        seen = max(seen, len(lines))
        time.sleep(pause if going else 0.0)


def stop(process: subprocess.Popen[Any], grace: float = 5.0) -> None:
    """End a process that was started with a session of its own, and all that it
    started."""
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


def failure_in(path: Path) -> ColonnadeError | None:
    """What ended the driver's run, as its own process raised it."""
    if not path.exists():
        return None
    about = files.read_json(path, "Its site's log says the same")
    kind = KINDS.get(str(about["error"]), ColonnadeError)
    if issubclass(kind, PartyError):
        return kind(about["party"], about["request"], about["batch"], about["cause"])
    return kind(about["message"])
