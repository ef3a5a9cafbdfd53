"""`colonnade demo`: organisations find the patients they share, choose partners, train
over columns that stay, and have it all in a report, in under a minute."""

from __future__ import annotations

import json
import shutil
import sys
import time
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.panel import Panel
from rich.table import Table

from colonnade.alignment import REVEALS, Ids, align_here
from colonnade.cli.align import show as show_alignment
from colonnade.cli.console import (
    console,
    error_console,
    numbers,
    progress_of,
    score,
    shown,
    traffic_table,
    typed,
)
from colonnade.cli.report import measure
from colonnade.cli.select import rejected, with_bar
from colonnade.cli.select import show as show_selection
from colonnade.core.files import write_text
from colonnade.errors import ConfigError, InputError
from colonnade.explain import report as explaining
from colonnade.explain.pictures import write as write_explanation
from colonnade.federation import Federation, Settings
from colonnade.report.facts import flows
from colonnade.report.page import write
from colonnade.report.words import size
from colonnade.settings.changes import leave_out

if TYPE_CHECKING:
    import pandas as pd

SPLITS = 5
HELD = 0.93
"""The share of the patients that each organisation knows."""
CHOSEN = "chosen.toml"
SHARED = "shared.csv"


def demo(
    out: Annotated[
        Path, typer.Option(help="Where the demo writes its tables and its run.")
    ] = Path("demo-run"),
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bars.")
    ] = False,
) -> None:
    """Watch organisations align, choose partners and train over columns they never
    share (about half a minute)."""
    import pandas as pd

    frames = write_tables(out)
    console.print(
        Panel(
            "A [bold]clinic[/bold] knows who has breast cancer and ten measurements of"
            " each patient.\n[bold]Two laboratories[/bold] know ten other measurements"
            " each, and a [bold]broker[/bold] has ten columns to sell.\nEach knows"
            " other patients, and none may show its table to another.\nTheir tables"
            f" are in [bold]{shown(out)}[/bold]; federation.toml there says who takes"
            " part.",
            title="The demo",
        )
    )
    everybody = Settings.from_toml(out / "federation.toml")
    run = typed(out / "run")
    file = typed(out / "federation.toml")
    console.print(
        f"\n[b]1. Which patients do they share?[/b]  colonnade align {file}",
        soft_wrap=True,
    )
    start = time.perf_counter()
    ids = {
        name: Ids.of(name, [table["patient"].tolist()])
        for name, table in frames.items()
    }
    aligned = align_here(ids, driver="clinic")
    show_alignment(aligned, time.perf_counter() - start)
    console.print(
        f"\n[b]2. Whose columns are worth having?[/b]  colonnade select {file}"
        " --keep 3",
        soft_wrap=True,
    )
    selection = with_bar(everybody, 3, "vf_ps", quiet=quiet)
    show_selection(selection, everybody)
    if "broker" in selection.level:
        console.print(
            "The broker's columns are in fact random numbers, and so few patients do"
            " not prove it. The demo goes on with the three best."
        )
    text = (out / "federation.toml").read_text(encoding="utf-8")
    write_text(out / CHOSEN, leave_out(text, rejected(selection)))
    console.print(
        f"\n[b]3. Train with those[/b]  colonnade run {typed(out / CHOSEN)}",
        soft_wrap=True,
    )
    federation = Federation.from_settings(Settings.from_toml(out / CHOSEN))
    with progress_of(federation, "training", quiet=quiet) as watch:
        outcome = federation.fit(out / "run", watch=watch)
    pd.DataFrame({"patient": federation.holdings.ids}).to_csv(out / SHARED, index=False)
    console.print(_scores(measure(out / "run", SPLITS, quiet=quiet)))
    console.print(traffic_table(outcome.summary))
    console.print(_learned(federation, out / "run"))
    with error_console.status("Who matters, and the report …") as status:
        if quiet:
            status.stop()
        write_explanation(
            explaining.explain(federation), out / "run" / "explain", pictures=False
        )
        aligned.write(out / "run" / "alignment")
        (out / "run" / "selection").mkdir()
        write_text(
            out / "run" / "selection" / "selection.json",
            json.dumps(selection.to_json(), indent=2) + "\n",
        )
        page = write(out / "run")
    console.print(
        f"\n[b]4. Go on[/b]\n{_activate()}  colonnade predict {run} --rows"
        f" {typed(out / SHARED)}\n  colonnade explain {run}    whose columns matter\n "
        f" colonnade audit {run}      what could be learned from what was sent\n "
        f" colonnade ledger {run}     every tensor that left a party\n  colonnade"
        f" privacy {run}    what is promised (here nothing: no noise)\n  colonnade run"
        f" {file}    after you have changed it\n\nAll of it on one page, to open in a"
        f" browser:\n  [bold]{shown(page.resolve())}[/bold]",
        soft_wrap=True,
        highlight=False,
    )


