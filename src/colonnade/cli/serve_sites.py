"""`colonnade serve RUN --engine flare-sim | flare-poc | flare`: the label owner's site listens."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from colonnade.cli.console import console
from colonnade.cli.deploy import DONE, ENGINES, agreed_in, rehearsed, waiting, why_at
from colonnade.cli.options import VARIABLE, check_several, say_how
from colonnade.errors import ColonnadeError, ConfigError
from colonnade.flare.deployed import deploy, serve_on_this_machine
from colonnade.flare.job import simulate_service
from colonnade.runs.layout import ANSWERS
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import OWN, asker_of, write_serve
from colonnade.settings.serving import ServeSettings


def serve_on_flare(
    folder: Path,
    engine: str,
    own: Mapping[str, Any],
    *,
    startup_kit: Path | None = None,
    owner: str | None = None,
    model: str | None = None,
    quiet: bool = False,
) -> None:
    """Serve the run called as `folder` is, until SIGTERM or SIGINT. A job says which run, and nothing of `own`: where
    all organisations are on this machine, that goes into the label owner's own file first."""
    if engine not in ENGINES[1:]:
        raise ConfigError(f"--engine must be one of {', '.join(ENGINES)}; found {engine!r}.")
    if engine == "flare":
        _on_sites(folder.name, own, startup_kit, owner, model)
        return
    if VARIABLE in os.environ and "token_file" not in own:
        raise ConfigError(f"{VARIABLE} is set, and a site takes its token from a file alone. Give --token-file FILE.")
    work, settings = rehearsed(folder, engine), RunDirectory(folder).settings()
    check_several(settings, owner, model)
    driver = asker_of(settings, owner)
    local = work / "sites" / driver if engine == "flare-sim" else work / "kits" / "parties" / driver / "local"
    write_serve(local / OWN, own)

    def told(record: dict[str, Any]) -> None:
        text = f"{driver} predicts with {', '.join(record['parties'])} at {record['url']}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        if not quiet:
            say_how(record["url"], token=record["token"])

    with _until_told():
        serve = simulate_service if engine == "flare-sim" else serve_on_this_machine
        serve(settings, work, folder.name, told, owner=owner, model=model or "")


def _on_sites(run: str, own: Mapping[str, Any], startup_kit: Path | None, owner: str | None, model: str | None) -> None:
    defaults = asdict(ServeSettings())
    for key, value in own.items():
        if value != defaults[key]:
            option = f"--{key.replace('_', '-')}"
            raise ConfigError(
                f"{option} is no part of a job: with --engine flare the label owner's site listens as [serve] in its "
                f"own {OWN} says. Set {key} there."
            )
    settings = agreed_in(startup_kit)
    check_several(settings, owner, model)
    driver = asker_of(settings, owner)
    with _until_told():
        console.print(f"'{driver}' listens as its own {OWN} says; its runs/{run}/{ANSWERS} says where. Ctrl-C ends it.")
        assert startup_kit is not None
        ended = deploy(settings, startup_kit, run, serve=True, owner=owner, model=model or "", say=waiting)
        if ended != DONE:
            raise ColonnadeError(f"It ended as {ended}. {why_at(driver)}")
        console.print(f"'{driver}' has ended it.")


@contextmanager
def _until_told() -> Iterator[None]:
    """SIGTERM ends it as SIGINT does, and neither is an error."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        console.print("Ended.")
    finally:
        signal.signal(signal.SIGTERM, before)
