"""What a selection gives: who was chosen, by which scores, at what cost, and who learned what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.core import Ledger
from colonnade.errors import ConfigError
from colonnade.transport import Recording

DRAWS = 200
"""How often queries are drawn again to see how far scores may be off."""
Group = tuple[str, ...]


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
    errors: dict[str, float] = field(default_factory=dict)  # standard errors of the scores, where queries were drawn
    level: tuple[str, ...] = ()  # left out, though their scores are within error of the last that is kept
    each: dict[str, Selection] = field(default_factory=dict, repr=False)  # of several label owners, by whom

    def to_json(self) -> dict[str, Any]:
        """Plain values, without ledgers and transcripts."""
        return {
            "method": self.method,
            "chosen": list(self.chosen),
            "ranking": list(self.ranking),
            "scores": self.scores,
            "groups": [{"participants": list(group), "information": value} for group, value in self.groups.items()],
            **({} if self.entropy is None else {"entropy": self.entropy}),
            **({"errors": self.errors, "level": list(self.level)} if self.errors else {}),
            "cost": asdict(self.cost),
            "learned": self.learned,
            **({"label_owners": {name: one.to_json() for name, one in self.each.items()}} if self.each else {}),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Selection:
        """What `to_json` gave; without ledgers and transcripts."""
        try:
            return cls(
                str(given["method"]),
                tuple(given["chosen"]),
                tuple(given["ranking"]),
                dict(given["scores"]),
                {tuple(one["participants"]): float(one["information"]) for one in given["groups"]},
                Cost(**given["cost"]),
                dict(given["learned"]),
                entropy=given.get("entropy"),
                errors=dict(given.get("errors", {})),
                level=tuple(given.get("level", ())),
                each={name: cls.from_json(one) for name, one in given.get("label_owners", {}).items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"This is no result of `colonnade select` ({type(error).__name__}: {error}).") from None


def ranked(scores: dict[str, float]) -> tuple[str, ...]:
    """Best first; equal ones in the order given."""
    return tuple(sorted(scores, key=lambda name: -scores[name]))


Scored = Callable[[Callable[[Sequence[Group]], dict[Group, float]]], dict[str, float]]
"""From what groups know to a score of each participant."""


def within_error(
    terms: Mapping[Group, NDArray[np.float64]], scored: Scored, chosen: Sequence[str], seed: int
) -> tuple[dict[str, float], tuple[str, ...]]:
    """The standard error of each score, by drawing queries again (a bootstrap), and who is left out though its score is
    within two errors of the last that is kept: of their difference, since all are of the same queries."""
    random = np.random.default_rng(seed)
    count = len(next(iter(terms.values())))
    draws = []
    for _ in range(DRAWS):
        rows = random.integers(0, count, count)
        draws.append(scored(lambda wanted, rows=rows: {group: float(terms[group][rows].mean()) for group in wanted}))  # type: ignore[misc]
    errors = {name: float(np.std([one[name] for one in draws], ddof=1)) for name in draws[0]}
    now = scored(lambda wanted: {group: float(terms[group].mean()) for group in wanted})
    last = min(chosen, key=lambda name: now[name])
    gaps = {name: np.std([one[last] - one[name] for one in draws], ddof=1) for name in now if name not in chosen}
    return errors, tuple(name for name, gap in gaps.items() if now[last] - now[name] < 2 * gap)
