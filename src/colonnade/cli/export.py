"""`colonnade export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import a_run, console, shown
from colonnade.cli.options import AllowModel
from colonnade.export import export as write


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run.")],
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for the pieces; by default DIR/export."),
    ] = None,
    party: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this organisation's piece.")
    ] = None,
    allow_model: AllowModel = None,
) -> None:
    """Write each organisation's piece of the model, to run without Colonnade, with a
    model card."""
    for piece in write(a_run(folder), out, party, allow_models=allow_model or []):
        console.print(
            f"[bold]{shown(piece)}[/bold]: for '{piece.name}' alone; README.md says how"
            " to run it.",
            soft_wrap=True,
        )
