"""Where a run takes place: in FLARE's simulator, in a rehearsal with certificates, or
at sites of their own.

An engine trains, predicts, serves, and has other tasks done. Where all organisations
are on this machine, it gives what they have found; where they are not, that stays with
them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from colonnade.errors import (
    BoundaryError,
    BudgetExhausted,
    CheckpointError,
    ColonnadeError,
    ConfigError,
    InputError,
)
from colonnade.flare.deployed import Deployed, Poc, Say
from colonnade.flare.job import Job, Watch, failure_in, require
from colonnade.flare.simulator import Simulator
from colonnade.runs.layout import (
    ANSWERS,
    FAILURE,
    METRICS,
    PARTIES,
    ROWS,
    SUMMARY,
)
from colonnade.runs.run_directory import RunDirectory
from colonnade.runs.stores import copy_site_store
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import OWN, at_sites, driver_of, write_table
from colonnade.sites.prediction import checked_file

ENGINES = ("in-process", "flare-sim", "flare-poc", "flare")
"""What --engine takes; the first needs no FLARE."""


class Machine(Protocol):
    """Organisations that are all on this machine, and how they do a job."""

    @property
    def kept(self) -> Path: ...
    def folder(self, name: str) -> Path: ...
    def files(self, name: str) -> Path: ...
    def log(self, name: str) -> Path: ...
    def prepare(self, settings: Settings, *, resume: bool) -> None: ...
    def carry_out(
        self, settings: Settings, job: Job, told: Path, watch: Watch | None
    ) -> str: ...


MACHINES: dict[str, Callable[[Path], Machine]] = {
    "flare-sim": Simulator,
    "flare-poc": Poc,
}


class Engine(Protocol):
    def train(
        self,
        settings: Settings,
        out: Path,
        *,
        resume: bool = False,
        watch: Watch | None = None,
    ) -> dict[str, Any] | None:
        """The driver's summary, with "exhausted"; None where results stay with the
        sites."""

    def predict(
        self,
        settings: Settings,
        run: str,
        rows: Path,
        *,
        owner: str | None = None,
        model: str = "",
        strict: bool = False,
    ) -> Path | None:
        """The file of predictions, asked for as `owner` of several label owners; None
        where it stays with a site."""

    def serve(
        self,
        settings: Settings,
        run: str,
        watch: Watch,
        *,
        owner: str | None = None,
        model: str = "",
    ) -> None:
        """Until KeyboardInterrupt; `watch` is told where it listens, if that is on this
        machine."""

    def perform(self, settings: Settings, job: Job) -> Path | None:
        """The driver's own folder of the run, where it left what it found; None where
        that stays with a site."""


def train_on(
    engine: Engine,
    settings: Settings,
    out: Path,
    *,
    resume: bool = False,
    watch: Watch | None = None,
    restarts: int = 0,
    say: Say | None = None,
) -> dict[str, Any] | None:
    """Train, and go on from the last checkpoint where a run broke off, so many times:
    FLARE ends a whole job when one site's process dies. What another try cannot cure
    (bad input, a spent budget, a damaged file) is raised at once."""
    for left in range(restarts, -1, -1):
        try:
            return engine.train(settings, out, resume=resume, watch=watch)
        except (InputError, BudgetExhausted, BoundaryError, CheckpointError):
            raise
        except ColonnadeError as error:
            if not left:
                raise
            if say is not None:
                say(
                    f"The run broke off: {error} It goes on from its last checkpoint;"
                    f" {left} restarts are left."
                )
            resume = True
    raise AssertionError


@dataclass(frozen=True)
class OnThisMachine:
    """A rehearsal: every organisation is a process here, with a folder of its own."""

    machine: Machine

    def runs(self, name: str, run: str) -> Path:
        """An organisation's own part of a run."""
        return self.machine.folder(name) / "runs" / run

    def train(
        self,
        settings: Settings,
        out: Path,
        *,
        resume: bool = False,
        watch: Watch | None = None,
    ) -> dict[str, Any]:
        require()
        settings = at_sites(settings)
        self.machine.prepare(settings, resume=resume)
        job = Job.to_train(settings, out.name, resume=resume)
        folders = {name: self.runs(name, out.name) for name in job.sites}
        self.machine.carry_out(settings, job, folders[job.driver] / METRICS, watch)
        return conclude(settings, folders, out, self.machine.log(job.driver))

    def predict(
        self,
        settings: Settings,
        run: str,
        rows: Path,
        *,
        owner: str | None = None,
        model: str = "",
        strict: bool = False,
    ) -> Path:
        job = Job.of_one(
            settings, run, owner, predict=rows.name, model=model, strict=strict
        )
        require()
        folder = self.runs(job.driver, run)
        (folder / ROWS).mkdir(exist_ok=True)
        # where the driver looks for it
        shutil.copyfile(rows, folder / ROWS / rows.name)
        _, out = checked_file(folder, rows.name)
        out.unlink(missing_ok=True)
        self.machine.carry_out(settings, job, Path(os.devnull), None)
        if not out.exists():
            raise why_nothing([folder], self.machine.log(job.driver))
        return out

    def serve(
        self,
        settings: Settings,
        run: str,
        watch: Watch,
        *,
        owner: str | None = None,
        model: str = "",
    ) -> None:
        job = Job.of_one(settings, run, owner, serve=True, model=model)
        require()
        folder = self.runs(job.driver, run)
        with listening(folder) as answers:
            ended = self.machine.carry_out(settings, job, answers, watch)
        raise failure_in(folder.parent / FAILURE) or ColonnadeError(
            f"It ended as {ended!r}. What was said is in"
            f" {self.machine.log(job.driver)}."
        )

    def perform(self, settings: Settings, job: Job) -> Path:
        require()
        folder = self.runs(job.driver, job.run)
        failed = folder.parent / FAILURE
        failed.unlink(missing_ok=True)
        self.machine.carry_out(settings, job, Path(os.devnull), None)
        if (error := failure_in(failed)) is not None:
            raise error
        if not folder.exists():
            raise why_nothing(
                [self.runs(name, job.run) for name in job.sites],
                self.machine.log(job.driver),
            )
        return folder

    def begin(self, settings: Settings) -> Settings:
        """Before there is a run: a folder for every organisation, each of which lets
        its columns be compared."""
        settings = at_sites(settings)
        self.machine.prepare(settings, resume=False)
        for name in {**settings.parties, **settings.label_owners}:
            write_table(
                self.machine.files(name) / OWN,
                "selections",
                {"queries": settings.selection.queries},
            )
        return settings


