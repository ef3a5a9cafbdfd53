"""`colonnade tune`: a small search for settings, judged by validation rows alone."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn

from colonnade.cli.console import (
    a_bar,
    a_table,
    console,
    error_console,
    numbers,
    say,
    shown,
    stoppable,
    typed,
)
from colonnade.cli.options import AllowModel, Json, Quiet, Seed
from colonnade.cli.plan import duration, read_whole
from colonnade.core.files import write_text
from colonnade.evaluate import metric
from colonnade.federation import Federation
from colonnade.planning import tuning
from colonnade.planning.tuning import Forecast, Record, Trial
from colonnade.report.words import many, size
from colonnade.runs.layout import SETTINGS
from colonnade.runs.run_directory import to_json


def tune(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FEDERATION.toml", help="What is run, and where the search begins."
        ),
    ],
    runs: Annotated[
        int,
        typer.Option(min=1, max=999, metavar="N", help="How many settings are tried."),
    ] = 20,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For trials and chosen file; else tune/NAME."),
    ] = None,
    seed: Seed = None,
    allow_model: AllowModel = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try N settings at random and write the file with the best ones, by validation
    rows; test rows are not looked at.

    The first trial has the file's own settings. Tried are learning rate, penalty, batch
    size, width of the hidden layers and how numbers are prepared, as far as the
    algorithm has them. All organisations are in this process. What the search sends and
    spends is said first, and it is refused where a privacy budget does not cover all N
    runs. The same command goes on with a search that was stopped.
    """
    folder = out or Path("tune") / file.stem
    federation = tuning.begin(read_whole(file, allow_model or []).with_seed(seed))
    done = tuning.finished(folder, federation.settings)
    trials = tuning.draw(federation.settings, max(runs, len(done)))
    expected = tuning.forecast(federation, trials, done, folder)
    if not quiet:
        _say(
            error_console if json_ else console,
            federation,
            trials,
            len(trials) - len(done),
            expected,
        )

    def go_on() -> str:
        again = shlex.join(["colonnade", *sys.argv[1:]])
        return (
            f"Stopped after {many(len(done), 'trial')}. The same command goes on:"
            f" {again}"
        )

    with stoppable(go_on), a_bar(MofNCompleteColumn(), quiet=quiet or json_) as bar:
        task = bar.add_task(file.stem, total=len(trials), now="")

        def watch(completed: float, done: Mapping[int, Record]) -> None:
            measured = [trial for trial in tuning.ranked(done) if trial["score"]]
            now = (
                f"best {metric(measured[0]['by'])} {_score(measured[0])}"
                if measured
                else ""
            )
            bar.update(task, completed=completed, now=now)

        watch(len(done), done)
        done = tuning.search(trials, folder, done, watch)
    chosen = tuning.best(done)
    write_text(folder / SETTINGS, trials[chosen["trial"]].settings.to_toml())
    if json_:
        result = {
            "trials": [done[number] for number in sorted(done)],
            "best": chosen["trial"],
        }
        typer.echo(
            to_json(result | {"forecast": dataclasses.asdict(expected)}, indent=2)
        )
    elif not quiet:
        _show(trials, done, chosen, folder)


def _say(
    where: Console,
    federation: Federation,
    trials: Sequence[Trial],
    left: int,
    expected: Forecast,
) -> None:
    """Print what the search will take, before anything is sent."""
    over = (
        ", ".join(trials[-1].changes) or "nothing: one run has the file's own settings"
    )
    lines = [
        (
            f"{many(len(trials), 'run')} of {federation.settings.algorithm}, of which"
            f" {left} to be done, all parties in this process. Searched over: {over}."
        ),
        (
            f"They send about {size(expected.sends)} and take"
            f" {duration(expected.seconds)}; less where they stop early."
        ),
    ]
    for party, epsilon in expected.epsilon.items():
        budget = federation.accounts[party].budget
        covers = (
            "" if budget is None else f", which its budget of {budget.epsilon:g} covers"
        )
        lines.append(
            f"All {expected.runs} together spend epsilon {epsilon:.3g} of"
            f" '{party}'{covers}."
        )
    if not expected.epsilon:
        lines.append("No party adds noise: nothing is spent, and nothing is promised.")
    for line in lines:
        where.print(line, markup=False, highlight=False)


def _show(
    trials: Sequence[Trial], done: Mapping[int, Record], chosen: Record, folder: Path
) -> None:
    """Print the trials, the best first."""
    keys = list(
        dict.fromkeys(key for trial in done.values() for key in trial["changes"])
    )
    name = metric(chosen["by"])
    tried = [key.partition(".")[2].replace("_", " ") for key in keys]
    title = f"Trials, by the {name} of validation rows, as early stopping has it"
    table = a_table(title, *numbers("trial", name, "epoch", *tried))
    for trial in tuning.ranked(done):
        epoch = trial.get("best_epoch") or trial.get("epochs") or "-"
        tables = trials[trial["trial"]].settings.to_mapping()
        values = (
            str(tables[section][setting])
            for section, _, setting in (key.partition(".") for key in keys)
        )
        table.add_row(str(trial["trial"]), _score(trial), str(epoch), *values)
    console.print(table)
    for number, trial in sorted(done.items()):
        if "failed" in trial:
            say(f"Trial {number} failed: {trial['failed']}")
    if keys:
        console.print(
            "Trial 0 is as in the file, and as suggested where it says nothing. Of"
            " close scores the order is chance.",
            highlight=False,
        )
    console.print(
        f"The best, trial {chosen['trial']}, is in"
        f" [bold]{shown(folder / SETTINGS)}[/bold]; its score is of the rows that chose"
        " it. Test rows were not looked at. The trials sent"
        f" {size(sum(trial['sent'] for trial in done.values()))} in all; ledgers are in"
        f" their folders, as {shown(folder / chosen['run'])}.",
        highlight=False,
    )
    console.print("Train with it, which sends and spends once more:")
    console.print(f"  colonnade run {typed(folder / SETTINGS)}", soft_wrap=True)


def _score(trial: Record) -> str:
    return f"{abs(trial['score'][0]):.4f}" if trial["score"] else "failed"
