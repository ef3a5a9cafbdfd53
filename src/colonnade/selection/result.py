"""The result of a selection: who was chosen, by which scores, at what cost, and who
learned what, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.core import Ledger
from colonnade.errors import ConfigError
from colonnade.selection import comparing
from colonnade.selection.aggregation import CANDIDATES, SEEN, SORTED, TOTAL
from colonnade.selection.comparing import Comparison
from colonnade.selection.leader import QUERIES, STOPS, UNFINISHED, Leader
from colonnade.selection.methods import Group
from colonnade.selection.participant import DISTANCES, RANKING, REACH
from colonnade.selection.sorting import ORDER
from colonnade.settings.selection import KEYS, SERVER, SelectionSettings
from colonnade.transport import Recording

DRAWS = 200
"""How often queries are drawn again to see how far scores may be off."""


@dataclass(frozen=True)
class Cost:
    """Ciphertexts are packed; `encryptions`, `additions` and `decryptions` count packed
    ones."""

    seconds: float = 0.0
    bytes: int = 0  # sent by all parties together, by their ledgers
    encryptions: int = 0
    additions: int = 0
    decryptions: int = 0
    candidates: float = 0.0  # rows per query whose distances were asked for

    @classmethod
    def of(cls, seconds: float, sent: int, counted: Counter[str], queries: int) -> Cost:
        """The cost of what all parties counted for so many queries."""
        encryptions = counted["encryptions"]
        additions = counted["additions"]
        decryptions = counted["decryptions"]
        return cls(
            seconds,
            sent,
            encryptions,
            additions,
            decryptions,
            counted["candidates"] / queries,
        )


@dataclass(frozen=True)
class Selection:
    """Scores of vf_ps, leave_one_out and brute_force are mutual informations in nats."""

    method: str
    chosen: tuple[str, ...]  # best first
    ranking: tuple[str, ...]  # all participants, best first
    scores: dict[str, float]
    # what each tested group knows about the label together
    groups: dict[tuple[str, ...], float]
    cost: Cost
    learned: dict[str, str]
    ledgers: dict[str, Ledger] = field(default_factory=dict, repr=False)
    recording: Recording | None = field(default=None, repr=False)
    # of the label, in nats: the highest that mutual information with it can be
    entropy: float | None = None
    # standard errors of the scores, where queries were drawn
    errors: dict[str, float] = field(default_factory=dict)
    # of participants in pairs, where queries were drawn
    comparisons: tuple[Comparison, ...] = ()
    # in nats: who asks wants a participant to add that much in the place of another
    least_difference: float = 0.0
    # of several label owners, by whom
    each: dict[str, Selection] = field(default_factory=dict, repr=False)

    @property
    def by_pair(self) -> dict[tuple[str, str], Comparison]:
        """The comparisons by the two that are compared, in both orders."""
        pairs = {(found.one, found.other): found for found in self.comparisons}
        swapped = [found.reversed() for found in self.comparisons]
        return pairs | {(found.one, found.other): found for found in swapped}

    @property
    def against_last(self) -> dict[str, Comparison]:
        """For each participant that is left out, what the last that is kept adds in its
        place."""
        last = min(self.chosen, key=lambda name: self.scores[name])
        return {
            name: self.by_pair[last, name]
            for name in self.ranking
            if name not in self.chosen and (last, name) in self.by_pair
        }

    @property
    def level(self) -> tuple[str, ...]:
        """The participants that are left out though they are as good as the last that
        is kept, as far as can be told."""
        return tuple(
            name
            for name, found in self.against_last.items()
            if found.is_tie(self.least_difference)
        )

    def in_words(self, found: Comparison) -> str:
        """A sentence on what the last that is kept adds in the place of one that is
        not, and whether that tells them apart."""
        adds = (
            f"In the place of {found.other}, {found.one} adds {found.difference:z.3f} ±"
            f" {found.error:.3f} nats"
        )
        asked = self.least_difference
        if not found.is_tie(asked):
            return f"{adds}."
        bound = f"{found.error:.3f} (two standard errors)"
        if asked > found.error:
            bound = f"{asked:.3f} (--least-difference)"
        return f"{adds}: a tie, as a difference must be above {bound}."

    @property
    def on_ties(self) -> str:
        """What to do about ties, in words; "" where there is none."""
        if not self.level:
            return ""
        return (
            f"A tie is no reason to leave {' or '.join(self.level)} out; keeping"
            f" {len(self.chosen)} does so all the same. More queries ([selection]"
            " queries) tell smaller differences apart, and --least-difference says how"
            " large one must be to matter."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, without ledgers and transcripts."""
        return {
            "method": self.method,
            "chosen": list(self.chosen),
            "ranking": list(self.ranking),
            "scores": self.scores,
            "groups": [
                {"participants": list(group), "information": value}
                for group, value in self.groups.items()
            ],
            **({} if self.entropy is None else {"entropy": self.entropy}),
            **(self._errors_to_json() if self.errors else {}),
            "cost": asdict(self.cost),
            "learned": self.learned,
            **(
                {
                    "label_owners": {
                        name: part.to_json() for name, part in self.each.items()
                    }
                }
                if self.each
                else {}
            ),
        }

    def _errors_to_json(self) -> dict[str, Any]:
        return {
            "errors": self.errors,
            "level": list(self.level),
            "comparisons": [asdict(found) for found in self.comparisons],
            "least_difference": self.least_difference,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Selection:
        """Read what `to_json` gave; it has no ledgers and transcripts."""
        try:
            return cls(
                str(given["method"]),
                tuple(given["chosen"]),
                tuple(given["ranking"]),
                dict(given["scores"]),
                {
                    tuple(test["participants"]): float(test["information"])
                    for test in given["groups"]
                },
                Cost(**given["cost"]),
                dict(given["learned"]),
                entropy=given.get("entropy"),
                errors=dict(given.get("errors", {})),
                comparisons=tuple(comparing.from_json(given.get("comparisons", ()))),
                least_difference=float(given.get("least_difference", 0.0)),
                each={
                    name: cls.from_json(part)
                    for name, part in given.get("label_owners", {}).items()
                },
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"This is no result of `colonnade select` ({type(error).__name__}:"
                f" {error})."
            ) from None


def ranked(scores: dict[str, float], first: Group = ()) -> tuple[str, ...]:
    """Those that come `first`, and the others: best first, and equal ones in the order
    given."""
    return (
        *first,
        *sorted(
            (name for name in scores if name not in first),
            key=lambda name: -scores[name],
        ),
    )


Scored = Callable[[Callable[[Sequence[Group]], dict[Group, float]]], dict[str, float]]
"""Turns what groups know into a score of each participant."""


def standard_errors(
    terms: Mapping[Group, NDArray[np.float64]], scored: Scored, seed: int
) -> dict[str, float]:
    """The standard error of each score, by drawing queries again (a bootstrap)."""
    random = np.random.default_rng(seed)
    count = len(next(iter(terms.values())))
    draws = []
    for _ in range(DRAWS):
        rows = random.integers(0, count, count)
        draws.append(
            scored(
                lambda wanted, rows=rows: {  # type: ignore[misc]
                    group: float(terms[group][rows].mean()) for group in wanted
                }
            )
        )
    return {
        name: float(np.std([draw[name] for draw in draws], ddof=1)) for name in draws[0]
    }


REVEALS = {
    RANKING: (
        "which pseudo ids are nearest to a query in this participant's columns, in"
        " order"
    ),
    DISTANCES: (
        "nothing: encrypted for whoever decrypts, who is given sums of two or more"
        " participants only"
    ),
    REACH: "the power of two above this participant's largest partial distance",
    ORDER: (
        "the nearest of a query's candidates by a group's distance, in order; not the"
        " distances"
    ),
    SEEN: "which pseudo ids are near a query in the columns of all participants",
    SORTED: (
        "the nearest pseudo ids of a query in a group's columns, in order, as many as"
        " were asked for"
    ),
    TOTAL: "to who has the key: a group's distances",
    CANDIDATES: (
        "which pseudo ids are candidates of a query, so also how deep its scan went"
    ),
    QUERIES: "which pseudo ids are queries",
    STOPS: (
        "at which instance a query's scan stopped, so which of those seen has the"
        " query's label"
    ),
    UNFINISHED: (
        "for which queries more of an order is needed, since few near instances have"
        " their label"
    ),
}
COMMON = "about how common the labels are, by how many places are asked for first"


def by_information(driver: Leader) -> dict[str, str]:
    """What each party knows after VF-MINE with the groups that a leader tested, and did
    not know before."""
    settings = driver.settings
    leader = driver.name
    groups = driver.tested
    decryptor = settings.decryptor
    shared = [group for group in groups if len(group) > 1]
    learned = {SERVER: _server(settings), leader: _leader(settings, leader, shared)}
    scan = settings.fagin and decryptor != "leader"
    by_participant = (
        "which rows are queries"
        + (" and candidates, so how deep each query's scan went" if scan else "")
        + "; the power of two above everybody's distances"
    )
    for name in driver.participants:
        parts = [learned[leader]] if name == leader else []
        parts.append(by_participant)
        if decryptor == "participants" or ((name,) in groups and decryptor != "leader"):
            parts.append(COMMON)
        if decryptor == "participants":
            parts.append(
                "of queries it was drawn for, the distances summed over groups of two"
                " or more participants; " + _solved(shared, known=[name])
            )
        learned[name] = "; ".join(parts)
    if decryptor == "key_server":
        learned[KEYS] = (
            "distances summed over groups of two or more participants, of rows without"
            f" any name; {_solved(shared)}; {COMMON}. It is trusted to work with nobody"
        )
    if settings.scheme == "plain":
        learned = {
            name: f"{text}. Nothing was encrypted: distances crossed readable"
            for name, text in learned.items()
        }
    return learned


def _server(settings: SelectionSettings) -> str:
    if settings.decryptor == "leader":
        return (
            "which pseudo ids are queries; never a distance, an order, a label or a"
            " row's identity"
        )
    order = (
        f"each group's nearest candidates, in order; {COMMON}; never a distance, a"
        " label or a row's identity"
    )
    if not settings.fagin:
        return order
    return (
        f"each participant's nearest pseudo ids of each query, in order; {order}; of"
        " one instance per query, that it has the query's label, whichever that is"
    )


def _leader(settings: SelectionSettings, leader: str, groups: Sequence[Group]) -> str:
    powers = (
        "how many columns each participant has that vary, and the power of two above"
        " its distances"
    )
    if settings.decryptor == "leader":
        return (
            "the joint mutual information of each tested group; the distance of each"
            " group's columns from every query to every row, by which, with enough"
            " queries, the group's columns can be rebuilt but for a rotation (with"
            " classes and a key server it would learn orders alone);"
            f" {_solved(groups, known=[leader])}; {powers}"
        )
    near = (
        ", and which are near in the columns of all participants"
        if settings.fagin
        else ""
    )
    return (
        "the joint mutual information of each tested group; per query and group, which"
        f" rows are nearest, in order, as far as it asked{near}; {powers}"
    )


def _solved(groups: Sequence[Group], known: Sequence[str] = ()) -> str:
    alone = solvable(groups, known)
    if not alone:
        return "no single participant's distances follow from these sums"
    return (
        "from these sums follow, by solving for them, the distances of"
        f" {', '.join(sorted(alone))} alone"
    )


def solvable(groups: Sequence[Group], known: Sequence[str] = ()) -> list[str]:
    """The parties whose own distances follow from the groups' sums, for a reader that
    knows those of `known`."""
    names = list(
        dict.fromkeys(name for group in groups for name in group if name not in known)
    )
    if not names:
        return []
    member = np.array(
        [[name in group for name in names] for group in groups], dtype=np.float64
    )
    rank = np.linalg.matrix_rank(member)
    units = zip(names, np.eye(len(names)), strict=True)
    return [
        name for name, unit in units if np.linalg.matrix_rank([*member, unit]) == rank
    ]
