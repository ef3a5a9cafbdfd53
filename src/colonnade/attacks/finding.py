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
from colonnade.attacks.scores import AUC, GUESSED_AUC, Undecided
from colonnade.core import Ciphertext, Released
from colonnade.core.cipher import NOT_ENCRYPTED
from colonnade.core.receipt import NON_PRIVATE
from colonnade.encryption.masks import SHARES
from colonnade.privacy.accounting import costs_nothing

LABEL_LIMIT = "label_inference"
SSIM_LIMIT = "inversion_ssim"
R2_LIMIT = "inversion_r2"
CLASS_LIMIT = "recognition"
LIMITS = (LABEL_LIMIT, SSIM_LIMIT, R2_LIMIT, CLASS_LIMIT)
"""The settings in [audit], each a bound on one kind of score."""

NOTHING = -math.inf
"""The gain of an attack that is not shown to be better than guessing."""
NOT_MEASURED = "not measured: too few rows of one class"
NOT_RULED_OUT = "nothing shown, but too few rows of one class to rule it out"
NOT_RULED_OUT_FROM = 0.5
"""The gain that must lie outside of the interval for an attack to be called harmless."""
TURNED = ", the other way round (by a few known labels)"
"""What is added to a verdict on scores that count with the opposite sign."""
LABELS = {
    0.8: "can tell nearly every label",
    0.3: "can tell many labels",
    0.0: "learns something about labels",
    NOTHING: "no better than guessing",
}
CLASSES = {
    0.8: "nearly every class is still seen",
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
SCALES = {
    LABEL_LIMIT: LABELS,
    SSIM_LIMIT: COLUMNS,
    R2_LIMIT: COLUMNS,
    CLASS_LIMIT: CLASSES,
}
"""The words for each kind of score."""

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
SSIM = "SSIM"
METRICS = {BEST: R2_LIMIT, BEST_OVER_OWN: R2_LIMIT, SSIM: SSIM_LIMIT}
"""The metrics of these attacks, and the limit on each."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One attack by one party on another's secret.

    Args:
        attack: What was tried.
        attacker: The party that tried it.
        victim: The party whose labels or columns they are.
        moment: When the attacker listened.
        assumes: What the attacker knows or has, beside what it was sent.
        metric: What the score is.
        score: At most 1; None where the attacked rows cannot measure it.
        baseline: The score of somebody who only guesses.
        limit: The setting in [audit] that bounds the score.
        low: The lower end of the score's 95 % interval, if it has one.
        high: The upper end.
        undecided: Thresholds that the attacked rows cannot decide about, as ranges.
        threshold: The value of the setting, where one is set.
        remark: What is added to the verdict.
        releases: The names of what the attack read.
        details: What else was measured; names and numbers, no values of anybody's rows.
    """

    attack: str
    attacker: str
    victim: str
    moment: str
    assumes: str
    metric: str
    score: float | None
    baseline: float
    limit: str
    low: float | None = None
    high: float | None = None
    undecided: Undecided = ()
    threshold: float | None = None
    remark: str = ""
    releases: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether the attacked rows could show whether the attack works."""
        return self.score is not None

    @property
    def proven(self) -> float | None:
        """The value that verdicts and thresholds look at: of AUC the lower end of its
        interval, which the attack reaches for sure; of other metrics the score."""
        return self.low if self.metric == AUC else self.score

    @property
    def gain(self) -> float:
        """How far the attack is shown to get from guessing, 0, to knowing all, 1."""
        if self.proven is None:
            return NOTHING
        by_luck = self.low is not None and self.low <= self.baseline
        return NOTHING if by_luck else advantage(self.proven, self.baseline)

    @property
    def leaks(self) -> bool:
        """Whether the attack is shown to be better than guessing."""
        return self.gain >= min(least for least in self._scale if least > NOTHING)

    @property
    def verdict(self) -> str:
        """What the finding means, in words."""
        if not self.measured:
            return NOT_MEASURED + self.remark
        if not self.leaks and self.highest_gain >= NOT_RULED_OUT_FROM:
            return NOT_RULED_OUT + self.remark
        return in_words(self._scale, self.gain) + self.remark

    @property
    def highest_gain(self) -> float:
        """How far an attack may get by the other end of its interval, whichever way
        round its scores are; for metrics other than AUC what it is shown to get."""
        if self.metric != AUC or self.low is None or self.high is None:
            return self.gain
        return advantage(max(self.high, 1 - self.low), self.baseline)

    def __str__(self) -> str:
        return f"{self.attacker} on {self.victim}, {self.attack} ({self.moment})"

    @property
    def figure(self) -> str:
        """The score in one line, with the lower end that counts."""
        if self.score is None:
            return f"{self.metric} not measured"
        sure = f", {self.low:.3f} at least" if self.metric == AUC else ""
        return f"{self.metric} {self.score:.3f}{sure}"

    @property
    def crossed(self) -> bool:
        """Whether the attack is shown to do better than its threshold allows."""
        if self.threshold is None or self.proven is None:
            return False
        return self.proven > self.threshold

    @property
    def unknown(self) -> bool:
        """Whether there is a threshold, and these rows cannot say if it is kept."""
        if self.threshold is None:
            return False
        limit = self.threshold
        return any(start <= limit < end for start, end in self.undecided)

    @property
    def counts(self) -> bool:
        """Whether it bounds what its releases tell: guesses that an attacker reports
        show a leak, never its absence."""
        return self.crossed or (self.measured and not self.details.get("told", False))

    @property
    def measures_every_class(self) -> bool:
        """Whether there were enough rows of each class to tell a leak from luck."""
        return all(start > self.baseline for start, _ in self.undecided)

    @property
    def _scale(self) -> Mapping[float, str]:
        return SCALES[self.limit]

    def under(self, thresholds: Mapping[str, float | None]) -> Finding:
        """The finding with the threshold that is set for it."""
        return dataclasses.replace(self, threshold=thresholds.get(self.limit))

    def to_json(self) -> dict[str, Any]:
        """The fields, and what follows from them for readers that are no Python."""
        return {
            **dataclasses.asdict(self),
            "proven": self.proven,
            "verdict": self.verdict,
            "measured": self.measured,
            "leaks": self.leaks,
            "crossed": self.crossed,
            "unknown": self.unknown,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Finding:
        """A finding as `to_json` wrote it."""
        names = {one.name for one in dataclasses.fields(cls)}
        known = {name: value for name, value in saved.items() if name in names}
        known["releases"] = tuple(known["releases"])
        known["undecided"] = tuple(map(tuple, known["undecided"]))
        return cls(**known)


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
    """A finding whose score is that of the column which was rebuilt best.

    Args:
        attack: One of `ASSUMES`.
        attacker: The party that tried it.
        victim: The party whose columns they are.
        moment: When the attacker listened.
        by_column: The score of each column.
        releases: The names of what the attack read.
        known_rows: How many rows of the victim's the attacker knows. If any, scores are
            over what the attacker's own data tell.
        details: What else was measured.
    """
    best = max(by_column, key=by_column.__getitem__, default="")
    return Finding(
        attack=attack,
        attacker=attacker,
        victim=victim,
        moment=moment,
        assumes=ASSUMES[attack].format(known_rows),
        metric=BEST_OVER_OWN if known_rows else BEST,
        score=by_column.get(best, 0.0),
        baseline=0.0,
        limit=R2_LIMIT,
        releases=releases,
        details={**details, "best_column": best},
    )


def suggested(findings: Sequence[Finding]) -> tuple[str, float]:
    """A setting in [audit] and a threshold to begin with: a fifth of the way from
    guessing to knowing everything."""
    limits = {finding.limit for finding in findings} or {LABEL_LIMIT}
    limit = min(limits, key=LIMITS.index)
    guesses = [finding.baseline for finding in findings if finding.limit == limit]
    guess = max([0.0, *guesses]) if guesses else GUESSED_AUC
    return limit, round(guess + 0.2 * (1 - guess), 2)


def in_words(scale: Mapping[float, str], gain: float) -> str:
    """The words for an attack that gains this much."""
    return next(words for least, words in scale.items() if gain >= least)


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
ONE_CLASS = (
    "the attacks on it were not measured: too few rows of one class; audit more rows"
    " (--rows)"
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
    """All that crossed in some rehearsal, could be read, and no finding bounds.

    Args:
        algorithm: What was trained; its record says what each release is.
        rehearsals: What was received.
        findings: The attacks that were made.
        reads: The kinds of releases that there are attacks on.
        party: Only what this party sent or received.
    """
    attacks = _by_release(findings)
    missing: dict[tuple[str, str, str], NotAttacked] = {}
    arrivals = [one for rehearsal in rehearsals for one in rehearsal.arrivals()]
    for receiver, item in arrivals:
        name = item.receipt.name
        owner = item.receipt.owner
        asked_for = party in (None, owner, receiver)
        if owner == receiver or not asked_for or not _readable(item):
            continue
        key = owner, receiver, name
        made = attacks.get(key, [])
        if any(finding.counts for finding in made):
            continue
        reason = _why_not_tried(algorithm, item, reads)
        if made:
            reason = _why_not_bounded(made, receiver)
        missing.setdefault(key, NotAttacked(name, owner, receiver, reason))
    return list(missing.values())


def _by_release(
    findings: Iterable[Finding],
) -> dict[tuple[str, str, str], list[Finding]]:
    """The findings about each release, by its owner, its receiver and its name."""
    by_release: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        for receiver in (finding.attacker, *finding.details.get("reached", ())):
            for name in finding.releases:
                key = finding.victim, receiver, name
                by_release.setdefault(key, []).append(finding)
    return by_release


def _why_not_bounded(made: Iterable[Finding], receiver: str) -> str:
    """Why the attacks that were made on a release do not bound what it tells."""
    if any(not finding.details.get("told", False) for finding in made):
        return ONE_CLASS
    return BY_WORD.format(receiver)


def _readable(item: Released | Ciphertext) -> bool:
    event = item.receipt.event
    # the event of a ciphertext that its receiver can decrypt says so
    if isinstance(item, Ciphertext):
        return event == NON_PRIVATE or item.encrypted.scheme == NOT_ENCRYPTED
    return not costs_nothing(event)


def _why_not_tried(
    algorithm: AnyAlgorithm, item: Released | Ciphertext, reads: Collection[Kind]
) -> str:
    """Why no attack was made on a release."""
    release = algorithm.releases.get(item.receipt.name)
    if release is None:
        return UNDECLARED
    if item.receipt.codec == SHARES.name:
        return SUMMED
    return FAILED if release.kind in reads else UNREAD
