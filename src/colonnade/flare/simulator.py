"""FLARE's simulator: every site is a process of this machine, without certificates of
FLARE's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from colonnade.flare.job import (
    ALLOWED,
    LAST,
    SITES,
    Job,
    Watch,
    follow,
    issue,
    stop,
    write_job,
)
from colonnade.runs.layout import FAILURE
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import (
    OWN,
    STARTUP,
    all_sites,
    driver_of,
    read_own,
    write_agreed,
    write_own,
)
from colonnade.sites.keeping import make_missing_store

NOT_STARTED = (
    "Failed to create connection to the child process",
    "Address already in use",
)


@dataclass(frozen=True)
class Simulator:
    """The machine that `flare-sim` runs on; all of it is in one folder."""

    work: Path

    @property
    def kept(self) -> Path:
        """The folder of the organisations."""
        return self.work / "sites"

    @property
    def lead(self) -> Path:
        """Where the certificate of who starts runs is."""
        return self.work / "lead"

    def folder(self, name: str) -> Path:
        return self.kept / name

    def files(self, name: str) -> Path:
        """Where an organisation's own file is."""
        return self.folder(name)

    def log(self, name: str) -> Path:  # noqa: ARG002 - all write into one
        return self.work / "flare.log"

    def prepare(self, settings: Settings, *, resume: bool) -> None:  # noqa: ARG002 - a resumed run may have more epochs
        write_sites(self.kept, settings)

    def carry_out(
        self, settings: Settings, job: Job, told: Path, watch: Watch | None
    ) -> str:
        """Do a job to its end, passing on what its driver writes into the file `told`."""
        if not self.lead.exists():
            certify(self.kept, settings)
        # FLARE may wait on for a site that was killed
        failed = self.folder(job.driver) / "runs" / FAILURE
        log = self.log(job.driver)
        for _ in starts(log):
            shutil.rmtree(self.work / "job", ignore_errors=True)
            folder = write_job(self.work / "job", job, self.lead)
            with simulator(
                folder, self.work, job.sites, {SITES: str(self.kept.resolve())}
            ) as process:
                try:
                    follow(
                        lambda: (
                            runs(process, log) and not (job.serve and failed.exists())
                        ),
                        told,
                        watch,
                    )
                except KeyboardInterrupt:
                    if job.serve:
                        # so the service ends, and with it the job
                        told.unlink(missing_ok=True)
                        with suppress(subprocess.TimeoutExpired):
                            process.wait(LAST)
                    raise
        return "FLARE ended"


def write_sites(folder: Path, settings: Settings) -> None:
    """For a simulation: every party's own folder, with its own files and a certificate."""
    certify(folder, settings)
    for name in all_sites(settings):
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_agreed(folder / name, settings)
        write_own(folder / name, settings, name)
        make_missing_store(read_own(folder / name / OWN))


def certify(folder: Path, settings: Settings) -> None:
    """A certificate for every site, and one for the lead, beside them."""
    from colonnade.flare.orders import lead_of

    lead = lead_of(driver_of(settings)), folder.parent / "lead"
    issue({name: folder / name / STARTUP for name in all_sites(settings)}, lead)


def starts(log: Path, most: int = 3) -> Iterator[int]:
    """FLARE's simulator gives a site a minute to start and takes ports that were free a
    moment ago; on a busy machine that fails now and then, before anything has begun.
    Then once more."""
    for number in range(most):
        yield number
        if not _failed_to_start(log):
            return


def runs(process: subprocess.Popen[bytes], log: Path) -> bool:
    """Whether FLARE's simulator has something to wait for; where a site did not start
    it never ends by itself."""
    return process.poll() is None and not _failed_to_start(log)


def _failed_to_start(log: Path) -> bool:
    said = log.read_text(encoding="utf-8", errors="replace")
    return any(words in said for words in NOT_STARTED)


@contextmanager
def simulator(
    job: Path,
    work: Path,
    names: Sequence[str],
    more: Mapping[str, str],
    *,
    allowed: Sequence[str] = ALLOWED,
) -> Iterator[subprocess.Popen[bytes]]:
    """FLARE's simulator with this job, a process per site with `more` in its
    environment; none outlives the block."""
    shutil.rmtree(work / "flare", ignore_errors=True)
    policy = work / "flare" / "local"
    policy.mkdir(parents=True)
    (policy / "resources.json").write_text(
        json.dumps({"format_version": 2, "class_allow_list": list(allowed)})
    )
    command = [
        sys.executable,
        "-m",
        "nvflare.private.fed.app.simulator.simulator",
        str(job),
        "-w",
        str(work / "flare"),
    ]
    command += ["-c", ",".join(names), "-t", str(len(names)), "-l", "WARNING"]
    with (work / "flare.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env=os.environ | more,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            stop(process)
