"""What a private alignment costs: microseconds and bytes per id, how that grows, and what all cores bring.

Two parties with equally many ids, half of them common, in one process. OpenMined's PSI runs in turns with it where it
is installed: pip install openmined.psi (module private_set_intersection).
"""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

from colonnade.alignment import Ids, align_here, curve, workers
from colonnade.benchmark import Result, race

SIZES = (10_000, 100_000, 1_000_000)
SMALL = 2_000
MANY = 8_192  # points that a party works on at a time
CPU = 200.0  # µs for an id of a pair
GAIN = 1.8  # of two cores
LIMIT = 1.0  # GB, for a million ids a side


def run(quick: bool) -> list[Result]:
    results, taken = [], {}
    align_here(_ids(100))  # the library is loaded, the curve's tables are made
    for size in SIZES[:2] if quick else SIZES:
        taken[size], result = _measure(size)
        results.append(result)
    smallest, largest = min(taken), max(taken)
    growth = (taken[largest] / largest) / (taken[smallest] / smallest)
    results.append(
        Result(
            f"growth from {smallest:,} to {largest:,} ids",
            f"{growth:.2f} times the CPU time per id",
            target="≤ 1.25",
            holds=growth <= 1.25,
            numbers={"growth": growth},
        )
    )
    return [*results, _cores(turns=5 if quick else 10), _openmined(turns=2 if quick else 4)]


def _ids(size: int) -> dict[str, Ids]:
    left = [f"person-{number}" for number in range(size)]
    right = [f"person-{number}" for number in range(size // 2, size + size // 2)]
    return {"left": Ids.of("left", [left]), "right": Ids.of("right", [right])}


def _measure(size: int) -> tuple[float, Result]:
    ids = _ids(size)
    start, worked = time.perf_counter(), _worked()
    aligned = align_here(ids)
    seconds, cpu = time.perf_counter() - start, _worked() - worked
    assert aligned.found.common == size - size // 2
    sent = sum(ledger.total("out") for ledger in aligned.ledgers.values()) / size
    unit = 1024 if sys.platform != "darwin" else 1  # ru_maxrss counts kilobytes, on macOS bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    held = size < SIZES[-1]
    return cpu, Result(
        f"two parties, {size:,} ids each",
        f"{seconds:.1f} s; per id of a pair {seconds / size * 1e6:.0f} µs, {cpu / size * 1e6:.0f} µs of CPU",
        f"{sent:.0f} bytes per id of a pair, {peak:.2f} GB of memory at most",
        "" if held else f"≤ {LIMIT} GB",
        None if held else peak <= LIMIT,
        {"seconds": seconds, "cpu_seconds": cpu, "bytes_per_id": sent, "peak_gb": peak},
    )


def _worked() -> float:
    """CPU seconds so far, of this process and of its workers, which are counted once they have ended."""
    workers.POOL.end()
    spent = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def _cores(turns: int) -> Result:
    """At a party that works alone; in the runs above two parties share the cores."""
    digests, secret, cores = _ids(MANY)["left"].digests, curve.fresh_secret(), os.cpu_count() or 1
    curve.blind(digests, secret)  # workers start once
    best = race(
        {"one": lambda: curve.blind(digests, secret, cores=1), "all": lambda: curve.blind(digests, secret)},
        turns=turns,
    )
    gain = best["one"] / best["all"]
    return Result(
        f"{cores} cores, {MANY:,} ids blinded",
        f"{gain:.2f} times as fast as one core",
        f"{best['one'] / MANY * 1e6:.0f} µs and {best['all'] / MANY * 1e6:.0f} µs per id",
        f"≥ {GAIN} on two idle cores" if cores == 2 else "",
        gain >= GAIN if cores == 2 else None,
        best,
    )


def _openmined(turns: int) -> Result:
    try:
        import private_set_intersection.python as psi  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return Result("against openmined.psi", "not measured: it is not installed here", "pip install openmined.psi")
    left = [f"person-{number}" for number in range(SMALL)]
    right = [f"person-{number}" for number in range(SMALL // 2, SMALL + SMALL // 2)]
    best = race(
        {
            "ours": lambda: align_here({"left": Ids.of("left", [left]), "right": Ids.of("right", [right])}),
            "openmined": lambda: _theirs(psi, left, right),
        },
        turns=turns,
    )
    return Result(
        f"against openmined.psi, {SMALL:,} ids each",
        f"{best['openmined'] / best['ours']:.2f} times as fast",
        "there one side learns, here both do, and rows too",
        numbers=best,
    )


def _theirs(psi: Any, left: list[str], right: list[str]) -> None:
    client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
    setup = server.CreateSetupMessage(1e-9, len(left), right, psi.DataStructure.RAW)
    answer = server.ProcessRequest(client.CreateRequest(left))
    assert len(client.GetIntersection(setup, answer)) == len(left) - len(left) // 2
