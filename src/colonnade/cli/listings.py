"""`colonnade algorithms` and `colonnade datasets`."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.table import Column

from colonnade.cli.console import a_table, console, say
from colonnade.cli.options import Json
from colonnade.settings.known import algorithms as known_algorithms


def algorithms(json_: Json = False) -> None:
    """List the algorithms, what they reveal, and their settings."""
    rows: dict[str, dict[str, Any]] = {
        name: {
            "about": facts["about"],
            "reveals": facts["reveals"],
            "settings": {key: rule["default"] for key, (*_, rule) in facts["settings"].items()},
        }
        for name, facts in known_algorithms().items()
    }
    if json_:
        typer.echo(json.dumps(rows, indent=2))
        return
    for name, row in rows.items():
        table = a_table(f"[bold]{name}[/bold]  {row['about']}", show_header=False)
        for release, reveals in row["reveals"].items():
            table.add_row(f"reveals by {release}", reveals)
        table.add_row("settings", ", ".join(f"{key} = {value!r}" for key, value in row["settings"].items()))
        console.print(table)


def datasets(json_: Json = False) -> None:
    """List the data sets that a federation file can name, as dataset = NAME under data."""
    from colonnade.datasets import CATALOGUE

    if json_:
        keep = ("description", "kind", "rows", "test_rows", "columns", "licence", "home", "supply")
        rows = {name: {key: getattr(entry, key) for key in keep} for name, entry in CATALOGUE.items()}
        typer.echo(json.dumps(rows, indent=2))
        return
    table = a_table("Data sets by name", Column("name", no_wrap=True), "what it is", show_lines=True)
    for name, entry in CATALOGUE.items():
        count = f"{entry.rows:,} rows" + (f" and {entry.test_rows:,} to test" if entry.test_rows else "")
        counts = f"{count}, {entry.columns:,} columns, {len(entry.classes)} classes ({entry.kind})"
        table.add_row(name, f"{entry.description}\n{counts}")
    console.print(table)
    console.print("Read from the folder in COLONNADE_DATA; otherwise downloaded once from the data set's public home.")
    for name, entry in CATALOGUE.items():
        if entry.supply:
            say(
                f"{name} cannot be downloaded freely: its owner gives it out at {entry.home}; put {entry.supply} into "
                f"COLONNADE_DATA/{name}/. No checksum is recorded for it."
            )
