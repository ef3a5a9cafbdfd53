"""`colonnade run`, `select`, `align --count`, `explain`, `audit`, `predict` and `serve`
with --engine flare-sim | flare-poc | flare."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.cli.console import console, error_console, say
from colonnade.cli.options import VARIABLE, check_asker, say_how
from colonnade.errors import AuditFailed, ConfigError, DataError, InputError
from colonnade.federation import Settings
from colonnade.flare.engines import Engine, OnThisMachine, find_engine, train_on
from colonnade.flare.job import Job
from colonnade.rows.holdings import read_labels, read_tables
from colonnade.rows.missing import COLUMN, DEGRADED, missing_in, warn_missing
from colonnade.runs.layout import ANSWERS, SELECTION, SETTINGS
from colonnade.runs.run_directory import RunDirectory
from colonnade.selection import Selection, SelectionSettings
from colonnade.settings.party_file import (
    AGREED,
    OWN,
    asker_of,
    driver_of,
    label_owners_of,
    write_table,
)
from colonnade.settings.schema import checked
from colonnade.settings.selection import SERVER
from colonnade.settings.serving import ServeSettings

if TYPE_CHECKING:
    import pandas as pd


def run_on_flare(
    settings: Settings,
    engine_name: str,
    out: Path,
    *,
    startup_kit: Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    quiet: bool = False,
    restarts: int = 0,
) -> dict[str, Any] | None:
    """Train over FLARE. Gives the summary, with "exhausted", where all organisations
    are on this machine; None where results stay with the sites. Organisations on this
    machine get the models that the settings allow in their own files. A run that breaks
    off is continued up to `restarts` times."""
    if engine_name == "flare" and settings.allow_models:
        raise ConfigError(
            "--allow-model is no part of a job: each site says in its own party.toml"
            " what it allows."
        )
    if engine_name == "flare" and seed is not None:
        raise ConfigError(
            "--seed cannot be used with --engine flare: the seed is in the file that"
            " all agreed on."
        )
    tell = None if quiet else say_waiting
    engine = find_engine(engine_name, out, startup_kit, tell)
    if not isinstance(engine, OnThisMachine):
        train_on(engine, settings, out, resume=resume, restarts=restarts, say=tell)
        console.print(
            f"Done. Each organisation has its part in its own runs/{out.name}; metrics"
            " are with the driver."
        )
        return None
    work = engine.machine.kept.parent
    if resume and not work.exists():
        raise ConfigError(
            f"There is no run to resume: {work} is missing. Start it without --resume."
        )
    if resume:
        begun = RunDirectory(engine.runs(driver_of(settings), out.name))
        # None: no driver had begun
        seed = (
            begun.settings().engine.seed if (begun.path / SETTINGS).exists() else None
        )
    elif work.exists() or out.exists():
        raise ConfigError(
            f"{work if work.exists() else out} is there already. Choose another --out,"
            " or --resume."
        )
    settings = settings.with_seed(seed)
    # to report mistakes in tables before anything is made
    if not resume and settings.data.dataset is None:
        read_labels(settings)
        read_tables(settings)
    work.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()

    def watch(record: dict[str, Any]) -> None:
        if not quiet:
            scores = "".join(
                f"  {k} {v:.4f}"
                for k, v in record.get("validation", {}).items()
                if k != "loss"
            )
            error_console.print(
                f"epoch {record['epoch']}  loss {record['loss']:.4f}{scores}"
            )

    try:
        with_names = _with_names(settings)
        summary = (
            train_on(
                engine,
                with_names,
                out,
                resume=resume,
                watch=watch,
                restarts=restarts,
                say=tell,
            )
            or {}
        )
    except InputError:
        if not resume and not any(work.rglob(f"runs/{out.name}/{SETTINGS}")):
            # nobody has begun: the corrected command is the same one
            shutil.rmtree(work, ignore_errors=True)
        raise
    if not quiet:
        total = time.perf_counter() - started
        error_console.print(
            f"{summary['seconds']:.1f} s of training; {total:.0f} s with FLARE's start"
            " and end."
        )
    return summary


def predict_on_flare(
    folder: Path,
    rows: Path,
    engine_name: str,
    *,
    startup_kit: Path | None = None,
    owner: str | None = None,
    model: str | None = None,
    strict: bool = False,
) -> pd.DataFrame | None:
    """Predict over FLARE with the run that has the name of `folder`; where several hold
    labels, as `owner`, with `model`, one of its two. Gives the predictions where all
    organisations are on this machine; None where they stay with the label owner, which
    then has the ids in its own runs/RUN/rows. Where it is `strict`, an id that cannot be
    predicted is an error."""
    engine, settings = _with_settings(folder, engine_name, startup_kit)
    if isinstance(engine, OnThisMachine) and not rows.is_file():
        raise DataError(f"--rows names {rows}, and there is no such file.")
    check_asker(settings, owner, model)
    asker = asker_of(settings, owner)
    out = engine.predict(
        settings, folder.name, rows, owner=owner, model=model or "", strict=strict
    )
    if out is None:
        console.print(
            f"The predictions are at '{asker}', in its own"
            f" runs/{folder.name}/predictions/{rows.name}. Its log says how many ids could"
            " not be predicted."
        )
        return None
    frame = read_predictions(out, settings.id_column_of(asker))
    if missing := missing_in(frame):
        warn_missing(missing, frame.iloc[:, 0].nunique(), stacklevel=2)
    return frame


def read_predictions(path: Path, id_column: str) -> pd.DataFrame:
    """A file of predictions that a site wrote, with ids as text and empty cells where
    there is no prediction."""
    import pandas as pd

    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    frame = pd.read_csv(
        path,
        dtype={id_column: str, COLUMN: str, DEGRADED: str},
        keep_default_na=False,  # "NA" may be a class
        na_values=[""],
        dtype_backend="numpy_nullable",
    )
    named = [column for column in (COLUMN, DEGRADED) if column in frame]
    return frame.fillna(dict.fromkeys(named, ""))


def select_on_flare(
    settings: Settings,
    engine_name: str,
    out: Path | None,
    startup_kit: Path | None,
    keep: int,
    method: str,
    owner: str | None,
    options: Mapping[str, Any],
) -> Selection | None:
    """Select between sites, for one label owner or for several jointly; None where the
    result stays with who asked. On this machine options change what is agreed in
    [selection]; sites of their own have agreed on it before."""
    if engine_name != "flare":
        wanted = {**settings.selection.to_mapping(), **options, "servers": True}
        agreed = checked(SelectionSettings, wanted, whose="[selection]")
        settings = replace(settings, selection=agreed)
        options = {}
    how = {"keep": keep, "method": method, "given": dict(options)}
    job = partial(Job.to_select, how=how, owner=owner)
    folder = before_a_run(settings, engine_name, out, startup_kit, "selection", job)
    return (
        None
        if folder is None
        else Selection.from_json(
            json.loads((folder / SELECTION).read_text(encoding="utf-8"))
        )
    )


def before_a_run(
    settings: Settings,
    engine_name: str,
    out: Path | None,
    startup_kit: Path | None,
    name: str,
    job: Callable[..., Job],
) -> Path | None:
    """Have a driver do a job that needs no run, named after --out or `name`; gives its
    folder on this machine."""
    place = out or Path(name)
    engine = find_engine(engine_name, place, startup_kit, say_waiting)
    run = place.name
    if not isinstance(engine, OnThisMachine):
        order = job(agreed_in(startup_kit), run)
        engine.perform(settings, order)
        console.print(f"What was found is at '{order.driver}', in its own runs/{run}.")
        return None
    work = engine.machine.kept.parent
    if work.exists():
        raise ConfigError(f"{work} is there already. Choose another --out.")
    named = _with_names(settings)
    work.mkdir(parents=True)
    settings = engine.begin(named)
    return engine.perform(settings, job(settings, run))


def with_a_run(
    folder: Path,
    engine_name: str,
    startup_kit: Path | None,
    owner: str | None,
    do: str,
    how: Mapping[str, Any],
    place: str,
    *,
    whole: bool = False,
) -> Path | None:
    """Have a label owner do a job with a run of its own; gives the folder of its
    results on this machine."""
    engine, settings = _with_settings(folder, engine_name, startup_kit)
    job = Job.to_do(settings, folder.name, do, how, owner, whole=whole)
    if not isinstance(engine, OnThisMachine):
        engine.perform(settings, job)
        holders = " and ".join(
            f"'{name}'"
            for name in (label_owners_of(settings) if whole else [job.driver])
        )
        console.print(
            f"What was found is at {holders}, in its own runs/{folder.name}/{place}."
        )
        return None
    with suppress(AuditFailed):  # its results are written, and say so themselves
        engine.perform(settings, job)
    return engine.runs(asker_of(settings, owner), job.run) / place


def serve_on_flare(
    folder: Path,
    engine_name: str,
    own: Mapping[str, Any],
    *,
    startup_kit: Path | None = None,
    owner: str | None = None,
    model: str | None = None,
    quiet: bool = False,
) -> None:
    """Serve the run that has the name of `folder`, until SIGTERM or SIGINT. A job says
    which run, and nothing of `own`: where all organisations are on this machine, that
    goes into the label owner's own file first."""
    defaults = ServeSettings().model_dump()
    if engine_name == "flare" and (
        set_ := [key for key, value in own.items() if value != defaults[key]]
    ):
        raise ConfigError(
            f"--{set_[0].replace('_', '-')} is no part of a job: with --engine flare"
            f" the label owner's site listens as [serve] in its own {OWN} says. Set"
            f" {set_[0]} there."
        )
    if engine_name != "flare" and VARIABLE in os.environ and "token_file" not in own:
        raise ConfigError(
            f"{VARIABLE} is set, and a site takes its token from a file alone. Give"
            " --token-file FILE."
        )
    engine, settings = _with_settings(folder, engine_name, startup_kit)
    check_asker(settings, owner, model)
    driver = asker_of(settings, owner)
    run = folder.name
    if isinstance(engine, OnThisMachine):
        write_table(engine.machine.files(driver) / OWN, "serve", own)
    else:
        console.print(
            f"'{driver}' listens as its own {OWN} says; its runs/{run}/{ANSWERS} says"
            " where. Ctrl-C ends it."
        )

    def say_listening(record: dict[str, Any]) -> None:
        say(
            f"{driver} predicts with {', '.join(record['parties'])} at {record['url']}",
            soft_wrap=True,
        )
        if not quiet:
            say_how(record["url"], token=record["token"])

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        engine.serve(settings, run, say_listening, owner=owner, model=model or "")
        console.print(f"'{driver}' has ended it.")
    except KeyboardInterrupt:
        console.print("Ended.")
    finally:
        signal.signal(signal.SIGTERM, before)


