"""`colonnade select`: whose columns are worth having, before anybody trains."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from colonnade.cli.console import console, error_console, shown, size, typed
from colonnade.errors import ConfigError, InputError
from colonnade.explain import canvas
from colonnade.explain.partners import SCORE, draw
from colonnade.federation.organisation import holdings_of
from colonnade.rows.holdings import Holdings
from colonnade.runs.run_directory import write_text
from colonnade.selection import METHODS, Selection, SelectionSettings, select_here
from colonnade.selection.inputs import as_labels
from colonnade.settings.federation_file import Settings
from colonnade.settings.leave_out import leave_out

BAR = 24
BINS = 4
"""Quantiles that make classes of a label that is a number, unless Kraskov's estimator is asked for: with classes only
ranks travel, and with Kraskov the label owner must read distances."""


def select(
    file: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="Who takes part, with which tables.")],
    keep: Annotated[int, typer.Option(min=1, metavar="L", help="How many parties with columns to keep.")],
    method: Annotated[str, typer.Option(metavar="METHOD", help=f"How to rank: {', '.join(METHODS)}.")] = "vf_ps",
    k: Annotated[int | None, typer.Option(min=1, help="Neighbours that the estimate looks at.")] = None,
    queries: Annotated[int | None, typer.Option(min=2, help="Rows that the estimate is averaged over.")] = None,
    tests: Annotated[int | None, typer.Option(min=1, help="With vf_ps: random groups of parties to test.")] = None,
    scheme: Annotated[
        str | None, typer.Option(help='"ckks" or "bfv"; "plain" shows distances and is for debugging.')
    ] = None,
    bins: Annotated[
        int | None,
        typer.Option(
            min=2, help=f"Cut a label that is a number at quantiles into so many classes; {BINS} unless said."
        ),
    ] = None,
    estimator: Annotated[
        str | None, typer.Option(help='"kraskov" takes numbers as they are, and the label owner then reads distances.')
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the file's.")] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the federation file without the others here.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="For selection.json and the picture.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no tables.")] = False,
) -> None:
    """Rank the parties by how much their columns tell about the label (mutual information), and keep the best L.

    Nobody's columns or labels leave: partial distances are encrypted, summed by a server that cannot read them, and
    come back as ranks. A label that is a number is cut into classes for that; --estimator kraskov takes it as it is,
    and shows the label owner distances. Only training rows are used. Rankings have no noise, and budgets are not
    charged for them. \\[selection] in the file has settings, which options override.
    """
    if out is not None:
        canvas.can_draw()
    settings = Settings.from_toml(file)
    if seed is not None:
        settings = dataclasses.replace(settings, engine=dataclasses.replace(settings.engine, seed=seed))
    given = {"k": k, "queries": queries, "tests": tests, "scheme": scheme, "bins": bins, "estimator": estimator}
    if write is not None:
        check_file(file, write, settings)
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"The selection cannot be written to {out}: {error.strerror}.") from None
    holdings = held_by(settings)
    if names := promised(settings):
        warnings.warn(
            f"The budget and rules of {names} do not cover a selection: its rankings follow columns and labels as they "
            "are, without noise, and no budget is charged for them.",
            stacklevel=2,
        )
    found = choose(
        holdings, settings, keep, method, quiet=quiet or json_, **{key: v for key, v in given.items() if v is not None}
    )
    if out is not None:
        write_text(out / "selection.json", json.dumps(found.to_json(), indent=2) + "\n")
        draw(found, out)
    if write is not None:
        write_text(write, leave_out(file.read_text(encoding="utf-8"), set(rejected(found, holdings))))
    if json_:
        typer.echo(json.dumps(found.to_json(), indent=2))
    elif not quiet:
        show(found, holdings)
        if out is not None:
            console.print(f"selection.json and selection.png are in [bold]{shown(out)}[/bold].", soft_wrap=True)
        if write is not None:
            console.print(f"Next: [bold]colonnade run {typed(write)}[/bold]", soft_wrap=True)


def held_by(settings: Settings) -> Holdings:
    """Everybody's columns and labels, aligned and prepared as for training."""
    settings.check_one_label_owner("It leads the selection: take them one at a time.")
    return holdings_of(settings)


def promised(settings: Settings) -> str:
    """Who has a budget, or rules that add noise: their names, to be told that a selection keeps to neither."""

    def noisy(rule: Any) -> bool:
        mechanism = rule.get("mechanism", "plain") if isinstance(rule, dict) else rule
        return (mechanism.get("name") if isinstance(mechanism, dict) else mechanism) != "plain"

    names = [name for name, own in settings.parties.items() if own.budget or any(map(noisy, own.outbox.values()))]
    return " and ".join(f"'{name}'" for name in names)


