"""Alignments of one machine, kept so that plan, run and explain find common rows once.

    ~/.cache/colonnade/alignments/<digest of all ids and settings>.npz      row numbers by party, and what crossed

Where all tables are on one machine, finding common rows again takes long and tells
nobody anything new. What is kept are row numbers and no ids. It counts only for the
very same ids and settings, and is checked against the tables: the rows must have the
same ids in all of them. Small tables are aligned again, which takes no time. Between
sites nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment.ids import Ids
from colonnade.core.ledger import Entry
from colonnade.datasets.download import cache_folder
from colonnade.settings.alignment import AlignmentSettings

FOLDER = "alignments"
LEAST = 2_000
"""The number of ids in all tables together below which an alignment takes no time."""
MOST = 20
"""Alignments that are kept; the oldest make way."""

Rows = dict[str, NDArray[np.int64]]
Crossed = dict[str, list[Entry]]


def key_of(
    ids: Mapping[str, Ids],
    settings: AlignmentSettings,
    driver: str,
    *,
    through_bytes: bool,
) -> str | None:
    """The name of an alignment of these ids under these settings; None where it is not
    worth keeping."""
    if sum(map(len, ids.values())) < LEAST:
        return None
    digest = hashlib.sha256(
        json.dumps([1, repr(settings), driver, through_bytes, list(ids)]).encode()
    )
    for held in ids.values():
        digest.update(
            hashlib.sha256(held.digests.tobytes()).digest()
            + hashlib.sha256(held.rows.tobytes()).digest()
        )
    return digest.hexdigest()


def look_up(key: str | None, ids: Mapping[str, Ids]) -> tuple[Rows, Crossed] | None:
    """What was kept under this key; None where nothing was, or where it does not fit
    these ids."""
    if key is None:
        return None
    try:
        with np.load(cache_folder(FOLDER) / f"{key}.npz", allow_pickle=False) as kept:
            rows = {name: kept[f"rows:{name}"].astype(np.int64) for name in ids}
            entries = json.loads(kept["crossed"].tobytes())
        crossed = {
            name: [
                Entry(**entry | {"shape": tuple(entry["shape"])})
                for entry in entries[name]
            ]
            for name in ids
        }
        common = [held.digests[_places(held, rows[name])] for name, held in ids.items()]
    except (OSError, ValueError, KeyError, IndexError, TypeError, zipfile.BadZipFile):
        return None
    return (
        (rows, crossed)
        if all(np.array_equal(common[0], other) for other in common[1:])
        else None
    )


def _places(held: Ids, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the ids of these rows are among all ids."""
    place_of_row = np.full(held.total, -1)
    place_of_row[held.rows] = np.arange(len(held))
    places = place_of_row[rows]
    if (places < 0).any():
        raise ValueError("a row without an id of its own")
    return places


def keep(key: str | None, rows: Rows, crossed: Crossed) -> None:
    """Keep an alignment for the next command; where it cannot be written, that command
    aligns again."""
    if key is None:
        return
    written = {
        name: [json.loads(entry.to_json()) for entry in entries]
        for name, entries in crossed.items()
    }
    arrays = {f"rows:{name}": numbers for name, numbers in rows.items()}
    arrays |= {"crossed": np.frombuffer(json.dumps(written).encode(), dtype=np.uint8)}
    with suppress(OSError):
        folder = cache_folder(FOLDER)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = folder / f".{key}.{os.getpid()}.npz"
        np.savez_compressed(fresh, **arrays)  # type: ignore[arg-type]
        fresh.replace(folder / f"{key}.npz")
        kept = sorted(folder.glob("[!.]*.npz"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-MOST]:
            old.unlink(missing_ok=True)
