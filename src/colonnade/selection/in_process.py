"""A selection whose parties all live in this process: for simulations, the command line, and studies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Generator

from colonnade.core import Batches, Organisation, Party, Peers, Request, Transport
from colonnade.core.checks import did_you_mean, from_mapping
from colonnade.core.party import seed_for
from colonnade.encryption.key_server import AskPublicKey
from colonnade.errors import ConfigError
from colonnade.selection.aggregation import AggregationServer
from colonnade.selection.brute_force import brute_force
from colonnade.selection.chance import random
from colonnade.selection.group_testing import Group, Information, draw_tests, vf_ps
from colonnade.selection.inputs import Array, as_columns, as_groups, as_labels, check_hidden, check_parties
from colonnade.selection.knn_mi import Numbers, Whole
from colonnade.selection.lasso import lasso
from colonnade.selection.leader import Leader, Watch
from colonnade.selection.learned import by_information
from colonnade.selection.leave_one_out import leave_one_out
from colonnade.selection.participant import Join, Participant, Prepare
from colonnade.selection.result import Cost, Scored, Selection, ranked, within_error
from colonnade.selection.settings import SelectionSettings
from colonnade.selection.sorting import KeyServer, Sorter
from colonnade.transport import InProcess, Recording

METHODS = ("vf_ps", "random", "lasso", "leave_one_out", "brute_force")
SERVER, KEYS = "aggregation_server", "key_server"


class Meeting:
    """Leader, participants and servers, and what carries their calls."""

    def __init__(
        self,
        features: Mapping[str, Numbers],
        labels: Whole | Numbers,
        settings: SelectionSettings,
        *,
        leader: str = "leader",
        seed: int = 0,
        through_bytes: bool = False,
        record: bool = False,
    ) -> None:
        settings = settings.settled(numbers=labels.dtype.kind == "f")
        check_parties(features, labels, leader=leader, decryptor=settings.decryptor, reserved=(SERVER, KEYS))
        nothing = Batches({}, batch_size=1, epochs=1, seed=0)  # rows go by pseudo ids here
        by_server = settings.decryptor == "key_server"
        names = dict.fromkeys((leader, *features, SERVER, *([KEYS] if by_server else [])))
        self.settings, self.organisations = (
            settings,
            {name: Organisation.at(name, nothing, seed=seed) for name in names},
        )
        shuffle = seed_for(seed, "shuffle")
        self.leader = Leader(self.organisations[leader], labels, settings, server=SERVER, shuffle=shuffle)
        reads = {"key_server": [KEYS], "participants": list(features), "leader": [leader]}[settings.decryptor]
        agreed: dict[str, Any] = {"scheme": settings.scheme, "readers": reads, "parties": len(features)}
        self.participants = {
            name: Participant(self.organisations[name], held, scaling=settings.scaling, **agreed)
            for name, held in features.items()
        }
        self.server = AggregationServer(self.organisations[SERVER], scheme=settings.scheme)
        parties: dict[str, Party] = {**self.participants, SERVER: self.server}
        self.sorters: list[Sorter] = []
        if by_server:
            key_server = KeyServer(self.organisations[KEYS], scheme=settings.scheme, most=len(features))
            parties[KEYS] = key_server
            self.sorters.append(key_server.sorter)
        elif settings.decryptor == "participants":
            self.sorters += [party.make_keys(settings.scheme, len(features)) for party in self.participants.values()]
        inner = InProcess(parties, through_bytes=through_bytes)
        self.recording = Recording(inner) if record else None
        # the seed of the shuffle and the keys to encrypt for come from the leader alone: not from whoever adds up
        leaders: dict[type[Request[Any]], frozenset[str]] = dict.fromkeys(
            (Join, Prepare, AskPublicKey), frozenset({leader})
        )
        for party in parties.values():
            party.serves_for, party.reserved = frozenset({SERVER}), leaders
        self.server.serves_for = frozenset({leader})
        self._meet(self.recording or inner, [] if settings.decryptor == "leader" else reads)
        if self.leader.sorter is not None:
            self.sorters.append(self.leader.sorter)

    def _meet(self, transport: Transport, readers: list[str]) -> None:
        others = list(dict.fromkeys([*self.participants, *readers]))
        self.server.peers = Peers(SERVER, others, transport, self.server.ledger)
        peers = Peers(self.leader.name, [*others, SERVER], transport, self.leader.ledger)
        self.leader.meet(peers, list(self.participants), readers)

    def cost(self, seconds: float) -> Cost:
        counted = Counter(self.server.operations)
        for participant in self.participants.values():
            counted.update(participant.operations)
        for sorter in self.sorters:
            counted.update(sorter.operations)
        return Cost(
            seconds,
            sum(organisation.ledger.total("out") for organisation in self.organisations.values()),
            counted["encryptions"],
            counted["additions"],
            counted["decryptions"],
            self.server.candidates / len(self.leader.queries),
        )

    def learned(self) -> dict[str, str]:
        return by_information(
            self.settings,
            leader=self.leader.name,
            server=SERVER,
            keys=KEYS,
            participants=list(self.participants),
            groups=self.leader.tested,
        )


def select_here(
    features: Mapping[str, Array],
    labels: Array,
    *,
    keep: int,
    method: str = "vf_ps",
    leader: str = "leader",
    seed: int = 0,
    rows: Array | None = None,
    groups: Sequence[Sequence[str]] | None = None,
    score: Callable[[Group], float] | None = None,
    through_bytes: bool = False,
    record: bool = False,
    watch: Watch | None = None,
    **settings: Any,
) -> Selection:
    """Choose `keep` of the participants, who hold columns of the same rows. Labels are classes, or numbers if they are
    floats that are not all whole. `settings` are those of SelectionSettings; `groups` are vf_ps's tests, drawn at
    random unless given; `score` judges subsets for brute_force instead of the mutual information."""
    given = from_mapping(SelectionSettings, settings, where="select_here")
    if method not in METHODS:
        hint = did_you_mean(method, list(METHODS))
        raise ConfigError(f"There is no selection method {method!r}{hint}; there are {', '.join(METHODS)}.")
    held, known, chosen = _ready(features, labels, rows, given, leader)
    names = list(held)
    if isinstance(keep, bool) or not isinstance(keep, int) or not 1 <= keep <= len(names):
        raise ConfigError(f"keep must be a whole number from 1 to {len(names)}, the participants; found {keep!r}.")
    asks = method in ("vf_ps", "leave_one_out", "brute_force") and score is None
    who = chosen.decryptor if asks else "key_server"
    check_parties(held, known, leader=leader, decryptor=who, reserved=(SERVER, KEYS))
    start, found, there = time.perf_counter(), dict[Group, float](), None

    def tested(wanted: Sequence[Group]) -> dict[Group, float]:
        """Information of groups, by the protocol, which starts when it is first needed."""
        nonlocal there
        if chosen.decryptor == "leader":
            check_hidden(wanted, leader)
        there = Meeting(held, known, chosen, leader=leader, seed=seed, through_bytes=through_bytes, record=record)
        found.update(there.leader.information(wanted, watch))
        return found

    def scored(wanted: Sequence[Group]) -> dict[Group, float]:
        assert score is not None
        found.update({group: float(score(group)) for group in wanted})
        return found

    best: Group | None = None
    by: Scored | None = None
    if method == "vf_ps":
        least = 1 if chosen.decryptor != "leader" else 3 if leader in held else 2
        drawn = draw_tests(names, chosen.tests, Generator().manual_seed(seed_for(seed, "tests")), least=least)
        asked = drawn if groups is None else as_groups(names, groups)
        by = partial(vf_ps, names, groups=asked)
        scores = by(tested)
    elif method == "leave_one_out":
        by = partial(leave_one_out, names)
        scores = by(tested)
    elif method == "brute_force":
        how: Information = tested if score is None else scored
        scores, best = brute_force(names, keep, how)
    elif method == "lasso":
        scores = lasso(held, known, seed=seed)
    else:
        scores = random(names, Generator().manual_seed(seed_for(seed, "random")))
    order = ranked(scores) if best is None else (*best, *(name for name in ranked(scores) if name not in best))
    seconds = time.perf_counter() - start
    if there is None:
        return Selection(method, order[:keep], order, scores, found, Cost(seconds), {leader: WITHOUT[method]})
    ledgers = {name: organisation.ledger for name, organisation in there.organisations.items()}
    cost, learned = there.cost(seconds), there.learned()
    errors, level = ({}, ()) if by is None else within_error(there.leader.terms, by, order[:keep], seed)
    return Selection(
        method, order[:keep], order, scores, found, cost, learned, ledgers, there.recording, errors=errors, level=level
    )


WITHOUT = {
    "random": "nothing",
    "lasso": "all columns of all participants: a centralized baseline, which no federation would run",
    "brute_force": "the score of every subset, whatever that takes; nothing crossed here",
}
"""What the leader learned where no protocol ran."""


def information_here(
    features: Mapping[str, Array],
    labels: Array,
    groups: Sequence[Sequence[str]],
    *,
    leader: str = "leader",
    seed: int = 0,
    rows: Array | None = None,
    **settings: Any,
) -> dict[Group, float]:
    """The mutual information of the label with the joined columns of each group, in nats."""
    given = from_mapping(SelectionSettings, settings, where="information_here")
    held, known, chosen = _ready(features, labels, rows, given, leader)
    wanted = as_groups(list(held), groups)
    if chosen.decryptor == "leader":
        check_hidden(wanted, leader)
    return Meeting(held, known, chosen, leader=leader, seed=seed).leader.information(wanted)


def _ready(
    features: Mapping[str, Array], labels: Array, rows: Array | None, settings: SelectionSettings, leader: str
) -> tuple[dict[str, Numbers], Whole | Numbers, SelectionSettings]:
    kept = None if rows is None else np.asarray(rows)
    held = {name: as_columns(name, values, kept) for name, values in features.items()}
    known = as_labels(leader, labels, kept, settings)
    return held, known, settings.settled(numbers=known.dtype.kind == "f")
