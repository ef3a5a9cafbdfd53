"""`colonnade run`."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colonnade.algorithms import find
from colonnade.cli.console import (
    a_run,
    console,
    error_console,
    label_owners_table,
    metrics_table,
    progress_of,
    say,
    shown,
    stoppable,
    subsets_table,
    traffic_table,
    typed,
)
from colonnade.cli.options import AllowModel, Engine, Json, Quiet, Seed, Set, StartupKit
from colonnade.cli.privacy import show_privacy
from colonnade.core import Step
from colonnade.errors import BudgetExhausted, ConfigError
from colonnade.evaluate import about_positive
from colonnade.federation import Federation, Settings
from colonnade.federation.soundness import Finding
from colonnade.report.words import always_one, many, unanswered
from colonnade.runs.layout import MARK, SETTINGS
from colonnade.runs.run_directory import RunDirectory, to_json
from colonnade.settings.changes import changes_of
from colonnade.transport.faulty import Distant, Network

if TYPE_CHECKING:  # imported by the few runs that need it
    from colonnade.report.live import Live


def run(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FEDERATION.toml", help="Who takes part, with which data and model."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The run directory; by default a new one under runs/."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run in --out, also to more epochs."
        ),
    ] = False,
    start_from: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Start with the models of this run; tables may have newer rows.",
        ),
    ] = None,
    seed: Seed = None,
    engine: Engine = "in-process",
    startup_kit: StartupKit = None,
    restarts: Annotated[
        int,
        typer.Option(
            min=0,
            help=(
                "With FLARE: go on from the last checkpoint so many times if the run"
                " breaks off."
            ),
        ),
    ] = 0,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Show the report in a browser here while it trains."
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="With --live: the page's port; by default a free one."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help=(
                "Rehearse a network between parties in one process, as in 50ms,100mbit."
            )
        ),
    ] = None,
    set_: Set = None,
    allow_model: AllowModel = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a federation and keep a run directory: settings, metrics, ledgers, every
    party's checkpoint."""
    folder = out or (_latest_folder(file) if resume else _new_folder(file))
    in_process = engine == "in-process"
    at_sites = engine == "flare"
    again = f"{shlex.quote(str(folder / SETTINGS))} --out {shlex.quote(str(folder))}"
    not_together = {
        "--set cannot be used with --engine flare: settings are in the file that all agreed on.": (
            set_ and at_sites
        ),
        "--set cannot change a run that is resumed. One that was started with --set"
        f" has its settings in its own file: colonnade run {again} --resume": (
            set_ and resume
        ),
        "--network rehearses a network in one process, and between sites there is one. Leave it out.": (
            network is not None and not in_process
        ),
        "--restarts is for FLARE, whose jobs end when a site dies. Here use --resume.": (
            restarts and in_process
        ),
        "--from begins a new run on this machine. Leave --resume and --engine out.": (
            start_from is not None and (resume or not in_process)
        ),
        "--startup-kit is for sites elsewhere. Add --engine flare, or leave the kit out.": (
            startup_kit and not at_sites
        ),
        "--seed cannot change a run that is resumed; its own seed is used.": (
            resume and seed is not None
        ),
        "--port is of the page that --live shows. Add --live, or leave --port out.": (
            port is not None and not live
        ),
        "--live shows a run of this machine, and with --engine flare its numbers stay at the sites.": (
            live and at_sites
        ),
    }
    for rule, both_given in not_together.items():
        if both_given:
            raise ConfigError(rule)
    if not resume:
        RunDirectory(folder).check_free()  # before tables are read
    changes = changes_of(set_ or [])
    silent = quiet or json_
    with _live_page(folder, port or 0) if live else contextlib.nullcontext() as page:
        settings = Settings.from_toml(
            file, allow_models=allow_model or [], changes=changes
        )
        if in_process:
            federation = _build(
                settings, folder if resume else None, start_from, network, seed
            )
            begun = str(folder / SETTINGS if changes else file)

            def go_on() -> str:
                again = shlex.join(
                    ["colonnade", "run", begun, "--out", str(folder), "--resume"]
                )
                return (
                    f"Stopped. To go on from the last checkpoint: {again}"
                    if (folder / MARK).exists()
                    else ""
                )

            with stoppable(go_on):
                summary, exhausted = _train(
                    federation, folder, file.stem, page, resume=resume, silent=silent
                )
        else:
            from colonnade.cli.on_flare import run_on_flare

            remote = run_on_flare(
                settings,
                engine,
                folder,
                startup_kit=startup_kit,
                resume=resume,
                seed=seed,
                quiet=silent,
                restarts=restarts,
            )
            if remote is None:
                return
            summary = remote
            exhausted = bool(remote["exhausted"])
        if page is not None:
            page.end(f"Finished: {summary['stopped']}")
        if json_:
            typer.echo(to_json(summary, indent=2))
        elif not quiet:
            show(summary)
            next_ = f"colonnade predict {typed(folder)} --rows FILE"
            console.print(
                f"The run is in [bold]{shown(folder)}[/bold]. Predict with:\n  {next_}",
                soft_wrap=True,
            )
    if exhausted:
        raise BudgetExhausted(str(summary["stopped"]))


