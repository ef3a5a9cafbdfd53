"""Participant selection: what Fagin and batching save, how it grows, and next to
encrypted training.

Rows come from 26 clusters in 16 columns, as Letter's do, so that rows that are near in
one party's columns tend to be near in the others'. `reproductions/vf_ps` has real data,
and columns without anything in common, the worst case.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.benchmark import Result, race
from colonnade.encryption import make_keys
from colonnade.selection import select_here

QUERIES = 32
CLASSES = 26
COLUMNS = 16
Parts = tuple[dict[str, NDArray[Any]], NDArray[Any]]


def run(quick: bool) -> list[Result]:
    rows = 4_000 if quick else 16_000
    held = _clusters(4, rows)
    ways: dict[str, dict[str, Any]] = {
        "both": {},
        "Fagin": {"fagin": False},
        "batching": {"batching": False},
    }
    runners = {name: _selecting(held, **settings) for name, settings in ways.items()}
    best = race(runners, turns=1 if quick else 3, clock=time.process_time)
    results = [_saving(what, rows, best) for what in ("Fagin", "batching")]
    results.append(_encrypted(held, rows, best["both"] / QUERIES, quick))
    return [
        *results,
        *_growth(
            [(4, 1_000), (16, 1_000)]
            if quick
            else [(4, 1_000), (4, 10_000), (4, 100_000)]
        ),
    ]


def _clusters(participants: int, rows: int) -> Parts:
    generator = np.random.default_rng(0)
    labels = generator.integers(CLASSES, size=rows)
    x = generator.normal(size=(CLASSES, COLUMNS))[labels] * 1.5 + generator.normal(
        size=(rows, COLUMNS)
    )
    parts = np.split(x, participants, axis=1)
    return {f"party_{at}": part for at, part in enumerate(parts)}, labels


def _selecting(held: Parts, **settings: Any) -> Callable[[], object]:
    columns, labels = held
    return lambda: select_here(columns, labels, keep=2, queries=QUERIES, **settings)


def _saving(what: str, rows: int, best: dict[str, float]) -> Result:
    ratio = best[what] / best["both"]
    return Result(
        f"VF-PS, 4 participants, {rows:,} rows, {QUERIES} queries: {what}",
        f"{best['both']:.2f} s of processor time = 1/{ratio:.1f}",
        f"without {what} {best[what]:.2f} s",
        "≥ 2 x",
        ratio >= 2,
        {"seconds": best["both"], f"seconds without {what}": best[what]},
    )


def _encrypted(held: Parts, rows: int, per_query: float, quick: bool) -> Result:
    """256 queries, next to kNN's encrypted distances between a fifth of the rows and
    the others: a few rows of it."""
    columns, _ = held
    secret = make_keys("ckks", limit=2.0**12)
    few = 16
    others = rows * 4 // 5
    start = time.process_time()
    parts = [torch.from_numpy(part) for part in columns.values()]
    sent = [
        secret.public.encrypt(torch.cdist(x[:few], x[:others]).square(), owner="party")
        for x in parts
    ]
    secret.decrypt(secret.public.add(*sent))
    training = (time.process_time() - start) * (rows - others) / few
    selection = 256 * per_query
    return Result(
        f"the same by 256 queries, next to encrypted kNN for {rows - others:,} rows,"
        " both extrapolated",
        f"{selection:.1f} s = 1/{training / selection:.0f}",
        f"encrypted distances {training:.0f} s",
        "" if quick else "≥ 10 x",  # it grows with the rows
        None if quick else training >= 10 * selection,
        {"selection seconds": selection, "training seconds": training},
    )


def _growth(sizes: list[tuple[int, int]]) -> list[Result]:
    results = []
    for participants, rows in sizes:
        columns, labels = _clusters(participants, rows)
        start = time.process_time()
        found = select_here(columns, labels, keep=2, queries=QUERIES)
        seconds = time.process_time() - start
        results.append(
            Result(
                f"VF-PS, {participants} participants, {rows:,} rows, {QUERIES} queries",
                f"{seconds:.2f} s of processor time, {found.cost.bytes / 1e6:.1f} MB",
                f"{found.cost.candidates / rows:.0%} of the rows are candidates of a"
                " query",
                numbers={
                    "seconds": seconds,
                    "bytes": float(found.cost.bytes),
                    "candidates": found.cost.candidates,
                },
            )
        )
    return results
