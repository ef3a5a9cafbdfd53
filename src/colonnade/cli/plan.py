"""`colonnade plan`: what a run will take, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from colonnade.cli.console import a_table, console, numbers, typed
from colonnade.cli.options import AllowModel, Engine, Json, Seed, Set
from colonnade.errors import ConfigError, check_named
from colonnade.federation import Settings
from colonnade.flare.engines import ENGINES
from colonnade.planning.plan import PartyPlan, Plan
from colonnade.planning.plan import plan as make_plan
from colonnade.report.words import size
from colonnade.runs.run_directory import to_json
from colonnade.settings.changes import Change, changes_of
from colonnade.settings.party_file import OWN
from colonnade.transport.faulty import Network


def plan(
    file: Annotated[
        Path, typer.Argument(metavar="FEDERATION.toml", help="What would be run.")
    ],
    batches: Annotated[
        int, typer.Option(min=1, help="How many batches are timed.")
    ] = 8,
    network: Annotated[
        str | None,
        typer.Option(help="Each link, as in 50ms,100mbit: for question and answer."),
    ] = None,
    seed: Seed = None,
    # so that `plan` takes what `run` does; bytes do not depend on it
    engine: Engine = "in-process",
    set_: Set = None,
    allow_model: AllowModel = None,
    json_: Json = False,
) -> None:
    """Show what a run will take: parties, rows, model sizes, rounds, bytes, time and
    epsilon. Nothing is sent."""
    check_named("engine", engine, [*ENGINES])
    over = None if network is None else Network.parse(network)
    changes = changes_of(set_ or [])
    planned = make_plan(
        read_whole(file, allow_model or [], changes),
        batches=batches,
        network=over,
        seed=seed,
    )
    if json_:
        typer.echo(to_json(planned.to_json(), indent=2))
        return
    show(planned, file, set_ or [])


def read_whole(
    file: Path, allow_models: Sequence[str] = (), changes: Sequence[Change] = ()
) -> Settings:
    """Read settings whose tables are all on this machine. For a deployment's files, the
    error says what to do."""
    instead = (
        "Each organisation checks its own part where its table is: colonnade party"
        f" check {OWN}."
    )
    if file.name == OWN:
        raise ConfigError(
            f"A plan needs every party's table, and {file} is of one organisation."
            f" {instead}"
        )
    settings = Settings.from_toml(file, allow_models=allow_models, changes=changes)
    away = [name for name, party in settings.parties.items() if party.table is None]
    if away and settings.data.dataset is None:
        raise ConfigError(
            f"A plan needs every party's table, and {file} names none for"
            f" {', '.join(map(repr, away))}: in a deployment they are elsewhere."
            f" {instead}"
        )
    return settings


def show(planned: Plan, file: Path, changed: Sequence[str]) -> None:
    """Print a plan as tables."""
    rows = ", ".join(f"{count:,} {split}" for split, count in planned.rows.items())
    console.print(
        f"[bold]{planned.algorithm}[/bold], {planned.task}: {rows} rows; on"
        f" {planned.device}."
    )
    console.print(_rounds(planned))
    console.print(_parties(planned))
    if planned.may_stop_early:
        console.print("  at most: early_stop may end the run sooner.")
    for estimate in planned.estimates:
        console.print(f"  estimated: {estimate}.")
    console.print(_time(planned))
    console.print(_privacy(planned))
    console.print(
        f"Everything promised: [bold]colonnade privacy {typed(file)}[/bold]",
        soft_wrap=True,
    )
    for number, warning in enumerate(planned.warnings, 1):
        console.print(Text.assemble(("!", "bold yellow"), f" {number}. {warning}"))
    run = " ".join(
        [
            f"colonnade run {typed(file)}",
            *(f"--set {typed(change)}" for change in changed),
        ]
    )
    console.print(
        f"Nothing was sent or written. Run it: [bold]{run}[/bold]", soft_wrap=True
    )


def _rounds(planned: Plan) -> str:
    if not planned.rounds:
        return "Nothing is trained; rows are scored once, at the end."
    batches = (
        f"{planned.batches} batch{'es' if planned.batches > 1 else ''} of up to"
        f" {planned.batch_size:,} rows"
    )
    # of several label owners
    if planned.rounds == planned.epochs and planned.batches > 1:
        return f"{planned.rounds:,} rounds, in each {batches}."
    epochs = "1 epoch" if planned.epochs == 1 else f"{planned.epochs:,} epochs"
    return f"{epochs} of {batches}: {planned.rounds:,} rounds."


def _parties(planned: Plan) -> Table:
    columns = numbers("columns", "parameters", "sends", "receives", "epsilon")
    table = a_table("Who brings and sends what", "party", "holds", *columns)
    for group in _grouped(planned.parties):
        party = group[0]
        last = group[-1]
        name = (
            party.name
            if party is last
            else f"{party.name} … {last.name}, each of {len(group)}"
        )
        holds = " and ".join(party.holds) or "no data"
        sizes = (
            f"{party.columns:,}",
            f"{party.parameters:,}",
            size(party.sends),
            size(party.receives),
        )
        table.add_row(name, holds, *sizes, _epsilon(party))
    return table


def _grouped(parties: Sequence[PartyPlan]) -> list[list[PartyPlan]]:
    """Parties in order, in groups: three or more neighbours that differ in their name
    alone are one group."""
    groups: list[list[PartyPlan]] = []
    for party in parties:
        if groups and replace(party, name="") == replace(groups[-1][0], name=""):
            groups[-1].append(party)
        else:
            groups.append([party])
    return [
        rows
        for group in groups
        for rows in ([group] if len(group) > 2 else [[party] for party in group])
    ]


def _epsilon(party: PartyPlan) -> str:
    epsilons: Mapping[str, float | None] = party.epsilon
    if not epsilons:
        return "-"
    if len(set(epsilons.values())) == 1:
        return _number(next(iter(epsilons.values())))
    return ", ".join(
        f"{adversary} {_number(value)}" for adversary, value in epsilons.items()
    )


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3g}"


def _time(planned: Plan) -> str:
    seconds = planned.seconds
    parts = (
        f"training {duration(seconds.training)}, validation"
        f" {duration(seconds.validation)}, "
    )
    text = (
        f"Time here: about {duration(seconds.total)} ({parts}scoring at the end"
        f" {duration(seconds.final)})"
    )
    if seconds.batches > 1:
        text += (
            f"; {duration(seconds.low)} to {duration(seconds.high)} by the"
            f" {seconds.batches} batches measured"
        )
    if planned.network is not None:
        exchanges = f"{planned.exchanges:,} questions and answers"
        text += (
            f".\nOver the network: {duration(planned.network)} more, for {exchanges}"
        )
    return f"{text}."


def _privacy(planned: Plan) -> str:
    budgets = [
        f"'{guarantee.party}' needs {guarantee.budget['spent']:.3g} of its budget of"
        f" {guarantee.budget['epsilon']:g}"
        for guarantee in planned.privacy
        if guarantee.budget is not None and guarantee.budget["spent"] is not None
    ]
    text = (
        "epsilon: of one row's own releases, for whoever knows the batches; ∞ is no"
        " guarantee"
    )
    noise = [
        f"'{party.name}' {sigma:.3g} times its clip ({release})"
        for party in planned.parties
        for release, sigma in party.sigma.items()
    ]
    budgeted = f" {'; '.join(budgets)}." if budgets else ""
    return f"{text}.{budgeted}" + (
        f'\nWhat sigma = "auto" became: {"; ".join(noise)}.' if noise else ""
    )


def duration(seconds: float) -> str:
    """For people: 0.4 s, 12 s, 3 min 20 s, 4 h 10 min."""
    if seconds < 10:
        return (
            f"{seconds:.1f} s" if seconds >= 0.05 or not seconds else "less than 0.1 s"
        )
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {seconds_left} s"
    return f"{minutes // 60:,} h {minutes % 60} min"
