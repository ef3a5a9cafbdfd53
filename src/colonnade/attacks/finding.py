"""What an attack found, in words for those who decide about a release.

An audit cannot say that a release which no attack looked at is safe.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colonnade.algorithms import Kind
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.attacks.rehearsal import Rehearsal
from colonnade.core import Ciphertext, Released
from colonnade.core.cipher import NOT_ENCRYPTED
from colonnade.core.receipt import NON_PRIVATE
from colonnade.encryption.masks import SHARES
from colonnade.privacy.accounting import costs_nothing

LIMITS = ("label_inference", "inversion_ssim", "inversion_r2", "recognition")
"""The settings in [audit], each a bound on one kind of score."""

NOTHING = -math.inf
LABELS = {
    0.9: "can tell nearly every label",
    0.3: "can tell many labels",
    0.0: "learns something about labels",
    NOTHING: "no better than guessing",
}
CLASSES = {
    0.9: "nearly every class is still seen",
    0.3: "many classes are still seen",
    0.0: "some classes are still seen",
    NOTHING: "classes are no longer seen",
}
COLUMNS = {
    0.9: "can rebuild rows almost exactly",
    0.5: "can rebuild much of the rows",
    0.1: "can rebuild traces of the rows",
    NOTHING: "hardly better than guessing the mean",
}
"""What is said of an attack that gains so much, or more."""

INVERSION = "columns by model inversion"
KNOWN_MODEL = "columns by the known initial model"
WHITE_BOX = "has the victim's model weights (white box)"
SOME_ROWS = "knows the victim's columns of {} rows, and no weights"
ASSUMES = {
    INVERSION: WHITE_BOX,
    KNOWN_MODEL: (
        "knows the agreed seed, from which the victim's initial weights follow, and the"
        " kind of its model"
    ),
    "columns by regression on known rows": SOME_ROWS,
    "columns from scores of many rounds": SOME_ROWS,
    "columns from sums of scores of many rounds": SOME_ROWS,
    "columns from sums over bins": SOME_ROWS,
    "columns from scores and lengths": (
        "looks at what it receives, and tries both signs of each direction"
    ),
    "columns by dividing the Jacobian": (
        "knows the shape of the victim's first layer, not its weights"
    ),
}
"""Attacks on columns, and what each assumes."""
BEST = "R² of the best column"
BEST_OVER_OWN = "R² of the best column, over own data"
METRICS = {
    BEST: "inversion_r2",
    BEST_OVER_OWN: "inversion_r2",
    "SSIM": "inversion_ssim",
}
"""The metrics of these attacks, and the limit on each."""


@dataclass(frozen=True)
class Finding:
    """One attack by one party on another's secret. `score` is at most 1; `baseline` is
    what needs no attack."""

    attack: str
    attacker: str
    victim: str
    moment: str
    assumes: str
    metric: str
    score: float
    baseline: float
    verdict: str
    limit: str = ""  # the setting in [audit] that bounds the score
    low: float | None = None  # the score's 95 % interval
    high: float | None = None
    threshold: float | None = None
    releases: tuple[str, ...] = ()  # the names of what the attack read
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether it bounds what its releases tell: guesses that an attacker reports
        show a leak, never its absence."""
        return self.crossed or not self.details.get("told", False)

    @property
    def crossed(self) -> bool:
        return self.threshold is not None and self.score > self.threshold

    def under(self, thresholds: Mapping[str, float | None]) -> Finding:
        """The finding with the threshold that is set for it."""
        return dataclasses.replace(self, threshold=thresholds.get(self.limit))

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "crossed": self.crossed}


def of_columns(
    attack: str,
    attacker: str,
    victim: str,
    moment: str,
    by_column: Mapping[str, float],
    *,
    releases: tuple[str, ...] = (),
    known_rows: int = 0,
    details: Mapping[str, Any],
) -> Finding:
    """A finding whose score is that of the column which was rebuilt best; where rows
    are known, over own data."""
    best = max(by_column, key=by_column.__getitem__, default="")
    score = by_column.get(best, 0.0)
    return Finding(
        attack,
        attacker,
        victim,
        moment,
        ASSUMES[attack].format(known_rows),
        BEST_OVER_OWN if known_rows else BEST,
        score,
        0.0,
        verdict(COLUMNS, score, 0.0),
        "inversion_r2",
        releases=releases,
        details={**details, "best_column": best},
    )