def _activate() -> str:
    """The line that puts this environment's commands on the path, where they are not."""
    script = Path(sys.prefix, "bin", "activate")
    near = script.is_relative_to(Path.cwd())
    line = f"  source {typed(script.relative_to(Path.cwd()) if near else script)}\n"
    return line if script.exists() and not shutil.which("colonnade") else ""


def write_tables(out: Path) -> dict[str, pd.DataFrame]:
    """Write the four CSV files and the federation file; an earlier demo in the same
    place is replaced."""
    import pandas as pd

    from colonnade.datasets import load

    foreign = (
        out.exists()
        and (not out.is_dir() or any(out.iterdir()))
        and not (out / "lab_north.csv").exists()
    )
    if foreign:
        raise ConfigError(
            f"{out} holds something that is not a demo. Choose another place with"
            " --out."
        )
    shutil.rmtree(out / "run", ignore_errors=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The demo cannot be written to {out}: {error.strerror}."
        ) from None
    source = load("breast_cancer")
    frame = source.train.frame()
    names = list(frame.columns)
    frame.insert(
        0, "patient", [f"P{number:04d}" for number in range(1, len(frame) + 1)]
    )
    diagnosis = [source.classes[number] for number in source.train.y]
    noise = pd.DataFrame(
        np.random.default_rng(7).normal(size=(len(frame), 10)).round(4)
    )
    noise.columns = [f"signal_{number}" for number in range(1, 11)]
    tables = {
        "clinic": frame[["patient", *names[:10]]].assign(diagnosis=diagnosis),
        "lab_north": frame[["patient", *names[10:20]]],
        "lab_south": frame[["patient", *names[20:]]],
        "broker": pd.concat([frame["patient"], noise], axis=1),
    }
    frames = {
        name: table.sample(frac=HELD, random_state=at)
        for at, (name, table) in enumerate(tables.items())
    }
    for name, table in frames.items():
        table.to_csv(out / f"{name}.csv", index=False)
    (out / "federation.toml").write_bytes(
        (files("colonnade.cli") / "demo.toml").read_bytes()
    )
    return frames


def _scores(scores: dict[str, Any]) -> Table:
    """Means over several splits of the patients, since one split's hundred test
    patients decide little."""
    rows = {
        "the clinic alone": scores["alone"]["clinic"],
        "together, nothing moved": scores["joint"],
        "all tables in one place": scores["together"],
    }
    console.print(
        f"\n[italic]On patients that nobody trained on (mean of {SPLITS}"
        " splits)[/italic]"
    )
    table = Table("who trains", *numbers("accuracy", "AUC"))
    for name, splits in rows.items():
        means = [
            fmean(split[metric] for split in splits) for metric in ("accuracy", "auc")
        ]
        table.add_row(
            name,
            *map(score, means),
            style="bold" if name.startswith("together") else "",
        )
    return table


def _learned(federation: Federation, run: Path) -> Table:
    """What each party learned in training; step 1 said what one learns in an alignment,
    there among all four."""
    lines = sorted(
        flows(run, federation.algorithm.reveals | REVEALS),
        key=lambda line: str(line["to"]),
    )
    before = sum(line["bytes"] for line in lines if line["name"] in REVEALS)
    title = "\nWhat each party learned about the others (no raw column ever left)"
    below = (
        f"Before that, {size(before)} crossed to find the patients that these"
        f" {len(federation.organisations)} share: step 1 once more, without whom the"
        " clinic did not choose."
    )
    justified: Any = {"title_justify": "left", "caption_justify": "left"}
    table = Table(
        "party",
        "from",
        "received",
        "which tells",
        title=title,
        caption=below,
        show_lines=True,
        **justified,
    )
    # the same lesson is said once, of all who learned it
    by_lesson: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        if line["name"] not in REVEALS:
            protection = (
                "not protected" if line["protection"] == "plain" else line["protection"]
            )
            received = (
                f"{line['times']} × {line['name']},\n{size(line['bytes'])},"
                f" {protection}"
            )
            by_lesson.setdefault((line["to"], received, line["meaning"]), []).append(
                line["from"]
            )
    parties: dict[tuple[str, ...], list[str]] = {}
    for (party, *rest), sources in by_lesson.items():
        parties.setdefault((", ".join(sorted(sources)), *rest), []).append(party)
    for cells, learners in parties.items():
        table.add_row(", ".join(learners), *cells)
    return table
