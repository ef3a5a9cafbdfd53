"""What a whole run costs: the measured costs of one batch and one scoring, times how
often a run does them.

Where parties lack rows, or are left out of batches at random, every batch has another
number of rows at every party. The bytes that cross with a party for a batch are then a
line over its rows, a + b rows: a for what is as large for any batch, b for tensors with
a line per row. The line is fitted to a few batches, and summed over all batches of a
run: it is known who is asked for how many rows in each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import product
from statistics import fmean, median

import numpy as np

from colonnade.core.presence import Presence
from colonnade.federation import Federation
from colonnade.federation.organisation import local_epochs
from colonnade.planning import measure
from colonnade.planning.measure import (
    TRAINING,
    Cost,
    Lap,
    Traffic,
    build,
    laps_of,
    take_traffic,
    total,
)

WAYS = {"out": "in", "in": "out"}
BY_LINE = (
    "bytes: what parties send was measured on some batches, and does not quite follow"
    " the number of rows"
)
UNSEEN = "bytes: {} was in no batch that was measured, and is not counted"
PATIENCE = 8.0
"""Seconds that the timed batches may take, about."""
VARIES = "bytes: ciphertexts vary a little in size"
TRIED = "bytes and times: scoring encrypts, and was tried on some of the rows"
GROWS = (
    "bytes and times: trees differ in how many splits they have, and the first one was"
    " measured"
)
AT_MOST = "bytes: the last batch of an epoch is shorter, and was counted as a whole one"


@dataclass
class Costs:
    """What a whole run costs."""

    rounds: int = 0
    per_epoch: int = 0  # batches of all label owners, in an epoch or a round
    training: Cost = field(default_factory=Cost)
    validation: Cost = field(default_factory=Cost)
    final: Cost = field(default_factory=Cost)
    per_batch: list[float] = field(default_factory=list)  # seconds, as measured
    estimates: dict[str, None] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[Cost, Cost, Cost]:
        return self.training, self.validation, self.final

    @property
    def seconds(self) -> float:
        """Seconds on this machine, in all."""
        return sum(part.seconds for part in self.parts)

    @property
    def bytes_sent(self) -> int:
        """Bytes that all parties send, in all."""
        traffic = total(part.traffic for part in self.parts)
        return sum(count for (_, way), count in traffic.items() if way == "out")


def whole_run(federation: Federation, batches: int) -> Costs:
    """The costs of a federation that is not trained yet; at most `batches` are timed,
    while patience lasts."""
    costs = Costs()
    # the blinded ids by which common rows were found
    aligning = take_traffic(federation.ledgers)
    if federation.peers.presence is not None:
        _train_apart(costs, federation, federation.peers.presence, batches)
    elif not _train(costs, federation, batches):  # else its opening has the blinded ids
        costs.final.add(total(aligning.values()))
    _score(costs, federation)
    return costs


def _train(costs: Costs, federation: Federation, batches: int) -> bool:
    """Add the costs of training where all hold the same rows; False where nothing is
    trained."""
    settings = federation.settings
    size = _size(federation)
    trial = partial(measure.train, settings, federation.holdings)
    first = trial(lambda n: min(n, size))
    if not first.seconds:
        return False
    owners = measure.batches_of(federation)
    local = local_epochs(settings)
    epochs = federation.algorithm.passes(settings.train.epochs)
    passes = epochs * local
    costs.rounds = len(federation.batches)
    costs.per_epoch = local * sum(agreed.per_epoch for agreed in owners.values())
    # What is sent once may be about every training row: then it is measured with all of
    # them.
    costs.training.add(
        trial(lambda n: n, steps=1).opening if first.about_all_rows else first.opening
    )
    costs.training.add(first.each_round, costs.rounds)
    if not first.is_exact:
        costs.estimates[VARIES] = None
    rows = {
        owner: len(agreed.splits.get("train", ())) for owner, agreed in owners.items()
    }
    short = [owner for owner, n in rows.items() if n % size]
    last = first  # has the only batch of an owner with fewer rows than a batch
    if any(rows[owner] > size for owner in short):
        if first.seconds[-1] > PATIENCE:
            costs.estimates[AT_MOST] = None
        else:
            last = trial(lambda n: n % size or size)
    timed = first
    most = min(batches, max(rows.values()) // size)
    many = min(most + 1, int(PATIENCE / max(first.seconds[-1], 1e-9)))
    # several batches one after the other, without the slow first one
    if first.is_exact and most > 1 and many > 1:
        timed = trial(lambda n: min(n // size, many) * size or n)
    costs.per_batch = timed.seconds
    for owner in first.batch:
        costs.training.add(first.batch[owner], rows[owner] // size * passes)
        if owner in short:
            costs.training.add(last.batch[owner], passes)
    costs.training.add(Traffic(), costs.per_epoch * epochs, median(timed.seconds))
    costs.training.exchanges = (
        timed.exchanges * passes * max(agreed.per_epoch for agreed in owners.values())
    )
    return True


def _train_apart(
    costs: Costs, federation: Federation, presence: Presence, batches: int
) -> None:
    """Add the costs of training where each party is asked for the rows it holds. So
    many batches are tried, and more where a partner was in none of them, while patience
    lasts. To agree on rows is part of the opening."""
    trial = build(federation.settings, federation.holdings)
    names = [name for name in trial.owners if name not in trial.label_owners]
    laps: list[Lap] = []
    measured_of: dict[str, list[tuple[int, Traffic]]] = {name: [] for name in names}
    for lap in laps_of(trial):
        laps.append(lap)
        trained = {
            batch: traffic
            for batch, traffic in lap.pieces.items()
            if batch and TRAINING.fullmatch(batch)
        }
        for (batch, traffic), name in product(trained.items(), names):
            if rows := presence.size(name, batch):  # else it was not asked
                measured_of[name].append((rows, traffic))
        if sum(lap.seconds for lap in laps) > PATIENCE or (
            len(laps) > batches and all(measured_of.values())
        ):
            break
    if not laps:
        return
    settled = laps[1:] or laps  # the first is slower
    costs.rounds = len(federation.batches)
    costs.per_epoch = federation.agreed.one.per_epoch
    costs.per_batch = [lap.seconds for lap in settled]
    costs.training.add(total(laps[0].rest.values()))
    costs.training.add(
        Traffic(),
        costs.rounds,
        median(costs.per_batch),
        fmean(lap.exchanges for lap in settled),
    )
    agreed = federation.agreed.one
    every = [
        f"{agreed.prefix}train/{at}/{n}"
        for at, n in product(range(agreed.epochs), range(agreed.per_epoch))
    ]
    for name, measured in measured_of.items():
        sizes = [size for batch in every if (size := presence.size(name, batch))]
        if measured:
            _add_line(costs, trial.driver.name, name, measured, sizes)
        elif sizes:
            costs.estimates[UNSEEN.format(name)] = None
    if not all(lap.is_exact for lap in laps):
        costs.estimates[VARIES] = None


def _add_line(
    costs: Costs,
    driver: str,
    name: str,
    measured: list[tuple[int, Traffic]],
    sizes: list[int],
) -> None:
    """Fit the line of each way and add its sum over all batches; the driver receives
    what the other sends."""
    rows = np.array([size for size, _ in measured], dtype=np.float64)
    for way, other in WAYS.items():
        values = np.array(
            [traffic[name, way] for _, traffic in measured], dtype=np.float64
        )
        basis = np.stack(
            [rows, np.ones_like(rows)] if len(set(rows)) > 1 else [rows], axis=1
        )
        line = np.linalg.lstsq(basis, values, rcond=None)[0]
        if np.abs(basis @ line - values).max() > 0.5:
            costs.estimates[BY_LINE] = None
        all_bytes = round(
            float(
                sum(sizes) * line[0] + (len(sizes) * line[1] if len(line) > 1 else 0.0)
            )
        )
        costs.training.traffic.update(
            {(name, way): all_bytes, (driver, other): all_bytes}
        )


def _score(costs: Costs, federation: Federation) -> None:
    """Add the costs of scoring validation rows after every epoch, and at the end every
    split that privacy allows."""
    splits = [
        split
        for split in federation.batches.splits
        if split != "train" or federation.algorithm.trains
    ]
    often = 1
    if federation.algorithm.config.grows and costs.rounds:
        federation = build(federation.settings, federation.holdings)
        often = costs.rounds
        # it asks for more with every step, and in training for new steps alone
        next(federation.train())
        costs.estimates[GROWS] = None
    scored = {split: measure.score(federation, split) for split in splits}
    last = splits
    if costs.rounds and "validation" in scored:
        validation = scored["validation"]
        epochs = federation.algorithm.passes(federation.settings.train.epochs)
        costs.validation.add(
            validation.traffic, epochs, validation.seconds, validation.exchanges
        )
    if federation.accounts or federation.algorithm.once:
        last = [
            split
            for split in splits
            if split == "test" or (split == "validation" and not costs.rounds)
        ]
    for number, split in enumerate(last):
        scoring = scored[split]
        costs.final.add(
            scoring.traffic, often, scoring.seconds, scoring.exchanges / often
        )
        if not costs.rounds and not number:  # nothing was opened by training
            costs.final.add(scoring.opening)
        if not scoring.is_exact:
            costs.estimates[TRIED] = None


def _size(federation: Federation) -> int:
    rows = max(
        len(batches.splits.get("train", ()))
        for batches in measure.batches_of(federation).values()
    )
    return federation.algorithm.batch_size(federation.settings.train.batch_size, rows)
