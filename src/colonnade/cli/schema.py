"""`colonnade schema`: the JSON Schema of the files that people write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from colonnade.errors import check_named
from colonnade.settings.json_schema import schema_of_federation, schema_of_party

SCHEMAS = {"federation": schema_of_federation, "party": schema_of_party}


def schema(
    file: Annotated[
        str,
        typer.Argument(metavar="[federation|party]", help="Of which file."),
    ] = "federation",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write it to this file, in place of the terminal."),
    ] = None,
) -> None:
    """Write the JSON Schema of federation.toml or party.toml, with which an editor
    completes and checks the file."""
    check_named("file", file, list(SCHEMAS))
    text = json.dumps(SCHEMAS[file](), indent=2, ensure_ascii=False)
    if out is None:
        typer.echo(text)
    else:
        out.write_text(text + "\n", encoding="utf-8")
