"""Runs over sites of their own, each a FLARE process with its startup kit: on many
machines, or all on this one.

`provision` makes the kits. The lead submits a job to the relay and asks how it is;
results stay with the sites.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from colonnade.errors import ColonnadeError, ConfigError, PartyError
from colonnade.flare.job import LAST, Job, Watch, follow, require, stop, write_job
from colonnade.flare.provision import provision
from colonnade.runs.layout import FAILURE
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import (
    OWN,
    STARTUP,
    all_sites,
    read_own,
    write_agreed,
)
from colonnade.sites.keeping import make_missing_store

PATIENCE = 180.0
"""Seconds in which sites must have connected to the relay."""
GRACE = 15.0
"""Seconds for which a prediction waits for those who may be missing."""
QUIET = 10.0
AGAIN = 30.0
"""Seconds of waiting until it is said for whom, and then between two times that it is.
"""
DONE = "FINISHED:COMPLETED"
OVER = ("FINISHED", "FAILED", "ABORTED", "ABANDONED")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Poc:
    """The machine that `flare-poc` runs on: a rehearsal of a deployment with kits,
    certificates, encrypted calls, a process per organisation and one for the relay."""

    work: Path

    @property
    def kept(self) -> Path:
        """Where the kits are, and in them the organisations."""
        return self.work / "kits"

    def folder(self, name: str) -> Path:
        return self.kept / "parties" / name

    def files(self, name: str) -> Path:
        """Where an organisation's own file is."""
        return self.folder(name) / "local"

    def log(self, name: str) -> Path:
        return self.work / f"{name}.log"

    def prepare(self, settings: Settings, *, resume: bool) -> None:
        if not (resume and self.kept.exists()):
            port, admin_port = _free_ports()
            provision(
                settings,
                self.kept,
                server="localhost",
                port=port,
                admin_port=admin_port,
            )
            _store_in(self.kept / "relay")
        for name in all_sites(settings):  # a resumed run may have more epochs
            write_agreed(self.files(name), settings)
            make_missing_store(read_own(self.files(name) / OWN))

    def carry_out(
        self, settings: Settings, job: Job, told: Path, watch: Watch | None
    ) -> str:
        """Do a job to its end, passing on what its driver writes into the file `told`."""
        with running(self.kept, job.sites, self.work):
            return carry_out(settings, self.kept / "lead", job, told, watch)


