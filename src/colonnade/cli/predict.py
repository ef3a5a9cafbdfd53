"""`colonnade predict`."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import MofNCompleteColumn

from colonnade.alignment.keys import row_names
from colonnade.cli.console import a_bar, a_run, console, error_console, shown
from colonnade.cli.options import (
    AllowModel,
    Engine,
    Json,
    Model,
    Owner,
    Quiet,
    StartupKit,
    Table,
    check_asker,
    overrides,
)
from colonnade.core.files import replaced
from colonnade.datasets.table import packed, unpacked
from colonnade.datasets.table_files import for_spreadsheets
from colonnade.errors import ConfigError, DataError, InputError
from colonnade.federation import Settings
from colonnade.federation.many_rows import ManyRows
from colonnade.report.words import many, warnings_of
from colonnade.rows.holdings import written_pieces
from colonnade.rows.missing import rows_predicted, warn_missing
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import asker_of

if TYPE_CHECKING:
    import pandas as pd

Packed = NDArray[np.bytes_]


def predict(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    rows: Annotated[
        Path,
        typer.Option(
            help="A .csv or .parquet file whose id column names the rows to predict."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write a .csv or .parquet file instead of printing."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Predict nothing where an id cannot be predicted."
        ),
    ] = False,
    table: Table = None,
    owner: Owner = None,
    model: Model = None,
    engine: Engine = "in-process",
    startup_kit: StartupKit = None,
    allow_model: AllowModel = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict rows by id with a trained federation; they may be new since training.

    The result has a row for every id, in the order of the file. Every party must hold a
    row, unless the run was trained on rows that partners lack (\\[data] rows =
    "label_owner"). A row that cannot be predicted has no prediction, and the column
    missing says who lacks it; a warning counts such rows. With --strict they are an
    error, and nothing is predicted.

    Where a party may be missing (\\[federation] on_missing = "skip" or "stale"), the
    column degraded says who was. An id that occurs twice is asked for once, and pays
    once.
    """
    _check_out(out)
    # before anything is paid: the file may be damaged
    settings = None if engine != "in-process" else _settings_of(folder, allow_model)
    findings = warnings_of(RunDirectory(folder).summary() or {})
    if settings is None:
        if table:
            raise ConfigError(
                "--table is for --engine in-process; with FLARE a site has its own."
            )
        from colonnade.cli.on_flare import predict_on_flare

        frame = predict_on_flare(
            folder,
            rows,
            engine,
            startup_kit=startup_kit,
            owner=owner,
            model=model,
            strict=strict,
        )
        if frame is None:
            return
        predictions = _collect(iter([frame]), out)
    else:
        asker = asker_of(settings, owner)
        ids, keys = _read_ids(rows, settings, asker)
        check_asker(settings, owner, model)
        source = ManyRows(
            folder,
            keys,
            owner=owner,
            model=model,
            tables=overrides(table or [], settings.parties),
            allow_models=settings.allow_models,
            strict=strict,
        )
        if source.missing:
            warn_missing(source.missing, len(set(keys.tolist())), stacklevel=2)
        no_bar = quiet or json_ or not source.are_many
        with a_bar(MofNCompleteColumn(), quiet=no_bar) as bar:
            task = bar.add_task("predict", total=len(ids), now="rows")
            advance = partial(bar.advance, task)
            column = settings.id_column_of(asker)
            predictions = _collect(_with_ids(source, ids, column, advance), out)
    _report(predictions, out, findings, json_=json_, quiet=quiet)


def _check_out(out: Path | None) -> None:
    """Raise unless the result can be written there."""
    if out is None:
        return
    if out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out must end in .csv or .parquet; found {out}.")
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise InputError(
            f"--out {out} cannot be written; nobody was asked. Name a file in a folder"
            " there is."
        )


def _settings_of(folder: Path, allow_models: Sequence[str] | None) -> Settings:
    return RunDirectory(a_run(folder)).settings(allow_models or [])


def _with_ids(
    source: ManyRows, ids: Packed, column: str, advance: Callable[[int], object]
) -> Iterator[pd.DataFrame]:
    """The predictions, piece by piece, with the ids as the file has them."""
    for places, frame in source.frames():
        spelled = unpacked(ids[places])
        frame.insert(0, column, spelled, allow_duplicates=True)
        yield frame
        advance(len(frame))


def _read_ids(path: Path, settings: Settings, asker: str) -> tuple[Packed, Packed]:
    """The ids in a file as they are written, and the names of their rows."""
    ids = list[Packed]()
    keys = list[Packed]()
    for texts in written_pieces(path, settings.keys_at(asker), whose="--rows"):
        called = row_names(settings, texts)
        ids.append(packed(np.array(texts, dtype=np.str_)))
        keys.append(
            ids[-1] if called == texts else packed(np.array(called, dtype=np.str_))
        )
    if not sum(map(len, ids)):
        raise DataError(f"{path} has no rows to predict.")
    written = np.concatenate(ids)
    return written, (
        written if all(map(operator.is_, ids, keys)) else np.concatenate(keys)
    )


def _collect(pieces: Iterator[pd.DataFrame], out: Path | None) -> pd.DataFrame | int:
    """Write the pieces to the file and give their number of predictions; without a file,
    give all rows in one frame."""
    import pandas as pd

    return pd.concat(pieces, ignore_index=True) if out is None else _write(out, pieces)


def _report(
    predictions: pd.DataFrame | int,
    out: Path | None,
    findings: Sequence[str],
    *,
    json_: bool,
    quiet: bool,
) -> None:
    """Print the predictions, or where they are; and on standard error, also where the
    command is quiet, what the run says against its own model."""
    for finding in findings:
        error_console.print(
            f"[bold red]{shown(finding)}[/bold red]", highlight=False, soft_wrap=True
        )
    if isinstance(predictions, int):
        if not quiet:
            console.print(
                f"{many(predictions, 'prediction')} in [bold]{shown(out)}[/bold].",
                soft_wrap=True,
            )
    elif json_:
        typer.echo(predictions.to_json(orient="records", indent=2))
    else:
        typer.echo(for_spreadsheets(predictions).to_csv(index=False), nl=False)


def _write(out: Path, pieces: Iterator[pd.DataFrame]) -> int:
    """Write all pieces. If that breaks off, keep what was predicted under another name:
    its rows have paid for it."""
    rows = 0
    try:
        with replaced(out) as fresh:
            try:
                with _appending(fresh, out.suffix) as append:
                    for piece in pieces:
                        append(piece)
                        rows += rows_predicted(piece)
            except BaseException as error:
                if rows and not isinstance(error, OSError):
                    partial_file = fresh.replace(
                        out.with_name(f"{out.stem}.partial{out.suffix}")
                    )
                    error_console.print(
                        f"The first {many(rows, 'prediction')} in {partial_file}.",
                        markup=False,
                    )
                raise
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error}.") from None
    return rows


@contextmanager
def _appending(path: Path, suffix: str) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Give a function that adds rows to a new file."""
    import pyarrow
    import pyarrow.parquet

    path.unlink(missing_ok=True)
    writer: Any = None

    def append(piece: pd.DataFrame) -> None:
        nonlocal writer
        if suffix == ".csv":
            for_spreadsheets(piece).to_csv(
                path, index=False, header=not path.exists(), mode="a"
            )
            return
        schema = None if writer is None else writer.schema
        table = pyarrow.Table.from_pandas(piece, schema=schema, preserve_index=False)
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)

    try:
        yield append
    finally:
        if writer is not None:
            writer.close()
