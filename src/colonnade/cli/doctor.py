"""`colonnade doctor`: whether this installation works."""

from __future__ import annotations

from dataclasses import asdict

import typer

from colonnade.cli.console import console, error_console, say
from colonnade.cli.options import Json
from colonnade.planning.doctor import Check, examine, healthy
from colonnade.runs.run_directory import to_json

MARKS = {
    "ok": "[green]✓[/green]",
    "failed": "[bold red]✗[/bold red]",
    "absent": "[dim]–[/dim]",
}


def doctor(json_: Json = False) -> None:
    """Check this installation: torch, devices, extras, folders, limits. Exit code 1:
    something required is broken."""
    checks: list[Check] = []
    for check in examine():
        checks.append(check)
        if not json_:
            console.print(f"{MARKS[check.state]} [bold]{check.name}[/bold]  ", end="")
            say(check.found, soft_wrap=True)
            if check.cure:
                say(f"    {check.cure}", soft_wrap=True)
    if json_:
        typer.echo(
            to_json(
                {"healthy": healthy(checks), "checks": list(map(asdict, checks))},
                indent=2,
            )
        )
    elif healthy(checks):
        absent = sum(check.state == "absent" for check in checks)
        broken = sum(check.state == "failed" for check in checks)
        failing = f", and {broken} other thing(s) do not" if broken else ""
        missing = f"; {absent} extras are not installed" if absent else ""
        console.print(f"All that is required works{failing}{missing}.")
    if not healthy(checks):
        if not json_:
            error_console.print(
                "Something that is required does not work: see ✗ above."
            )
        raise typer.Exit(1)
