"""What each party learned about the others, told from its own ledger in words."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from colonnade.alignment import REVEALS
from colonnade.core.message import Entry
from colonnade.federation.federation import Federation
from colonnade.runs.layout import LEDGER, PARTIES


@dataclass
class Learned:
    """One kind of tensor that one party received from another."""

    party: str
    about: str
    name: str
    guarantee: str
    meaning: str
    times: int = 0
    values: int = 0
    bytes: int = 0


def learned(federation: Federation, run: Path | None = None) -> list[Learned]:
    """Give one line per (receiver, sender, release name), from the ledgers in memory and, with `run`, on disk."""
    learned_from: dict[tuple[str, str, str], Learned] = {}
    for party, organisation in federation.organisations.items():
        path = None if run is None else run / PARTIES / party / LEDGER
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        for entry in [*(Entry(**json.loads(line)) for line in lines), *organisation.ledger.entries]:
            if entry.direction != "in":
                continue
            meaning = (federation.algorithm.reveals | REVEALS).get(entry.name, "not described")
            key = party, entry.peer, entry.name
            line = learned_from.setdefault(key, Learned(party, entry.peer, entry.name, entry.event, meaning))
            line.times += 1
            line.bytes += entry.bytes
            line.values += math.prod(entry.shape)
    return list(learned_from.values())
