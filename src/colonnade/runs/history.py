"""What an organisation released and received over all its runs, from its own ledgers:
for its owner to read.

A place is one run, a folder of runs, or an organisation's own party.toml, which says
where its runs are. Lines of one run, organisation, direction, peer, release and
mechanism are added up; `each` gives them as they were written.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from colonnade.core.ledger import Entry
from colonnade.core.receipt import DpEvent
from colonnade.datasets.table_files import safe
from colonnade.errors import CheckpointError, ConfigError, InputError, did_you_mean
from colonnade.privacy.report import describe
from colonnade.runs.layout import AFTER, LEDGER, PARTIES, SETTINGS
from colonnade.settings.party_file import runs_of

WAYS = {"out": "sent", "in": "received", "own": "kept"}
"""A ledger's word, and ours: what is kept went from one role of an organisation to
another."""


@dataclass(frozen=True)
class Crossing:
    """What crossed between an organisation and one other, of one kind."""

    run: str
    begun: str  # when, by the clock of the machine that wrote it
    party: str  # whose ledger says so
    during: str  # training, or what came after it
    direction: str
    peer: str
    release: str
    mechanism: str
    times: int
    rows: int  # a row that crossed twice counts twice
    numbers: int
    bytes: int
    # of what was sent: the row that paid most; None: no guarantee
    epsilon: float | None


ALIKE = ("run", "party", "during", "direction", "peer", "release", "mechanism")
"""What lines that are added up have in common."""


def crossings(place: Path, *, each: bool = False, **wanted: str) -> list[Crossing]:
    """Collect the crossings whose run, party, peer, release or direction is `wanted`,
    added up, in the order of runs. What is wanted empty may be anything."""
    runs = runs_at(place)
    totals = dict[tuple[Any, ...], Crossing]()
    parties = {folder.name for run in runs for folder in (run / PARTIES).iterdir()}
    peers = set(parties)
    releases = set[str]()
    for crossing in _lines(runs):
        peers.add(crossing.peer)
        releases.add(crossing.release)
        if all(value in ("", vars(crossing)[name]) for name, value in wanted.items()):
            key = (
                (len(totals),)
                if each
                else tuple(vars(crossing)[name] for name in ALIKE)
            )
            totals[key] = _added(totals[key], crossing) if key in totals else crossing
    there = {
        "run": {run.name for run in runs},
        "party": parties,
        "peer": peers,
        "release": releases,
    }
    for option, known in there.items():
        name = wanted.get(option, "")
        # of a misspelt one it must not be said that nothing crossed
        if name and name not in known:
            names = ", ".join(map(repr, sorted(known))) or "none"
            hint = did_you_mean(name, sorted(known))
            raise ConfigError(
                f"--{option} {name!r} is in no ledger of {place}{hint}; there are"
                f" {names}."
            )
    return list(totals.values())


def _added(a: Crossing, b: Crossing) -> Crossing:
    most = None if a.epsilon is None or b.epsilon is None else max(a.epsilon, b.epsilon)
    totals = {
        name: vars(a)[name] + vars(b)[name]
        for name in ("times", "rows", "numbers", "bytes")
    }
    return replace(a, **totals, epsilon=most)


def runs_at(place: Path) -> list[Path]:
    """List the run directories of a place, in the order in which they began."""
    if place.is_file():
        place = runs_of(place)
    runs = (
        [place]
        if (place / PARTIES).is_dir()
        else [folder.parent for folder in place.glob(f"*/{PARTIES}")]
    )
    if not runs:
        raise CheckpointError(
            f"{place} has no run: neither is it a run directory, nor are there any in"
            " it. Name a run, a folder of runs, or an organisation's party.toml."
        )
    return sorted(runs, key=lambda run: (begun(run), run.name))


def begun(run: Path) -> float:
    """Tell when a run began, in seconds since 1970: its settings are written once, when
    it begins."""
    settings = run / SETTINGS
    return (settings if settings.exists() else run).stat().st_mtime


def _lines(runs: Iterable[Path]) -> Iterator[Crossing]:
    for run in runs:
        when = datetime.fromtimestamp(begun(run), UTC).isoformat(timespec="seconds")
        for folder in sorted((run / PARTIES).iterdir()):
            for path, during in (
                (folder / LEDGER, "training"),
                (folder / AFTER, "after"),
            ):
                for entry, how in entries(path) if path.exists() else ():
                    whose = (run.name, when, folder.name, during)
                    what = (WAYS[entry.direction], entry.peer, entry.name)
                    rows = entry.shape[0] if entry.shape else 1
                    numbers = math.prod(entry.shape)
                    yield Crossing(
                        *whose, *what, how, 1, rows, numbers, entry.bytes, entry.epsilon
                    )


def entries(path: Path) -> Iterator[tuple[Entry, str]]:
    """Read a ledger: each of its entries, and the mechanism in words. Only a last line
    may be cut short."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                # a crash cut this line short: nothing is written twice, so it will not
                # come again
                return
            try:
                entry = Entry(**json.loads(line))
                words = entry.peer, entry.name, entry.owner, entry.codec
                numbers = *entry.shape, entry.bytes, entry.epsilon or 0
                if (
                    entry.direction not in WAYS
                    or {*map(type, words)} != {str}
                    or min(numbers) < 0
                ):
                    raise ValueError
                how = describe(DpEvent(entry.event, entry.parameters))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise InputError(
                    f"{path}, line {number}, is no entry of a ledger. Restore the file"
                    " from a copy: it says what left."
                ) from None
            yield entry, how


def to_csv(table: Iterable[Crossing]) -> str:
    """Write crossings as CSV that spreadsheets may open, too: a sender chooses what its
    tensors are called."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in fields(Crossing)])
    writer.writerows(
        ["" if cell is None else safe(cell) for cell in asdict(crossing).values()]
        for crossing in table
    )
    return text.getvalue()
