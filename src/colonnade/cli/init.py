"""`colonnade init`: a federation file from tables, by a few questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from colonnade.cli.console import console, say, shown, typed
from colonnade.core.files import write_text
from colonnade.errors import ConfigError, DataError, InputError
from colonnade.planning import questions
from colonnade.planning.tables import SeenTable, seen_in
from colonnade.planning.template import write

T = TypeVar("T")


class Terminal(questions.Asker):
    """An asker for whoever sits at the terminal."""

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
            help="What to predict, as COLUMN or PARTY.COLUMN; else guessed.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="What the label is: classification, or regression (a number).",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing; take every guess.")
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
        answers = questions.ask(taking, asker, label, task)
    except typer.Abort as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            raise typer.Exit(130) from None
        raise InputError(
            "Nobody answers: the input has ended. Take every guess with --yes."
        ) from None
    questions.check(answers, out.parent)
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
