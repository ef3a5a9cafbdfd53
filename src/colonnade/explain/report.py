"""All measures of one trained federation, as plain values: what explain.json holds, and
what pictures are drawn from.

It has no party's columns: it has numbers per party, and for t-SNE the plane that the
label owner made from what was released to it, with its own labels, in an order that
does not say whose they are. A party can still find its own rows in it by laying out its
own embeddings, so tsne.json and its picture may be shown only where labels may be.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from colonnade.errors import BudgetExhausted, ConfigError
from colonnade.explain import experiments, importance
from colonnade.explain.embeddings import (
    Before,
    Embeddings,
    gather,
    metric_of,
    separable,
    tsne,
)
from colonnade.explain.importance import HEADS, MEASURES
from colonnade.federation import Federation
from colonnade.federation.soundness import say_nothing, silent
from colonnade.runs.run_directory import plain, to_json

RANKING = ("head_change", "head_norm", "permutation", "silenced", "noise")
"""The measures that may rank the parties; `permutation` does unless another is asked
for, since it is about the joint model and its score. The paper ranks by head norm; a
head that starts at random keeps much of its start. On MNIST in 14 strips, Spearman's
correlation with the loss by permutation is 0.52 for norms and 0.95 for changes after 2
epochs, 0.93 and 0.97 after 10."""


SUMMED = (
    "Under secure aggregation nobody sees what one party released: permutation, silence"
    " and t-SNE are left out."
)
FEWER = (
    "Left out: rows that nobody holds any more were left out with a party, and the"
    " score is of the others."
)


@dataclass
class Report:
    """`measures` has a value per party and measure; from `permutation` on these are
    scores lost."""

    algorithm: str
    task: str
    metric: str
    split: str
    rows: int
    score: float
    noise_sigma: float
    repeats: int
    seed: int
    holds: dict[str, dict[str, Any]]
    measures: dict[str, dict[str, float]] = field(default_factory=dict)
    deviations: dict[str, dict[str, float]] = field(default_factory=dict)
    ranked_by: str = ""
    ranking: list[str] = field(default_factory=list)
    correlations: list[dict[str, Any]] = field(default_factory=list)
    tsne: dict[str, Any] | None = None
    summarization: list[dict[str, Any]] | None = None
    denoising: dict[str, Any] | None = None
    # by partner, on the rows it holds
    added: dict[str, dict[str, float | None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def parties(self) -> list[str]:
        return list(self.holds)

    def to_json(self) -> str:
        """The report as JSON; a NaN is null."""
        return to_json(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that `to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"This is no report of `colonnade explain` ({type(error).__name__}:"
                f" {error})."
            ) from None

    def rank(self, by: str | None = None) -> None:
        """Order the parties by a measure; compare this measure, and those of heads,
        with all others."""
        self.ranked_by = ranks(self.measures, by)
        self.ranking = importance.ranking(self.measures[self.ranked_by])
        shown = [name for name in MEASURES if name in self.measures]
        firsts = [name for name in shown if name in (*HEADS, self.ranked_by)]
        pairs = dict.fromkeys(
            tuple(sorted((a, b), key=shown.index))
            for a in firsts
            for b in shown
            if a != b
        )
        self.correlations = [
            {
                "between": [a, b],
                **plain(
                    asdict(importance.correlation(self.measures[a], self.measures[b]))
                ),
            }
            for a, b in pairs
        ]

    def add(
        self, name: str, values: Mapping[str, float] | Mapping[str, importance.Lost]
    ) -> None:
        """Add a measure, unless it has no values."""
        if not values:
            return
        lost = {
            party: value
            for party, value in values.items()
            if isinstance(value, importance.Lost)
        }
        if lost:
            self.deviations[name] = {
                party: value.deviation for party, value in lost.items()
            }
        self.measures[name] = {
            party: value.mean if isinstance(value, importance.Lost) else value
            for party, value in values.items()
        }


def ranks(measures: Collection[str], by: str | None = None) -> str:
    """The measure that ranks the parties: the one that is asked for, or permutation
    where there is one."""
    possible = [name for name in RANKING if name in measures]
    if by is not None and by not in possible:
        raise ConfigError(
            f"The parties of this run can be ranked by {', '.join(possible)}; found"
            f" {by!r}."
        )
    return by or ("permutation" if "permutation" in possible else possible[0])


def explain(
    federation: Federation,
    *,
    split: str | None = None,
    noise: float = 3.0,
    rows: int | None = None,
    repeats: int = 5,
    seed: int = 0,
    by: str | None = None,
    tsne_rows: int = 1000,
    owner: str | None = None,
    began: Tensor | None = None,
    before: Before | None = None,
) -> Report:
    """Everything that needs no training: head norms and changes, permutation, silence,
    noise, t-SNE, correlations.

    `split` is "test" where there is one, else "validation". `rows` takes a seeded
    sample of it. With several label owners the rows are those of the first, unless an
    `owner` is named. Where parties are elsewhere, `before` is called with the rows that
    they are asked for next, `began` has the heads before training, and noise is left
    out.
    """
    owner_name = federation.owner_named(owner)
    split = split or default_split(federation.agreed[owner_name].splits)
    label_owner = federation.label_owners[owner_name]
    can_separate = separable(federation)
    alone = {*label_owner.peers} <= federation.owners.keys() and len(
        federation.holdings.label_owners
    ) == 1
    heads = {"head_norm": importance.head_norms(federation, owner)}
    if alone or began is not None:
        heads["head_change"] = experiments.head_changes(federation, began)
    asked = [
        *(("permutation", "silenced") if can_separate else ()),
        *(("noise",) if alone else ()),
    ]
    # before anybody is asked: it may cost
    ranks([name for name, values in heads.items() if values] + asked, by)
    embeddings = (
        gather(federation, split, rows=rows, seed=seed, owner=owner, before=before)
        if can_separate
        else None
    )
    everything = federation.agreed[owner_name].splits[split]
    if embeddings is None and before is not None:
        before(everything, [])
    metric = (
        metric_of(federation, everything, owner)
        if embeddings is None
        else embeddings.metric
    )
    report = Report(
        algorithm=federation.settings.algorithm,
        task=federation.holdings.encoder.task,
        metric=metric,
        split=split,
        rows=len(everything) if embeddings is None else len(embeddings.labels),
        score=(
            federation.evaluate(split)[metric]
            if embeddings is None
            else embeddings.score()
        ),
        noise_sigma=noise,
        repeats=repeats,
        seed=seed,
        holds={name: {"holds": "columns of its own"} for name in label_owner.peers}
        | regions(federation),
    )
    for name, values in heads.items():
        report.add(name, values)
    report.notes += say_nothing(silent(federation.owners)) if alone else []
    report.notes += (
        [] if "head_norm" in report.measures else [_without_heads(federation)]
    )
    if embeddings is None:
        report.notes += [
            SUMMED,
            *(
                []
                if rows is None
                else ["All rows were used: a sample needs separate releases."]
            ),
        ]
    else:
        report.add(
            "permutation",
            importance.permutation(embeddings, repeats=repeats, seed=seed),
        )
        report.add("silenced", importance.silenced(embeddings))
        if label_owner.peers.presence is not None:
            report.added = plain(importance.added(embeddings, owner_name))
    if alone:
        _add_noise(report, federation, embeddings, required=by == "noise")
    report.notes += _paid(federation, split, alone=alone)
    report.rank(by)
    if (
        embeddings is not None
        and len(embeddings.held_by(*_first_and_last(report.ranking))) >= 3
    ):
        report.tsne = _plane(federation, embeddings, report.ranking, tsne_rows, seed)
    return report


def regions(federation: Federation) -> dict[str, dict[str, Any]]:
    """What each party `holds`, in words and never by its values; for strips and
    patches, also its `region` [top, left, height, width] of a `picture` [height,
    width]. Patches are those that the parties hold, with the padding that makes them
    equally large."""
    data = federation.settings.data
    held = federation.holdings.columns
    shapes = {
        name: tuple(held[name].features.shape[1:])
        for name in federation.owners
        if name in held
    }
    columns = 1
    if data.dataset is not None and data.split == "patches":
        columns = data.parts[1] if isinstance(data.parts, tuple) else data.parts
    cut = data.dataset is not None and data.split in ("strips", "patches")
    if not cut or any(len(shape) < 2 for shape in shapes.values()):
        return {
            name: {"holds": _columns(federation, name, shape)}
            for name, shape in shapes.items()
        }
    by_party: dict[str, dict[str, Any]] = {}
    top = left = 0
    for number, (name, shape) in enumerate(shapes.items(), 1):
        height, width = shape[-2:]
        by_party[name] = {
            "holds": f"{height} × {width} pixels",
            "region": [top, left, height, width],
        }
        top, left = (top, left + width) if number % columns else (top + height, 0)
    drawn = [held["region"] for held in by_party.values()]
    picture = [max(region[at] + region[at + 2] for region in drawn) for at in (0, 1)]
    return {name: {**held, "picture": picture} for name, held in by_party.items()}


def _columns(federation: Federation, party: str, shape: tuple[int, ...]) -> str:
    prepared = federation.holdings.columns[party].preprocessor
    if prepared is not None:
        count = len(prepared.columns)
        return f"{count} column{'s' * (count != 1)}"
    return f"{' × '.join(map(str, shape))} values"


def _add_noise(
    report: Report,
    federation: Federation,
    embeddings: Embeddings | None,
    *,
    required: bool,
) -> None:
    """Add what the score loses under noise in each party's columns, as far as budgets
    allow."""
    how: Any = {"split": report.split, "repeats": report.repeats, "seed": report.seed}
    try:
        report.add(
            "noise",
            experiments.noise_validation(
                federation, report.noise_sigma, embeddings=embeddings, **how
            ),
        )
    except BudgetExhausted as error:  # what was measured up to here was paid for
        if not report.measures or required:
            raise
        report.notes.append(f"Noise is left out: {error}")


def _paid(federation: Federation, split: str, *, alone: bool) -> list[str]:
    """Notes on what the explanation cost the parties."""
    if not alone:
        return [
            "Noise is left out: it is a simulation in which one process holds all"
            " columns, for one label owner. The other organisations released these rows"
            " once more, under their own rules and budgets."
        ]
    if not federation.accounts:
        return []
    return [
        f"The {split} rows were released once more, and"
        f" {', '.join(federation.accounts)} paid for it. Noise and training again are"
        " simulated in this process and charged to nobody, so their scores have no"
        " guarantee."
    ]


def retrain(
    federation: Federation,
    report: Report,
    *,
    noise: float = 1.0,
    noisy: str | None = None,
    begin: Callable[[int], experiments.Watch | None] | None = None,
) -> Report:
    """Add what needs training again to a report: parties left out, one trained on
    noise, summarization.

    `noisy` is the party that gets the noise, by default the most important. `begin` is
    called with the number of trainings, and may return a function that watches them.
    """
    measure = report.measures[report.ranked_by]
    watch = begin(experiments.trainings(measure)) if begin is not None else None
    whole = report.rows == len(federation.batches.splits[report.split])
    score = report.score if whole else federation.evaluate(report.split)[report.metric]
    retraining = experiments.Retraining(
        federation, score, split=report.split, metric=report.metric, watch=watch
    )
    fuller = dataclasses.replace(
        report, measures=dict(report.measures), deviations=dict(report.deviations)
    )
    noisy = noisy or report.ranking[0]
    noised = retraining.with_noise(noisy, noise, seed=report.seed)
    fuller.denoising = {
        "party": noisy,
        "sigma": noise,
        "clean": _heads(retraining.all),
        "noisy": _heads(noised),
    }
    everybody = {
        "share": 100,
        "which": "all",
        "parties": list(retraining.all.parties),
        "score": score,
    }
    shares = experiments.summarize(retraining, measure)
    fuller.summarization = [
        everybody,
        *(asdict(share) | {"parties": list(share.parties)} for share in shares),
    ]
    fuller.add("left_out", experiments.left_out(retraining))
    if federation.holdings.away:
        fuller.notes = [*report.notes, FEWER]
    fuller.rank(report.ranked_by)
    return fuller


def _heads(trained: experiments.Retrained) -> dict[str, Any]:
    return {
        "score": trained.score,
        "head_norm": trained.head_norms,
        "head_change": trained.head_changes,
    }


def summary_of(report: Report) -> Report:
    """The report with its t-SNE's points left out."""
    if report.tsne is None:
        return report
    short = {
        "rows": report.tsne["rows"],
        "parties": list(report.tsne["points"]),
        "file": "tsne.json",
    }
    return dataclasses.replace(report, tsne=short)


