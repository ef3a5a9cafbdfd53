"""One organisation's part of a run in which several hold labels: its seat, its one role, its own folder of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from colonnade.algorithms import find
from colonnade.core import Agreed, Batches, DpEvent
from colonnade.core.party import State
from colonnade.federation.federation import measured
from colonnade.federation.guarantees import guarantees
from colonnade.federation.local_model import models_told
from colonnade.federation.multi import Model, MultiFederation
from colonnade.federation.multi_roles import batches_for, data_owner, epochs_of, label_owner, nested_of
from colonnade.federation.rounds import Rounds
from colonnade.federation.seats import accounts_of, make_seats
from colonnade.rows.shares import Shares
from colonnade.runs.budget_over_runs import Purse
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import Own
from colonnade.sites.saves import marked


class MultiMember:
    """What a `MultiFederation` is to one process, for a label owner or a data owner: it has the same state to save."""

    predicts = False
    asked: Batches | None = None  # where it predicts: the rows it is asked for

    def __init__(self, own: Own, shares: Shares, device: torch.device) -> None:
        settings, name = own.local, own.name
        self.name, self.settings, self.device, self.runs = name, settings, device, own.runs
        self.algorithm, self.nested = find(settings.algorithm), nested_of(settings)
        self.agreed = agreed_on(settings, shares)
        self.batches = Rounds(self.agreed, settings.train.epochs)
        shared: dict[str, Any] = {"epochs": epochs_of(settings), "device": device}
        seat = make_seats(settings, shares, self.agreed, **shared)[name]
        self.seats, self.ledgers = {name: seat}, {name: seat.ledger}
        self.accounts = accounts_of(self.seats)
        self.drawn_by: dict[str, DpEvent] = {}
        self.measured: dict[str, dict[str, float]] = {}
        self.purse: Purse | None = None
        if name in shares.data_owners:
            features = shares.data_owners[name].features
            assert features is not None
            self.role, self.owner = "features", data_owner(settings, seat, features, self.agreed)
            self.holdings = Shares({}, shares.data_owners, shares.ids, shares.encoder, shares.known_to)
        else:
            labels = shares.label_owners[name].labels
            self.role, (self.owner, event) = (
                "labels",
                label_owner(settings, seat, labels, shares.loss, self.agreed[name]),
            )
            self.holdings = shares
            self.drawn_by |= {} if event is None else {name: event}

    def open(self, folder: Path, resumed: int | None) -> None:
        """This organisation's folder of the run: a new one, or as the checkpoint `resumed` left it (0: as nobody had
        trained yet). A label owner has met the data owners by then."""
        with self._in(folder).held():
            if resumed is not None:
                self.run.back_to(resumed)
            if resumed:
                self.settings.check_continues(self.run.settings())
                self.run.restore(cast(MultiFederation, self))
                self.run.keep(self.settings)
            else:
                self.run.begin(cast(MultiFederation, self))
                self.save(0, 1)

    def load(self, folder: Path, number: int, asker: str) -> None:
        """As that checkpoint of the run left it, to predict rows of `asker`. A label owner has met the data owners by
        then."""
        self.predicts, self.asked = True, self.agreed[asker]
        purse, federation = self._in(folder), cast(MultiFederation, self)
        with purse.held():
            self.run.load(federation, marked(self.run, number))
            self.run.follow(federation)

    def _in(self, folder: Path) -> Purse:
        self.run = RunDirectory(folder)
        self.purse = Purse(self.name, self.runs, folder.name, self.accounts, self.settings.alignment.ids)
        self.keep_accounts = self.purse.keep
        return self.purse

    def save(self, step: int, number: int, common: int | None = None) -> None:
        """A checkpoint, where the aggregation server says that training stands; `common` is kept as well."""
        self.batches.done, self.run.common = step, common
        self.run.checkpoint(cast(MultiFederation, self), number=number)

    def close(self, outcome: str, refused: int) -> None:
        """This organisation's own summary; another run may begin."""
        assert self.purse is not None
        book = self.seats[self.name].ledger
        self.run.write_summary(
            {
                "party": self.name,
                "algorithm": self.settings.algorithm,
                "parties": {self.name: [self.role]},
                "models": models_told(self.settings, self.seats),
                "rows": {split: len(rows) for split, rows in self.batches.splits.items()},
                "rounds": self.batches.done,
                "stopped": outcome,
                "bytes": {self.name: {"out": book.total("out"), "in": book.total("in")}},
                "refused_calls": refused,
                **({"metrics": self.measured} if self.role == "labels" else {}),
                "privacy": [guarantee.to_json() for guarantee in guarantees(cast(MultiFederation, self))],
            }
        )
        self.run.finish()
        self.purse.leave()

    def measure(self, split: str, model: Model) -> tuple[dict[str, float], int]:
        """A label owner's scores on its own rows of a split, and how many they are."""
        batches = self.agreed[self.name]
        if split not in batches.splits:
            return {}, 0
        mine = batches.splits[split]
        labels = self.owner.labels[mine.to(self.device)]  # drawn ones where its rule draws: the score goes to others
        self.measured[split] = measured(self.holdings, self.outputs(split, model), labels)
        return self.measured[split], len(mine)

    def outputs(self, split: str, model: Model) -> torch.Tensor:
        """A model's, for a label owner's rows of a split, computed together with the data owners."""
        asks, chunks = self.owner, self.agreed[self.name].chunks(split)
        return torch.cat([self.nested.predict(asks, asks.peers, rows, model) for rows in chunks])

    def state_of(self, party: str) -> State:
        state: State = {"seat": self.seats[party].state(), self.role: self.owner.state()}
        return state | ({"drawn": self.owner.labels[self._trained()]} if self.drawn_by else {})

    def load_state_of(self, party: str, state: State) -> None:
        self.seats[party].load_state(state["seat"])
        self.owner.load_state(state[self.role])
        if "drawn" in state and not self.predicts:  # drawn once: a second draw would cost again
            self.owner.labels[self._trained()] = state["drawn"].to(self.device)

    def restack(self) -> None:
        """Nobody is stacked here."""

    def _trained(self) -> torch.Tensor:
        return self.agreed[self.name].splits["train"].to(self.device)


def agreed_on(settings: Settings, shares: Shares) -> Agreed:
    """By label owner its batches, and where its rows are here."""
    return Agreed(
        {name: (batches_for(settings, name, share.splits), share.rows) for name, share in shares.label_owners.items()}
    )
