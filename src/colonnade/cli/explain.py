"""`colonnade explain`."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from colonnade.cli.console import a_bar, a_run, a_table, console, error_console, numbers, say, shown
from colonnade.cli.options import AllowModel, Engine, Json, Owner, Quiet, StartupKit
from colonnade.core import Step
from colonnade.errors import ConfigError
from colonnade.evaluate import metric
from colonnade.explain import canvas, importance, report
from colonnade.explain.experiments import Watch
from colonnade.explain.importance import HEADS, MEASURES
from colonnade.explain.write import prepare, write
from colonnade.federation import Federation, load
from colonnade.report.words import seconds
from colonnade.runs.run_directory import RunDirectory


def explain(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    retrain: Annotated[
        bool,
        typer.Option("--retrain", help="Also train again: without each party, with noise at one, with a few of them."),
    ] = False,
    noise: Annotated[float, typer.Option(help="Sigma of the noise on one party's test columns at a time.")] = 3.0,
    train_noise: Annotated[float, typer.Option(help="With --retrain: sigma of the noise to train with.")] = 1.0,
    noisy: Annotated[
        str | None, typer.Option(metavar="PARTY", help="With --retrain: who gets it; the most important unless said.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="MEASURE", help=f"What ranks the parties: {', '.join(report.RANKING)}.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=3, help="Use a sample of so many test rows.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of permutations, noise, samples and t-SNE.")] = 0,
    owner: Owner = None,
    engine: Engine = "in-process",
    startup_kit: StartupKit = None,
    out: Annotated[Path | None, typer.Option(help="Where files go; DIR/explain unless said.")] = None,
    allow_model: AllowModel = None,
    draw: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Whether to draw.")] = True,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Which parties matter in a trained federation: head norms, and checks that agree with them or do not.

    Between machines each partner is asked once for its held-out rows; --retrain and noise are for one process.
    """
    if draw:
        canvas.can_draw()
    _check(noise, "--noise")
    _check(train_noise, "--train-noise")
    place = out or folder / "explain"
    if engine != "in-process":
        from colonnade.cli.on_flare import explain_on_flare

        if retrain or noisy is not None:
            raise ConfigError(f"--retrain and --noisy train again with all columns in one process, not on {engine}.")
        how = {key: value for key, value in {"rows": rows, "seed": seed, "by": by}.items() if value is not None}
        told = explain_on_flare(folder, engine, startup_kit, owner, how)
        if told is None:
            return
        found, made = told, write(told, place, pictures=draw)
    else:
        federation = load(a_run(folder), allow_models=allow_model or [])
        if noisy is not None and noisy not in federation.owners:
            raise ConfigError(f"--noisy names one of {', '.join(federation.owners)}; found {noisy!r}.")
        prepare(place)
        if owner is not None:
            federation.owner_named(owner)
        if retrain:
            federation.settings.check_one_label_owner("Explain it without --retrain.")
        found = report.explain(federation, noise=noise, rows=rows, seed=seed, by=by, owner=owner)
        made = write(found, place, pictures=draw)
        if retrain:  # what is known already is kept, whatever comes of training
            with a_bar(MofNCompleteColumn(), quiet=quiet or json_) as bar:
                begin = partial(_training, bar, federation, folder)
                found = report.retrain(federation, found, noise=train_noise, noisy=noisy, begin=begin)
            made = write(found, place, pictures=draw)
    if json_:
        typer.echo(report.summary_of(found).to_json(), nl=False)
    elif not quiet:
        _show(found, place, made)


def _check(sigma: float, option: str) -> None:
    if not (math.isfinite(sigma) and sigma >= 0):
        raise ConfigError(f"{option} must be a number that is not negative; found {sigma}.")


def _training(bar: Progress, federation: Federation, folder: Path, trainings: int) -> Watch:
    """A bar over all batches of all trainings, and beforehand how many there are and about how long they take."""
    if not bar.disable:
        error_console.print(f"Training again {trainings} times{_about(folder, trainings)}.")
    per_training = len(federation.batches)
    task = bar.add_task("training", total=trainings * per_training, now="")
    begun = 0

    def watch(title: str, event: Step | dict[str, Any]) -> None:
        nonlocal begun
        if isinstance(event, Step):
            begun += event.batch.step == 0
            done = (begun - 1) * per_training + event.batch.step + 1  # a training may stop early
            bar.update(task, completed=done, now=f"{title}  loss {event.loss:.4f}")

    return watch


