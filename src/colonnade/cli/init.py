"""`colonnade init`: a federation file from tables, by a few questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from colonnade.algorithms import ALGORITHMS
from colonnade.cli.console import console, say, shown, typed
from colonnade.core.files import write_text
from colonnade.errors import ConfigError, DataError, InputError
from colonnade.federation import Federation
from colonnade.planning import questions
from colonnade.planning.tables import SeenTable, seen_in
from colonnade.planning.template import Answers, write
from colonnade.report.words import seconds, size

T = TypeVar("T")


class Terminal(questions.Asker):
    """An asker for whoever sits at the terminal."""

    is_alone = False

    def text(self, question: str, default: str, accept: Callable[[str], T]) -> T:
        while True:
            try:
                return accept(str(typer.prompt(question, default=default)).strip())
            except InputError as error:
                self.say(str(error))

    def choose(self, question: str, options: Mapping[str, str], default: str) -> str:
        for name, line in options.items():
            console.print(f"  [bold]{name}[/bold]  ", end="")
            say(line)

        def accept(given: str) -> str:
            if given not in options:
                raise ConfigError(
                    f"There is no {given!r} here; there are {', '.join(options)}."
                )
            return given

        return self.text(question, default, accept)

    def yes(self, question: str, default: bool) -> bool:
        return typer.confirm(question, default=default)


def _here(asker: questions.Asker) -> list[SeenTable]:
    """The tables of this folder that are to take part; files that cannot be one are
    left out, and said."""
    seen, unfit = seen_in(Path())
    for line in unfit:
        say(line)
    if not seen:
        raise DataError(
            "There is no table in this folder. Name them: colonnade init clinic.csv"
            " lab.csv."
        )
    if isinstance(asker, Terminal):
        say(f"Tables here: {', '.join(table.path.name for table in seen)}.")
    return [
        table
        for table in seen
        if asker.yes(f"Shall {table.path.name} take part?", default=True)
    ]


def _with_its_price(
    answers: Answers, federation: Federation, asker: questions.Asker
) -> Answers:
    """Say what the proposal takes, and offer the quick choice beside it."""
    costs = questions.estimate(federation)
    found_before = ", after the common rows are found" if answers.is_private else ""
    price = (
        f"{answers.algorithm} takes about {seconds(costs.seconds)} on this machine, and"
        f" {size(costs.bytes_sent)} cross between the parties{found_before}."
    )
    if ALGORITHMS[answers.algorithm].once:
        say(price)
        return answers
    say(f"{price} Early stopping may end it sooner.")
    quick = f"{questions.QUICK} sends each row once and is done in seconds"
    if asker.is_alone:
        say(f"Quicker: {quick}. For that: colonnade init --quick.")
        return answers
    if asker.yes(f"{quick}. Take it instead?", default=False):
        return replace(answers, algorithm=questions.QUICK)
    return answers


def init(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[CSV]...",
            help="One table per organisation: .csv, .csv.gz, .parquet; else all here.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path(
        "federation.toml"
    ),
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="What to predict, as COLUMN or PARTY.COLUMN; else by its name.",
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="The id, as COLUMN or PARTY.COLUMN, once or for each; else guessed.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="What the label is: classification, or regression (a number).",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Propose what is done in seconds: a first answer."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing; take every sure guess.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file if it is there.")
    ] = False,
) -> None:
    """Write a commented federation file from tables, by asking a few questions."""
    if out.is_dir():
        inside = out / "federation.toml"
        raise ConfigError(
            f"--out names the file to write; {out} is a folder. Name {inside}, for"
            " example."
        )
    if out.exists() and not force:
        raise ConfigError(
            f"{out} is there already. Choose another name with --out, or replace it"
            " with --force."
        )
    if not out.parent.is_dir():
        raise ConfigError(
            f"There is no folder {out.parent} to write {out.name} to. Make it first."
        )
    paths = tables or []
    twice = [
        path
        for at, path in enumerate(paths)
        if path.resolve() in [earlier.resolve() for earlier in paths[:at]]
    ]
    if twice:
        raise ConfigError(
            f"{twice[0]} is named twice, and a table is one organisation's. Name each"
            " table once."
        )
    asker = questions.Asker(say) if yes else Terminal(say)
    try:
        taking: Sequence[Path | SeenTable] = paths or _here(asker)
        answers = questions.ask(
            taking, asker, label=label, task=task, ids=ids or [], quick=quick
        )
        federation = questions.check(answers, out.parent)
        answers = _with_its_price(answers, federation, asker)
    except typer.Abort as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            raise typer.Exit(130) from None
        raise InputError(
            "Nobody answers: the input has ended. Take every sure guess with --yes."
        ) from None
    write_text(out, write(answers, out.parent, str(out)))
    console.print(
        f"[bold]{shown(out)}[/bold] is written: {', '.join(answers.parties)};"
        f" {answers.algorithm} predicts "
        f"{shown(next(about.label for about in answers.parties.values() if about.label))}.",
        highlight=False,
    )
    console.print(
        f"What will it take?  [bold]colonnade plan {typed(out)}[/bold]\n"
        f"Train:              [bold]colonnade run {typed(out)}[/bold]",
        soft_wrap=True,
    )