def default_split(splits: Collection[str]) -> str:
    """Test rows where there are some, else validation rows."""
    for split in ("test", "validation"):
        if split in splits:
            return split
    raise ConfigError(
        "This run has neither test nor validation rows to explain itself on. Give"
        " [data] test a share."
    )


def _without_heads(federation: Federation) -> str:
    name = federation.settings.algorithm
    if federation.algorithm.head_norms is not None:
        why = "the head has a hidden layer or reads a mean, which mixes the parties"
        return f"{name}: {why}, so no head norm belongs to one of them."
    return (
        f"{name}: heads stay at the parties, so the label owner has no head norms; the"
        " other measures stand in."
    )


def _plane(
    federation: Federation,
    embeddings: Embeddings,
    ranking: list[str],
    rows: int,
    seed: int,
) -> dict[str, Any]:
    """The plane as plain values, sorted by label and place: the agreed order would say
    whose label each one is."""
    parties = _first_and_last(ranking)
    plane = tsne(embeddings, parties, rows=rows, seed=seed)
    encoder = federation.holdings.encoder
    labels = plane.labels.tolist()
    if encoder.task == "regression":
        labels = encoder.decode(torch.from_numpy(plane.labels)).tolist()
    points = {
        party: [[round(float(at), 3) for at in point] for point in xy]
        for party, xy in plane.points.items()
    }
    order = sorted(
        range(len(labels)), key=lambda row: (labels[row], points[parties[0]][row])
    )
    labels = [labels[row] for row in order]
    points = {party: [xy[row] for row in order] for party, xy in points.items()}
    return {
        "rows": len(labels),
        "points": points,
        "labels": labels,
        "classes": [str(name) for name in encoder.classes],
    }


def _first_and_last(ranking: list[str]) -> list[str]:
    return list(dict.fromkeys([ranking[0], ranking[-1]]))