def _about(folder: Path, trainings: int) -> str:
    """How long the trainings take, from the run's own seconds."""
    try:
        whole = float((RunDirectory(folder).summary() or {})["seconds"]) * trainings
    except (ValueError, KeyError, TypeError):
        return ""
    return f", about {seconds(whole)} from what the run itself took"


def _show(found: report.Report, place: Path, made: list[Path]) -> None:
    names = [name for name in MEASURES if name in found.measures]
    few = found.ranking if len(found.ranking) <= 8 else [*found.ranking[:4], "…", *found.ranking[-2:]]
    console.print(
        f"{found.algorithm}: {metric(found.metric)} {_score(found, found.score)} on {found.rows} {found.split} rows.\n"
        f"By {importance.ranked_by(found.ranked_by)}, from most to least important: {', '.join(few)}.",
        highlight=False,
    )
    columns = numbers(*(MEASURES[name].heading for name in names))
    table = a_table("How much each party matters", "party", *columns, min_width=30)
    for party in found.parties:
        table.add_row(party, *(_value(found, name, party) for name in names))
    console.print(table)
    if found.added:
        console.print(_added(found))
    if lost := [MEASURES[name].heading for name in names if name not in HEADS]:
        unit = "points of accuracy" if found.metric == "accuracy" else metric(found.metric)
        sigma = f"; noise has σ = {found.noise_sigma:g}" if "noise" in names else ""
        console.print(f"{', '.join(lost)}: {unit} lost{sigma}.", highlight=False)
    if words := importance.disagreement(found.measures, found.ranked_by):
        say(words)
    if len(found.parties) > 2 and found.correlations:  # two always agree or disagree
        console.print(_agreement(found))
    if found.summarization:
        told = [f"{one['which']} {one['share']} %: {_score(found, one['score'])}" for one in found.summarization[1:]]
        by = MEASURES[found.ranked_by].heading
        console.print(f"Trained with parties by {by}: {'; '.join(told)}.", highlight=False)
    if found.denoising:
        _show_denoising(found)
    for note in found.notes:
        say(note)
    names_made = ", ".join(path.name for path in made if path.suffix != ".svg")
    console.print(f"In [bold]{shown(place)}[/bold]: {names_made}", highlight=False, soft_wrap=True)


def _added(found: report.Report) -> Table:
    """What each partner adds to the rows that it holds."""
    columns = numbers("rows", f"{metric(found.metric)} with it", "without it", "added")
    table = a_table("What each partner adds, on the rows it holds", "partner", *columns, min_width=30)
    for party, one in found.added.items():
        scores = (_score(found, one[key]) for key in ("with_it", "without_it", "gain"))
        table.add_row(party, f"{one['rows']:,.0f}", *scores)
    return table


def _show_denoising(found: report.Report) -> None:
    given = found.denoising
    assert given is not None
    party, clean, noisy = given["party"], given["clean"], given["noisy"]
    heads = ""
    if clean["head_norm"]:
        heads = f"; its head norm {clean['head_norm'][party]:.3f} became {noisy['head_norm'][party]:.3f}"
    scores = f"{metric(found.metric)} {_score(found, clean['score'])} became {_score(found, noisy['score'])}"
    console.print(f"Trained with noise at {party}, σ = {given['sigma']:g}: {scores}{heads}.", highlight=False)


def _score(found: report.Report, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.2%}" if found.metric == "accuracy" else f"{value:.4f}"


def _value(found: report.Report, name: str, party: str) -> str:
    value = found.measures[name].get(party)
    if value is None:
        return "-"
    points = found.metric == "accuracy" and name not in HEADS
    return f"{value * 100:.2f}" if points else f"{value:.3f}"


def _agreement(found: report.Report) -> Table:
    """Rank correlations: a row per measure, a column per measure it is compared with."""
    firsts = [name for name in MEASURES if name in (*HEADS, found.ranked_by) and name in found.measures]
    columns = numbers(*(MEASURES[first].heading for first in firsts))
    table = a_table("Rank correlation: Spearman, Kendall", "", *columns, min_width=36)
    pairs = {frozenset(pair["between"]): pair for pair in found.correlations}
    for name in found.measures:
        cells = [pairs.get(frozenset((name, first))) for first in firsts]
        table.add_row(MEASURES[name].heading, *map(_pair, cells))
    return table


def _pair(agreed: dict[str, Any] | None) -> str:
    if agreed is None or agreed["spearman"] is None:
        return "-"
    return f"{agreed['spearman']:+.2f}, {agreed['kendall']:+.2f}"
