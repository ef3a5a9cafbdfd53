"""Progress bars go to standard error; tables, and JSON for machines, to standard
output."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from colonnade.errors import CheckpointError, did_you_mean, printable
from colonnade.evaluate import metric
from colonnade.report.words import size
from colonnade.runs.layout import MARK

if TYPE_CHECKING:  # so that commands that compute nothing need no torch
    from colonnade.core import Step
    from colonnade.federation import Federation
    from colonnade.federation.fit import Watch


ANY_WIDTH = 10_000


class _Output(Console):
    """Standard output. A table that is too wide for it loses its frame before it loses
    a letter. If its reader leaves, as `| head` does, the command goes on and writes its
    files."""

    def print(self, *objects: Any, **how: Any) -> None:
        for table in (item for item in objects if isinstance(item, Table)):
            self._fit(table)
        super().print(*objects, **how)

    def _fit(self, table: Table) -> None:
        """Narrow the widest columns first. No word is cut where all columns have room
        for their longest words."""
        wide = self.options.update_width(ANY_WIDTH)
        cells = [
            [
                Measurement.get(self, wide, cell)
                for cell in (column.header, *column.cells)
            ]
            for column in table.columns
        ]
        least = [max(cell.minimum for cell in column) for column in cells]
        most = [max(cell.maximum for cell in column) for column in cells]
        room = self.width - 3 * len(cells) - 1
        if sum(least) > room:
            table.box = box.SIMPLE_HEAD
            table.padding = (0, 0)
            room = self.width - len(cells) - 1
        while sum(most) > room and (
            wider := [
                number for number in range(len(most)) if most[number] > least[number]
            ]
        ):
            most[max(wider, key=lambda number: most[number])] -= 1
        for column, width in zip(table.columns, most, strict=True):
            column.overflow = "fold"
            column.width = width if sum(most) <= room else None

    def on_broken_pipe(self) -> None:
        with suppress(SystemExit):
            super().on_broken_pipe()


BOLD = "bold not italic"
"""The style of some tables' titles."""
console = _Output()
error_console = Console(stderr=True)


def a_run(folder: Path) -> Path:
    """The folder, if a run is in it; else an error that says where one is."""
    if not (folder / MARK).exists():
        raise no_run(folder, f"{MARK} is missing", lambda path: (path / MARK).exists())
    return folder


def no_run(folder: Path, why: str, is_run: Callable[[Path], bool]) -> CheckpointError:
    """The error that says why there is no run, and where runs are, or how to make one."""
    if not folder.exists():
        beside = sorted(folder.parent.glob("*")) if folder.parent.is_dir() else []
        hint = did_you_mean(str(folder), [str(path) for path in beside if is_run(path)])
        return CheckpointError(
            f"There is no folder {folder}{hint}. Runs are made by: colonnade run"
            " FEDERATION.toml."
        )
    runs = [
        str(path)
        for pattern in ("*", "runs/*")
        for path in sorted(folder.glob(pattern))
        if is_run(path)
    ]
    cure = (
        f"Did you mean {' or '.join(runs[:5])}?"
        if runs
        else "Make one: colonnade run FEDERATION.toml --out DIR."
    )
    return CheckpointError(f"{folder} is not a run directory: {why}. {cure}")


def shown(value: object) -> str:
    """A value's text, safe among markup and at a terminal: a folder may be called [2],
    and text may move a cursor."""
    return escape(printable(str(value)))


def typed(path: Path | str) -> str:
    """A path, or another word, in a command that can be copied into a shell."""
    return escape(shlex.quote(str(path)))


def say(text: str, **how: Any) -> None:
    """Print text as it is: nothing in it is read as markup, and no number is coloured."""
    console.print(text, markup=False, highlight=False, **how)


def a_table(title: str, *columns: str | Column, **how: Any) -> Table:
    """A table whose cells are never cut off; `numbers` among its columns are aligned
    right."""
    aligned = (
        Column(column, overflow="fold") if isinstance(column, str) else column
        for column in columns
    )
    return Table(*aligned, title=title, title_justify="left", **how)


def numbers(*headings: str, **how: Any) -> list[Column]:
    return [
        Column(heading, justify="right", overflow="fold", **how) for heading in headings
    ]


