"""What a selection gives: who was chosen, by which scores, at what cost, and who learned what."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from colonnade.core import Ledger
from colonnade.transport import Recording


@dataclass(frozen=True)
class Cost:
    """Ciphertexts are packed; `encryptions`, `additions` and `decryptions` count packed ones."""

    seconds: float = 0.0
    bytes: int = 0  # sent by all parties together, by their ledgers
    encryptions: int = 0
    additions: int = 0
    decryptions: int = 0
    candidates: float = 0.0  # rows per query whose distances were asked for


@dataclass(frozen=True)
class Selection:
    """Scores of vf_ps, leave_one_out and brute_force are mutual informations in nats."""

    method: str
    chosen: tuple[str, ...]  # best first
    ranking: tuple[str, ...]  # all participants, best first
    scores: dict[str, float]
    groups: dict[tuple[str, ...], float]  # what each tested group knows about the label together
    cost: Cost
    learned: dict[str, str]
    ledgers: dict[str, Ledger] = field(default_factory=dict, repr=False)
    recording: Recording | None = field(default=None, repr=False)
    entropy: float | None = None  # of the label, in nats: the highest that mutual information with it can be

    def to_json(self) -> dict[str, Any]:
        """Plain values, without ledgers and transcripts."""
        return {
            "method": self.method,
            "chosen": list(self.chosen),
            "ranking": list(self.ranking),
            "scores": self.scores,
            "groups": [{"participants": list(group), "information": value} for group, value in self.groups.items()],
            **({} if self.entropy is None else {"entropy": self.entropy}),
            "cost": asdict(self.cost),
            "learned": self.learned,
        }


def ranked(scores: dict[str, float]) -> tuple[str, ...]:
    """Best first; equal ones in the order given."""
    return tuple(sorted(scores, key=lambda name: -scores[name]))
