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
from colonnade.federation import Predictions, Settings
from colonnade.federation.many_rows import in_pieces
from colonnade.report.words import many, warnings_of
from colonnade.rows.holdings import written_pieces
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import asker_of

if TYPE_CHECKING:
    import pandas as pd

PIECE = 65_536
"""Rows predicted and written at a time; with fewer there is no progress bar."""


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

    Every party must hold them, unless the run was trained on rows that partners lack
    (\\[data] rows = "label_owner").

    Where a party may be missing (\\[federation] on_missing = "skip" or "stale"), the
    column degraded says who was. An id that occurs twice is asked for once, and pays
    once.
    """
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out must end in .csv or .parquet; found {out}.")
    if out is not None and (out.is_dir() or not os.access(out.parent, os.W_OK)):
        raise InputError(
            f"--out {out} cannot be written; nobody was asked. Name a file in a folder"
            " there is."
        )
    if engine != "in-process":
        if table:
            raise ConfigError(
                "--table is for --engine in-process; with FLARE a site has its own."
            )
        from colonnade.cli.on_flare import predict_on_flare

        warnings = warnings_of(RunDirectory(folder).summary() or {})
        frame = predict_on_flare(
            folder, rows, engine, startup_kit=startup_kit, owner=owner, model=model
        )
        if frame is not None:
            _report(
                _collect(iter([frame]), out), out, warnings, json_=json_, quiet=quiet
            )
        return
    settings = RunDirectory(a_run(folder)).settings(allow_model or [])
    # before anything is paid: the file may be damaged
    warnings = warnings_of(RunDirectory(folder).summary() or {})
    asker = asker_of(settings, owner)
    column = settings.id_column_of(asker)
    ids, keys = _read_ids(rows, settings, asker)
    ordered = np.sort(keys)
    # they are asked for once
    repeated = set(unpacked(ordered[1:][ordered[1:] == ordered[:-1]]).tolist())
    wanted = unpacked(np.unique(ordered) if repeated else ordered)
    tables = overrides(table or [], settings.parties)
    check_asker(settings, owner, model)
    source = in_pieces(
        folder, wanted, owner=owner, tables=tables, allow_models=settings.allow_models
    )
    del ordered, wanted  # they may take much memory

    def ask(wanted_ids: Sequence[str]) -> Predictions:
        return source(wanted_ids).predict(wanted_ids, owner=owner, model=model)

    with a_bar(MofNCompleteColumn(), quiet=quiet or json_ or len(ids) <= PIECE) as bar:
        task = bar.add_task("predict", total=len(ids), now="rows")
        predictions = _collect(
            _pieces(ask, ids, keys, repeated, column, partial(bar.advance, task)), out
        )
    _report(predictions, out, warnings, json_=json_, quiet=quiet)


def _read_ids(path: Path, settings: Settings, asker: str) -> tuple[Packed, Packed]:
    """The ids in a file as they are written, and the names of their rows."""
    ids = list[Packed]()
    keys = list[Packed]()
    for texts in written_pieces(path, settings.keys_at(asker), whose="--rows"):
        called = settings.names_of(texts)
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
    """Write the pieces to the file and give their number of rows; without a file, give
    all rows in one frame."""
    import pandas as pd

    return pd.concat(pieces, ignore_index=True) if out is None else _write(out, pieces)


def _report(
    predictions: pd.DataFrame | int,
    out: Path | None,
    warnings: Sequence[str],
    *,
    json_: bool,
    quiet: bool,
) -> None:
    """Print the predictions, or where they are; and on standard error, also where the
    command is quiet, what the run says against its own model."""
    for warning in warnings:
        error_console.print(
            f"[bold red]{shown(warning)}[/bold red]", highlight=False, soft_wrap=True
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


Ask = Callable[[Sequence[str]], Predictions]
Packed = NDArray[np.bytes_]


def _pieces(
    ask: Ask,
    ids: Packed,
    keys: Packed,
    repeated: set[str],
    column: str,
    advance: Callable[[int], object],
) -> Iterator[pd.DataFrame]:
    """Predictions in the order of the rows, a piece at a time; a row that occurs again
    gets its first answer."""
    import pandas as pd

    kept: pd.DataFrame | None = None
    for start in range(0, len(ids), PIECE):
        wanted = unpacked(keys[start : start + PIECE]).tolist()
        new = [
            key
            for key in dict.fromkeys(wanted)
            if kept is None or key not in kept.index
        ]
        parts = [] if kept is None else [kept]
        parts += [ask(new).to_frame("id").set_index("id")] if new else []
        answers = pd.concat(parts) if len(parts) > 1 else parts[0]
        if repeated:
            kept = answers[answers.index.isin(repeated)]
        piece = (
            answers.loc[wanted]
            .reset_index()
            .assign(id=unpacked(ids[start : start + PIECE]))
        )
        yield piece.rename(columns={"id": column})
        advance(len(wanted))


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
                        rows += len(piece)
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
