"""`colonnade serve`."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import a_run, console
from colonnade.cli.predict import Model, Owner, Table, check_several, overrides
from colonnade.errors import ConfigError
from colonnade.federation.run_directory import RunDirectory

VARIABLE = "COLONNADE_TOKEN"
SHORTEST = 16
"""Characters of a token."""


def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    host: Annotated[str, typer.Option(help="Where to listen; other than this machine needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Callers must send what is in it; or set {VARIABLE}.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="ROWS", help="Rows per request.")] = 1000,
    rate: Annotated[float, typer.Option(min=0, help="Requests per second, of all callers together; 0: any.")] = 0,
    cache: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Answer a row again from memory for so long; 0: never.")
    ] = 60,
    window: Annotated[
        float,
        typer.Option(min=0, metavar="MS", help="Ask for requests that come within so long together; 0: each alone."),
    ] = 5,
    table: Table = None,
    owner: Owner = None,
    model: Model = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings only.")] = False,
) -> None:
    """Predict over HTTP, at the label owner: a service that asks the parties for the rows of given ids.

    curl -s localhost:8080/predict -H 'Content-Type: application/json' -d '{"ids": ["17", "23"]}'

    GET /health and /metrics (Prometheus) say how it is, GET /openapi.json what it takes.

    Tables are read again when their files change. A row answered from memory costs no budget.

    No id, label or score is ever logged. SIGTERM lets requests under way finish.
    """
    from colonnade.serving import service
    from colonnade.serving.desk import Desk
    from colonnade.serving.limits import Limits
    from colonnade.serving.source import Source

    service.needed()
    settings = RunDirectory(a_run(folder)).settings()
    check_several(settings, owner, model)
    token = _token(token_file)
    if token is None and not _loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, and there is no token. Make one with openssl rand -hex "
            "32 > token.txt and give --token-file token.txt; put something that speaks TLS in front."
        )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("colonnade.serving").setLevel(logging.WARNING if quiet else logging.INFO)
    with _listen(host, port) as listener:
        source = Source(folder, owner=owner, model=model, tables=overrides(table or [], settings.parties))
        desk = Desk(source, window=window / 1000, cache=cache)
        where, at = listener.getsockname()[:2]
        url = f"http://[{where}]:{at}" if ":" in where else f"http://{where}:{at}"
        console.print(
            f"{source.label_owner} predicts {len(source.index):,} rows with {', '.join(source.parties)} at {url}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        if not quiet:
            bearer = " -H 'Authorization: Bearer TOKEN'" if token else ""
            body = '{"ids": ["ID"]}'
            line = f"curl -s {url}/predict -H 'Content-Type: application/json'{bearer} -d '{body}'"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        service.serve(desk, Limits(limit, rate, token), listener)


def _token(file: Path | None) -> str | None:
    """From the file or the environment; none where neither says one."""
    if file is None:
        token, where = os.environ.get(VARIABLE), VARIABLE
        if token is None:
            return None
    else:
        where = f"--token-file {file}"
        try:
            token = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where} cannot be read ({type(error).__name__}).") from None
    token = token.strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{where} must hold one word of at least {SHORTEST} ASCII characters; found {len(token)}. "
            "Make one: openssl rand -hex 32."
        )
    return token


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port} cannot be listened on: {error.strerror or error}. Choose another."
        ) from None
