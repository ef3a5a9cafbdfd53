"""`colonnade predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.cli.console import Json, a_run, console
from colonnade.errors import ConfigError, DataError, InputError
from colonnade.federation import MultiFederation, Predictions, Settings, load
from colonnade.federation.run_directory import RunDirectory


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
