"""Checks of importance that change what parties hold: noise at test time, and training
again.

All of them are simulations, in which one process holds everything; between
organisations, each would have to change its own columns itself. Noise at test time
needs no training; leaving parties out for good, and noise in training, do. What changes
holdings gives new ones, and leaves the given ones as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from colonnade.algorithms.embedding import norms
from colonnade.core import Step
from colonnade.core.batches import seed_for
from colonnade.errors import ConfigError, did_you_mean
from colonnade.explain.embeddings import Embeddings, gather, metric_of, separable
from colonnade.explain.importance import Lost, check_repeats, head_norms, ranking
from colonnade.federation import Federation
from colonnade.federation.fit import Record
from colonnade.federation.soundness import Finding
from colonnade.rows.holdings import Holdings, LabelledRows


def noised(
    holdings: Holdings,
    party: str,
    rows: Tensor | None,
    sigma: float,
    generator: Generator,
) -> Holdings:
    """Add N(0, sigma^2) to one party's columns, in these rows (None: all). Sigma is in
    the units that the model reads, which for scaled columns is their own deviation."""
    if not sigma >= 0 or sigma == float("inf"):
        raise ConfigError(
            f"The noise's sigma must be a number that is not negative; found {sigma}."
        )
    held = holdings.columns[_with_columns(holdings, party)]
    features = held.features.clone()
    chosen = torch.arange(len(features)) if rows is None else rows
    noise = torch.randn(len(chosen), *features.shape[1:], generator=generator).to(
        features
    )
    features[chosen.to(features.device)] += sigma * noise
    noisy = dataclasses.replace(held, features=features)
    return dataclasses.replace(holdings, columns={**holdings.columns, party: noisy})


def only(holdings: Holdings, parties: Collection[str]) -> Holdings:
    """The columns of these parties alone, in the order they had. The label owner stays,
    for its labels. Rows that none of these parties holds are no longer trained on or
    scored."""
    wanted = {_with_columns(holdings, party) for party in parties}
    if not wanted:
        raise ConfigError(
            "At least one party must keep its columns, or there is nothing to learn"
            " from."
        )
    columns = {name: held for name, held in holdings.columns.items() if name in wanted}
    away = {name: mask for name, mask in holdings.away.items() if name in wanted}
    fewer = dataclasses.replace(holdings, columns=columns, away=away)
    if len(away) < len(columns):
        return fewer
    nobody = torch.stack(list(away.values())).all(0)
    return fewer.divided(
        lambda splits: {name: rows[~nobody[rows]] for name, rows in splits.items()}
    )


def without(holdings: Holdings, party: str) -> Holdings:
    """The columns of all parties except one."""
    _with_columns(holdings, party)
    return only(holdings, [name for name in holdings.columns if name != party])


def at_rows(holdings: Holdings, split: str, rows: Tensor) -> Holdings:
    """These rows alone, as the only split: to evaluate a trained model on, not to
    train."""
    columns = {
        name: dataclasses.replace(held, features=held.features[rows])
        for name, held in holdings.columns.items()
    }
    ids = holdings.packed[rows.numpy()]
    labels = holdings.labelled.labels[rows]
    owners = {
        holdings.label_owner: LabelledRows(
            ids, labels, {split: torch.arange(len(rows))}
        )
    }
    away = {name: mask[rows] for name, mask in holdings.away.items()}
    return dataclasses.replace(
        holdings, columns=columns, label_owners=owners, packed=ids, away=away
    )


def _with_columns(holdings: Holdings, party: str) -> str:
    holders = list(holdings.columns)
    if party not in holders:
        hint = did_you_mean(party, holders)
        raise ConfigError(
            f"{party!r} holds no columns here{hint}; those who do are"
            f" {', '.join(holders)}."
        )
    return party


Watch = Callable[[str, Step | Record], None]
"""Called with a training's title, and each of its steps and epochs."""

