"""`colonnade privacy`: what every organisation is promised, against whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from colonnade.cli.console import a_run, a_table, console, numbers
from colonnade.cli.options import AllowModel, Json
from colonnade.errors import ConfigError
from colonnade.federation import Federation
from colonnade.federation.guarantees import KEPT, of_run
from colonnade.planning.budgets import plan
from colonnade.report.words import epsilon, times
from colonnade.runs.run_directory import RunDirectory, to_json


def privacy(
    what: Annotated[Path, typer.Argument(metavar="DIR|FEDERATION.toml", help="A run, or a file that is not run yet.")],
    allow_model: AllowModel = None,
    json_: Json = False,
) -> None:
    """Show what a run has cost each party's privacy, or what a federation file will cost; nothing is sent."""
    if not what.exists():
        raise ConfigError(f"{what} is neither a run directory nor a federation file.")
    if what.is_dir():
        found = of_run(RunDirectory(a_run(what)))
    else:
        found = plan(Federation.from_toml(what, allow_models=allow_model or []))
    told = [guarantee.to_json() for guarantee in found]
    if json_:
        typer.echo(to_json({"privacy": told}, indent=2))
        return
    told_of = "Spent so far" if what.is_dir() else "What a whole run will cost"
    console.print(f"[bold]{told_of}[/bold]")
    show_privacy(told, everything=True, planned=not what.is_dir())


def show_privacy(told: Sequence[Mapping[str, Any]], *, everything: bool = False, planned: bool = False) -> None:
    """One table for parties with the same promises; without `everything`, nothing promised is one line."""
    if not everything and all(one["epsilon"] is None for each in told for one in each["statements"]):
        console.print(_unpromised(told))
        return
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for each in told:
        alike.setdefault(to_json({**each, "party": ""}), []).append(each)
    notes: list[str] = []
    for group in alike.values():
        each = group[0]
        console.print(_table(", ".join(one["party"] for one in group), each, notes))
        if (budget := each["budget"]) is not None:
            spent, most = budget["spent"], budget["epsilon"]
            share = f"more than epsilon {most:g}" if spent is None else f"epsilon {epsilon(spent)} of {most:g}"
            over = planned and (spent is None or spent > most)
            state = f"a whole run needs {share}" if planned else f"{share} is spent"
            console.print(f"  budget: {state}{', so it will stop early' if over else ''} ({budget['relation']})")
        for note in each["notes"]:
            console.print(f"  {note}", markup=False)
    for number, note in enumerate(notes, 1):
        console.print(f"  ({number}) {note}", markup=False)


def _unpromised(told: Sequence[Mapping[str, Any]]) -> str:
    released = {one["release"]: one["mechanism"] for each in told for one in each["releases"]}
    secret, masked = (
        " and ".join(name for name, how in released.items() if how.startswith(begins))
        for begins in (("encrypted", "blinded"), "masked")
    )
    hidden = [f"{secret} crossed encrypted"] * bool(secret) + [f"{masked} crossed under masks"] * bool(masked)
    if not hidden:
        labels = [one["note"] for each in told if each["protects"] == "labels" for one in each["statements"]]
        if labels and all(note == KEPT for note in labels):
            return f"Privacy: every release is plain, so nobody's columns have a guarantee. Of labels, {KEPT}."
        return "Privacy: every release is plain, so nobody's columns or labels have a guarantee."
    return (
        f"Privacy: {', '.join(hidden)}. No release has noise, so nobody's columns or labels have "
        "a guarantee against what is read from the rest."
    )


def _table(parties: str, each: Mapping[str, Any], notes: list[str]) -> Table:
    released = "\n".join(
        f"  {one['release']}: {one['mechanism']}"
        + ("" if one["appearances"] is None else f"; a row at most {times(one['appearances'])}")
        for one in each["releases"]
    )
    title = f"\n[bold]{parties}[/bold]: {each['protects']}\n{released}".rstrip()
    spent = numbers("epsilon", "delta", "note", no_wrap=True)
    table = a_table(title, "against", "neighbours", "accountant", *spent, title_style="")
    for one in each["statements"]:
        if one["note"] and one["note"] not in notes:
            notes.append(one["note"])
        mark = f"({notes.index(one['note']) + 1})" if one["note"] else ""
        delta = f"{one['delta']:g}" if one["epsilon"] is not None else "-"
        table.add_row(one["adversary"], one["relation"], one["accountant"], epsilon(one["epsilon"]), delta, mark)
    return table
