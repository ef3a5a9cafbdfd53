"""`colonnade reproduce` and `colonnade bench`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from colonnade import benchmark, reproduction
from colonnade.cli.console import console, error_console
from colonnade.core import Step

MISSED = 6
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]


def reproduce(
    name: Annotated[str, typer.Argument(help="Which one; without a name they are listed.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer seeds and epochs: at most 5 minutes on 2 cores.")
    ] = False,
    json_: Json = False,
) -> None:
    """Run a paper's experiment and compare with its figures; exit code 6 when one is missed."""
    if not name:
        known = reproduction.plans().values()
        if json_:
            typer.echo(json.dumps({plan.name: plan.claim for plan in known}, indent=2))
        else:
            console.print("\n".join(f"[bold]{plan.name}[/bold]  {plan.claim}" for plan in known))
        return
    reproduction.plan(name)
    with _bar(json_) as bar:
        task = bar.add_task(name, total=None, now="")

        def watch(title: str, event: Step | dict[str, Any]) -> None:
            if isinstance(event, Step):
                bar.update(task, description=title, now=f"epoch {event.batch.epoch + 1}  loss {event.loss:.4f}")

        measured = reproduction.reproduce(name, quick=quick, watch=watch)
    if json_:
        typer.echo(json.dumps([one.to_json() for one in measured], indent=2))
    else:
        console.print(_reproduction_table(name, measured))
    if not all(one.holds for one in measured):
        raise typer.Exit(MISSED)


def bench(
    name: Annotated[str, typer.Argument(help="Which one, or all.")] = "all",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions.")] = False,
    json_: Json = False,
) -> None:
    """Measure ratios side by side in one run; the machine's own speed cancels out."""
    results = benchmark.run(name, quick=quick, say=None if json_ else lambda text: error_console.print(f"… {text}"))
    if json_:
        typer.echo(json.dumps([result.to_json() for result in results], indent=2))
        return
    table = Table(title="Benchmarks", title_justify="left")
    for heading in ("what", "measured", "against", "target", ""):
        table.add_column(heading)
    for result in results:
        mark = "" if result.holds is None else "[green]reached[/green]" if result.holds else "[yellow]missed[/yellow]"
        table.add_row(result.what, result.measured, result.against, result.target, mark)
    console.print(table)


def _bar(quiet: bool) -> Progress:
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=error_console, disable=quiet)


def _reproduction_table(name: str, measured: list[reproduction.Measured]) -> Table:
    table = Table(title=f"{name}: measured next to the paper", title_justify="left")
    for heading in ("score", "epoch", "measured", "by seed", "paper", "authors' code", "must reach", ""):
        table.add_column(heading)
    for one in measured:
        check = one.check
        told = ["-" if value is None else f"{value:.2%}" for value in (check.paper, check.authors_code)]
        seeds = ", ".join(f"{value:.2%}" for value in one.by_seed)
        mark = "[green]holds[/green]" if one.holds else "[red]missed[/red]"
        table.add_row(check.metric, str(check.epoch), f"{one.mean:.2%}", seeds, *told, f"{check.at_least:.2%}", mark)
    return table
