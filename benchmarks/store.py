"""How fast an organisation's store is, on the disk that temporary files are on: releases
in a second that are forced onto it, what a million rows take, and how long opening
takes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from colonnade.benchmark import Result
from colonnade.store import Item, Release, SiteStore, Word
from colonnade.store.database import files_of
from colonnade.store.places import IntArray

OWNER = "clinic"
ITEM = Item.of("embedding", "gaussian", {"noise_multiplier": 2.0})
LEAST_RELEASES = 150
MOST_MEGABYTES = 250
MOST_SECONDS = 3.0
RELEASES_OF_EACH_ROW = 100


def run(quick: bool) -> list[Result]:
    """Measure the store; `quick` takes a tenth of the rows."""
    rows = 100_000 if quick else 1_000_000
    sizes = [256, 8192]
    return [*[_releases(rows, size) for size in sizes], *_large(rows, 8192)]


def _releases(rows: int, size: int) -> Result:
    """How many releases a second are on the disk before they may leave.

    The best of several short laps counts, since other programs use the disk, too.
    """
    laps = 8
    per_lap = 50
    chance = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        store = _new_store(Path(folder), rows)
        seconds = []
        for _ in range(laps):
            batches = [chance.choice(rows, size, replace=False) for _ in range(per_lap)]
            begun = time.perf_counter()
            for batch in batches:
                store.release(_release(batch), lambda _: None)
            seconds.append(time.perf_counter() - begun)
        store.close()
    best = per_lap / min(seconds)
    median = per_lap / float(np.median(seconds))
    return Result(
        f"releases of {size} of {rows:,} rows",
        f"{best:.0f} /s at best, {median:.0f} /s in the middle",
        target=f">= {LEAST_RELEASES} /s",
        holds=best >= LEAST_RELEASES,
        numbers={"best": best, "median": median},
    )


def _large(rows: int, size: int) -> list[Result]:
    """Release each row a hundred times, and measure the files and the opening."""
    chance = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _new_store(folder, rows).close()
        store = SiteStore.open(folder / "store", OWNER, is_forced=False)
        for _ in range(RELEASES_OF_EACH_ROW):
            order = chance.permutation(rows)
            for start in range(0, rows, size):
                store.release(_release(order[start : start + size]))
        megabytes = _megabytes(folder)
        store.close()
        opening = _seconds_to_open(folder)
        with SiteStore.open(folder / "store", OWNER) as store:
            begun = time.process_time()
            store.checkpoint()
            folding = time.process_time() - begun
        opening_after = _seconds_to_open(folder)
    what = f"{rows:,} rows, each released {RELEASES_OF_EACH_ROW} times"
    return [
        Result(
            f"{what}: files before a checkpoint",
            f"{megabytes:.0f} MB",
            target=f"<= {MOST_MEGABYTES} MB",
            holds=megabytes <= MOST_MEGABYTES,
            numbers={"megabytes": megabytes},
        ),
        Result(
            f"{what}: opening before a checkpoint",
            f"{opening:.2f} CPU s",
            target=f"<= {MOST_SECONDS:g} s",
            holds=opening <= MOST_SECONDS,
            numbers={"seconds": opening},
        ),
        Result(
            f"{what}: checkpoint, and opening after it",
            f"{folding:.2f}, {opening_after:.2f} CPU s",
            numbers={"checkpoint": folding, "opening": opening_after},
        ),
    ]


def _new_store(folder: Path, rows: int) -> SiteStore:
    store = SiteStore.create(folder / "store", OWNER)
    store.numbers_of([f"p{row}" for row in range(rows)], "ssn", Word.FIRST_CONTACT)
    return store


def _release(people: IntArray) -> Release:
    return Release(ITEM.name, ITEM.kind, ITEM.parameters, people)


def _megabytes(folder: Path) -> float:
    files = files_of(folder / "store" / "state.db")
    return sum(file.stat().st_size for file in files if file.exists()) / 1e6


def _seconds_to_open(folder: Path) -> float:
    """CPU seconds, so that what else runs on the machine counts little."""
    begun = time.process_time()
    store = SiteStore.open(folder / "store", OWNER)
    opened = time.process_time()
    store.close()
    return opened - begun
