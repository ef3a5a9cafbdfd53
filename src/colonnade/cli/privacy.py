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
from colonnade.privacy.report import describe
from colonnade.report.words import epsilon, times
from colonnade.runs.run_directory import RunDirectory, to_json
from colonnade.settings.party_file import read_own
from colonnade.store import Witness


def privacy(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|FEDERATION.toml|party.toml",
            help=(
                "A run, or a file that is not run yet; with --recover and --exhaust"
                " this organisation's own file."
            ),
        ),
    ],
    allow_model: AllowModel = None,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover",
            help=(
                "Let the organisation's store go on after a loss: everybody is charged"
                " for the releases that are missing, by the dearest rule."
            ),
        ),
    ] = False,
    backup: Annotated[
        Path | None,
        typer.Option(help="recover: go on from this copy.", show_default=False),
    ] = None,
    witness: Annotated[
        list[Path] | None,
        typer.Option(
            help="recover: a file with what another party kept; again for more.",
            show_default=False,
        ),
    ] = None,
    missing: Annotated[
        int | None,
        typer.Option(
            help=(
                "recover: how many releases of one person may be missing, where nobody"
                " has a witness."
            ),
            min=0,
            show_default=False,
        ),
    ] = None,
    new_key: Annotated[
        bool,
        typer.Option("--new-key", help="recover: make another key; the old is lost."),
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust-witnesses",
            help="recover: take witnesses though the key that signed them is lost.",
        ),
    ] = False,
    exhaust_: Annotated[
        str | None,
        typer.Option(
            "--exhaust",
            metavar="WHY",
            help="Release none of its rows any more that a budget covers.",
            show_default=False,
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Show what a run has cost each party's privacy, or what a federation file will
    cost; nothing is sent.

    With --recover or --exhaust and an organisation's own party.toml, care for the store
    that its budget is counted in.
    """
    if recover:
        _recover(path, backup, witness or [], missing, new_key=new_key, trust=trust)
        return
    if exhaust_ is not None:
        own = read_own(path)
        from colonnade.sites.keeping import exhaust  # sites take long to import

        exhaust(own, exhaust_)
        console.print(
            f"'{own.name}' releases none of its rows any more under a budget."
        )
        return
    if not path.exists():
        raise ConfigError(f"{path} is neither a run directory nor a federation file.")
    if path.is_dir():
        guarantees = of_run(RunDirectory(a_run(path)))
    else:
        guarantees = plan(Federation.from_toml(path, allow_models=allow_model or []))
    promises = [guarantee.to_json() for guarantee in guarantees]
    if json_:
        typer.echo(to_json({"privacy": promises}, indent=2))
        return
    heading = "Spent so far" if path.is_dir() else "What a whole run will cost"
    console.print(f"[bold]{heading}[/bold]")
    show_privacy(promises, everything=True, planned=not path.is_dir())


def _recover(
    file: Path,
    backup: Path | None,
    witnesses: Sequence[Path],
    missing: int | None,
    *,
    new_key: bool,
    trust: bool,
) -> None:
    own = read_own(file)
    shown = [Witness.from_text(one.read_text(encoding="utf-8")) for one in witnesses]
    from colonnade.sites.keeping import recover_store  # sites take long to import

    recovery, event = recover_store(
        own,
        backup=backup,
        witnesses=shown,
        missing=missing,
        new_key=new_key,
        trust_unsigned=trust,
    )
    cost = describe(event)
    console.print(
        f"The store of '{own.name}' goes on from entry {recovery.kept};"
        f" {recovery.lost} entries are missing. Everybody is charged"
        f" {recovery.charged} releases more ({cost}). The files as they were found are"
        f" in {recovery.set_aside}.",
        highlight=False,
    )


def show_privacy(
    promises: Sequence[Mapping[str, Any]],
    *,
    everything: bool = False,
    planned: bool = False,
) -> None:
    """Print a table per group with the same promises; where nothing is promised one
    line, unless `everything`."""
    statements = [
        statement for promise in promises for statement in promise["statements"]
    ]
    if not everything and all(statement["epsilon"] is None for statement in statements):
        console.print(_unpromised(promises))
        return
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for promise in promises:
        groups.setdefault(to_json({**promise, "party": ""}), []).append(promise)
    notes: list[str] = []
    for group in groups.values():
        promise = group[0]
        console.print(
            _table(", ".join(member["party"] for member in group), promise, notes)
        )
        if (budget := promise["budget"]) is not None:
            spent = budget["spent"]
            most = budget["epsilon"]
            share = (
                f"more than epsilon {most:g}"
                if spent is None
                else f"epsilon {epsilon(spent)} of {most:g}"
            )
            over = planned and (spent is None or spent > most)
            state = f"a whole run needs {share}" if planned else f"{share} is spent"
            console.print(
                f"  budget: {state}{', so it will stop early' if over else ''}"
                f" ({budget['relation']})"
            )
        for note in promise["notes"]:
            console.print(f"  {note}", markup=False)
    for number, note in enumerate(notes, 1):
        console.print(f"  ({number}) {note}", markup=False)


def _unpromised(promises: Sequence[Mapping[str, Any]]) -> str:
    released = {
        release["release"]: release["mechanism"]
        for promise in promises
        for release in promise["releases"]
    }
    secret, masked = (
        " and ".join(name for name, how in released.items() if how.startswith(begins))
        for begins in (("encrypted", "blinded"), "masked")
    )
    hidden = [f"{secret} crossed encrypted"] * bool(secret) + [
        f"{masked} crossed under masks"
    ] * bool(masked)
    if not hidden:
        of_labels = [
            promise["statements"]
            for promise in promises
            if promise["protects"] == "labels"
        ]
        if {
            statement["note"] for statements in of_labels for statement in statements
        } == {KEPT}:
            return (
                "Privacy: every release is plain, so nobody's columns have a"
                f" guarantee. Of labels, {KEPT}."
            )
        return (
            "Privacy: every release is plain, so nobody's columns or labels have a"
            " guarantee."
        )
    return (
        f"Privacy: {', '.join(hidden)}. No release has noise, so nobody's columns or"
        " labels have a guarantee against what is read from the rest."
    )


def _table(parties: str, promise: Mapping[str, Any], notes: list[str]) -> Table:
    released = "\n".join(
        f"  {release['release']}: {release['mechanism']}"
        + (
            ""
            if release["appearances"] is None
            else f"; a row at most {times(release['appearances'])}"
        )
        for release in promise["releases"]
    )
    title = f"\n[bold]{parties}[/bold]: {promise['protects']}\n{released}".rstrip()
    spent = numbers("epsilon", "delta", "note", no_wrap=True)
    table = a_table(
        title, "against", "neighbours", "accountant", *spent, title_style=""
    )
    for statement in promise["statements"]:
        if statement["note"] and statement["note"] not in notes:
            notes.append(statement["note"])
        mark = f"({notes.index(statement['note']) + 1})" if statement["note"] else ""
        delta = f"{statement['delta']:g}" if statement["epsilon"] is not None else "-"
        words = (statement[key] for key in ("adversary", "relation", "accountant"))
        table.add_row(*words, epsilon(statement["epsilon"]), delta, mark)
    return table
