"""Several runs side by side: what differs between them, their scores and costs, and
their curves in one chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from colonnade.errors import ConfigError
from colonnade.evaluate import about_positive
from colonnade.evaluate.metrics import beside_majority, in_order
from colonnade.report.chart import Figure, Series, lines, plates
from colonnade.report.course import flat, plain
from colonnade.report.facts import Facts, read
from colonnade.report.html import Content, Html, cell, h, note, table
from colonnade.report.page import Section, assembled, document, save
from colonnade.report.spending import protected, unprotected
from colonnade.report.words import (
    BETTER_LOW,
    amount,
    count,
    epsilon,
    metric,
    score,
    seconds,
    size,
    warnings_of,
)

Named = dict[str, Facts]
LARGEST = "largest ε of those that have one"
WITHOUT = "without a guarantee"
WORDS: dict[str, Callable[[Any], str]] = {
    "rounds": amount,
    "bytes": size,
    "time": seconds,
    LARGEST: lambda spent: "none" if spent is None else epsilon(spent),
}
PAGE = "compare.html"


def gather(folders: Sequence[Path]) -> Named:
    """The runs by name; where two folders have the same name, by as much of their paths
    as tells them apart."""
    if len(folders) < 2:
        raise ConfigError(
            f"A comparison takes two or more run directories; found {len(folders)}."
        )
    facts_of_runs = [read(folder) for folder in folders]
    parts = [folder.resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise ConfigError("A run is named twice. Name each run directory once.")
    depth = next(
        n for n in range(1, 99) if len({part[-n:] for part in parts}) == len(parts)
    )
    return {
        "/".join(part[-depth:]): facts
        for part, facts in zip(parts, facts_of_runs, strict=True)
    }


def write(runs: Named, out: Path) -> Path:
    return save(render(runs), figures(runs).values(), out)


def render(runs: Named) -> str:
    return document(f"Colonnade: {len(runs)} runs compared", main_of(runs))


def main_of(runs: Named) -> Html:
    drawn = figures(runs)
    headings, values_by_run = rows_of(runs)
    # runs are columns, as in the terminal: it is less wide
    _, *lines = zip(headings, *values_by_run, strict=True)
    cells = [
        [name, *(cell(value, partial(in_words, name)) for value in values)]
        for name, *values in lines
    ]
    standing = table("Runs", ("", *runs), cells, class_=None)
    changed = [[where, *values] for where, values in differences(runs)]
    settings = (
        table("Settings", ("setting", *runs), changed)
        if changed
        else h("p", "All settings are the same.")
    )
    sections: list[Section] = [
        (
            "result",
            "Scores and costs",
            [standing, *_notes(runs), plates(drawn, *drawn)],
        ),
        ("differences", "Settings that differ", [settings]),
        ("privacy", "Privacy", [_privacy(runs)]),
        (
            "each",
            "Each run",
            [
                h(
                    "ul",
                    [
                        h("li", h("b", name), ": ", _about(facts))
                        for name, facts in runs.items()
                    ],
                )
            ],
        ),
    ]
    title = h("h1", "Comparison: ", h("b", f"{len(runs)} runs"))
    return assembled(
        h("header", title, h("p", headline(runs), class_="lede")), sections
    )


def headline(runs: Named) -> str:
    """Which run is best by the metric they have in common; with two classes also by
    AUC, which breaks ties."""
    split, name = common(runs)

    def by(name: str) -> dict[str, float]:
        scores = {
            run: facts.scores.get(split, {}).get(name) for run, facts in runs.items()
        }
        return {run: value for run, value in scores.items() if value is not None}

    known = by(name)
    ranks = by("auc")
    if len(known) < 2:
        return f"{count(len(runs), 'run').capitalize()} side by side."
    best = (min if name in BETTER_LOW else max)(
        known, key=lambda run: (known[run], ranks.get(run, 0.0))
    )
    alike = [
        run
        for run in known
        if run != best and f"{known[run]:.4f}" == f"{known[best]:.4f}"
    ]
    also = f", as high as {' and '.join(alike)}" if alike else ""
    words = (
        f"{best} has the best {split} {metric(name)} of {count(len(runs), 'run')}:"
        f" {known[best]:z.3f}{also}"
    )
    if name == "auc" or ranks.keys() != known.keys():
        return f"{words}."
    first = (
        best
        if ranks[best] == max(ranks.values())
        else max(ranks, key=lambda run: ranks[run])
    )
    return (
        f"{words}; by AUC {'too' if first == best else f'it is {first}'},"
        f" {ranks[first]:.3f}."
    )


def common(runs: Named) -> tuple[str, str]:
    """The split and the metric to compare by."""
    everywhere = [
        split
        for split in ("test", "validation")
        if all(split in facts.scores for facts in runs.values())
    ]
    return everywhere[0] if everywhere else "test", next(iter(runs.values())).metric


def rows_of(runs: Named) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Headings, and per run its name, algorithm, scores on the common split, rounds,
    bytes, time, the largest epsilon, and for how many no epsilon holds."""
    split, _ = common(runs)
    scores_by_run = {
        run: beside_majority(facts.outcome | {"metrics": facts.scores})
        for run, facts in runs.items()
    }
    names = list(
        dict.fromkeys(
            name for scores in scores_by_run.values() for name in scores.get(split, {})
        )
    )
    names = in_order(next(iter(runs.values())).outcome, names)
    scored = [f"{split} {metric(name)}" for name in names]
    headings = (
        "run",
        "algorithm",
        *scored,
        "rounds",
        "bytes",
        "time",
        LARGEST,
        WITHOUT,
    )
    rows = []
    for run, facts in runs.items():
        scores = [scores_by_run[run].get(split, {}).get(name) for name in names]
        spent = max((value for _, value in protected(facts.privacy)), default=None)
        without = (
            f"{len(unprotected(facts.privacy))} of {len(facts.privacy)}"
            if facts.privacy
            else "not known"
        )
        rows.append(
            (
                run,
                facts.algorithm,
                *scores,
                facts.rounds,
                facts.sent,
                facts.seconds,
                spent,
                without,
            )
        )
    return headings, rows