SHARES = (50, 20)
"""The percentages of the parties that Table 1 keeps."""


def head_changes(
    federation: Federation, began: Tensor | None = None
) -> dict[str, float]:
    """||W_k - W_k at the start||: how far training moved each party's head, where heads are linear. After little of it
    a head's norm is mostly that of its random start. The start is `began`, or follows
    from the seed and is drawn again; one row is enough for that, unless labels were
    drawn before."""
    if (trained := federation.heads) is None:
        return {}
    if began is None:
        holdings = federation.holdings
        split, rows = next(iter(holdings.splits.items()))
        few = (
            at_rows(holdings, split, rows[:1]) if not federation.drawn_by else holdings
        )
        began = Federation(federation.settings, few).heads
    assert began is not None
    return norms(trained - began.to(trained), federation.driver.widths)


def trained_copy(federation: Federation, holdings: Holdings) -> Federation:
    """The same trained parties over other holdings; the given federation stays as it
    is."""
    other = Federation(federation.settings, holdings)
    federation.settle()
    for name, organisation in other.organisations.items():
        organisation.load_state(copy.deepcopy(federation.organisations[name].state()))
    other.restack()
    return other


def noise_validation(
    federation: Federation,
    sigma: float,
    *,
    embeddings: Embeddings | None = None,
    split: str = "test",
    repeats: int = 5,
    seed: int = 0,
) -> dict[str, Lost]:
    """The score lost per party, on the rows it holds, when its columns of a split are
    noisy and all others' are not (Figure 5, row 3).

    One party's noise does not reach another's embeddings. So all parties are noised in
    one copy, its embeddings are gathered once, and each party's are put among the
    others' clean ones: those in `embeddings`, or gathered here. Where the label owner
    sees sums alone, there is a copy per party instead.
    """
    check_repeats(repeats)
    if embeddings is None and separable(federation):
        embeddings = gather(federation, split)
    if embeddings is not None:
        split = embeddings.split
    rows = federation.batches.splits[split] if embeddings is None else embeddings.rows
    held = at_rows(federation.holdings, split, rows)
    names = list(held.columns)

    def with_noise(holdings: Holdings, party: str, repeat: int) -> Holdings:
        generator = Generator().manual_seed(seed_for(seed, party, f"noise {repeat}"))
        return noised(holdings, party, None, sigma, generator)

    lost: dict[str, list[float]] = {party: [] for party in names}
    metric = metric_of(federation, rows)
    whole = federation.evaluate(split)[metric] if embeddings is None else math.nan
    for repeat in range(repeats):
        if embeddings is None:
            for party in names:
                noisy = trained_copy(federation, with_noise(held, party, repeat))
                lost[party].append(whole - noisy.evaluate(split)[metric])
            continue
        everybody = held
        for party in names:
            everybody = with_noise(everybody, party, repeat)
        parts = gather(trained_copy(federation, everybody), split).parts
        for party in names:
            held_rows = embeddings.held_by(party)
            lost[party].append(
                embeddings.score(at=held_rows)
                - embeddings.score({party: parts[party]}, held_rows)
            )
    return {party: Lost.over(values) for party, values in lost.items()}


@dataclass(frozen=True)
class Retrained:
    """The result of training with these parties' columns."""

    parties: tuple[str, ...]
    score: float
    head_norms: Mapping[str, float] = field(default_factory=dict)
    head_changes: Mapping[str, float] = field(default_factory=dict)


