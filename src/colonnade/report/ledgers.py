"""What crossed between parties, added up from the ledgers that lie in a run directory.

A tensor is counted as its sender's ledger has it; where the sender's ledger is elsewhere, on its own machine, as the
receiver's has it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.core import DpEvent
from colonnade.privacy.report import describe
from colonnade.runs.layout import LEDGER, PARTIES

Flow = dict[str, Any]


def flows(folder: Path, reveals: Mapping[str, str], ledger: str = LEDGER) -> list[Flow]:
    """One line per sender, receiver, release name, owner and protection, in the order in which they first crossed.

    `times`, `values` and `bytes` are totals; `epsilon` is what the sender's row that paid most had spent at the last
    of them; `told_by` is whose ledger says so.
    """
    books = {path.parent.name: path for path in sorted((folder / PARTIES).glob(f"*/{ledger}"))}
    found: dict[tuple[Any, ...], Flow] = {}
    for party, path in books.items():
        for entry in _entries(path):
            try:
                direction, peer = entry["direction"], entry["peer"]
                if direction == "own" or (direction == "in" and peer in books):
                    continue
                sender, receiver = (party, peer) if direction == "out" else (peer, party)
                about = entry["event"], tuple(entry["parameters"].items())
                key = sender, receiver, entry["name"], entry["owner"], entry["codec"], about
                line = found.get(key)
                if line is None:
                    event = DpEvent(entry["event"], entry["parameters"])
                    line = found[key] = {
                        "from": sender,
                        "to": receiver,
                        "name": entry["name"],
                        "owner": entry["owner"],
                        "protection": describe(event),
                        "codec": entry["codec"],
                        "meaning": reveals.get(entry["name"], "not described"),
                        "told_by": party,
                        "times": 0,
                        "values": 0,
                        "bytes": 0,
                        "epsilon": None,
                    }
                line["times"] += 1
                line["values"] += math.prod(entry["shape"])
                line["bytes"] += entry["bytes"]
                if entry.get("epsilon") is not None:
                    line["epsilon"] = entry["epsilon"]
            except (KeyError, TypeError, AttributeError):  # not a line of ours: the report tells what it can read
                continue
    return list(found.values())


def _entries(path: Path) -> Any:
    """Line by line; the last may be cut, while a run is writing it."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue


def totals(lines: list[Flow]) -> dict[str, dict[str, int]]:
    """Bytes out and in, by party."""
    found: dict[str, dict[str, int]] = {}
    for line in lines:
        for party, way in ((line["from"], "out"), (line["to"], "in")):
            found.setdefault(party, {"out": 0, "in": 0})[way] += line["bytes"]
    return found
