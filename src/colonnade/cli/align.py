"""`colonnade align`: which rows the parties have in common, without showing ids."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from colonnade.alignment import Aligned, AlignmentSettings, Ids, align_here
from colonnade.alignment.in_process import check_free
from colonnade.alignment.tables import read_ids
from colonnade.cli.console import console, error_console, shown, size
from colonnade.errors import ConfigError
from colonnade.settings.federation_file import Settings


def align(
    file: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="Who takes part, with which tables.")],
    count: Annotated[bool, typer.Option("--count", help="Only how many rows are common, not which.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For alignment.json and parties/NAME/rows.npy.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")] = False,
) -> None:
    """Find the rows that all parties hold, and one order for them, by private set intersection. Only id columns are
    read; settings are in the file's \\[alignment] table. Where \\[data] rows is "label_owner", each partner is compared
    with the label owner alone."""
    settings = Settings.from_toml(file)
    if out is not None:
        check_free(out)
    alignment = dataclasses.replace(settings.alignment, reveal="count") if count else settings.alignment
    ids = _read(settings)
    alignment.told(tuple(ids))
    driver = next((name for name, party in settings.parties.items() if party.label is not None), None)
    if settings.rows_differ and driver is not None:
        _pairs(ids, alignment, driver, out=out, through_bytes=settings.engine.through_bytes, json_=json_, quiet=quiet)
        return
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), TaskProgressColumn())
    started = time.perf_counter()
    with Progress(
        *columns, TimeRemainingColumn(compact=True), console=error_console, disable=quiet or json_, transient=True
    ) as bar:
        task = bar.add_task("aligning", total=None)
        aligned = align_here(
            ids,
            alignment,
            driver=driver,
            through_bytes=settings.engine.through_bytes,
            watch=lambda done, total: bar.update(task, completed=done, total=total),
        )
    seconds = time.perf_counter() - started
    if out is not None:
        aligned.write(out)
    if json_:
        typer.echo(json.dumps(aligned.to_json() | {"seconds": seconds}, indent=2))
    elif not quiet:
        show(aligned, seconds)
        if out is not None:
            console.print(f"The alignment is in [bold]{shown(out)}[/bold].", soft_wrap=True)
        elif aligned.rows:
            console.print("With --out DIR every learner's row numbers are written, in the agreed order.")


def _pairs(
    ids: Mapping[str, Ids],
    alignment: AlignmentSettings,
    driver: str,
    *,
    out: Path | None,
    through_bytes: bool,
    json_: bool,
    quiet: bool,
) -> None:
    """Each partner with the label owner, and a table of each pair: nobody learns about another partner."""
    found = {}
    for name in [name for name in ids if name != driver]:
        started = time.perf_counter()
        both = {driver: ids[driver], name: ids[name]}
        aligned = align_here(both, alignment, driver=driver, through_bytes=through_bytes)
        found[name] = aligned.to_json() | {"seconds": time.perf_counter() - started}
        if out is not None:
            aligned.write(out / name)
        if not (json_ or quiet):
            show(aligned, found[name]["seconds"])
    if json_:
        typer.echo(json.dumps(found, indent=2))


def show(aligned: Aligned, seconds: float) -> None:
    """Sizes, traffic, and what each party knows now."""
    found = aligned.to_json()
    title = f"{found['common']:,} rows are common to all {len(found['parties'])} parties"
    table = Table(title=title, title_justify="left", title_style="bold not italic")
    for heading in ("party", "rows", "ids", "sent", "received"):
        table.add_column(heading, justify="left" if heading == "party" else "right", overflow="fold")
    table.add_column("learned")
    for name, party in found["parties"].items():
        driver = " (drives)" if name == found["driver"] else ""
        sent, received = size(party["bytes"]["out"]), size(party["bytes"]["in"])
        table.add_row(name + driver, f"{party['rows']:,}", f"{party['ids']:,}", sent, received, party["learned"])
    console.print(table)
    how = "ECDH on secp256k1" if "helper" not in found else "Keyed hashes, compared by a helper"
    console.print(f"{how}, {found['ids']} ids, {seconds:.1f} s. It protects among parties that follow it.")
    if "helper" in found:
        console.print(f"The helper '{found['helper']['name']}' learned {found['helper']['learned']}.", markup=False)


def _read(settings: Settings) -> dict[str, Ids]:
    if settings.data.dataset is not None:
        raise ConfigError("[data] dataset names one table that is cut into parties; its rows are aligned already.")
    settings.check_one_label_owner(
        "Of several, each aligns itself with all data owners, as `colonnade run` does where the file says "
        '[data] align = "private".'
    )
    if len(settings.parties) < 2:
        raise ConfigError(
            f"An alignment takes two or more parties; found {len(settings.parties)}. "
            "Add a [parties.NAME] with table = ..."
        )
    ids = {}
    for name, party in settings.parties.items():
        if party.table is None:
            raise ConfigError(f'[parties.{name}] must name its table, as in table = "{name}.csv".')
        columns = settings.alignment.id or (settings.id_of(party),)
        ids[name] = read_ids(party.table, owner=name, columns=columns, settings=settings.alignment)
    return ids
