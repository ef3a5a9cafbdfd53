"""Whether one participant tells more about the label than another, or is as good.

Two scores come from the same queries and from overlapping groups, so their separate
errors say little about their difference. A comparison is paired instead. It looks at
the groups that differ in one member only: the same company, once with the one
participant and once with the other. The difference of their information, query by
query, is what the one adds in the place of the other.

    difference = mean over companies and queries of  I(company + one) - I(company + other)

It may be off for two reasons: other queries could have been drawn, and the two would
have differed otherwise in other company. The error has both,

    error = 2 sqrt(variance over queries / queries + variance over companies / companies)

which counts the part of the queries' noise that is in both twice, so it is rather too
large. With one company only the queries are counted, since one company does not tell
how much others vary.

Where tests were drawn at random, there may be no such pair of groups. Then the groups
of the one are compared with those of the other, and the error is that of two means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.selection.methods import Group

Terms = Mapping[Group, NDArray[np.float64]]
"""For each tested group, each query's term of what the group tells about the label."""


@dataclass(frozen=True)
class Comparison:
    """What one participant adds in the place of another, in nats."""

    one: str
    other: str
    difference: float
    error: float  # two standard errors

    def reversed(self) -> Comparison:
        return Comparison(self.other, self.one, -self.difference, self.error)

    def least(self, asked: float = 0.0) -> float:
        """The difference from which on the one counts as better: what is asked for,
        and more than the error."""
        return max(self.error, asked)

    def is_tie(self, asked: float = 0.0) -> bool:
        """Whether the other is as good, as far as can be told."""
        return self.difference <= self.least(asked)


def compare_all(names: Sequence[str], terms: Terms) -> list[Comparison]:
    """Compare each participant with each one after it, where some group tells them
    apart."""
    comparisons = []
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            found = compare(one, other, terms)
            if found is not None:
                comparisons.append(found)
    return comparisons


def compare(one: str, other: str, terms: Terms) -> Comparison | None:
    """Compare two participants; None where all groups with the one have the other."""
    gains = _gains_by_company(one, other, terms)
    if len(gains):
        difference, variance = _mean_of(gains)
        return Comparison(one, other, difference, 2 * float(np.sqrt(variance)))
    with_one = _above_their_size(one, other, terms)
    with_other = _above_their_size(other, one, terms)
    if not len(with_one) or not len(with_other):
        return None
    difference = float(with_one.mean() - with_other.mean())
    by_query = with_one.mean(axis=0) - with_other.mean(axis=0)
    variance = _variance_of_mean(by_query)
    variance += _variance_of_mean(with_one.mean(axis=1))
    variance += _variance_of_mean(with_other.mean(axis=1))
    return Comparison(one, other, difference, 2 * float(np.sqrt(variance)))


def _gains_by_company(one: str, other: str, terms: Terms) -> NDArray[np.float64]:
    """What the one adds in the place of the other, [companies, queries]."""
    groups = {frozenset(group): values for group, values in terms.items()}
    gains = []
    for group, values in groups.items():
        if one in group and other not in group:
            swapped = group - {one} | {other}
            if swapped in groups:
                gains.append(values - groups[swapped])
    return np.array(gains)


def _above_their_size(
    participant: str, without: str, terms: Terms
) -> NDArray[np.float64]:
    """The terms of groups with the participant and not the other, [groups, queries],
    each less the mean of all groups of its size: larger groups tell more, whoever is in
    them."""
    sizes: dict[int, list[NDArray[np.float64]]] = {}
    for group, values in terms.items():
        sizes.setdefault(len(group), []).append(values)
    usual = {size: np.mean(values, axis=0) for size, values in sizes.items()}
    return np.array(
        [
            values - usual[len(group)]
            for group, values in terms.items()
            if participant in group and without not in group
        ]
    )


def _mean_of(gains: NDArray[np.float64]) -> tuple[float, float]:
    """The mean over companies and queries, and the variance of that mean."""
    by_query = gains.mean(axis=0)
    by_company = gains.mean(axis=1)
    variance = _variance_of_mean(by_query) + _variance_of_mean(by_company)
    return float(gains.mean()), variance


def _variance_of_mean(values: NDArray[np.float64]) -> float:
    """The variance of the mean of these values; 0 for a single one, which does not
    tell."""
    if len(values) < 2:
        return 0.0
    return float(values.var(ddof=1) / len(values))


def jointly_compared(
    parts: Iterable[tuple[float, Mapping[tuple[str, str], Comparison]]],
) -> list[Comparison]:
    """The comparisons over all rows of several label owners, each of which has a share
    of them. Two participants are compared where every label owner compared them."""
    shared = list(parts)
    pairs = [pair for pair in shared[0][1] if all(pair in part for _, part in shared)]
    joint = []
    for one, other in pairs:
        own = [(share, part[one, other]) for share, part in shared]
        difference = sum(share * found.difference for share, found in own)
        variance = sum((share * found.error) ** 2 for share, found in own)
        joint.append(Comparison(one, other, difference, float(np.sqrt(variance))))
    return joint


def from_json(given: Sequence[Mapping[str, Any]]) -> list[Comparison]:
    """Read what `dataclasses.asdict` gave of each comparison."""
    return [
        Comparison(
            str(line["one"]),
            str(line["other"]),
            float(line["difference"]),
            float(line["error"]),
        )
        for line in given
    ]
