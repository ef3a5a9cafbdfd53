"""Parties with ids, one of which drives, and what reached each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colonnade.alignment import Alignment, AlignmentSettings, IdOwner, Ids, align
from colonnade.core import Batches, Organisation, Peers, Transport
from colonnade.transport import Fault, Faulty, InProcess, Recording

NAMES = ("clinic", "lab", "bank", "school", "shop")
Held = Mapping[str, Sequence[Any]]


@dataclass
class Meeting:
    """`ids` are each party's rows; the first party drives."""

    ids: Held
    parties: dict[str, IdOwner]
    peers: Peers
    recording: Recording

    @property
    def driver(self) -> IdOwner:
        return next(iter(self.parties.values()))

    def align(self, **options: Any) -> Alignment:
        return align(self.driver, self.peers, **options)

    def common(self, name: str) -> list[Any]:
        """The ids of a party's common rows, in the agreed order."""
        rows = self.parties[name].common_rows
        assert rows is not None
        return [self.ids[name][row] for row in rows.tolist()]


def owner(
    name: str,
    ids: Iterable[Any],
    settings: AlignmentSettings | None = None,
    among: Sequence[str] = NAMES[:2],
) -> IdOwner:
    organisation = Organisation.at(name, Batches({}, batch_size=1, epochs=1, seed=0))
    settings = settings or AlignmentSettings()
    return IdOwner(organisation, Ids.of(name, [ids], settings), settings, among=among)


def meeting(
    ids: Held,
    settings: AlignmentSettings | None = None,
    *,
    through_bytes: bool = False,
    faults: Sequence[Fault] = (),
) -> Meeting:
    parties = {
        name: owner(name, held, settings, tuple(ids)) for name, held in ids.items()
    }
    driver, *others = parties
    peers = {name: parties[name] for name in others}
    transport: Transport = InProcess(peers, through_bytes=through_bytes)
    recording = Recording(Faulty(transport, faults) if faults else transport)
    return Meeting(
        ids,
        parties,
        Peers(driver, others, recording, parties[driver].ledger),
        recording,
    )