def in_words(heading: str, value: Any) -> str:
    """A value of `rows_of` as it is shown."""
    return value if isinstance(value, str) else WORDS.get(heading, score)(value)


def _notes(runs: Named) -> list[Content]:
    unfinished = [run for run, facts in runs.items() if not facts.finished]
    rows = {tuple(facts.rows.items()) for facts in runs.values()}
    seeds = {
        facts.settings.get("federation", {}).get("seed") for facts in runs.values()
    }
    other = (
        "These runs do not have the same numbers of rows, so their scores are not on"
        " the same rows."
    )
    divided = (
        "Their seeds differ, so rows were divided differently: small differences may be"
        " chance."
    )
    positives = {about_positive(facts.outcome) for facts in runs.values()} - {""}
    positive = (
        "Precision, recall and F1 are not about the same class in these runs: [data]"
        " positive differs."
    )
    largest = (
        "Largest ε: of the parties' columns and labels that have a guarantee, the"
        " highest spent. It is not the run's: it says nothing of those without a"
        " guarantee, who are named under Privacy."
    )
    return [
        (
            h("p", "Not finished: ", ", ".join(unfinished), ".", class_="state")
            if unfinished
            else None
        ),
        [h("p", h("b", words), class_="state") for words in warnings(runs)],
        h("p", other) if len(rows) > 1 else None,
        h("p", divided) if len(seeds) > 1 else None,
        h("p", positive) if len(positives) > 1 else None,
        note(largest),
    ]


def warnings(runs: Named) -> list[str]:
    """Warn of runs that say of themselves what is wrong with them, and of those whose
    accuracy says nothing."""
    return [
        f"{run}: {words}"
        for run, facts in runs.items()
        for words in warnings_of(facts.outcome)
    ]


def figures(runs: Named) -> dict[str, Figure]:
    """The score against epochs and against bytes, and the loss."""
    _, name = common(runs)

    def series(x: str, of: Any) -> list[Series]:
        curves = []
        for run, facts in runs.items():
            known = [
                (record[x], of(record))
                for record in facts.metrics
                if x in record and of(record) is not None
            ]
            if known:
                curves.append(
                    Series(run, [at for at, _ in known], [value for _, value in known])
                )
        return curves

    def validated(record: dict[str, Any]) -> Any:
        return (record.get("validation") or {}).get(name)

    drawn = []
    if scores := series("epoch", validated):
        drawn.append(
            lines(
                "compare-epochs",
                f"Validation {metric(name)} by epoch",
                scores,
                x="epoch",
                y=metric(name),
            )
        )
        sent = series("bytes", validated)
        title = f"Validation {metric(name)} by bytes sent"
        drawn.append(lines("compare-bytes", title, sent, x="bytes", y=metric(name)))
    if losses := series("epoch", lambda record: record.get("loss")):
        drawn.append(
            lines("compare-loss", "Training loss by epoch", losses, x="epoch", y="loss")
        )
    return {figure.name: figure for figure in drawn}


def differences(runs: Named) -> list[tuple[str, list[str]]]:
    """Settings that differ between runs, each with its value per run; a table's folder
    does not count."""
    settings = [
        {where: plain(value) for where, value in flat(facts.settings)}
        for facts in runs.values()
    ]
    names = dict.fromkeys(where for values in settings for where in values)
    rows = [(where, [values.get(where, "–") for values in settings]) for where in names]
    return [(where, values) for where, values in rows if len(set(values)) > 1]


def _privacy(runs: Named) -> Html:
    rows = []
    for run, facts in runs.items():
        for guarantee, value in [
            *protected(facts.privacy),
            *((bare, None) for bare in unprotected(facts.privacy)),
        ]:
            budget = (
                f"{guarantee['budget']['epsilon']:g}"
                if guarantee.get("budget")
                else "none set"
            )
            rows.append(
                [
                    run,
                    guarantee["party"],
                    guarantee["protects"],
                    cell(value, epsilon),
                    budget,
                ]
            )
    return table(
        "Privacy spend per run and party",
        ("run", "party", "protects", "ε spent", "budget"),
        rows,
    )


def _about(facts: Facts) -> str:
    stopped = facts.outcome.get("stopped", "not finished")
    return (
        f"{facts.algorithm}, {len(facts.parties)} parties, {facts.epochs} epochs;"
        f" {' '.join(str(stopped).split())}"
    )
