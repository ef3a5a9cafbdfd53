"""What was released, as data: what a mechanism did, and the receipt that travels with a
tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class DpEvent:
    """What a mechanism did, as data: `privacy.accounting` turns it into dp-accounting's
    event of the same kind.

    It is our own type so that the core needs nothing but torch; `non-private` composes
    to an infinite epsilon.
    """

    kind: str
    parameters: Mapping[str, float] = field(default_factory=dict)


NON_PRIVATE = DpEvent("non-private")
PUBLIC = DpEvent("public")  # not about anybody's data


class Receipt(NamedTuple):
    """What was released, written by the outbox that released it; it travels with the
    tensor."""

    owner: str
    # counts this owner's releases: one release sent to two peers is spent once
    number: int
    name: str
    batch: str | None
    event: DpEvent
    codec: str
    bytes: int
    # of the owner's row that paid most so far; its ledger's, it does not travel
    epsilon: float | None = None
