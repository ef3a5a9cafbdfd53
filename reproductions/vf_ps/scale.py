"""How a selection grows with participants and rows: our own test, for which the paper
has no figures.

Standard normal columns, two to a participant, independent of each other: for Fagin the
worst case, since rows that are near in one list are then no nearer in the others.
Labels are the sides of a random hyperplane.
"""

from __future__ import annotations

import time

import numpy as np

from colonnade.reproduction import Plan, Study
from colonnade.selection import Selection, select_here

PARTICIPANTS = (4, 16, 64)
ROWS = (1_000, 10_000, 100_000)
QUERIES = 8
TESTS = 10


def cells(plan: Plan) -> list[str]:
    sizes = [(p, r) for r in reversed(ROWS) for p in reversed(PARTICIPANTS)]
    return [
        f"{p} participants, {r:,} rows"
        for p, r in (sizes[-3:] if plan.short else sizes)
    ]


def run(study: Study, cell: str) -> None:
    participants, rows = (
        int(word.replace(",", "")) for word in cell.split() if word[0].isdigit()
    )
    select(2, 64)  # what is loaded once in a process is no part of the seconds
    start = time.process_time()
    found = select(participants, rows)
    study.record(f"{cell}, processor seconds", time.process_time() - start, "s")
    study.record(f"{cell}, MB sent by all", found.cost.bytes / 1e6, "MB")
    study.record(
        f"{cell}, share of rows that are candidates", found.cost.candidates / rows
    )


def select(participants: int, rows: int) -> Selection:
    generator = np.random.default_rng(participants * rows)
    columns = {
        f"party_{at}": generator.normal(size=(rows, 2)) for at in range(participants)
    }
    side = sum(x @ generator.normal(size=2) for x in columns.values())
    return select_here(
        columns,
        (side > 0).astype(np.int64),
        keep=participants // 2,
        queries=QUERIES,
        tests=TESTS,
    )
