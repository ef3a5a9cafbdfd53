"""`colonnade reproduce` and `colonnade bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TimeElapsedColumn
from rich.table import Table

from colonnade import benchmark, reproduction
from colonnade.cli.console import a_bar, a_table, console, error_console
from colonnade.cli.options import Json
from colonnade.core import Step
from colonnade.errors import ConfigError

MISSED = 6


def reproduce(
    name: Annotated[
        str, typer.Argument(help="Which one; without a name they are listed.")
    ] = "",
    every: Annotated[
        bool, typer.Option("--all", help="All of them, one after the other.")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Fewer seeds and epochs: at most 5 min on 2 cores."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="For measured.json and pictures; what was cut off goes on."),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            min=0, help="Processes that share the work; 0: only join what --out holds."
        ),
    ] = 1,
    only: Annotated[
        str,
        typer.Option(
            help='The cells to run: "*, seed 2", or "mnist, *" for one data set.'
        ),
    ] = "*",
    json_: Json = False,
) -> None:
    """Run a paper's experiment and compare with its figures; exit code 6 when one is
    missed."""
    if every and name:
        raise ConfigError(
            f"--all runs every reproduction, and {name!r} is one of them. Give one or"
            " the other."
        )
    if not name and not every:
        plans = reproduction.plans().values()
        if json_:
            typer.echo(json.dumps({plan.name: plan.claim for plan in plans}, indent=2))
        else:
            console.print(
                "\n".join(f"[bold]{plan.name}[/bold]  {plan.claim}" for plan in plans)
            )
        return
    names = list(reproduction.plans()) if every else [reproduction.plan(name).name]
    inside = {
        study_name: out / study_name if out is not None and every else out
        for study_name in names
    }
    run = partial(_reproduce, quick=quick, jobs=jobs, only=only, json_=json_)
    studies = [run(study_name, out=inside[study_name]) for study_name in names]
    if json_:
        values = {
            study.plan.name: [value.to_json() for value in study.measured.values()]
            for study in studies
        }
        typer.echo(json.dumps(values if every else values[name], indent=2))
    if every and not json_:
        console.print(_verdicts(studies))
    for study in studies:
        for figure in study.unmeasured:
            error_console.print(
                f"{study.plan.name} has a bound for {figure!r}, and did not"
                " measure it.",
                markup=False,
            )
        for cell, error in study.failed.items():
            error_console.print(f"Not measured: {cell}.", markup=False)
            raise error
    if not all(study.holds for study in studies):
        raise typer.Exit(MISSED)


def _reproduce(
    name: str, *, quick: bool, jobs: int, out: Path | None, only: str, json_: bool
) -> reproduction.Study:
    """Run one reproduction with a progress bar, and print its table unless JSON is
    wanted."""
    with a_bar(TimeElapsedColumn(), quiet=json_) as bar:
        task = bar.add_task(name, total=None, now="")

        def watch(title: str, step: Step) -> None:
            bar.update(
                task,
                description=title,
                now=f"epoch {step.batch.epoch + 1}  loss {step.loss:.4f}",
            )

        def say(text: str) -> None:
            bar.update(task, description=name, now=text)

        study = reproduction.reproduce(
            name, quick=quick, watch=watch, say=say, jobs=jobs, out=out, only=only
        )
    if not json_:
        console.print(_reproduction_table(study))
    return study


def bench(
    name: Annotated[str, typer.Argument(help="Which one, or all.")] = "all",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions.")] = False,
    jobs: Annotated[
        int,
        typer.Option(
            min=0,
            help=(
                "Processes, for benchmarks made of cells; 0: only put together what"
                " --out holds."
            ),
        ),
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Keeps each cell; those it has are not run again."),
    ] = None,
    only: Annotated[
        str,
        typer.Option(help='The cells to run: "letter, *", or "*, 2, *" for one seed.'),
    ] = "*",
    json_: Json = False,
) -> None:
    """Measure ratios side by side in one run; the machine's own speed cancels out."""
    share = benchmark.Share(jobs, out, only)
    say = partial(error_console.print, "…", markup=False, soft_wrap=True)
    results = benchmark.run(name, quick=quick, say=None if json_ else say, share=share)
    if json_:
        typer.echo(json.dumps([result.to_json() for result in results], indent=2))
        return
    table = a_table("Benchmarks", "what", "measured", "against", "target", "")
    for result in results:
        mark = (
            ""
            if result.holds is None
            else "[green]reached[/green]"
            if result.holds
            else "[yellow]missed[/yellow]"
        )
        table.add_row(result.what, result.measured, result.against, result.target, mark)
    console.print(table)


def _reproduction_table(study: reproduction.Study) -> Table:
    columns = "what", "measured", "by seed", "paper", "authors' code", "must be", ""
    table = a_table(f"{study.plan.name}: measured next to the paper", *columns)
    for value in study.measured.values():
        figure = value.figure
        in_unit = partial(_value, unit=value.unit)
        bounds = (
            [f"≥ {in_unit(figure.at_least)}"] if figure.at_least is not None else []
        )
        bounds += [f"≤ {in_unit(figure.at_most)}"] if figure.at_most is not None else []
        mark = {None: "", True: "[green]holds[/green]", False: "[red]missed[/red]"}[
            value.holds
        ]
        seeds = ", ".join(map(in_unit, value.by_seed)) if len(value.by_seed) > 1 else ""
        compared = (
            in_unit(figure.paper),
            in_unit(figure.authors_code),
            ", ".join(bounds),
        )
        table.add_row(value.what, in_unit(value.mean), seeds, *compared, mark)
    return table


def _verdicts(studies: Sequence[reproduction.Study]) -> Table:
    """All reproductions, a line each."""
    table = a_table(
        "All reproductions", "reproduction", "measured", "with a bound", "missed"
    )
    for study in studies:
        bounded = [
            value.holds for value in study.measured.values() if value.holds is not None
        ]
        missed = bounded.count(False) + len(study.unmeasured)
        mark = f"[red]{missed}[/red]" if missed else "[green]none[/green]"
        table.add_row(
            study.plan.name, str(len(study.measured)), str(len(bounded)), mark
        )
    return table


def _value(value: float | None, *, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if unit == "%" else f"{value:.4g} {unit}".rstrip()
