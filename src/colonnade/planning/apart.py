"""What training costs where parties lack rows, or are left out of batches at random.

Every batch then has another number of rows at every party. What crosses with a party for a batch follows a line over
its rows there, a + b rows: tensors with a line per row, and what is as large for any batch. The line is found on a few
batches, and added up over all batches of a run, of which it is known who is asked for how many rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from colonnade.federation import Federation
from colonnade.planning.measure import Lap, build, laps_of
from colonnade.planning.traffic import TRAINING, Traffic, total

WAYS = {"out": "in", "in": "out"}
BY_LINE = "bytes: what parties send was measured on some batches, and does not quite follow the number of rows"
UNSEEN = "bytes: {} was in no batch that was measured, and is not counted"


@dataclass
class Apart:
    """A whole training."""

    traffic: Traffic
    seconds: list[float]  # per batch; the first, which is slower, only where it is alone
    exchanges: float
    is_exact: bool
    estimates: dict[str, None] = field(default_factory=dict)


def train(federation: Federation, batches: int, patience: float) -> Apart | None:
    """So many batches are tried, and more where a partner was in none of them, as long as patience lasts; None where
    nothing is trained."""
    trial = build(federation.settings, federation.holdings)
    names = [name for name in trial.owners if name not in trial.label_owners]
    laps: list[Lap] = []
    seen: dict[str, list[tuple[int, Traffic]]] = {name: [] for name in names}
    for lap in laps_of(trial):
        laps.append(lap)
        for batch, traffic in lap.pieces.items():
            for name, rows in _asked(trial, names, batch).items():
                seen[name].append((rows, traffic))
        if sum(one.seconds for one in laps) > patience or (len(laps) > batches and all(seen.values())):
            break
    if not laps:
        return None
    settled = laps[1:] or laps
    exchanges = sum(lap.exchanges for lap in settled) / len(settled)
    found = Apart(total(laps[0].rest.values()), [lap.seconds for lap in settled], exchanges, True)
    found.is_exact = all(lap.is_exact for lap in laps)
    for name, measured in seen.items():
        counts = np.array(list(_counts(trial, name)), dtype=np.float64)
        if not measured:
            found.estimates |= {UNSEEN.format(name): None} if len(counts) else {}
            continue
        _add(found, trial.driver.name, name, measured, counts)
    return found


def _asked(federation: Federation, names: list[str], batch: str | None) -> dict[str, int]:
    """Of a training batch, whom it was asked of, and of how many rows."""
    if batch is None or not TRAINING.fullmatch(batch):
        return {}
    assert federation.peers.presence is not None
    sizes = {name: federation.peers.presence.size(name, batch) for name in names}
    return {name: size for name, size in sizes.items() if size}


def _counts(federation: Federation, name: str) -> Iterator[int]:
    """Of each batch of a run that a party is asked for, how many rows it holds of it."""
    assert federation.peers.presence is not None
    batches = federation.agreed.one
    for epoch in range(batches.epochs):
        for number in range(batches.per_epoch):
            if size := federation.peers.presence.size(name, f"{batches.prefix}train/{epoch}/{number}"):
                yield size


def _add(
    found: Apart, driver: str, name: str, measured: list[tuple[int, Traffic]], counts: NDArray[np.float64]
) -> None:
    """The line of each way, summed over all batches; who drives gets what the other sends."""
    rows = np.array([size for size, _ in measured], dtype=np.float64)
    for way, other in WAYS.items():
        values = np.array([traffic[name, way] for _, traffic in measured], dtype=np.float64)
        basis = np.stack([rows, np.ones_like(rows)] if len(set(rows)) > 1 else [rows], axis=1)
        line = np.linalg.lstsq(basis, values, rcond=None)[0]
        if np.abs(basis @ line - values).max() > 0.5:
            found.estimates[BY_LINE] = None
        whole = round(float(counts.sum() * line[0] + (len(counts) * line[1] if len(line) > 1 else 0.0)))
        found.traffic.update(Traffic({(name, way): whole, (driver, other): whole}))
