"""A selection whose parties all live in this process: for simulations, the command
line, and studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from colonnade.core import Batches, Ledger, Organisation, Party, Peers
from colonnade.core.batches import seed_for
from colonnade.selection import choosing
from colonnade.selection.aggregation import AggregationServer
from colonnade.selection.choosing import Array
from colonnade.selection.leader import Leader, Watch
from colonnade.selection.methods import Group, lasso
from colonnade.selection.neighbours import Numbers, Whole
from colonnade.selection.participant import Participant
from colonnade.selection.result import Cost, Selection
from colonnade.selection.sorting import KeyServer
from colonnade.settings.schema import checked
from colonnade.settings.selection import KEYS, SERVER, SelectionSettings
from colonnade.transport import InProcess, Recording

IN_THREADS = 1 << 21
"""The number of a participant's distances from which threads are faster than turns, by
up to an eighth; with fewer they are slower: encrypting holds the interpreter's lock (4
participants, 32 queries, 4,000 to 100,000 rows, two cores)."""


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
        rows = {name: len(held) for name, held in features.items()}
        choosing.check_parties(
            rows, len(labels), leader=leader, decryptor=settings.decryptor
        )
        # rows go by pseudo ids here
        no_rows = Batches({}, batch_size=1, epochs=1, seed=0)
        by_server = settings.decryptor == "key_server"
        names = dict.fromkeys(
            (leader, *features, SERVER, *([KEYS] if by_server else []))
        )
        self.settings = settings
        self.organisations = {
            name: Organisation.at(name, no_rows, seed=seed) for name in names
        }
        shuffle = seed_for(seed, "shuffle")
        self.leader = Leader(self.organisations[leader], labels, settings, shuffle)
        reads = choosing.readers(settings.decryptor, list(features), leader)
        agreed: dict[str, Any] = {
            "scheme": settings.scheme,
            "readers": reads,
            "parties": len(features),
        }
        self.participants = {
            name: Participant(
                self.organisations[name], held, scaling=settings.scaling, **agreed
            )
            for name, held in features.items()
        }
        self.server = AggregationServer(
            self.organisations[SERVER], scheme=settings.scheme
        )
        self.parties: dict[str, Party] = {**self.participants, SERVER: self.server}
        if by_server:
            self.parties[KEYS] = KeyServer(
                self.organisations[KEYS], scheme=settings.scheme, most=len(features)
            )
        elif settings.decryptor == "participants":
            for participant in self.participants.values():
                participant.make_keys(settings.scheme, len(features))
        # distances of a participant
        work = min(settings.queries, len(labels)) * len(labels)
        parallel: Literal["always", "never"] = (
            "always" if work >= IN_THREADS else "never"
        )
        inner = InProcess(self.parties, through_bytes=through_bytes, parallel=parallel)
        self.recording = Recording(inner) if record else None
        for party in self.parties.values():
            choosing.admit(party, leader)
        self.server.serves_for = frozenset({leader})
        asked = [] if settings.decryptor == "leader" else reads
        transport = self.recording or inner
        others = list(dict.fromkeys([*features, *asked]))
        self.server.peers = Peers(SERVER, others, transport, self.server.ledger)
        peers = Peers(leader, [*others, SERVER], transport, self.leader.ledger)
        self.leader.meet(peers, list(features), asked)

    @property
    def ledgers(self) -> dict[str, Ledger]:
        return {
            name: organisation.ledger
            for name, organisation in self.organisations.items()
        }

    def cost(self, seconds: float) -> Cost:
        sent = sum(ledger.total("out") for ledger in self.ledgers.values())
        counted = choosing.counted_by(*self.parties.values(), self.leader)
        return Cost.of(seconds, sent, counted, len(self.leader.queries))


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
    """Choose `keep` of the participants, who hold columns of the same rows. Labels are
    classes, or numbers if they are floats that are not all whole. `settings` are those
    of SelectionSettings; `groups` are vf_ps's tests, drawn at random unless given;
    `score` judges subsets for brute_force instead of the mutual information."""
    given = checked(SelectionSettings, settings, whose="select_here")
    choosing.check_method(method)
    columns, targets, settled = _ready(features, labels, rows, given, leader)
    choosing.check_keep(keep, list(columns))
    decryptor = (
        settled.decryptor
        if method in choosing.ASKING and score is None
        else "key_server"
    )
    sizes = {name: len(values) for name, values in columns.items()}
    choosing.check_parties(sizes, len(targets), leader=leader, decryptor=decryptor)

    def meet() -> Meeting:
        return Meeting(
            columns,
            targets,
            settled,
            leader=leader,
            seed=seed,
            through_bytes=through_bytes,
            record=record,
        )

    return choosing.choose(
        list(columns),
        keep,
        method,
        settled,
        leader=leader,
        seed=seed,
        meet=meet,
        groups=groups,
        score=score,
        fitted=lambda: lasso(columns, targets, seed=seed),
        watch=watch,
    )


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
    """The mutual information of the label with the joined columns of each group, in
    nats."""
    given = checked(SelectionSettings, settings, whose="information_here")
    columns, targets, settled = _ready(features, labels, rows, given, leader)
    wanted = choosing.as_groups(list(columns), groups)
    if settled.decryptor == "leader":
        choosing.check_hidden(wanted, leader)
    return Meeting(
        columns, targets, settled, leader=leader, seed=seed
    ).leader.information(wanted)


def _ready(
    features: Mapping[str, Array],
    labels: Array,
    rows: Array | None,
    settings: SelectionSettings,
    leader: str,
) -> tuple[dict[str, Numbers], Whole | Numbers, SelectionSettings]:
    kept = None if rows is None else np.asarray(rows)
    columns = {
        name: choosing.as_columns(name, values, kept)
        for name, values in features.items()
    }
    targets = choosing.as_labels(leader, labels, kept, settings)
    return columns, targets, settings.settled(numbers=targets.dtype.kind == "f")
