"""`colonnade ledger`: what was released to whom, over all runs."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column

from colonnade.cli.console import BOLD, a_table, console, numbers, shown
from colonnade.core.files import write_text
from colonnade.report.words import size
from colonnade.runs.history import WAYS, Crossing, crossings, to_csv
from colonnade.runs.run_directory import to_json


class Format(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


class Direction(StrEnum):
    sent = WAYS["out"]
    received = WAYS["in"]
    kept = WAYS["own"]


def ledger(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|party.toml",
            help="A run, a folder of runs, or an organisation's own file.",
        ),
    ] = Path("runs"),
    run: Annotated[str, typer.Option(help="Only this run.")] = "",
    party: Annotated[
        str, typer.Option(help="Only from this organisation's ledger.")
    ] = "",
    peer: Annotated[
        str, typer.Option(help="Only what went to, or came from, this one.")
    ] = "",
    release: Annotated[
        str, typer.Option(help='Only this release, as in "embedding".')
    ] = "",
    direction: Annotated[
        Direction | None,
        typer.Option(help="Only what was sent, received or kept inside."),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Every tensor by itself, not added up.")
    ] = False,
    format_: Annotated[
        Format, typer.Option("--format", help="A table, or all columns for machines.")
    ] = Format.table,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write there instead of printing."),
    ] = None,
) -> None:
    """Show what each organisation released to whom, and received, over all its runs.

    For a privacy officer: [bold]colonnade ledger party.toml --direction sent --format
    csv --out sent.csv[/bold]
    """
    way = direction.value if direction else ""
    lines = crossings(
        place,
        each=each,
        run=run,
        party=party,
        peer=peer,
        release=release,
        direction=way,
    )
    if format_ is Format.table and out is None:
        _show(lines)
        return
    text = (
        to_json([asdict(line) for line in lines], indent=2) + "\n"
        if format_ is Format.json
        else to_csv(lines)
    )
    if out is None:
        typer.echo(text, nl=False)
        return
    write_text(out, text)
    console.print(f"{len(lines):,} lines are in {shown(out)}.", soft_wrap=True)


def _show(lines: list[Crossing]) -> None:
    kept = {line.direction for line in lines} == {"kept"}
    lines = [line for line in lines if kept or line.direction != "kept"]
    if not lines:
        console.print("Nothing that was asked for has crossed.")
        return
    for run, party in dict.fromkeys((line.run, line.party) for line in lines):
        of_party = [line for line in lines if (line.run, line.party) == (run, party)]
        title = f"{shown(party)} in {shown(run)}, begun {of_party[0].begun}"
        release = Column("what, and what protects it", min_width=30, overflow="fold")
        counts = numbers("rows", "bytes", "epsilon", no_wrap=True)
        table = a_table(title, release, "with", *counts, title_style=BOLD)
        for line in of_party:
            way = {"sent": "to", "received": "from", "kept": "inside"}[line.direction]
            after = " (later)" if line.during == "after" else ""
            epsilon = (
                ""
                if line.direction != "sent"
                else "none"
                if line.epsilon is None
                else f"{line.epsilon:.3g}"
            )
            sent = f"{line.release}{after}, {line.mechanism}"
            table.add_row(
                *map(shown, (sent, f"{way} {line.peer}", f"{line.rows:,}")),
                size(line.bytes),
                epsilon,
            )
        console.print(table)
    console.print(
        "A row that crossed twice counts twice. Epsilon: of the row that paid most;"
        " none is no guarantee."
    )
