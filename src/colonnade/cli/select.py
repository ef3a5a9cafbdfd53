"""`colonnade select`: whose columns are worth having, before anybody trains."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import TaskProgressColumn

from colonnade.cli.console import BOLD, a_bar, a_table, console, numbers, shown, typed
from colonnade.cli.options import Engine, Json, Quiet, Seed, StartupKit
from colonnade.core.files import write_text
from colonnade.errors import ConfigError, InputError
from colonnade.explain.pictures import SCORE, draw_selection, prepare
from colonnade.federation.choosing import choose
from colonnade.report.words import size
from colonnade.selection import METHODS, Selection
from colonnade.settings.changes import leave_out
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import asker_of, label_owners_of
from colonnade.settings.selection import BINS

BAR = 24


def select(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FEDERATION.toml", help="Who takes part, with which tables."
        ),
    ],
    keep: Annotated[
        int,
        typer.Option(min=1, metavar="L", help="How many parties with columns to keep."),
    ],
    method: Annotated[
        str, typer.Option(metavar="METHOD", help=f"How to rank: {', '.join(METHODS)}.")
    ] = "vf_ps",
    k: Annotated[
        int | None, typer.Option(min=1, help="Neighbours that the estimate looks at.")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(min=2, help="Rows that the estimate is averaged over.")
    ] = None,
    tests: Annotated[
        int | None,
        typer.Option(min=1, help="With vf_ps: random groups of parties to test."),
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(help='"ckks", "bfv"; "plain" shows distances, for debugging.'),
    ] = None,
    bins: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=(
                "Cut a label that is a number at quantiles into so many classes, else"
                f" {BINS}."
            ),
        ),
    ] = None,
    estimator: Annotated[
        str | None,
        typer.Option(
            help=(
                '"kraskov" takes numbers as they are, and the label owner then reads'
                " distances."
            )
        ),
    ] = None,
    least_difference: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="NATS",
            help="How much a party must add in another's place to be better than it.",
        ),
    ] = None,
    seed: Seed = None,
    owner: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="With several label owners: for this one; else for all jointly.",
        ),
    ] = None,
    engine: Engine = "in-process",
    startup_kit: StartupKit = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A new federation file without others."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For selection.json and the picture."),
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rank the parties by how much their columns tell about the label (mutual
    information), and keep the best L.

    Nobody's columns or labels leave: partial distances are encrypted, summed by a
    server that cannot read them, and come back as ranks. A label that is a number is
    cut into classes for that; --estimator kraskov takes it as it is, and shows the
    label owner distances. Only training rows are used. Rankings have no noise, and
    budgets are not charged for them. \\[selection] in the file has settings, which
    options override.
    """
    settings = Settings.from_toml(file).with_seed(seed)
    if seed is not None and engine == "flare":
        raise ConfigError(
            "--seed cannot be used with --engine flare: the seed is in the file that"
            " all agreed on."
        )
    options = {
        "k": k,
        "queries": queries,
        "tests": tests,
        "scheme": scheme,
        "bins": bins,
        "estimator": estimator,
        "least_difference": least_difference,
    }
    if write is not None:
        check_file(file, write, settings)
    if out is not None:
        prepare(out)
    asker_of(settings, owner)
    if names := promised(settings):
        warnings.warn(
            f"The budget and rules of {names} do not cover a selection: its rankings"
            " follow columns and labels as they are, without noise, and no budget is"
            " charged for them.",
            stacklevel=2,
        )
    overridden = {key: value for key, value in options.items() if value is not None}
    if engine == "in-process":
        selection: Selection | None = with_bar(
            settings, keep, method, owner, quiet=quiet or json_, **overridden
        )
    else:
        from colonnade.cli.on_flare import select_on_flare

        selection = select_on_flare(
            settings, engine, out, startup_kit, keep, method, owner, overridden
        )
    if selection is None:
        return
    if out is not None:
        write_text(
            out / "selection.json", json.dumps(selection.to_json(), indent=2) + "\n"
        )
        written = ["selection.json"]
        pictures = draw_selection(selection, out)
        written += [path.name for path in pictures if path.suffix == ".png"]
    if write is not None:
        write_text(
            write, leave_out(file.read_text(encoding="utf-8"), rejected(selection))
        )
    if json_:
        typer.echo(json.dumps(selection.to_json(), indent=2))
    elif not quiet:
        show(selection, settings)
        if out is not None:
            console.print(
                f"In [bold]{shown(out)}[/bold]: {', '.join(written)}",
                soft_wrap=True,
            )
        if write is not None:
            console.print(
                f"Next: [bold]colonnade run {typed(write)}[/bold]", soft_wrap=True
            )