@contextmanager
def running(kits: Path, names: Collection[str], logs: Path) -> Iterator[None]:
    """The relay and all sites, as processes of this machine; none outlives the block."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.append(start(kits / "relay", logs / "relay.log"))
        processes += [
            start(kits / "parties" / name, logs / f"{name}.log") for name in names
        ]
        yield
    finally:
        for process in processes:
            stop(process)


@dataclass(frozen=True)
class Deployed:
    """Sites that are up elsewhere, each with its own kit; the lead's kit starts runs,
    and `say` is told for whom it waits. What is found stays with the sites."""

    kit: Path
    say: Say | None = None

    def train(
        self,
        settings: Settings,
        out: Path,
        *,
        resume: bool = False,
        watch: Watch | None = None,
    ) -> None:
        self._carry_out(
            settings, Job.to_train(settings, out.name, resume=resume), watch
        )

    def predict(
        self,
        settings: Settings,
        run: str,
        rows: Path,
        *,
        owner: str | None = None,
        model: str = "",
        strict: bool = False,
    ) -> None:
        job = Job.of_one(
            settings, run, owner, predict=rows.name, model=model, strict=strict
        )
        self._carry_out(settings, job)

    def serve(
        self,
        settings: Settings,
        run: str,
        watch: Watch,
        *,
        owner: str | None = None,
        model: str = "",
    ) -> None:
        self._carry_out(
            settings, Job.of_one(settings, run, owner, serve=True, model=model), watch
        )

    def perform(self, settings: Settings, job: Job) -> None:
        self._carry_out(settings, job)

    def _carry_out(
        self, settings: Settings, job: Job, watch: Watch | None = None
    ) -> None:
        ended = carry_out(settings, self.kit, job, Path(os.devnull), watch, self.say)
        if ended != DONE:
            raise ColonnadeError(
                f"It ended as {ended}. Why is in {job.driver}'s own runs/{FAILURE}, at"
                " its site; of a site that could not start, in that site's own."
            )


def carry_out(
    settings: Settings,
    kit: Path,
    job: Job,
    told: Path,
    watch: Watch | None,
    say: Say | None = None,
) -> str:
    """Submit a job with the lead's kit and wait for its end; gives FLARE's word for how
    it ended."""
    session = Session(kit, patience=PATIENCE, say=say)
    folder = Path(kit) / "transfer" / f"{job.run}-{os.getpid()}"
    try:
        if not job.trains and settings.may_lack:  # who is not there, is not asked
            session.wait_for([job.driver], PATIENCE)
            job = replace(job, sites=tuple(session.soon(job.sites, GRACE)))
        session.wait_for(job.sites, PATIENCE)
        number = session.submit(write_job(folder, job, kit / STARTUP))
        states = [""]

        def running() -> bool:
            states.append(session.state(number))
            return not states[-1].startswith(OVER)

        try:
            follow(running, told, watch, pause=1.0)
        except KeyboardInterrupt:
            session.abort(number)
            session.wait(number, LAST)
            raise
        return states[-1]
    finally:
        session.close()
        shutil.rmtree(folder, ignore_errors=True)


def start(kit: Path, log: Path) -> subprocess.Popen[bytes]:
    """A relay or a site of this machine, as its kit starts it, in a session of its own."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    }
    with log.open("wb") as file:
        return subprocess.Popen(
            ["bash", str(kit / "startup" / "sub_start.sh"), "--once"],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


class Waiting:
    """Says now and then for whom somebody waits: minutes without a word look like a
    program that hangs."""

    def __init__(self, say: Say | None, patience: float) -> None:
        self.say = say
        self.began = time.monotonic()
        self.patience = patience
        self.due = QUIET

    def __call__(self, whom: str) -> None:
        passed = time.monotonic() - self.began
        if self.say is not None and passed >= self.due:
            self.say(
                f"Waiting for {whom}; {max(self.patience - passed, 0):.0f} s more at"
                " most."
            )
            self.due = passed + AGAIN


class Session:
    """The lead's connection to the relay: submits a run and asks how it is."""

    def __init__(
        self, kit: Path, *, patience: float = 60.0, say: Say | None = None
    ) -> None:
        require()
        self.say = say
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        about = kit / "startup" / "fed_admin.json"
        if not about.exists():
            raise ConfigError(
                f"{kit} is no startup kit of a lead: {about} is missing. It is in"
                " DIR/lead."
            )
        name = json.loads(about.read_text(encoding="utf-8"))["admin"]["username"]
        until = time.monotonic() + patience
        say_waiting = Waiting(say, patience)
        while True:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    self.session = new_secure_session(name, str(kit), timeout=10.0)
                return
            except Exception as error:  # FLARE has many
                if time.monotonic() > until:
                    raise PartyError(
                        "relay", "a session", None, f"{type(error).__name__}: {error}"
                    ) from None
                say_waiting("the relay, which does not answer yet")
                time.sleep(1.0)

    def sites(self) -> set[str]:
        """The sites that are connected."""
        return {client.name for client in self.session.get_connected_client_list()}

    def wait_for(self, names: Collection[str], patience: float) -> None:
        """Until all are connected; a run without one of them cannot begin."""
        if missing := set(names) - self.soon(names, patience):
            cause = f"it is not connected to the relay after {patience:.0f} s"
            raise PartyError(min(missing), "a run", None, cause)

    def soon(self, names: Collection[str], patience: float) -> set[str]:
        """Those that are connected, once all are or a while has passed."""
        until = time.monotonic() + patience
        say_waiting = Waiting(self.say, patience)
        while (missing := set(names) - self.sites()) and time.monotonic() <= until:
            say_waiting(
                f"{' and '.join(map(repr, sorted(missing)))}, not connected to the"
                " relay yet"
            )
            time.sleep(1.0)
        return set(names) - missing

    def submit(self, job: Path) -> str:
        return str(self.session.submit_job(str(job.resolve())))

    def state(self, job: str) -> str:
        return str(self.session.get_job_status(job))

    def wait(self, job: str, patience: float) -> None:
        """Until a job is over, or no longer."""
        until = time.monotonic() + patience
        while not self.state(job).startswith(OVER) and time.monotonic() < until:
            time.sleep(0.5)

    def abort(self, job: str) -> None:
        self.session.abort_job(job)

    def close(self) -> None:
        self.session.close()


def _free_ports() -> tuple[int, int]:
    """Two that nobody listens on."""
    with socket.socket() as one, socket.socket() as two:
        for held in (one, two):
            held.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def _store_in(kit: Path) -> None:
    """The relay keeps its jobs in its own folder instead of a common one, so that two
    can run on a machine."""
    path = kit / "local" / "resources.json"
    resources = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps(resources, indent=2).replace(
        "/tmp/nvflare", str((kit / "kept").resolve())
    )
    path.write_text(text, encoding="utf-8")
