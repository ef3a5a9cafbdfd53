"""The aggregation server at a site of its own: what `fit` needs of a federation whose data are all elsewhere.

It knows of each label owner how many rows it has, its losses and scores, and its weights: nothing by row, no id, and
nothing of a data owner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.algorithms import find
from colonnade.core import Agreed, Ledger, Message, Peers, Request, Transport
from colonnade.core.party import State
from colonnade.datasets.labels import Labels
from colonnade.errors import ConfigError, NoAnswer
from colonnade.federation.call_policy import Patience
from colonnade.federation.federation import Scores
from colonnade.federation.multi import mean_scores, trained
from colonnade.federation.multi_roles import epochs_of, nested_of
from colonnade.federation.rounds import RoundDone
from colonnade.federation.seats import make_seats
from colonnade.privacy import Account
from colonnade.rows.shares import Ids, Share, Shares
from colonnade.settings.federation_file import Settings
from colonnade.settings.owners import SERVER

log = logging.getLogger("colonnade.party")
NOBODY: Ids = np.array([], dtype=np.str_)


class Ready(Message):
    """A label owner that has met the data owners."""

    rows: dict[str, int]  # of each split
    task: str
    step: int  # where its training stands
    counts: bool  # whether a data owner counts what its rows are released with


class Measured(Message):
    scores: dict[str, float]  # none where it has no such rows
    rows: int


class Measure(Request[Measured]):
    """How good is the model on your rows of a split?"""

    split: str
    model: str


@dataclass
class Elsewhere:
    """What a federation's holdings are to whoever holds nothing."""

    label_owners: dict[str, Share]
    encoder: Labels
    ids: Ids

    names = (SERVER,)

    def roles(self, party: str) -> list[str]:  # noqa: ARG002
        return []

    def state_of(self, party: str) -> State:  # noqa: ARG002
        return {}


class Counted:
    """How far training has come, in rounds; of the rows only their number is known."""

    per_epoch = 1

    def __init__(self, ready: Mapping[str, Ready], settings: Settings) -> None:
        self.epochs, self.batch_size, self.done = settings.train.epochs, settings.train.batch_size, 0
        names = dict.fromkeys(split for one in ready.values() for split in one.rows)
        self.splits = {split: _rows(sum(one.rows.get(split, 0) for one in ready.values())) for split in names}

    def __len__(self) -> int:
        return self.epochs

    def fingerprint(self) -> str:
        return ",".join(f"{split} {len(rows)}" for split, rows in self.splits.items())


class Aggregation:
    """What a `MultiFederation` is to one process, for the party without data: it has the same state to save."""

    algorithm: Any
    drawn_by: Mapping[str, Any] = {}

    def __init__(
        self, settings: Settings, ready: Mapping[str, Ready], transport: Transport, ask: Peers, device: torch.device
    ) -> None:
        self.settings, self.device, self.ask = settings, device, ask
        self.algorithm = find(settings.algorithm)
        self.batches = Counted(ready, settings)
        shares = {
            name: Share(NOBODY, _rows(0), _rows(0), {split: _rows(n) for split, n in one.rows.items()})
            for name, one in ready.items()
        }
        task: Any = next(iter(ready.values())).task
        encoder = Labels(SERVER, task)
        self.holdings = Elsewhere(shares, encoder, NOBODY)
        nobody, epochs = Shares({}, {}, NOBODY, encoder, 1), epochs_of(settings)
        self.seats = make_seats(settings, nobody, Agreed({}), epochs=epochs, device=device)
        server = nested_of(settings).aggregation_server
        self.driver: Any = server(self.seats[SERVER], settings.config, settings.train.epochs)
        self.driver.peers = Peers(SERVER, ready, transport, self.driver.ledger)
        Patience(settings.engine, elsewhere=True).look(self.driver.peers, self.driver.rows, {}, self.algorithm)
        self.counted_elsewhere = any(one.counts for one in ready.values())

    def train(self) -> Iterator[RoundDone]:
        return trained(self.driver, self.batches, self.settings)

    def score(self, split: str, model: str = "aggregated") -> Scores:
        """Each label owner measures its own rows; the mean is weighted by rows. Who is silent is left out of it."""
        told, failed = self.ask.attempt(dict.fromkeys(self.ask, Measure(split, model)))
        for error in failed.values():
            if not told or not isinstance(error, NoAnswer):
                raise error
            log.warning("%s The score is without it.", error)
        answers = {name: one for name, one in told.items() if one.rows}
        if not answers:
            raise ConfigError(f"No label owner has rows called {split!r}; there are {', '.join(self.batches.splits)}.")
        each = {name: dict(one.scores) for name, one in answers.items()}
        return Scores(mean_scores(each, {name: one.rows for name, one in answers.items()}), each)

    @property
    def ledgers(self) -> dict[str, Ledger]:
        return {SERVER: self.driver.ledger}

    @property
    def accounts(self) -> dict[str, Account]:
        return {}

    def keep_accounts(self, folder: Callable[[str], Path]) -> None:
        """Nothing of its own is released."""

    def state_of(self, party: str) -> State:
        return {"seat": self.seats[party].state(), "server": self.driver.state()}

    def load_state_of(self, party: str, state: State) -> None:
        self.seats[party].load_state(state["seat"])
        self.driver.load_state(state["server"])

    def restack(self) -> None:
        """Nobody is stacked here."""


def _rows(count: int) -> Tensor:
    return torch.arange(count)