def _build(
    settings: Settings,
    resumed: Path | None,
    start_from: Path | None,
    network: str | None,
    seed: int | None,
) -> Federation:
    """The federation in this process: new, with another run's models, or as the run
    that is resumed left it."""
    if resumed is not None:
        if not (resumed / SETTINGS).exists():
            raise ConfigError(
                f"There is no run to resume in {resumed}. Start it without --resume."
            )
        seed = RunDirectory(resumed).settings().engine.seed
    over = None if network is None else Network.parse(network)
    return Federation.from_settings(
        settings,
        seed=seed,
        between=(
            None if over is None else (lambda owner, inner: Distant(owner, inner, over))
        ),
        start_from=None if start_from is None else a_run(start_from),
        resumes=resumed if settings.data.dataset is None else None,
    )


def _train(
    federation: Federation,
    folder: Path,
    name: str,
    page: Live | None,
    *,
    resume: bool,
    silent: bool,
) -> tuple[dict[str, Any], bool]:
    """Train in this process, shown by a bar and a page. Gives the summary, and whether
    a budget ended the run."""
    if page is not None:
        page.expect(len(federation.batches), federation.batches.steps_are)
    with progress_of(federation, name, quiet=silent) as bar:

        def watch(event: Step | dict[str, Any]) -> None:
            bar(event)
            if page is not None:
                page.watch(event)

        if not silent:
            warnings.simplefilter("ignore", Finding)  # the summary has them
        outcome = federation.fit(folder, resume=resume, watch=watch)
    return outcome.summary, outcome.exhausted


@contextlib.contextmanager
def _live_page(folder: Path, port: int) -> Iterator[Live]:
    """Show the report while the run trains. At a terminal it stays until Ctrl-C."""
    # where a run over FLARE is, until its parts are put together
    beside = folder.with_name(f"{folder.name}.flare")

    def folders() -> list[Path]:
        sites = (f"{place}/*/runs/{folder.name}" for place in ("sites", "kits/parties"))
        return [
            folder,
            *(site for pattern in sites for site in sorted(beside.glob(pattern))),
        ]

    from colonnade.report.live import Live

    with Live(folders, port=port) as page:
        error_console.print(
            f"The report, as it comes: {page.address}", highlight=False, soft_wrap=True
        )
        yield page
        if sys.stdout.isatty():
            console.print(
                f"The report stays at {page.address} until you press Ctrl-C.",
                highlight=False,
            )
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    time.sleep(1)
        else:
            page.linger()


def show(summary: dict[str, Any]) -> None:
    """Print a run's summary as tables."""
    if summary["metrics"]:
        console.print(metrics_table(summary))
        if positive := about_positive(summary):
            say(positive)
    else:
        console.print("No rows could be measured.")
    for finding in (*summary.get("findings", []), *summary.get("label_findings", [])):
        console.print(f"[bold red]{shown(finding)}[/bold red]", highlight=False)
    if warned := always_one(summary):
        say(warned)
    if "label_owners" in summary:
        console.print(label_owners_table(summary))
    if summary.get("subsets"):
        console.print(subsets_table(summary))
    console.print(traffic_table(summary))
    for split, why in summary["not_measured"].items():
        console.print(f"The {split} rows were not measured: {shown(why)}.")
    for party, done in unanswered(summary).items():
        console.print(f"{party} did not always answer: {done}.")
    show_privacy(summary["privacy"])
    # there, an epoch is a round
    counted = ("rounds",) if "label_owners" in summary else ("epochs", "rounds")
    trained = "".join(
        f"{many(summary[what], what[:-1])}, " for what in counted if summary[what]
    )
    ended = (
        shown(summary["stopped"].rstrip("."))
        if find(summary["algorithm"]).trains
        else "nothing is trained"
    )
    console.print(
        f"{summary['algorithm']}: {trained}{summary['seconds']:.1f} s; {ended}."
    )


def _new_folder(file: Path) -> Path:
    """The first of runs/NAME, runs/NAME-2, ... that is free."""
    names = (
        Path("runs") / (file.stem if number == 1 else f"{file.stem}-{number}")
        for number in range(1, 10_000)
    )
    return next(path for path in names if not path.exists())


def _latest_folder(file: Path) -> Path:
    name = re.compile(rf"{re.escape(file.stem)}(-\d+)?")
    folders = [
        path.parent
        for path in Path("runs").glob(f"*/{SETTINGS}")
        if name.fullmatch(path.parent.name)
    ]
    return max(
        folders, key=lambda path: path.stat().st_mtime, default=Path("runs") / file.stem
    )
