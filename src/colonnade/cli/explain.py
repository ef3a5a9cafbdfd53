"""`colonnade explain`."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from colonnade.cli.console import (
    a_bar,
    a_run,
    a_table,
    console,
    error_console,
    numbers,
    say,
    shown,
)
from colonnade.cli.options import AllowModel, Engine, Json, Owner, Quiet, StartupKit
from colonnade.core import Step
from colonnade.errors import ConfigError
from colonnade.evaluate import metric
from colonnade.explain import importance, report
from colonnade.explain.experiments import Watch
from colonnade.explain.importance import HEADS, MEASURES
from colonnade.explain.pictures import prepare, write
from colonnade.federation import Federation, load
from colonnade.report.words import seconds
from colonnade.runs.layout import EXPLANATION
from colonnade.runs.run_directory import RunDirectory


def explain(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    retrain: Annotated[
        bool,
        typer.Option(
            "--retrain",
            help=(
                "Also train again: without each party, with noise at one, with a few of"
                " them."
            ),
        ),
    ] = False,
    noise: Annotated[
        float,
        typer.Option(help="Sigma of the noise on one party's test columns at a time."),
    ] = 3.0,
    train_noise: Annotated[
        float, typer.Option(help="With --retrain: sigma of the noise to train with.")
    ] = 1.0,
    noisy: Annotated[
        str | None,
        typer.Option(
            metavar="PARTY",
            help="With --retrain: who gets it; the most important unless said.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="MEASURE", help=f"Ranked by: {', '.join(report.RANKING)}."
        ),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=3, help="Use a sample of so many test rows.")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**63 - 1, help="Of permutations, noise, samples and t-SNE."
        ),
    ] = 0,
    owner: Owner = None,
    engine: Engine = "in-process",
    startup_kit: StartupKit = None,
    out: Annotated[
        Path | None, typer.Option(help="Where files go; DIR/explain unless said.")
    ] = None,
    allow_model: AllowModel = None,
    draw: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Whether to draw.")
    ] = True,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Which parties matter in a trained federation: head norms, and checks that agree
    with them or do not.

    Between machines each partner is asked once for its held-out rows; --retrain and
    noise are for one process.
    """
    _check(noise, "--noise")
    _check(train_noise, "--train-noise")
    place = out or folder / "explain"
    if engine != "in-process":
        from colonnade.cli.on_flare import with_a_run

        if retrain or noisy is not None:
            raise ConfigError(
                "--retrain and --noisy train again with all columns in one process,"
                f" not on {engine}."
            )
        if out is not None:
            prepare(out)
        options = {
            key: value
            for key, value in {"rows": rows, "seed": seed, "by": by}.items()
            if value is not None
        }
        results = with_a_run(
            folder, engine, startup_kit, owner, "explain", options, EXPLANATION
        )
        if results is None:
            return
        result = report.Report.from_json(
            (results / "explain.json").read_text(encoding="utf-8")
        )
        if result.tsne is not None:
            result.tsne = json.loads(
                (results / "tsne.json").read_text(encoding="utf-8")
            )
        files = write(result, place, pictures=draw)
    else:
        federation = load(a_run(folder), allow_models=allow_model or [])
        if noisy is not None and not retrain:
            raise ConfigError(
                "--noisy is of the noise to train with. Add --retrain, or leave --noisy"
                " out."
            )
        if noisy is not None and noisy not in federation.owners:
            raise ConfigError(
                f"--noisy names one of {', '.join(federation.owners)}; found {noisy!r}."
            )
        prepare(place)
        if owner is not None:
            federation.owner_named(owner)
        if retrain:
            federation.settings.check_one_label_owner("Explain it without --retrain.")
        result = report.explain(
            federation, noise=noise, rows=rows, seed=seed, by=by, owner=owner
        )
        files = write(result, place, pictures=draw)
        if retrain:  # what is known already is kept, whatever comes of training
            with a_bar(MofNCompleteColumn(), quiet=quiet or json_) as bar:
                watch_training = partial(_training_bar, bar, federation, folder)
                result = report.retrain(
                    federation,
                    result,
                    noise=train_noise,
                    noisy=noisy,
                    begin=watch_training,
                )
            files = write(result, place, pictures=draw)
    if json_:
        typer.echo(report.summary_of(result).to_json(), nl=False)
    elif not quiet:
        _show(result, place, files)


def _check(sigma: float, option: str) -> None:
    if not (math.isfinite(sigma) and sigma >= 0):
        raise ConfigError(
            f"{option} must be a number that is not negative; found {sigma}."
        )


def _training_bar(
    bar: Progress, federation: Federation, folder: Path, trainings: int
) -> Watch:
    """Say how many trainings follow and how long they take; give what moves a bar over
    all their batches."""
    if not bar.disable:
        error_console.print(
            f"Training again {trainings} times{_expected_time(folder, trainings)}."
        )
    per_training = len(federation.batches)
    task = bar.add_task("training", total=trainings * per_training, now="")
    trainings_begun = 0

    def watch(title: str, event: Step | dict[str, Any]) -> None:
        nonlocal trainings_begun
        if isinstance(event, Step):
            trainings_begun += event.batch.step == 0
            # a training may stop early
            done = (trainings_begun - 1) * per_training + event.batch.step + 1
            bar.update(task, completed=done, now=f"{title}  loss {event.loss:.4f}")

    return watch


