"""`colonnade serve`."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.cli.console import a_run, say
from colonnade.cli.options import (
    VARIABLE,
    AllowModel,
    Engine,
    Model,
    Owner,
    StartupKit,
    Table,
    check_asker,
    overrides,
    say_how,
)
from colonnade.errors import ConfigError
from colonnade.runs.run_directory import RunDirectory
from colonnade.serving.listening import (
    check_reach,
    checked_token,
    listen,
    token_in,
    url_of,
)


def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    host: Annotated[
        str,
        typer.Option(help="Where to listen; other than this machine needs a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0 takes a free one.")
    ] = 8080,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"Callers must send what is in it; or set {VARIABLE}."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="ROWS", help="Rows per request.")
    ] = 1000,
    rate: Annotated[
        float,
        typer.Option(
            min=0, help="Requests per second, of all callers together; 0: any."
        ),
    ] = 0,
    connections: Annotated[
        int, typer.Option(min=0, help="That one address may hold; 0: any.")
    ] = 256,
    cache: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Answer a row again from memory for so long; 0: never.",
        ),
    ] = 60,
    window: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="MS",
            help="Ask for requests that come within so long together; 0: each alone.",
        ),
    ] = 5,
    name_missing: Annotated[
        bool,
        typer.Option(
            "--name-missing",
            help="Tell callers which ids cannot be predicted, and predict the others.",
        ),
    ] = False,
    proxy: Annotated[
        bool,
        typer.Option(
            "--proxy",
            help=(
                "A proxy on this machine says whose address a request is from"
                " (X-Forwarded-For)."
            ),
        ),
    ] = False,
    table: Table = None,
    owner: Owner = None,
    model: Model = None,
    engine: Engine = "in-process",
    startup_kit: StartupKit = None,
    allow_model: AllowModel = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Log warnings only.")
    ] = False,
) -> None:
    """Predict over HTTP, at the label owner: a service that asks the parties for the
    rows of given ids.

    curl -s localhost:8080/predict -H 'Content-Type: application/json' -d '{"ids":
    ["17", "23"]}'

    GET /health and /metrics (Prometheus) say how it is, GET /openapi.json what it
    takes.

    Tables are read again when their files change. A row answered from memory costs no
    budget.

    No id, label or score is ever logged. SIGTERM lets requests under way finish.

    With --engine flare the label owner's site listens, as \\[serve] in its party.toml
    says, until this command ends.
    """
    options: dict[str, Any] = {"host": host, "port": port, "limit": limit, "rate": rate}
    options |= {"connections": connections, "cache": cache, "window": window}
    options |= {"name_missing": name_missing, "proxy": proxy}
    options |= {} if token_file is None else {"token_file": str(token_file.resolve())}
    if engine != "in-process":
        if table:
            raise ConfigError(
                "--table is for --engine in-process; with FLARE a site has its own."
            )
        from colonnade.cli.on_flare import serve_on_flare

        serve_on_flare(
            folder,
            engine,
            options,
            startup_kit=startup_kit,
            owner=owner,
            model=model,
            quiet=quiet,
        )
        return
    from colonnade.serving import service
    from colonnade.serving.batcher import Batcher
    from colonnade.serving.limits import Limits
    from colonnade.serving.source import Source

    settings = RunDirectory(a_run(folder)).settings()
    check_asker(settings, owner, model)
    token = None
    if token_file is not None:
        token = token_in(token_file, f"--token-file {token_file}")
    elif VARIABLE in os.environ:
        token = checked_token(os.environ[VARIABLE], VARIABLE)
    check_reach(host, token, f"--host {host}", "give --token-file token.txt")
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING
    )
    logging.getLogger("colonnade.serving").setLevel(
        logging.WARNING if quiet else logging.INFO
    )
    with listen(host, port, f"--host {host} --port {port}") as listener:
        tables = overrides(table or [], settings.parties)
        source = Source(
            folder,
            owner=owner,
            model=model,
            tables=tables,
            allow_models=allow_model or [],
        )
        batcher = Batcher(
            source, window=window / 1000, cache=cache, name_missing=name_missing
        )
        url = url_of(listener)
        rows = f"{len(source.index):,} rows with {', '.join(source.parties)}"
        say(f"{source.label_owner} predicts {rows} at {url}", soft_wrap=True)
        if not quiet:
            say_how(url, token=token is not None)
        limits = Limits(limit, rate, token, connections=connections, proxy=proxy)
        service.serve(batcher, limits, listener)
