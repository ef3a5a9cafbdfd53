"""How much each party matters, from the trained model alone: head norms, permutation,
silence, and how they agree.

Where parties lack rows, the score that is lost without a party is that on the rows
which it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from colonnade.errors import ConfigError
from colonnade.explain.embeddings import Embeddings
from colonnade.federation import Federation
from colonnade.first_use import stats


class Measure(NamedTuple):
    """The names of a measure: above a column, in a sentence, and above a picture."""

    heading: str
    phrase: str
    title: str


MEASURES = {
    "head_norm": Measure("head norm", "its head's norm", "Head norm\n‖Wₖ‖"),
    "head_change": Measure(
        "head change", "how far its head moved in training", "Head change\n‖Wₖ − start‖"
    ),
    "permutation": Measure(
        "shuffled", "lost when its rows are shuffled", "lost when\nshuffled"
    ),
    "silenced": Measure(
        "silenced", "lost without its embedding", "lost when\nsilenced"
    ),
    "noise": Measure("noise", "lost with noise on its columns", "lost under\nnoise"),
    "left_out": Measure(
        "left out", "lost when trained without it", "lost when\nleft out"
    ),
}
"""All measures, in the order they are shown."""
HEADS = ("head_norm", "head_change")
"""The measures of heads' weights; the others are scores lost."""


def ranked_by(measure: str) -> str:
    """What parties are ranked by, as a part of a sentence."""
    if measure not in MEASURES:  # in a report that another version wrote
        return measure
    return (
        MEASURES[measure].phrase
        if measure in HEADS
        else f"what is {MEASURES[measure].phrase}"
    )


@dataclass(frozen=True)
class Lost:
    """The score lost, over seeded repeats; negative where the model does better
    without."""

    mean: float
    deviation: float = 0.0

    @classmethod
    def over(cls, repeats: Sequence[float]) -> Lost:
        mean = fmean(repeats)
        return cls(mean, pstdev(repeats) if math.isfinite(mean) else math.nan)


def head_norms(federation: Federation, owner: str | None = None) -> dict[str, float]:
    """||W_k|| per party (Section 5.2), at the first label owner or `owner`; empty where no head is of one party."""
    label_owner = federation.label_owners[federation.owner_named(owner)]
    norms_of = federation.algorithm.head_norms
    by_party = {} if norms_of is None else norms_of(label_owner)
    return {party: by_party[party] for party in label_owner.peers} if by_party else {}


def permutation(
    embeddings: Embeddings, *, repeats: int = 5, seed: int = 0
) -> dict[str, Lost]:
    """The score lost per party when its rows are permuted: its columns keep their
    values and lose their meaning. Each repeat permutes every party in the same way, so
    that parties are compared under the same draw."""
    check_repeats(repeats)
    generator = Generator().manual_seed(seed)
    rows = len(embeddings.labels)
    return permuted_by(
        embeddings, [torch.randperm(rows, generator=generator) for _ in range(repeats)]
    )


def permuted_by(embeddings: Embeddings, orders: Sequence[Tensor]) -> dict[str, Lost]:
    """As `permutation`, with given permutations; a party's rows change places among
    those that it holds."""
    lost_by_party = {}
    for party, h in embeddings.parts.items():
        held = embeddings.held_by(party)
        whole = embeddings.score(at=held)
        lost = []
        for order in orders:
            mixed = h.clone()
            mixed[held.to(h.device)] = h[order[torch.isin(order, held)].to(h.device)]
            lost.append(whole - embeddings.score({party: mixed}, held))
        lost_by_party[party] = Lost.over(lost)
    return lost_by_party


def silenced(embeddings: Embeddings) -> dict[str, float]:
    """The score lost per party when it sends its mean embedding for every row."""
    lost_by_party = {}
    for party, h in embeddings.parts.items():
        held = embeddings.held_by(party)
        mean = h[held.to(h.device)].mean(0, keepdim=True).expand_as(h)
        lost_by_party[party] = embeddings.score(at=held) - embeddings.score(
            {party: mean}, held
        )
    return lost_by_party