def say_waiting(text: str) -> None:
    """Say which site a job waits for, or that it broke off and goes on."""
    error_console.print(text, markup=False, highlight=False, soft_wrap=True)


def agreed_in(startup_kit: Path | None) -> Settings:
    """The agreed settings in the lead's kit."""
    agreed = (startup_kit or Path()) / AGREED
    if not agreed.exists():
        raise ConfigError(f"{agreed} is missing: copy the agreed file there.")
    return Settings.from_toml(agreed)


def _with_settings(
    folder: Path, name: str, startup_kit: Path | None
) -> tuple[Engine, Settings]:
    """The engine of this name, and the settings of a run: its own where it was trained
    on this machine, else agreed."""
    engine = find_engine(name, folder, startup_kit, say_waiting)
    if not isinstance(engine, OnThisMachine):
        return engine, agreed_in(startup_kit)
    if not (kept := engine.machine.kept).exists():
        raise ConfigError(
            f"{kept} is missing, so {folder} was not trained with --engine {name}. Use"
            " its own engine."
        )
    return engine, RunDirectory(folder).settings()


def _with_names(settings: Settings) -> Settings:
    """Settings that name all parties: sites need names, and the file need not name
    those cut from a data set."""
    if settings.data.dataset is None:
        return settings
    from colonnade.rows.public import from_dataset
    from colonnade.settings.sections import PartySettings

    dataset = from_dataset(settings)
    names = [
        name for name in dataset.names if name not in {*settings.label_owners, SERVER}
    ]
    return replace(
        settings,
        parties={name: settings.parties.get(name, PartySettings()) for name in names},
    )
