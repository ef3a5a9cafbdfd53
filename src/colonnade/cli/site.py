"""`colonnade site`: how one organisation's site is, what it did, and to take it out of
work."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import BOLD, a_table, console, numbers, shown
from colonnade.cli.options import Json
from colonnade.errors import ConfigError, PartyError, printable
from colonnade.report.words import size
from colonnade.runs.layout import SITE_LOG
from colonnade.runs.run_directory import to_json
from colonnade.runs.site_state import LOG_FILES, SiteState, drain, prometheus, state_of
from colonnade.settings.party_file import OWN, STARTUP, read_own, runs_of
from colonnade.settings.toml_text import read_toml
from colonnade.sites.keeping import back_up, make_store

SOON = 30
"""Days before a certificate's end in which `status` says how to renew it."""


class Action(StrEnum):
    """What is wanted of a site."""

    init = "init"
    backup = "backup"
    status = "status"
    logs = "logs"
    drain = "drain"
    resume = "resume"
    metrics = "metrics"


def site(
    action: Annotated[
        Action,
        typer.Argument(
            help=(
                "init: make its store, once; nothing else makes one. backup: write a copy"
                " of the store's database to --out. status: its runs, refusals,"
                " certificate. logs: what happened. drain:"
                " take no new runs; what is under "
                "way ends. resume: take them again. metrics: for Prometheus; with"
                " --port as a service, with /health."
            )
        ),
    ],
    file: Annotated[
        Path, typer.Argument(metavar="party.toml", help="This organisation's own file.")
    ] = Path(OWN),
    last: Annotated[int, typer.Option(help="logs: so many lines.", min=1)] = 50,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="logs: go on as lines come, until Ctrl-C."),
    ] = False,
    host: Annotated[
        str, typer.Option(help="metrics: the address to listen at.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(help="metrics: listen here; 0 is any free port.", max=65535),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="backup: the new file.", show_default=False)
    ] = None,
    json_: Json = False,
) -> None:
    """Make an organisation's store, show how its site is, read its log, or drain it
    before a machine is stopped.

    Everything comes from its own files; nothing is asked of anybody, and nothing is
    about rows. The exit code of status is 3 where the site takes no runs now: it is
    draining, its certificate has ended, or its disk is full.
    """
    name = read_toml(file, str(file)).get("name")
    if not isinstance(name, str):
        raise ConfigError(
            f'{file} must have the name of its organisation, as in name = "lab"; found'
            f" {name!r}."
        )
    if action is Action.init:
        _make_store(file)
        return
    if action is Action.backup:
        _back_up(file, out)
        return
    runs = runs_of(file)
    kit = file.resolve().parent.parent / STARTUP
    if action is Action.logs:
        for line in _log(runs / SITE_LOG, last, follow):
            typer.echo(line if json_ else _readable(line))
    elif action in (Action.drain, Action.resume):
        drain(runs, action is Action.drain)
        took = (
            "takes no new runs and predictions; what is under way ends"
            if action is Action.drain
            else "takes runs"
        )
        console.print(f"'{name}' {took}.")
    elif action is Action.metrics and port is None:
        typer.echo(prometheus(state_of(name, runs, kit)), nl=False)
    elif action is Action.metrics:
        _listen(name, runs, kit, host, port or 0)
    else:
        state = state_of(name, runs, kit)
        (
            typer.echo(to_json(asdict(state) | {"healthy": state.healthy}, indent=2))
            if json_
            else _show(state)
        )
        # for who asks by exit code, as a container's health check does
        if not state.healthy:
            raise typer.Exit(PartyError.exit_code)


def _make_store(file: Path) -> None:
    own = read_own(file)
    column = make_store(own)
    console.print(
        f"'{own.name}' has a store in {own.runs}, and counts people by its column"
        f" '{column}' for good. Keep the folder and its anchor beside it: what its rows"
        " were released with is there.",
        highlight=False,
    )