def added(embeddings: Embeddings, label_owner: str) -> dict[str, dict[str, float]]:
    """What each partner adds to the rows that it holds: the score with it, and of the
    same model without it. Rows that no other party holds cannot be predicted without
    it, and are left out."""
    by_partner = {}
    nobody = torch.zeros(len(embeddings.labels), dtype=torch.bool)
    for party in embeddings.parts:
        others = [
            embeddings.lacks.get(name, nobody)
            for name in embeddings.parts
            if name != party
        ]
        if party != label_owner and others:
            held = embeddings.held_by(party)
            held = held[~torch.stack(others).all(0)[held]]
            whole = embeddings.score(at=held)
            rest = embeddings.score(at=held, without=[party])
            by_partner[party] = {
                "rows": len(held),
                "with_it": whole,
                "without_it": rest,
                "gain": whole - rest,
            }
    return by_partner


def ranking(importance: Mapping[str, float]) -> list[str]:
    """Parties, the most important first; equal ones stay in party order, and those
    without a value come last."""
    return sorted(
        importance,
        key=lambda party: (math.isnan(importance[party]), -importance[party]),
    )


Values = Mapping[str, float | None]


def disagreement(
    measures: Mapping[str, Values], by: str, deviations: Mapping[str, Values]
) -> str:
    """A sentence on the parties that other measures rank first, where `by` ranks
    another one first; empty at a tie. Values that differ by no more than their
    `deviations` over repeats are a tie too."""
    measures_by_party: dict[str, list[str]] = {}
    first = _first(measures.get(by, {}), deviations.get(by, {}))
    for name, values in measures.items():
        top = _first(values, deviations.get(name, {}))
        if first and top and not first & top:
            party = ranking(
                {party: value for party, value in values.items() if value is not None}
            )[0]
            measures_by_party.setdefault(party, []).append(
                f'"{MEASURES[name].heading}"'
            )
    if not measures_by_party:
        return ""
    most = ranking(
        {party: value for party, value in measures[by].items() if value is not None}
    )[0]
    firsts = [f'{most} by "{MEASURES[by].heading}"']
    firsts += [
        f"{party} by {' and '.join(names)}"
        for party, names in measures_by_party.items()
    ]
    return f"The measures disagree on who matters most: {', '.join(firsts)}."


def _first(values: Values, deviations: Values) -> set[str]:
    """The parties with the highest value, or less by no more than chance; none where
    that holds for all parties."""
    known = {
        party: value
        for party, value in values.items()
        if value is not None and math.isfinite(value)
    }
    spread = {party: deviations.get(party) or 0.0 for party in known}
    best = max(known, key=lambda party: known[party], default="")
    top = {
        party
        for party, value in known.items()
        if known[best] - value <= max(spread[best], spread[party])
    }
    return top if len(top) < len(known) else set()


@dataclass(frozen=True)
class Agreement:
    """How alike two measures rank the parties; NaN where one of them ranks nobody, or
    there is one party."""

    spearman: float
    kendall: float


def correlation(a: Mapping[str, float], b: Mapping[str, float]) -> Agreement:
    """Spearman's rho and Kendall's tau-b over the parties."""
    if a.keys() != b.keys():
        raise ConfigError(
            f"Two measures of the same parties are compared; found {', '.join(a)} and"
            f" {', '.join(b)}."
        )
    x = list(a.values())
    y = [b[party] for party in a]
    if len(set(x)) < 2 or len(set(y)) < 2:
        return Agreement(math.nan, math.nan)
    return Agreement(
        float(stats.spearmanr(x, y).statistic), float(stats.kendalltau(x, y).statistic)
    )


def check_repeats(repeats: int) -> None:
    if repeats < 1:
        raise ConfigError(f"There must be at least one repeat; found {repeats}.")