def _expected_time(folder: Path, trainings: int) -> str:
    """How long the trainings take, from the run's own seconds."""
    try:
        total = float((RunDirectory(folder).summary() or {})["seconds"]) * trainings
    except (ValueError, KeyError, TypeError):
        return ""
    return f", about {seconds(total)} from what the run itself took"


def _show(result: report.Report, place: Path, files: list[Path]) -> None:
    names = [name for name in MEASURES if name in result.measures]
    few = (
        result.ranking
        if len(result.ranking) <= 8
        else [*result.ranking[:4], "…", *result.ranking[-2:]]
    )
    console.print(
        f"{result.algorithm}: {metric(result.metric)} {_score(result, result.score)} on"
        f" {result.rows} {result.split} rows.\nBy"
        f" {importance.ranked_by(result.ranked_by)}, from most to least important:"
        f" {', '.join(few)}.",
        highlight=False,
    )
    columns = numbers(*(MEASURES[name].heading for name in names))
    table = a_table("How much each party matters", "party", *columns, min_width=30)
    for party in result.parties:
        table.add_row(party, *(_value(result, name, party) for name in names))
    console.print(table)
    if result.added:
        console.print(_added(result))
    if lost := [MEASURES[name].heading for name in names if name not in HEADS]:
        unit = (
            "points of accuracy"
            if result.metric == "accuracy"
            else metric(result.metric)
        )
        sigma = f"; noise has σ = {result.noise_sigma:g}" if "noise" in names else ""
        console.print(f"{', '.join(lost)}: {unit} lost{sigma}.", highlight=False)
    if words := importance.disagreement(
        result.measures, result.ranked_by, result.deviations
    ):
        say(words)
    if len(result.parties) > 2 and result.correlations:  # two always agree or disagree
        console.print(_agreement(result))
    if result.summarization:
        subsets = result.summarization[1:]
        trained = (
            f"{subset['which']} {subset['share']} %: {_score(result, subset['score'])}"
            for subset in subsets
        )
        by = MEASURES[result.ranked_by].heading
        console.print(
            f"Trained with parties by {by}: {'; '.join(trained)}.", highlight=False
        )
    if denoising := result.denoising:
        party = denoising["party"]
        clean = denoising["clean"]
        noisy = denoising["noisy"]
        heads = ""
        if clean["head_norm"]:
            heads = (
                f"; its head norm {clean['head_norm'][party]:.3f} became"
                f" {noisy['head_norm'][party]:.3f}"
            )
        scores = (
            f"{metric(result.metric)} {_score(result, clean['score'])} became"
            f" {_score(result, noisy['score'])}"
        )
        console.print(
            f"Trained with noise at {party}, σ = {denoising['sigma']:g}:"
            f" {scores}{heads}.",
            highlight=False,
        )
    for note in result.notes:
        say(note)
    names_written = ", ".join(path.name for path in files if path.suffix != ".svg")
    console.print(
        f"In [bold]{shown(place)}[/bold]: {names_written}",
        highlight=False,
        soft_wrap=True,
    )


def _added(result: report.Report) -> Table:
    """What each partner adds to the rows that it holds."""
    columns = numbers("rows", f"{metric(result.metric)} with it", "without it", "added")
    table = a_table(
        "What each partner adds, on the rows it holds",
        "partner",
        *columns,
        min_width=30,
    )
    for party, scores in result.added.items():
        cells = (
            _score(result, scores[key]) for key in ("with_it", "without_it", "gain")
        )
        table.add_row(party, f"{scores['rows']:,.0f}", *cells)
    return table


def _score(result: report.Report, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.2%}" if result.metric == "accuracy" else f"{value:.4f}"


def _value(result: report.Report, name: str, party: str) -> str:
    value = result.measures[name].get(party)
    if value is None:
        return "-"
    points = result.metric == "accuracy" and name not in HEADS
    return f"{value * 100:.2f}" if points else f"{value:.3f}"


def _agreement(result: report.Report) -> Table:
    """Rank correlations: a row per measure, a column per measure it is compared with."""
    firsts = [
        name
        for name in MEASURES
        if name in (*HEADS, result.ranked_by) and name in result.measures
    ]
    columns = numbers(*(MEASURES[first].heading for first in firsts))
    table = a_table("Rank correlation: Spearman, Kendall", "", *columns, min_width=36)
    pairs = {frozenset(pair["between"]): pair for pair in result.correlations}
    for name in result.measures:
        cells = [pairs.get(frozenset((name, first))) for first in firsts]
        table.add_row(MEASURES[name].heading, *map(_pair, cells))
    return table


def _pair(agreed: dict[str, Any] | None) -> str:
    if agreed is None or agreed["spearman"] is None:
        return "-"
    return f"{agreed['spearman']:+.2f}, {agreed['kendall']:+.2f}"