def promised(settings: Settings) -> str:
    """The names of the parties with a budget, or with rules that add noise; a selection
    keeps to neither."""

    def noisy(rule: Any) -> bool:
        mechanism = rule.get("mechanism", "plain") if isinstance(rule, dict) else rule
        return (
            mechanism.get("name") if isinstance(mechanism, dict) else mechanism
        ) != "plain"

    names = [
        name
        for name, party in settings.parties.items()
        if party.budget or any(map(noisy, party.outbox.values()))
    ]
    return " and ".join(f"'{name}'" for name in names)


def with_bar(
    settings: Settings,
    keep: int,
    method: str,
    owner: str | None = None,
    *,
    quiet: bool,
    **options: Any,
) -> Selection:
    """Select in this process, with a bar over the queries."""
    with a_bar(TaskProgressColumn(), quiet=quiet, transient=True) as bar:
        task = bar.add_task("selecting", total=None, now="")

        def watch(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return choose(settings, keep, method, owner=owner, given=options, watch=watch)


def rejected(selection: Selection) -> set[str]:
    """The parties whose columns are left out."""
    return {*selection.ranking} - {*selection.chosen}


def check_file(file: Path, write: Path, settings: Settings) -> None:
    """Raise, before anything is computed, unless the file can be rewritten and there is
    a place for it."""
    if settings.data.dataset is not None:
        raise ConfigError(
            "--write leaves tables [parties.NAME] out of the file, and here parties"
            f" are cut from the data set {settings.data.dataset!r}, as [data] says. Use"
            " --out, and choose parts by what it finds."
        )
    leave_out(file.read_text(encoding="utf-8"), settings.parties)
    if write.is_dir() or not write.resolve().parent.is_dir():
        raise InputError(
            f"--write names a file in a folder that exists; found {write}."
        )
    if write.resolve().parent != file.resolve().parent:
        raise ConfigError(
            f"--write must name a file beside {file}: tables' paths are relative to it;"
            f" found {write}."
        )
    if write.exists():
        raise ConfigError(
            f"{write} is there already. Choose another name with --write."
        )


def verdict(name: str, selection: Selection, settings: Settings) -> str:
    """What becomes of a party: "leave out" is said only of one that is worse, as far as
    can be told."""
    if name in selection.chosen:
        return "keep"
    if name in selection.level:
        return f"as good as {selection.against_last[name].one}"
    if name in label_owners_of(settings):
        return "labels only"
    return "leave out"


def show(selection: Selection, settings: Settings) -> None:
    """Print the ranking, what it cost, and what each role learned."""
    title = shown(f"{selection.method}: keep {', '.join(selection.chosen)}")
    table = a_table(title, "party", *numbers("score"), "", "", title_style=BOLD)
    longest = max(
        (score for score in selection.scores.values() if score > 0), default=1.0
    )
    for name in selection.ranking:
        score = selection.scores[name]
        bar = "█" * round(BAR * max(score, 0.0) / longest)
        colour = "green" if name in selection.chosen else "bright_black"
        error = f" ± {selection.errors[name]:.3f}" if name in selection.errors else ""
        table.add_row(
            shown(name),
            f"{score:.3f}{error}",
            f"[{colour}]{bar}[/]",
            shown(verdict(name, selection, settings)),
        )
    console.print(table)
    for found in selection.against_last.values():
        console.print(shown(selection.in_words(found)), highlight=False)
    if selection.on_ties:
        console.print(shown(selection.on_ties), highlight=False)
    entropy = selection.entropy
    most = (
        ""
        if entropy is None
        else f"; the highest possible is {entropy:.3f}, the label's entropy"
    )
    console.print(f"The score: {SCORE[selection.method]}{most}.", highlight=False)
    for name, own in selection.each.items():
        best = ", ".join(f"{party} {own.scores[party]:.3f}" for party in own.ranking)
        console.print(f"For '{shown(name)}' alone: {shown(best)}.", highlight=False)
    cost = selection.cost
    work = (
        f"{cost.encryptions:,} encryptions, {cost.additions:,} additions,"
        f" {cost.decryptions:,} decryptions"
    )
    console.print(
        f"It took {cost.seconds:.1f} s, {size(cost.bytes)}, {work}.", highlight=False
    )
    learned = a_table("\nWho learned what", "who", "learned", title_style=BOLD)
    for name, lesson in selection.learned.items():
        learned.add_row(shown(name), shown(lesson))
    console.print(learned)