def suggested(findings: Sequence[Finding]) -> tuple[str, float]:
    """A threshold to begin with: a fifth of the way from what needs no attack to
    knowing everything."""
    limit = min(
        (finding.limit for finding in findings if finding.limit),
        key=LIMITS.index,
        default=LIMITS[0],
    )
    baseline = max(
        (max(finding.baseline, 0.0) for finding in findings if finding.limit == limit),
        default=0.5,
    )
    value = baseline + 0.2 * (1 - baseline)
    return limit, next(
        (
            rounded
            for digits in range(2, 17)
            if baseline < (rounded := round(value, digits)) < 1
        ),
        1.0,
    )


def verdict(
    scale: Mapping[float, str], score: float, baseline: float, low: float | None = None
) -> str:
    """In words, how far the attack gets from guessing to knowing all, where the low end
    of its score beats chance."""
    gained = advantage(score, baseline) if low is None or low > baseline else NOTHING
    return next(
        (words for least, words in scale.items() if gained >= least), scale[NOTHING]
    )


def advantage(score: float, baseline: float) -> float:
    """1: perfect, 0: no better than the baseline."""
    return (score - baseline) / max(1 - baseline, 1e-9)


UNDECLARED = "the algorithm's record does not say what it is"
SUMMED = "it arrived masked, and no attack here looks at the sum, which can be read"
UNREAD = "no attack here reads it"
BY_WORD = "not attacked here: by the word of '{}' alone, which would be the attacker"
FAILED = (
    "the attacks on it did not apply: too few rows, another shape, or no model to"
    " attack"
)


@dataclass(frozen=True)
class NotAttacked:
    """Something that one party released, another could read, and no finding is about."""

    release: str
    owner: str
    receiver: str
    why: str

    def __str__(self) -> str:
        return f"{self.release} of {self.owner}, read by {self.receiver}: {self.why}"


def not_attacked(
    algorithm: AnyAlgorithm,
    rehearsals: Sequence[Rehearsal],
    findings: Iterable[Finding],
    *,
    reads: Collection[Kind],
    party: str | None = None,
) -> list[NotAttacked]:
    """All that crossed in some rehearsal, could be read, and no finding covers. `reads`
    are the kinds that there are attacks on; `party` narrows to what it sent or
    received."""
    counting: dict[tuple[str, str, str], bool] = {}
    for finding in findings:
        for receiver in (finding.attacker, *finding.details.get("reached", ())):
            for name in finding.releases:
                key = finding.victim, receiver, name
                counting[key] = finding.counts or counting.get(key, False)
    attacked = {key for key, counts in counting.items() if counts}
    missing: dict[tuple[str, str, str], NotAttacked] = {}
    for receiver, item in (
        arrival for rehearsal in rehearsals for arrival in rehearsal.arrivals()
    ):
        name = item.receipt.name
        owner = item.receipt.owner
        key = owner, receiver, name
        if (
            owner == receiver
            or key in attacked
            or party not in (None, owner, receiver)
            or not _readable(item)
        ):
            continue
        why = (
            BY_WORD.format(receiver)
            if key in counting
            else _why(algorithm, item, reads)
        )
        missing.setdefault(key, NotAttacked(name, owner, receiver, why))
    return list(missing.values())


def _readable(item: Released | Ciphertext) -> bool:
    event = item.receipt.event
    # the event of a ciphertext that its receiver can decrypt says so
    if isinstance(item, Ciphertext):
        return event == NON_PRIVATE or item.encrypted.scheme == NOT_ENCRYPTED
    return not costs_nothing(event)


def _why(
    algorithm: AnyAlgorithm, item: Released | Ciphertext, reads: Collection[Kind]
) -> str:
    release = algorithm.releases.get(item.receipt.name)
    if release is None:
        return UNDECLARED
    if item.receipt.codec == SHARES.name:
        return SUMMED
    return FAILED if release.kind in reads else UNREAD
