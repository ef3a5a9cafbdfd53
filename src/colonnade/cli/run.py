"""`colonnade run` and `colonnade predict`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.cli.console import a_run, console, label_owners_table, metrics_table, progress_of, traffic_table
from colonnade.cli.deploy import run_on_flare
from colonnade.cli.privacy import show_privacy
from colonnade.errors import BudgetExhausted, ConfigError, DataError, InputError
from colonnade.federation import MultiFederation, Predictions, Settings, load
from colonnade.federation.multi import federation_for
from colonnade.federation.run_directory import SETTINGS, RunDirectory, to_json

Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no tables.")]


def run(
    file: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="Who takes part, with which data and model.")],
    out: Annotated[Path | None, typer.Option(help="The run directory; by default a new one under runs/.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out; the file may ask for more epochs.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Use this seed instead of the file's.")] = None,
    engine: Annotated[
        str,
        typer.Option(help="in-process; or NVIDIA FLARE: flare-sim, flare-poc (both on this machine), flare (sites)."),
    ] = "in-process",
    startup_kit: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --engine flare: the lead's kit, by colonnade provision.")
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a federation and keep a run directory: settings, metrics, ledgers, every party's checkpoint."""
    folder = out or (_latest(file) if resume else _fresh(file))
    if resume:
        if seed is not None:
            raise ConfigError("--seed cannot change a run that is resumed; its own seed is used.")
        if not (folder / SETTINGS).exists():
            raise ConfigError(f"There is no run to resume in {folder}. Start it without --resume.")
        seed = RunDirectory(folder).settings().engine.seed
    if engine != "in-process":
        told = run_on_flare(
            file, engine, folder, startup_kit=startup_kit, resume=resume, seed=seed, quiet=quiet or json_
        )
        if told is None:
            return
        summary, exhausted = told, bool(told["exhausted"])
    else:
        federation = federation_for(Settings.from_toml(file), seed=seed)
        with progress_of(federation, file.stem, quiet=quiet or json_) as watch:
            outcome = federation.fit(folder, resume=resume, watch=watch)
        summary, exhausted = outcome.summary, outcome.exhausted
    if json_:
        typer.echo(to_json(summary, indent=2))
    elif not quiet:
        show(summary)
        console.print(f"The run is in [bold]{folder}[/bold]. Predict with: colonnade predict {folder} --rows FILE")
    if exhausted:
        raise BudgetExhausted(str(summary["stopped"]))


def show(summary: dict[str, Any]) -> None:
    """A run's summary as tables."""
    if summary["metrics"]:
        console.print(metrics_table(summary["metrics"]))
    else:
        console.print("No rows could be measured.")
    if "label_owners" in summary:
        console.print(label_owners_table(summary))
    console.print(traffic_table(summary))
    for split, why in summary["not_measured"].items():
        console.print(f"The {split} rows were not measured: {why}.")
    for party, times in summary.get("missing", {}).items():
        words = {"stale": "its last answer was used", "skip": "it was left out", "not_updated": "it got no update"}
        done = ", ".join(f"{words[what]} {number} times" for what, number in times.items())
        console.print(f"{party} did not always answer: {done}.")
    show_privacy(summary["privacy"])
    epochs = "" if "label_owners" in summary else f"{summary['epochs']} epochs, "  # there, an epoch is a round
    console.print(
        f"{summary['algorithm']}: {epochs}{summary['rounds']} rounds, {summary['seconds']:.1f} s; "
        f"{summary['stopped'].rstrip('.')}."
    )


def predict(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    rows: Annotated[Path, typer.Option(help="A .csv or .parquet file whose id column names the rows to predict.")],
    out: Annotated[Path | None, typer.Option(help="Write a .csv or .parquet file instead of printing.")] = None,
    table: Annotated[
        list[str] | None, typer.Option(metavar="PARTY=FILE", help="A party's table of new rows; may be repeated.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="With several label owners: who asks; else the first.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="With several label owners: aggregated (the default), or own, the asker's."),
    ] = None,
    json_: Json = False,
) -> None:
    """Predict rows by id with a trained federation. Every party must hold the rows; they may be new since training."""
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out must end in .csv or .parquet; found {out}.")
    settings = RunDirectory(a_run(folder)).settings()
    ids = _ids(rows, settings.data.id)
    if not ids:
        raise DataError(f"{rows} has no rows to predict.")
    found = _predicted(folder, settings, ids, _overrides(table or [], settings.parties), owner, model)
    predictions = found.to_frame().rename(columns={"id": settings.data.id})
    if out is not None:
        fresh = out.with_name(f".{out.name}.tmp")
        write = predictions.to_parquet if out.suffix == ".parquet" else predictions.to_csv
        try:
            write(fresh, index=False)
            fresh.replace(out)
        except OSError as error:
            raise InputError(f"--out {out} cannot be written: {error}.") from None
        console.print(f"{len(predictions)} predictions are in [bold]{out}[/bold].")
    elif json_:
        typer.echo(predictions.to_json(orient="records", indent=2))
    else:
        typer.echo(predictions.to_csv(index=False), nl=False)


def _predicted(
    folder: Path, settings: Settings, ids: list[str], tables: dict[str, str], owner: str | None, model: str | None
) -> Predictions:
    if not settings.label_owners:
        if owner is not None or model is not None:
            raise ConfigError("--as and --model are for runs with several label owners, and this one has one.")
        return load(folder, ids=ids, tables=tables).predict(ids)
    if model not in (None, "aggregated", "own"):
        raise ConfigError(f"--model is aggregated or own; found {model!r}.")
    federation = MultiFederation.load(folder, ids=ids, owner=owner, tables=tables)
    return federation.predict(ids, owner=owner, model="own" if model == "own" else "aggregated")


def _ids(rows: Path, column: str) -> list[str]:
    """The ids of a file, whatever else it holds."""
    import pandas as pd

    from colonnade.datasets.columns import check_present

    try:
        if rows.suffix == ".parquet":
            frame = pd.read_parquet(rows)
        else:
            frame = pd.read_csv(rows, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"--rows names {rows}, and there is no such file.") from None
    except (OSError, ValueError) as error:  # the reader's own text may quote cells
        raise DataError(f"--rows {rows} cannot be read as CSV or Parquet ({type(error).__name__}).") from None
    check_present([column], [str(name) for name in frame.columns], owner="--rows", part="id")
    return [str(one) for one in frame[column]]


def _overrides(given: list[str], parties: Any) -> dict[str, str]:
    pairs = dict(one.partition("=")[::2] for one in given)
    for name, path in pairs.items():
        if name not in parties or not path:
            raise ConfigError(f"--table takes PARTY=FILE with one of {', '.join(parties)}; found {name}={path}.")
    return pairs


def _fresh(file: Path) -> Path:
    """The first of runs/NAME, runs/NAME-2, ... that is free."""
    names = (Path("runs") / (file.stem if number == 1 else f"{file.stem}-{number}") for number in range(1, 10_000))
    return next(path for path in names if not path.exists())


def _latest(file: Path) -> Path:
    name = re.compile(rf"{re.escape(file.stem)}(-\d+)?")
    found = [path.parent for path in Path("runs").glob(f"*/{SETTINGS}") if name.fullmatch(path.parent.name)]
    return max(found, key=lambda path: path.stat().st_mtime, default=Path("runs") / file.stem)