def find_engine(
    name: str, run: Path, startup_kit: Path | None = None, say: Say | None = None
) -> Engine:
    """The engine that --engine names, for a run directory; `say` is told for whom it
    waits."""
    if name == "flare":
        if startup_kit is None:
            raise ConfigError(
                "--engine flare needs --startup-kit DIR, the kit of the lead"
                " (`colonnade provision`)."
            )
        return Deployed(startup_kit, say)
    if name not in MACHINES:
        raise ConfigError(
            f"--engine must be one of {', '.join(ENGINES)}; found {name!r}."
        )
    return OnThisMachine(MACHINES[name](run.with_name(f"{run.name}.flare")))


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


def conclude(
    settings: Settings, folders: Mapping[str, Path], out: Path, log: Path
) -> dict[str, Any]:
    """The summary of a run whose organisations are all on this machine, with its
    folder; or the driver's error."""
    driver = driver_of(settings)
    error = failure_in(folders[driver].parent / FAILURE)
    if not (folders[driver] / SUMMARY).exists():
        raise error or why_nothing(folders.values(), log)
    summary = gather(settings, folders, driver, out)
    if error is not None and not isinstance(error, BudgetExhausted):
        raise error
    return summary | {"exhausted": error is not None}


def why_nothing(folders: Iterable[Path], log: Path) -> ColonnadeError:
    """The first error that is written down at one of these sites, which may be one that
    could not start."""
    failures = (failure_in(folder.parent / FAILURE) for folder in folders)
    without = ColonnadeError(f"FLARE ended without a result. What it said is in {log}.")
    return next((error for error in failures if error is not None), without)


def gather(
    settings: Settings, folders: Mapping[str, Path], driver: str, out: Path
) -> dict[str, Any]:
    """One run directory, as if all had run here: where all organisations are on one
    machine. The helper of an alignment takes no part in a run."""
    folders = {
        name: folder
        for name, folder in folders.items()
        if name != settings.alignment.helper
    }
    parts = {
        name: RunDirectory(folder).summary() or {} for name, folder in folders.items()
    }
    summary = dict(parts[driver])
    shutil.rmtree(out / PARTIES, ignore_errors=True)
    shutil.copytree(folders[driver], out, dirs_exist_ok=True)
    for name, folder in folders.items():
        if name != driver:
            shutil.copytree(
                folder / PARTIES / name, out / PARTIES / name, dirs_exist_ok=True
            )
        copy_site_store(folder.parent, out / PARTIES / name)
    for key in ("parties", "bytes", "models"):
        summary[key] = {
            name: parts[name][key][name] for name in folders if name in parts[name][key]
        }
    summary["privacy"] = [line for name in folders for line in parts[name]["privacy"]]
    if driver in settings.server:  # it holds no rows; of all together, data owners know
        rows = RunDirectory(folders[next(iter(settings.parties))]).mark()["rows"]
        RunDirectory(out).keep_mark(RunDirectory(out).mark() | {"rows": rows})
    then = {
        name: RunDirectory(folder).settings(settings.allow_models)
        for name, folder in folders.items()
    }
    models = {
        name: trained.parties[name].model
        for name, trained in then.items()
        if name in trained.parties
    }
    own = {name: model for name, model in models.items() if isinstance(model, Mapping)}
    trained = replace(
        settings.with_models(then[driver].model, own), train=then[driver].train
    )
    # with the sizes that its sites found for their rows
    RunDirectory(out).keep(trained)
    RunDirectory(out).write_summary(summary)
    return summary