def choose(holdings: Holdings, settings: Settings, keep: int, method: str, *, quiet: bool, **given: Any) -> Selection:
    """Select on the training rows, by the file's settings and those given, with a bar over the queries."""
    chosen = dataclasses.asdict(settings.selection) | given
    if holdings.encoder.task == "classification" and (chosen["bins"] or chosen["estimator"] == "kraskov"):
        raise ConfigError(
            f"The label of '{holdings.label_owner}' is a class, and bins and estimator = \"kraskov\" are for numbers. "
            'Leave them out, or set task = "regression" in [data].'
        )
    if chosen["estimator"] == "auto":
        chosen["estimator"] = "ross"
        if holdings.encoder.task == "regression" and not chosen["bins"]:
            chosen["bins"] = BINS
    features = {name: held.features for name, held in holdings.columns.items()}
    labels = holdings.labelled.labels
    assert labels is not None
    if keep > len(features):
        raise ConfigError(f"--keep must be at most {len(features)}, the number of parties with columns; found {keep}.")
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns, TimeRemainingColumn(compact=True), console=error_console, disable=quiet, transient=True
    ) as bar:
        task = bar.add_task("selecting", total=None)
        found = select_here(
            {name: held.flatten(1) for name, held in features.items()},
            labels,
            keep=keep,
            method=method,
            leader=holdings.label_owner,
            seed=settings.engine.seed,
            rows=holdings.splits["train"],
            through_bytes=settings.engine.through_bytes,
            watch=lambda done, total: bar.update(task, completed=done, total=total),
            **chosen,
        )
    if found.method in ("lasso", "random") or chosen["estimator"] == "kraskov":
        return found
    rows, own = holdings.splits["train"].numpy(), SelectionSettings(**chosen)
    return dataclasses.replace(found, entropy=entropy(as_labels(holdings.label_owner, labels, rows, own)))


def entropy(classes: NDArray[Any]) -> float:
    """In nats."""
    _, counts = np.unique(classes, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def rejected(found: Selection, holdings: Holdings) -> list[str]:
    """Who is left out; the label owner never is, since nobody can train without it."""
    return [name for name in found.ranking if name not in found.chosen and name != holdings.label_owner]


def check_file(file: Path, write: Path, settings: Settings) -> None:
    """Before anything is computed: can the file be rewritten, and is there a place for it?"""
    if settings.data.dataset is not None:
        raise ConfigError(
            "--write leaves tables [parties.NAME] out of the file, and here parties are cut from the data set "
            f"{settings.data.dataset!r}, as [data] says. Use --out, and choose parts by what it finds."
        )
    others = {name for name, party in settings.parties.items() if party.label is None}
    leave_out(file.read_text(encoding="utf-8"), others)
    if write.is_dir() or not write.resolve().parent.is_dir():
        raise InputError(f"--write names a file in a folder that exists; found {write}.")
    if write.resolve().parent != file.resolve().parent:
        raise ConfigError(
            f"--write must name a file beside {file}, since the tables' paths are relative to it; found {write}."
        )


def show(found: Selection, holdings: Holdings) -> None:
    """The ranking, what it cost, and what each role learned."""
    title = f"{found.method}: keep {', '.join(found.chosen)}"
    table = Table(title=title, title_justify="left", title_style="bold not italic")
    for heading in ("party", "score", "", ""):
        table.add_column(heading, justify="right" if heading == "score" else "left", overflow="fold")
    longest = max((score for score in found.scores.values() if score > 0), default=1.0)
    for name in found.ranking:
        score = found.scores[name]
        bar = "█" * round(BAR * max(score, 0.0) / longest)
        keeps = name in found.chosen
        verdict = "keep" if keeps else "labels only" if name == holdings.label_owner else "leave out"
        error = f" ± {found.errors[name]:.3f}" if name in found.errors else ""
        table.add_row(name, f"{score:.3f}{error}", f"[{'green' if keeps else 'bright_black'}]{bar}[/]", verdict)
    console.print(table)
    if found.level:
        console.print(
            f"Within error: {', '.join(found.level)} may be as good as the last that is kept. Do not drop them for "
            "this score alone; more queries ([selection] queries) make it finer.",
            highlight=False,
            markup=False,
        )
    most = "" if found.entropy is None else f"; the highest possible is {found.entropy:.3f}, the label's entropy"
    console.print(f"The score: {SCORE[found.method]}{most}.", highlight=False)
    cost = found.cost
    work = f"{cost.encryptions:,} encryptions, {cost.additions:,} additions, {cost.decryptions:,} decryptions"
    console.print(f"It took {cost.seconds:.1f} s, {size(cost.bytes)}, {work}.", highlight=False)
    learned = Table(title="\nWho learned what", title_justify="left", title_style="bold not italic")
    learned.add_column("who", overflow="fold")
    learned.add_column("learned")
    for name, what in found.learned.items():
        learned.add_row(name, what)
    console.print(learned)