class Retraining:
    """Trains a federation's settings again over changed holdings, from the same seed;
    each set of parties once.

    `score` is that of the given, trained federation, which is not trained again, in
    `metric`: unless said, AUC for two classes, accuracy for more, R squared for
    numbers.
    """

    def __init__(
        self,
        federation: Federation,
        score: float,
        *,
        split: str = "test",
        metric: str = "",
        watch: Watch | None = None,
    ) -> None:
        self.federation = federation
        self.split = split
        self.watch = watch
        self.metric = metric or metric_of(federation, federation.batches.splits[split])
        self.all = Retrained(
            tuple(federation.owners),
            score,
            head_norms(federation),
            head_changes(federation),
        )
        self._known = {frozenset(self.all.parties): self.all}

    def with_parties(self, parties: Collection[str]) -> Retrained:
        """Train on these parties' columns alone."""
        wanted = frozenset(parties)
        if wanted not in self._known:
            gone = sorted({*self.all.parties} - wanted)
            title = (
                "without"
                f" {', '.join(gone) if len(gone) <= 3 else f'{len(gone)} parties'}"
            )
            self._known[wanted] = self._train(
                only(self.federation.holdings, wanted), title
            )
        return self._known[wanted]

    def with_noise(self, party: str, sigma: float, *, seed: int = 0) -> Retrained:
        """Train and test with one party's columns noisy in all rows (Figure 5, row 4)."""
        generator = Generator().manual_seed(seed_for(seed, party, "training noise"))
        return self._train(
            noised(self.federation.holdings, party, None, sigma, generator),
            f"with noise at {party}",
        )

    def _train(self, holdings: Holdings, title: str) -> Retrained:
        settings = self.federation.settings
        # the same sum in the clear, which one party can be part of too
        if not separable(self.federation):
            settings = dataclasses.replace(
                settings,
                config=settings.config.changed(aggregation="plain"),
            )
        parties = {
            name: party
            for name, party in settings.parties.items()
            if name in holdings.names
        }
        other = Federation(dataclasses.replace(settings, parties=parties), holdings)
        watch = self.watch
        # the score says it, and it is not the run's
        with warnings.catch_warnings(action="ignore", category=Finding):
            outcome = other.fit(
                watch=None if watch is None else lambda event: watch(title, event)
            )
        # a budget may end a training
        score = (
            outcome.summary["metrics"].get(self.split, {}).get(self.metric, math.nan)
        )
        return Retrained(
            tuple(other.owners), score, head_norms(other), head_changes(other)
        )


def left_out(retraining: Retraining) -> dict[str, float]:
    """The score lost per party when the others train without it; empty where there is
    one party only."""
    names = retraining.all.parties
    return {
        party: retraining.all.score - retraining.with_parties(others).score
        for party in names
        if (others := [name for name in names if name != party])
    }


@dataclass(frozen=True)
class Summary:
    """A share of the parties, the most or the least important ones, and how they do
    alone (Table 1)."""

    share: int
    which: str
    parties: tuple[str, ...]
    score: float


def chosen(importance: Mapping[str, float], share: int, which: str) -> tuple[str, ...]:
    """The most or least important `share` percent, rounded up to whole parties; in
    party order."""
    if not 0 < share <= 100 or which not in ("most", "least"):
        raise ConfigError(
            "Choose 1 to 100 percent of the most or least important parties; found"
            f" {share} {which!r}."
        )
    count = -(-share * len(importance) // 100)
    ranked = ranking(importance)
    kept = set(ranked[:count] if which == "most" else ranked[-count:])
    return tuple(party for party in importance if party in kept)


def summarize(
    retraining: Retraining,
    importance: Mapping[str, float],
    shares: Sequence[int] = SHARES,
) -> list[Summary]:
    """Train with the most and with the least important parties alone."""
    choices = [
        (share, which, chosen(importance, share, which))
        for share in shares
        for which in ("most", "least")
    ]
    return [
        Summary(share, which, parties, retraining.with_parties(parties).score)
        for share, which, parties in choices
    ]


def trainings(importance: Mapping[str, float]) -> int:
    """How often `left_out`, `summarize` and one `with_noise` train, all together."""
    names = list(importance)
    sets = {frozenset(name for name in names if name != party) for party in names}
    sets |= {
        frozenset(chosen(importance, share, which))
        for share in SHARES
        for which in ("most", "least")
    }
    return len(sets - {frozenset(), frozenset(names)}) + 1
