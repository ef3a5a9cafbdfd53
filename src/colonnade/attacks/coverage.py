"""What crossed in a run and no attack looked at: of that, an audit cannot say that it is safe."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from colonnade.algorithms import Kind
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.attacks.finding import Finding
from colonnade.attacks.rehearsal import Rehearsal
from colonnade.core import Ciphertext, Released
from colonnade.core.cipher import NOT_ENCRYPTED
from colonnade.core.receipt import NON_PRIVATE
from colonnade.encryption.masks import SHARES
from colonnade.privacy.accounting import costs_nothing

UNDECLARED = "the algorithm's record does not say what it is"
SUMMED = "it arrived masked, and no attack here looks at the sum, which can be read"
UNREAD = "no attack here reads it"
FAILED = "the attacks on it did not apply: too few rows, another shape, or no model to attack"


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
    """All that crossed in some rehearsal and could be read there. `reads` are the kinds that there are attacks on;
    `party` narrows to what it sent or received."""
    attacked = {
        (one.victim, receiver, name)
        for one in findings
        for receiver in (one.attacker, *one.details.get("reached", ()))
        for name in one.releases
    }
    found: dict[tuple[str, str, str], NotAttacked] = {}
    for receiver, item in (pair for rehearsal in rehearsals for pair in _arrived(rehearsal)):
        name, owner = item.receipt.name, item.receipt.owner
        key = owner, receiver, name
        if key not in attacked and party in (None, owner, receiver):
            found.setdefault(key, NotAttacked(name, owner, receiver, _why(algorithm, item, reads)))
    return list(found.values())


def _arrived(rehearsal: Rehearsal) -> Iterator[tuple[str, Released | Ciphertext]]:
    """Who received what of somebody else's that it could read."""
    for receiver, transcript in rehearsal.transcripts.items():
        for seen in transcript:
            for item in seen.message.crossing():
                if item.receipt.owner != receiver and _readable(item):
                    yield receiver, item


def _readable(item: Released | Ciphertext) -> bool:
    event = item.receipt.event
    if isinstance(item, Ciphertext):  # whoever passes on what its receiver can undo says so
        return event == NON_PRIVATE or item.encrypted.scheme == NOT_ENCRYPTED
    return not costs_nothing(event)


def _why(algorithm: AnyAlgorithm, item: Released | Ciphertext, reads: Collection[Kind]) -> str:
    release = algorithm.releases.get(item.receipt.name)
    if release is None:
        return UNDECLARED
    if item.receipt.codec == SHARES.name:
        return SUMMED
    return FAILED if release.kind in reads else UNREAD
