"""What a private alignment costs: microseconds and bytes per id, how that grows, and
what all cores bring.

Two and five parties with equally many ids, in one process: by Diffie-Hellman, and by a
helper that compares keyed hashes. Five parties by Diffie-Hellman multiply each id five
times, so they are not measured at the largest size. OpenMined's PSI runs in turns with
it where it is installed: pip install openmined.psi (module private_set_intersection).
As an anchor there is what Raghuraman and Rindal (CCS 2022, RR22) publish for two
parties and a million ids a side: 10 µs an id.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

from colonnade.alignment import AlignmentSettings, Ids, align_here, curve, points
from colonnade.benchmark import Result, race
from colonnade.core import workers

SIZES = (10_000, 100_000, 1_000_000)
SMALL = 2_000
MANY = 8_192  # points that a party works on at a time
CPU = 200.0  # µs for an id of a pair
GAIN = 1.8  # of two cores
RR22 = 10.0  # µs for an id of a pair, as published
HELPED = AlignmentSettings(protocol="helper", helper="helper")
LIMIT = 1.0  # GB, for a million ids a side


def run(quick: bool) -> list[Result]:
    results = []
    taken = {}
    align_here(_ids(100))  # the library is loaded, the curve's tables are made
    sizes = SIZES[:2] if quick else SIZES
    for size in sizes:
        taken[size], result = _measure(size)
        results += [result, _measure(size, 2, HELPED)[1]]
    # after two parties: memory is counted at its most
    results += [_measure(size, 5)[1] for size in (SIZES[:1] if quick else SIZES[:2])]
    results += [_measure(size, 5, HELPED)[1] for size in sizes]
    smallest = min(taken)
    largest = max(taken)
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
    return [
        *results,
        _cores(turns=5 if quick else 10),
        _openmined(turns=2 if quick else 4),
    ]


def _ids(size: int, parties: int = 2) -> dict[str, Ids]:
    """Half of a party's ids are common to all."""
    found = {}
    for number in range(parties):
        first = number * (size // 2) // (parties - 1)
        found[f"party{number}"] = Ids.of(
            f"party{number}", [[f"person-{n}" for n in range(first, first + size)]]
        )
    return found


def _measure(
    size: int, parties: int = 2, settings: AlignmentSettings | None = None
) -> tuple[float, Result]:
    ids = _ids(size, parties)
    start = time.perf_counter()
    worked = _worked()
    aligned = align_here(ids, settings)
    seconds = time.perf_counter() - start
    cpu = _worked() - worked
    assert aligned.found.common == size - size // 2
    sent = sum(ledger.total("out") for ledger in aligned.ledgers.values()) / size
    # ru_maxrss counts kilobytes, on macOS bytes
    unit = 1024 if sys.platform != "darwin" else 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    each = cpu / size * 1e6
    bounds = (
        [] if size < SIZES[-1] or parties > 2 else [(f"≤ {LIMIT} GB", peak <= LIMIT)]
    )
    bounds += (
        [(f"≤ {CPU:.0f} µs of CPU", each <= CPU)]
        if parties == 2 and settings is None
        else []
    )
    how = (
        "by a helper"
        if settings is HELPED
        else f"by ECDH; RR22 publishes {RR22:.0f} µs"
        if parties == 2
        else "by ECDH"
    )
    return cpu, Result(
        f"{parties} parties, {size:,} ids each, {how}",
        f"{seconds:.1f} s; per id of all {seconds / size * 1e6:.1f} µs, {each:.1f} µs"
        " of CPU",
        f"{sent:.0f} bytes per id of all, {peak:.2f} GB of memory at most",
        ", ".join(told for told, _ in bounds),
        all(held for _, held in bounds) if bounds else None,
        {"seconds": seconds, "cpu_seconds": cpu, "bytes_per_id": sent, "peak_gb": peak},
    )


def _worked() -> float:
    """CPU seconds so far, of this process and of its workers, which are counted once
    they have ended."""
    workers.POOL.end()
    spent = [
        resource.getrusage(whose)
        for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def _cores(turns: int) -> Result:
    """At a party that works alone; in the runs above two parties share the cores."""
    digests = _ids(MANY)["party0"].digests
    secret = curve.fresh_secret()
    cores = os.cpu_count() or 1
    curve.blind(digests, secret)  # workers start once
    best = race(
        {
            "one": lambda: points.work(points.BLIND, digests.tobytes(), secret),
            "all": lambda: curve.blind(digests, secret),
        },
        turns=turns,
    )
    gain = best["one"] / best["all"]
    return Result(
        f"{cores} cores, {MANY:,} ids blinded",
        f"{gain:.2f} times as fast as one core",
        f"{best['one'] / MANY * 1e6:.0f} µs and {best['all'] / MANY * 1e6:.0f} µs"
        " per id",
        f"≥ {GAIN} on two idle cores" if cores == 2 else "",
        gain >= GAIN if cores == 2 else None,
        best,
    )


def _openmined(turns: int) -> Result:
    try:
        import private_set_intersection.python as psi  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return Result(
            "against openmined.psi",
            "not measured: it is not installed here",
            "pip install openmined.psi",
        )
    left = [f"person-{number}" for number in range(SMALL)]
    right = [f"person-{number}" for number in range(SMALL // 2, SMALL + SMALL // 2)]
    best = race(
        {
            "ours": lambda: align_here(
                {"left": Ids.of("left", [left]), "right": Ids.of("right", [right])}
            ),
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
    client = psi.client.CreateWithNewKey(True)
    server = psi.server.CreateWithNewKey(True)
    setup = server.CreateSetupMessage(1e-9, len(left), right, psi.DataStructure.RAW)
    answer = server.ProcessRequest(client.CreateRequest(left))
    assert len(client.GetIntersection(setup, answer)) == len(left) - len(left) // 2