def a_bar(*counts: ProgressColumn, quiet: bool, transient: bool = False) -> Progress:
    """A bar on standard error: a title, these counts, what is done `now` (a field of
    each task), and the time left."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        *counts,
        TextColumn("{task.fields[now]}"),
    )
    time_left = TimeRemainingColumn(compact=True)
    return Progress(
        *columns, time_left, console=error_console, disable=quiet, transient=transient
    )


@contextmanager
def stoppable(go_on: Callable[[], str]) -> Iterator[None]:
    """At Ctrl-C, print how to go on, if there is a way."""
    try:
        yield
    except KeyboardInterrupt:
        if words := go_on():
            error_console.print(words, markup=False, soft_wrap=True)
        raise


@contextmanager
def progress_of(
    federation: Federation, title: str, *, quiet: bool = False
) -> Iterator[Watch]:
    """A bar over all batches or rounds, with the last batch's loss, the last validation
    score and the bytes that travelled."""
    from colonnade.core import Step
    from colonnade.evaluate.metrics import HEADLINE

    columns = (
        TextColumn(
            "[bold]{task.description}",
            table_column=Column(overflow="ellipsis", no_wrap=True, max_width=12),
        ),
        BarColumn(bar_width=6),
        # 80 columns in all
        TextColumn(
            "{task.fields[now]}", table_column=Column(min_width=54, no_wrap=True)
        ),
        TimeRemainingColumn(
            compact=True, table_column=Column(min_width=5, no_wrap=True)
        ),
    )
    bar = Progress(*columns, console=error_console, disable=quiet)
    name = HEADLINE[federation.holdings.encoder.task]
    last = {"score": ""}
    unit = federation.batches.epoch_is
    with bar:
        task = bar.add_task(
            title,
            total=len(federation.batches),
            completed=federation.batches.done,
            now="",
        )

        def watch(event: Step | dict[str, Any]) -> None:
            if isinstance(event, Step):
                sent = sum(book.total("out") for book in federation.ledgers.values())
                done = f"{unit} {event.batch.epoch + 1}/{federation.batches.epochs}"
                now = f"{done}  loss {event.loss:.3g}{last['score']}  {size(sent)}"
                bar.update(task, completed=event.batch.step + 1, now=now)
            elif "validation" in event:
                last["score"] = f"  val. {name} {event['validation'][name]:.3f}"

        yield watch


def score(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def metrics_table(summary: Mapping[str, Any]) -> Table:
    """One column per split, one row per score; under the accuracy, the largest class's
    share."""
    from colonnade.evaluate.metrics import beside_majority, in_order, lead

    metrics = beside_majority(summary)
    table = a_table(
        "How good the joint model is",
        "",
        *numbers(*(f"{split} rows" for split in metrics)),
    )
    led = lead(summary)
    for name in in_order(summary, next(iter(metrics.values()))):
        heading = (
            shown(metric(name))
            if name != led
            else f"[bold]{shown(metric(name))}[/bold]"
        )
        table.add_row(heading, *(score(values[name]) for values in metrics.values()))
    return table


def label_owners_table(summary: Mapping[str, Any]) -> Table:
    """How good the joint model is on each label owner's rows, and when it was left out."""
    from colonnade.evaluate.metrics import HEADLINE

    name = HEADLINE[summary["task"]]
    splits = list(summary["metrics"])
    title = f"By label owner: {name} of the joint model on its rows"
    table = a_table(title, "label owner", *numbers(*splits), "left out")
    for owner, result in summary["label_owners"].items():
        scores = [result["metrics"].get(split, {}).get(name) for split in splits]
        left_out = [
            *map(str, result["left_out"][:8]),
            *(["…"] if len(result["left_out"]) > 8 else []),
        ]
        table.add_row(
            owner,
            *map(score, scores),
            f"round {', '.join(left_out)}" if left_out else "never",
        )
    return table


def subsets_table(summary: Mapping[str, Any]) -> Table:
    """How good the joint model is on test rows, by who holds them; for runs whose
    partners lack rows."""
    from colonnade.evaluate.metrics import HEADLINE, lead

    split = next(
        name for name in ("test", "validation", "train") if name in summary["subsets"]
    )
    led = lead(summary) or HEADLINE[summary["task"]]
    table = a_table(
        f"By who holds a row, of the {split} rows",
        "held by",
        *numbers("rows", metric(led)),
    )
    for kind, scores in summary["subsets"][split].items():
        value = scores.get(led)
        table.add_row(
            kind,
            f"{scores['rows']:,}",
            score(value if value is not None and value == value else None),
        )
    return table


def traffic_table(summary: Mapping[str, Any]) -> Table:
    """What each party holds, sent and received."""
    table = a_table("What travelled", "party", "holds", *numbers("sent", "received"))
    for name, traffic in summary["bytes"].items():
        holds = " and ".join(summary["parties"][name]) or "no data"
        table.add_row(name, holds, size(traffic["out"]), size(traffic["in"]))
    return table
