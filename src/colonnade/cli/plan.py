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
from colonnade.cli.options import AllowModel, Json, Set
from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.planning.plan import PartyPlan, Plan
from colonnade.planning.plan import plan as make_plan
from colonnade.report.words import size
from colonnade.runs.run_directory import to_json
from colonnade.settings.changes import Change, changes_of
from colonnade.settings.party_file import OWN
from colonnade.transport.faulty import Network


def plan(
    file: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="What would be run.")],
    batches: Annotated[int, typer.Option(min=1, help="How many batches are timed.")] = 8,
    network: Annotated[
        str | None, typer.Option(help="Each party's link, as in 50ms,100mbit: for a question and its answer.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Use this seed instead of the file's.")] = None,
    engine: Annotated[  # noqa: ARG001 - so that `plan` takes what `run` does
        str, typer.Option(help="As for run; the plan is the same: bytes do not depend on it.")
    ] = "in-process",
    set_: Set = None,
    allow_model: AllowModel = None,
    json_: Json = False,
) -> None:
    """Show what a run will take: parties, rows, model sizes, rounds, bytes, time and epsilon. Nothing is sent."""
    over = None if network is None else Network.parse(network)
    changes = changes_of(set_ or [])
    found = make_plan(read_whole(file, allow_model or [], changes), batches=batches, network=over, seed=seed)
    if json_:
        typer.echo(to_json(found.to_json(), indent=2))
        return
    show(found, file, set_ or [])


def read_whole(file: Path, allow_models: Sequence[str] = (), changes: Sequence[Change] = ()) -> Settings:
    """Settings whose tables are all on this machine; for a deployment's files, what to do instead."""
    instead = f"Each organisation checks its own part where its table is: colonnade party check {OWN}."
    if file.name == OWN:
        raise ConfigError(f"A plan needs every party's table, and {file} is of one organisation. {instead}")
    settings = Settings.from_toml(file, allow_models=allow_models, changes=changes)
    away = [name for name, party in settings.parties.items() if party.table is None]
    if away and settings.data.dataset is None:
        raise ConfigError(
            f"A plan needs every party's table, and {file} names none for {', '.join(map(repr, away))}: in a "
            f"deployment they are elsewhere. {instead}"
        )
    return settings


def show(found: Plan, file: Path, changed: Sequence[str]) -> None:
    """Print a plan as tables."""
    rows = ", ".join(f"{count:,} {split}" for split, count in found.rows.items())
    console.print(f"[bold]{found.algorithm}[/bold], {found.task}: {rows} rows; on {found.device}.")
    console.print(_rounds(found))
    console.print(_parties(found))
    if found.may_stop_early:
        console.print("  at most: early_stop may end the run sooner.")
    for what in found.estimates:
        console.print(f"  estimated: {what}.")
    console.print(_time(found))
    console.print(_privacy(found))
    console.print(f"Everything promised: [bold]colonnade privacy {typed(file)}[/bold]", soft_wrap=True)
    for number, warning in enumerate(found.warnings, 1):
        console.print(Text.assemble(("!", "bold yellow"), f" {number}. {warning}"))
    run = " ".join([f"colonnade run {typed(file)}", *(f"--set {typed(one)}" for one in changed)])
    console.print(f"Nothing was sent or written. Run it: [bold]{run}[/bold]", soft_wrap=True)


def _rounds(found: Plan) -> str:
    if not found.rounds:
        return "Nothing is trained; rows are scored once, at the end."
    each = f"{found.batches} batch{'es' if found.batches > 1 else ''} of up to {found.batch_size:,} rows"
    if found.rounds == found.epochs and found.batches > 1:  # of several label owners
        return f"{found.rounds:,} rounds, in each {each}."
    epochs = "1 epoch" if found.epochs == 1 else f"{found.epochs:,} epochs"
    return f"{epochs} of {each}: {found.rounds:,} rounds."


def _parties(found: Plan) -> Table:
    columns = numbers("columns", "parameters", "sends", "receives", "epsilon")
    table = a_table("Who brings and sends what", "party", "holds", *columns)
    for alike in _alike(found.parties):
        party, last = alike[0], alike[-1]
        name = party.name if party is last else f"{party.name} … {last.name}, each of {len(alike)}"
        holds = " and ".join(party.holds) or "no data"
        sizes = f"{party.columns:,}", f"{party.parameters:,}", size(party.sends), size(party.receives)
        table.add_row(name, holds, *sizes, _epsilon(party))
    return table


def _alike(parties: Sequence[PartyPlan]) -> list[list[PartyPlan]]:
    """Neighbours of whom the same is said, together."""
    found: list[list[PartyPlan]] = []
    for party in parties:
        if found and replace(party, name="") == replace(found[-1][0], name=""):
            found[-1].append(party)
        else:
            found.append([party])
    return [part for group in found for part in ([group] if len(group) > 2 else [[one] for one in group])]


def _epsilon(party: PartyPlan) -> str:
    told: Mapping[str, float | None] = party.epsilon
    if not told:
        return "-"
    if len(set(told.values())) == 1:
        return _number(next(iter(told.values())))
    return ", ".join(f"{what} {_number(value)}" for what, value in told.items())


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3g}"


def _time(found: Plan) -> str:
    seconds = found.seconds
    parts = f"training {duration(seconds.training)}, validation {duration(seconds.validation)}, "
    text = f"Time here: about {duration(seconds.total)} ({parts}scoring at the end {duration(seconds.final)})"
    if seconds.batches > 1:
        text += f"; {duration(seconds.low)} to {duration(seconds.high)} by the {seconds.batches} batches measured"
    if found.network is not None:
        text += f".\nOver the network: {duration(found.network)} more, for {found.exchanges:,} questions and answers"
    return f"{text}."


def _privacy(found: Plan) -> str:
    kept = [
        f"'{one.party}' needs {one.budget['spent']:.3g} of its budget of {one.budget['epsilon']:g}"
        for one in found.privacy
        if one.budget is not None and one.budget["spent"] is not None
    ]
    text = "epsilon: of one row's own releases, for whoever knows the batches; ∞ is no guarantee"
    return f"{text}. {'; '.join(kept)}{'.' if kept else ''}".rstrip()


def duration(seconds: float) -> str:
    """For people: 0.4 s, 12 s, 3 min 20 s, 4 h 10 min."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 0.05 or not seconds else "less than 0.1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"
