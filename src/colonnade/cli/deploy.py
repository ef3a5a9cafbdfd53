"""`colonnade provision`, `colonnade party check`, and `colonnade run --engine flare-sim | flare-poc | flare`."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from colonnade.algorithms import find
from colonnade.cli.console import console, error_console
from colonnade.errors import ColonnadeError, ConfigError
from colonnade.federation import Settings
from colonnade.federation.flare import simulate
from colonnade.federation.flare_sites import deploy, on_this_machine
from colonnade.federation.guarantees import crossing
from colonnade.federation.member import rehearse
from colonnade.federation.party_file import OWN, driver_of, read_own
from colonnade.federation.provision import provision as make_kits

ENGINES = ("in-process", "flare-sim", "flare-poc", "flare")


class Action(StrEnum):
    """What one organisation does by itself."""

    check = "check"


def provision(
    file: Annotated[
        Path, typer.Argument(metavar="FEDERATION.toml", help="What all agreed on, with the parties' names.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for the startup kits.")],
    server: Annotated[str, typer.Option(help="The relay's host name, as all sites can reach it.")] = "localhost",
    port: Annotated[int, typer.Option(help="The relay's port for sites.")] = 8002,
    admin_port: Annotated[int, typer.Option(help="The relay's port for the lead.")] = 8003,
) -> None:
    """Make a startup kit per organisation, with certificates for mutual TLS, and the agreed file in each."""
    settings = Settings.from_toml(file)
    make_kits(settings, out, server=server, port=port, admin_port=admin_port)
    table = Table(title=f"Startup kits in {out}", title_justify="left", title_style="bold not italic")
    for heading in ("folder", "for"):
        table.add_column(heading)
    driver = driver_of(settings)
    table.add_row("relay/", f"the machine {server}, which relays calls it cannot read")
    for name in settings.parties:
        table.add_row(f"parties/{name}/", f"'{name}'" + (", who holds the labels and drives" if name == driver else ""))
    table.add_row("lead/", f"whoever starts runs, at '{driver}'")
    table.add_row("state/", "nobody: the key that signs certificates. Keep it offline")
    console.print(table)
    console.print(f"Send each kit to its organisation alone. There: edit local/{OWN}, then `colonnade party check`.")


def party(
    action: Annotated[Action, typer.Argument(help="check: this organisation's own file, table and rules.")],  # noqa: ARG001
    file: Annotated[Path, typer.Argument(metavar="party.toml", help="This organisation's own file.")] = Path(OWN),
) -> None:
    """Check what one organisation brings against what all agreed on; nothing is sent."""
    own = read_own(file)
    holdings, seat = rehearse(own)
    features = holdings.parties[own.name].features
    columns = 0 if features is None else features[0].numel()
    console.print(f"[bold]{own.name}[/bold]: {len(holdings.ids):,} rows, {columns} numbers a row after preparation.")
    console.print(f"Agreed with {', '.join(repr(n) for n in own.names if n != own.name)}: {own.agreed}")
    told = "it drives, and asks the others" if own.drives else f"only '{own.driver}' may ask it"
    console.print(f"'{own.driver}' holds the labels; {told}.")
    table = Table(title="What may leave", title_justify="left", title_style="bold not italic")
    for heading in ("release", "mechanism", "codec", "tells"):
        table.add_column(heading)
    algorithm = find(own.settings.algorithm)
    columns_of, driven = crossing(algorithm, own.settings.config)
    for name in driven if own.drives else columns_of:
        rule = seat.outbox.rule(name)
        table.add_row(name, repr(rule.mechanism), rule.codec.name, algorithm.REVEALS[name])
    console.print(table)
    budget = own.settings.parties[own.name].limit(own.name)
    console.print(f"Budget: {budget}" if budget else "No budget: what its rules let through, they let through always.")


def run_on_flare(
    file: Path,
    engine: str,
    out: Path,
    *,
    startup_kit: Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    quiet: bool = False,
) -> dict[str, Any] | None:
    """Train over FLARE. Gives the summary, with "exhausted", where all organisations are on this machine; None where
    results stay with the sites."""
    settings = Settings.from_toml(file)
    if seed is not None:
        settings = replace(settings, engine=replace(settings.engine, seed=seed))
    if engine == "flare":
        if startup_kit is None:
            raise ConfigError("--engine flare needs --startup-kit DIR, the kit of the lead (`colonnade provision`).")
        ended = deploy(settings, startup_kit, out.name, resume=resume)
        if ended != "FINISHED:COMPLETED":
            raise ColonnadeError(
                f"The run ended as {ended}. Why is in {driver_of(settings)}'s own runs/failed.json, at its site."
            )
        console.print(f"Done. Each organisation has its part in its own runs/{out.name}; metrics are with the driver.")
        return None
    if engine not in ENGINES:
        raise ConfigError(f"--engine must be one of {', '.join(ENGINES)}; found {engine!r}.")
    work = out.with_name(f"{out.name}.flare")
    if not resume and (work.exists() or out.exists()):
        raise ConfigError(f"{work if work.exists() else out} is there already. Choose another --out, or --resume.")
    work.mkdir(parents=True, exist_ok=True)
    if engine == "flare-sim" and not quiet:
        error_console.print("In FLARE's simulator sites have no certificates: calls are not encrypted end to end.")
    started = time.perf_counter()

    def watch(record: dict[str, Any]) -> None:
        if not quiet:
            scores = "".join(f"  {k} {v:.4f}" for k, v in record.get("validation", {}).items() if k != "loss")
            error_console.print(f"epoch {record['epoch']}  loss {record['loss']:.4f}{scores}")

    train = simulate if engine == "flare-sim" else on_this_machine
    summary = train(_with_names(settings), work, out, resume=resume, watch=watch)
    if not quiet:
        whole = time.perf_counter() - started
        error_console.print(f"{summary['seconds']:.1f} s of training; {whole:.0f} s with FLARE's start and end.")
    return summary


def _with_names(settings: Settings) -> Settings:
    """A named data set is cut into parties that the file need not name; sites must have names."""
    if settings.data.dataset is None:
        return settings
    from colonnade.federation.holdings import from_dataset
    from colonnade.federation.settings import PartySettings

    names = from_dataset(settings).parties
    return replace(settings, parties={name: settings.parties.get(name, PartySettings()) for name in names})