def _back_up(file: Path, out: Path | None) -> None:
    if out is None:
        raise ConfigError("backup needs the name of the new file: --out FILE.")
    own = read_own(file)
    witness = back_up(own, out)
    console.print(
        f"{out} has the store of '{own.name}' up to entry {witness.serial}. What is"
        " released later is not in it: put back by `colonnade privacy --recover"
        " --backup`, it charges everybody for that.",
        highlight=False,
    )


def _show(state: SiteState) -> None:
    console.print(
        f"[bold]{shown(state.name)}[/bold]:"
        f" {'ready' if state.healthy else 'takes no runs now'}"
    )
    if state.draining:
        console.print(
            "It is draining: what is under way ends, and nothing new begins. Back:"
            " colonnade site resume."
        )
    if state.certificate_days is not None:
        ends = (
            f"ends in {state.certificate_days:.0f} days"
            if state.certificate_days > 0
            else "has ended"
        )
        cure = (
            " Who holds state/ renews it: colonnade provision --state state --renew"
            " NAME."
        )
        console.print(
            f"Its certificate {ends}.{cure if state.certificate_days < SOON else ''}"
        )
    if state.serving:
        console.print(f"It answers HTTP requests at {shown(state.serving)}.")
    console.print(
        f"Refused calls in the last day: {state.refused:,}. Free on disk:"
        f" {size(state.disk_free)}."
    )
    if state.failure:
        console.print(
            f"[yellow]The last run ended with:[/yellow] {shown(state.failure)}"
        )
    table = a_table(
        "Runs",
        "run",
        "begun",
        "state",
        *numbers("checkpoint", "on disk"),
        title_style=BOLD,
    )
    for run in state.runs:
        table.add_row(
            run.name, run.begun, run.state, str(run.checkpoint), size(run.bytes)
        )
    console.print(table if state.runs else "There was no run yet.")


def _log(path: Path, last: int, follow: bool) -> Iterator[str]:
    """The last lines, also from files that were rotated away; then, with `follow`, new
    ones as they come."""
    older = [
        path.with_name(f"{path.name}.{number}") for number in range(LOG_FILES, 0, -1)
    ]
    lines = [line for file in older for line in _lines_after(0, file)[0]]
    newest, position = _lines_after(0, path)
    yield from [*lines, *newest][-last:]
    while follow:
        time.sleep(0.5)
        lines, position = _lines_after(position, path)
        yield from lines


def _lines_after(position: int, path: Path) -> tuple[list[str], int]:
    """The lines from this byte on, and where they end; all lines, if the file was
    rotated away and is shorter now."""
    try:
        with path.open("rb") as file:
            file.seek(position if position <= file.seek(0, os.SEEK_END) else 0)
            return file.read().decode("utf-8", "replace").splitlines(), file.tell()
    except FileNotFoundError:
        return [], 0


def _readable(line: str) -> str:
    try:
        event = json.loads(line)
        # an event is one line, whatever it quotes
        text = printable(str(event["what"])).replace("\n", " ")
        return f"{event['time']} {event['level']:<8}{text}" + (
            f" ({event['error']})" if "error" in event else ""
        )
    except (ValueError, KeyError, TypeError):
        return printable(line)


def _listen(name: str, runs: Path, kit: Path, host: str, port: int) -> None:
    """Answer /health and /metrics until Ctrl-C."""

    class Answer(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            state = state_of(name, runs, kit)
            text = {
                "/metrics": prometheus(state),
                "/health": "ok\n" if state.healthy else "no\n",
            }.get(self.path)
            code = (
                404
                if text is None
                else 503
                if self.path == "/health" and not state.healthy
                else 200
            )
            body = (text or "There is /health and /metrics.\n").encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    with ThreadingHTTPServer((host, port), Answer) as server:
        console.print(
            f"Listening at http://{host}:{server.server_port}/metrics and /health."
            " Ctrl-C ends it."
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
