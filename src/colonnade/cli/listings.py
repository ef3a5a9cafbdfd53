"""`colonnade algorithms` and `colonnade datasets`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Column

from colonnade.cli.console import a_table, console, say
from colonnade.cli.options import Json
from colonnade.errors import check_named
from colonnade.settings.algorithms import ALGORITHM_SETTINGS, AlgorithmSettings


def algorithms(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of this algorithm alone.")
    ] = None,
    json_: Json = False,
) -> None:
    """List the algorithms, what they reveal, and their settings: as a run on tables has
    them where its file says nothing, and as the paper has them, which runs on a named
    data set have."""
    if name is not None:
        check_named("algorithm", name, list(ALGORITHM_SETTINGS))
    rows = {
        each: _row(kind)
        for each, kind in ALGORITHM_SETTINGS.items()
        if name in (None, each)
    }
    if json_:
        typer.echo(json.dumps(rows, indent=2))
        return
    for each, row in rows.items():
        table = a_table(f"[bold]{each}[/bold]  {row['about']}", show_header=False)
        for release, reveals in row["reveals"].items():
            table.add_row(f"reveals by {release}", reveals)
        own = {
            key: value
            for key, value in row["settings"].items()
            if row["for_tables"].get(key, value) != value
        }
        table.add_row("settings", _in_words({**row["settings"], **row["for_tables"]}))
        if own:
            table.add_row("with a named data set", _in_words(own))
        console.print(table)


def _row(kind: type[AlgorithmSettings]) -> dict[str, Any]:
    """What is known of an algorithm without importing it."""
    return {
        "about": kind.about(),
        "reveals": dict(kind.reveals),
        "settings": kind().to_mapping(),
        "for_tables": dict(kind.for_tables),
    }


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in settings.items())


def datasets(json_: Json = False) -> None:
    """List the data sets that a federation file can name, as dataset = NAME under data."""
    from colonnade.datasets import CATALOGUE

    if json_:
        keep = (
            "description",
            "kind",
            "rows",
            "test_rows",
            "columns",
            "licence",
            "home",
            "supply",
        )
        rows = {
            name: {key: getattr(entry, key) for key in keep}
            for name, entry in CATALOGUE.items()
        }
        typer.echo(json.dumps(rows, indent=2))
        return
    table = a_table(
        "Data sets by name", Column("name", no_wrap=True), "what it is", show_lines=True
    )
    for name, entry in CATALOGUE.items():
        count = f"{entry.rows:,} rows" + (
            f" and {entry.test_rows:,} to test" if entry.test_rows else ""
        )
        counts = (
            f"{count}, {entry.columns:,} columns, {len(entry.classes)} classes"
            f" ({entry.kind})"
        )
        table.add_row(name, f"{entry.description}\n{counts}")
    console.print(table)
    console.print(
        "Read from the folder in COLONNADE_DATA; otherwise downloaded once from the"
        " data set's public home."
    )
    for name, entry in CATALOGUE.items():
        if entry.supply:
            say(
                f"{name} cannot be downloaded freely: its owner gives it out at"
                f" {entry.home}; put {entry.supply} into COLONNADE_DATA/{name}/. No"
                " checksum is recorded for it."
            )
