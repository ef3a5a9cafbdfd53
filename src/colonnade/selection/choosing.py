"""A leader and those it has met choose: by which method, at what cost, and who learned what on the way.

Where the others are makes no difference here: in this process (`in_process`), or each at a site of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Generator

from colonnade.core import Ledger, Party, Request
from colonnade.core.batches import seed_for
from colonnade.core.checks import did_you_mean
from colonnade.errors import ConfigError
from colonnade.selection.aggregation import AggregationServer
from colonnade.selection.baselines import brute_force, leave_one_out, random
from colonnade.selection.group_testing import Group, Information, draw_tests, vf_ps
from colonnade.selection.inputs import as_groups, check_hidden
from colonnade.selection.leader import Leader, Watch
from colonnade.selection.participant import Join, Participant, Prepare
from colonnade.selection.result import Cost, Scored, Selection, by_information, ranked, within_error
from colonnade.selection.settings import KEYS, SERVER, SelectionSettings
from colonnade.selection.sorting import AskPublicKey, SortingParty
from colonnade.transport import Recording

METHODS = ("vf_ps", "random", "lasso", "leave_one_out", "brute_force")
ASKING = ("vf_ps", "leave_one_out", "brute_force")
"""Methods by which participants are asked something."""
WITHOUT = {
    "random": "nothing",
    "lasso": "all columns of all participants: a centralized baseline, which no federation would run",
    "brute_force": "the score of every subset, whatever that takes; nothing crossed here",
}
"""What the leader learned where no protocol ran."""


class Met(Protocol):
    """A leader who has met participants and servers."""

    leader: Leader
    recording: Recording | None

    @property
    def ledgers(self) -> dict[str, Ledger]: ...
    def cost(self, seconds: float) -> Cost: ...


def readers(decryptor: str, participants: Sequence[str], leader: str) -> list[str]:
    """The party whose keys distances are encrypted for."""
    return {"key_server": [KEYS], "participants": list(participants), "leader": [leader]}[decryptor]


def counted_by(*parties: Party) -> Counter[str]:
    """What these computed, by kind; the party that adds up counts candidates, too."""
    found = Counter[str]()
    for party in parties:
        if isinstance(party, AggregationServer | Participant):
            found.update(party.operations)
        if isinstance(party, SortingParty | Leader) and party.sorter is not None:
            found.update(party.sorter.operations)
    return found


def admit(party: Party, leader: str) -> None:
    """Let the leader alone give a participant or a server the seed of the shuffle and the keys to encrypt for; the
    party that adds up may not."""
    leaders: dict[type[Request[Any]], frozenset[str]] = dict.fromkeys(
        (Join, Prepare, AskPublicKey), frozenset({leader})
    )
    party.serves_for, party.reserved = frozenset({SERVER}), leaders


def check_method(method: str) -> None:
    if method not in METHODS:
        hint = did_you_mean(method, list(METHODS))
        raise ConfigError(f"There is no selection method {method!r}{hint}; there are {', '.join(METHODS)}.")


def check_keep(keep: int, names: Sequence[str]) -> None:
    if isinstance(keep, bool) or not isinstance(keep, int) or not 1 <= keep <= len(names):
        raise ConfigError(f"keep must be a whole number from 1 to {len(names)}, the participants; found {keep!r}.")


def choose(
    names: Sequence[str],
    keep: int,
    method: str,
    settings: SelectionSettings,
    *,
    leader: str,
    seed: int,
    meet: Callable[[], Met],
    groups: Sequence[Sequence[str]] | None = None,
    score: Callable[[Group], float] | None = None,
    fitted: Callable[[], dict[str, float]] | None = None,
    watch: Watch | None = None,
) -> Selection:
    """Choose `keep` of the participants. `meet` starts the protocol, when it is first needed; `fitted` gives lasso's
    scores, where all columns are in one place; the rest is as of `select_here`."""
    start, found, there = time.perf_counter(), dict[Group, float](), None

    def tested(wanted: Sequence[Group]) -> dict[Group, float]:
        nonlocal there
        if settings.decryptor == "leader":
            check_hidden(wanted, leader)
        there = meet()
        found.update(there.leader.information(wanted, watch))
        return found

    def scored(wanted: Sequence[Group]) -> dict[Group, float]:
        assert score is not None
        found.update({group: float(score(group)) for group in wanted})
        return found

    best: Group | None = None
    by: Scored | None = None
    if method == "vf_ps":
        least = 1 if settings.decryptor != "leader" else 3 if leader in names else 2
        drawn = draw_tests(names, settings.tests, Generator().manual_seed(seed_for(seed, "tests")), least=least)
        by = partial(vf_ps, names, groups=drawn if groups is None else as_groups(names, groups))
        scores = by(tested)
    elif method == "leave_one_out":
        by = partial(leave_one_out, names)
        scores = by(tested)
    elif method == "brute_force":
        how: Information = tested if score is None else scored
        scores, best = brute_force(names, keep, how)
    elif method == "lasso":
        if fitted is None:
            raise ConfigError(
                'method "lasso" fits one model to all columns in one place, which no federation would do. Use "vf_ps".'
            )
        scores = fitted()
    else:
        scores = random(names, Generator().manual_seed(seed_for(seed, "random")))
    order = ranked(scores) if best is None else (*best, *(name for name in ranked(scores) if name not in best))
    seconds = time.perf_counter() - start
    if there is None:
        return Selection(method, order[:keep], order, scores, found, Cost(seconds), {leader: WITHOUT[method]})
    cost, learned = there.cost(seconds), by_information(there.leader)
    errors, level = ({}, ()) if by is None else within_error(there.leader.terms, by, order[:keep], seed)
    return Selection(
        method, order[:keep], order, scores, found, cost, learned, there.ledgers, there.recording,
        errors=errors, level=level,
    )  # fmt: skip


def entropy(classes: NDArray[Any]) -> float:
    """The entropy, in nats."""
    _, counts = np.unique(classes, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def jointly(found: Mapping[str, Selection], rows: Mapping[str, int], keep: int) -> Selection:
    """Of several label owners, each of whom chose for itself: what columns tell about the label on average over all
    their rows, which is the information that they have of a row once it is known whose it is."""
    first, total = next(iter(found.values())), sum(rows[name] for name in found)
    share = {name: rows[name] / total for name in found}
    every = list(first.scores)
    scores = {one: sum(share[name] * each.scores[one] for name, each in found.items()) for one in every}
    groups = {one: sum(share[name] * each.groups[one] for name, each in found.items()) for one in first.groups}
    order = ranked(scores)
    if first.method == "brute_force":
        scores = {one: max(value for group, value in groups.items() if one in group) for one in every}
        best = max(groups, key=lambda group: groups[group])
        order = (*best, *(one for one in ranked(scores) if one not in best))
    errors: dict[str, float] = {}
    level: tuple[str, ...] = ()
    if all(each.errors for each in found.values()):
        errors = {
            one: float(np.sqrt(sum((share[name] * each.errors[one]) ** 2 for name, each in found.items())))
            for one in every
        }
        last = min(order[:keep], key=lambda one: scores[one])
        gap = {one: 2 * float(np.hypot(errors[one], errors[last])) for one in order[keep:]}
        level = tuple(one for one in order[keep:] if scores[last] - scores[one] < gap[one])
    learned: dict[str, str] = {}
    for name, each in found.items():
        for who, what in each.learned.items():
            told = f"of the rows of '{name}': {what}"
            learned[who] = f"{learned[who]}. {told[0].upper()}{told[1:]}" if who in learned else told
    costs = [each.cost for each in found.values()]
    summed = {name: sum(vars(one)[name] for one in costs) for name in vars(Cost())}
    candidates = sum(share[name] * each.cost.candidates for name, each in found.items())
    cost = replace(Cost(**summed), candidates=candidates)
    known = [each.entropy for each in found.values()]
    highest = None if None in known else sum(share[name] * (each.entropy or 0.0) for name, each in found.items())
    return Selection(
        first.method, order[:keep], order, scores, groups, cost, learned,
        entropy=highest, errors=errors, level=level, each=dict(found),
    )  # fmt: skip
