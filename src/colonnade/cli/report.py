"""`colonnade report` and `colonnade compare`: pages about runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from colonnade.cli.console import (
    BOLD,
    a_bar,
    a_table,
    console,
    error_console,
    no_run,
    numbers,
    say,
    shown,
)
from colonnade.cli.options import AllowModel
from colonnade.errors import ConfigError
from colonnade.report import baselines as baselines_of
from colonnade.report import compare as comparing
from colonnade.report.facts import BASELINES
from colonnade.report.page import write
from colonnade.runs.layout import MARK, METRICS, SETTINGS, SUMMARY

TRACES = ("parties", MARK, METRICS, SUMMARY)
"""What a run leaves beside its settings."""


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run directory; finished or not.")
    ],
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help=(
                "First train each party alone, and all in one place; needs all tables"
                " here."
            ),
        ),
    ] = False,
    splits: Annotated[
        int,
        typer.Option(
            min=1,
            help=(
                "With --baselines: mean over so many splits of the rows, the run's own"
                " first."
            ),
        ),
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; DIR/report.html unless said."),
    ] = None,
    allow_model: AllowModel = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, no message.")
    ] = False,
) -> None:
    """Write a run's report: one HTML file with results, what each party sent, privacy,
    attacks, importance and time.

    It needs no network, and holds what explain, audit, select and align left in the run
    directory.
    """
    _check(folder)
    if splits > 1 and not baselines:
        raise ConfigError(
            "--splits says how often baselines are trained. Add --baselines, or leave"
            " it out."
        )
    if baselines:
        measure(folder, splits, quiet=quiet, allow_models=allow_model or [])
    path = write(folder, _page(out))
    if not quiet:
        text = (
            f"The report is [bold]{shown(path)}[/bold]; its figures are beside it in"
            " figures/."
        )
        console.print(text, soft_wrap=True)


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR DIR...", help="Run directories.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path(
        comparing.PAGE
    ),
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No table, no message.")
    ] = False,
) -> None:
    """Set runs side by side: scores, rounds, bytes, time, privacy, their curves, and
    the settings that differ."""
    for folder in folders:
        _check(folder)
    runs = comparing.gather(folders)
    path = comparing.write(runs, _page(out) or Path(comparing.PAGE))
    if quiet:
        return
    headings, lines = comparing.rows_of(runs)
    table = a_table(
        shown(comparing.headline(runs)),
        "",
        *numbers(*map(shown, runs)),
        title_style=BOLD,
    )
    for heading, *values in list(zip(headings, *lines, strict=True))[1:]:
        table.add_row(
            heading, *(comparing.in_words(heading, value) for value in values)
        )
    table.add_section()
    for where, values in comparing.differences(runs):
        table.add_row(shown(where), *map(shown, values))
    console.print(table)
    for words in comparing.warnings(runs):
        say(words)
    console.print(f"The comparison is [bold]{shown(path)}[/bold].", soft_wrap=True)


def measure(
    folder: Path, splits: int, *, quiet: bool, allow_models: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure baselines, with a bar over the trainings."""
    with a_bar(MofNCompleteColumn(), quiet=quiet, transient=True) as bar:
        task = bar.add_task("baselines", total=None, now="")

        def say(title: str, number: int, total: int) -> None:
            bar.update(task, description=title, completed=number - 1, total=total)

        baselines = baselines_of.measure(
            folder, splits=splits, say=say, allow_models=allow_models
        )
        bar.update(task, completed=bar.tasks[0].total)
    if not quiet:
        error_console.print(
            f"Baselines are in {shown(folder / BASELINES)}.", soft_wrap=True
        )
    return baselines


def _check(folder: Path) -> None:
    """Raise unless the folder is a run; it may be unfinished, and have no checkpoint
    yet."""
    if not _is_run(folder):
        absent = (
            f"it has no {' or '.join(TRACES)}"
            if (folder / SETTINGS).exists()
            else f"{SETTINGS} is missing"
        )
        raise no_run(folder, absent, _is_run)


def _is_run(folder: Path) -> bool:
    """Whether there are settings and traces of a run; settings alone may be a
    federation file beside its tables."""
    return (folder / SETTINGS).exists() and any(
        (folder / name).exists() for name in TRACES
    )


def _page(out: Path | None) -> Path | None:
    if out is not None and out.is_dir():
        raise ConfigError(
            f"--out names the page's file; {out} is a folder. Name"
            f" {out / 'report.html'}, for example."
        )
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(
            f"--out names a page, and its name must end in .html; found {out.name}. For"
            " a PDF print the page from a browser: it is made to be printed."
        )
    return out
