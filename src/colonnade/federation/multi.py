"""A federation whose labels lie with several organisations: label owners, data owners, and who adds weights up.

federation = MultiFederation.from_toml("federation.toml")      # [[label_owners]] and [[data_owners]]
federation.fit("run")                                            # rounds of training, as Federation.fit
federation.evaluate("test")                                      # the aggregated model, weighted by rows
federation.predict(["17"], owner="north", model="own")           # or any label owner's own

The aggregation server drives label owners, each of them drives data owners. All of them live in this process.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from colonnade.algorithms import find, nested_names
from colonnade.core import Agreed, Batch, Batches, DpEvent, Ledger, Peers, Seat, Transport
from colonnade.core.checks import did_you_mean
from colonnade.core.party import State
from colonnade.errors import ConfigError, DataError, Diverged
from colonnade.federation.call_policy import Patience
from colonnade.federation.federation import (
    Federation,
    Predictions,
    Scores,
    decoded,
    device_of,
    measured,
)
from colonnade.federation.multi_roles import batches_for, data_owner, epochs_of, label_owner, nested_of
from colonnade.federation.rounds import RoundDone, Rounds
from colonnade.federation.seats import accounts_of, make_seats
from colonnade.privacy import Account
from colonnade.privacy.calibrate import planned
from colonnade.rows.holdings import Holding, asked_for
from colonnade.rows.shares import Shares, from_dataset, from_tables
from colonnade.rows.tables import labels_of, read_labels, read_tables, tables_of
from colonnade.runs.budget_over_runs import JOURNAL, SYNC_EVERY
from colonnade.settings.federation_file import Settings
from colonnade.settings.owners import SERVER
from colonnade.transport import Drivers, InProcess

if TYPE_CHECKING:
    import pandas as pd

    from colonnade.federation.fit import Outcome, Watch

Model = Literal["aggregated", "own"]
Between = Callable[[str, Transport], Transport]
"""Who asks, and what would carry its calls -> what carries them."""


class MultiFederation:
    """Everything that `settings` and `holdings` describe, in this process.

    `between` puts something between a party that asks and those it asks, such as a network that loses calls."""

    def __init__(self, settings: Settings, holdings: Shares, *, between: Between | None = None) -> None:
        _check_parties(settings, holdings)
        self.settings, self.holdings = settings, holdings
        self.algorithm, self.nested = find(settings.algorithm), nested_of(settings)
        self.device = device_of(settings.engine.device)
        rounds = settings.train.epochs
        own = {name: batches_for(settings, name, share.splits) for name, share in holdings.label_owners.items()}
        self.agreed = Agreed({name: (batches, holdings.label_owners[name].rows) for name, batches in own.items()})
        self.batches = Rounds(self.agreed, rounds)
        self.seats: dict[str, Seat] = make_seats(
            settings, holdings, self.agreed, epochs=epochs_of(settings), device=self.device
        )
        self.drawn_by: dict[str, DpEvent] = {}
        self.owners: dict[str, Any] = {
            name: data_owner(settings, self.seats[name], _columns(held), self.agreed)
            for name, held in holdings.data_owners.items()
        }
        self.label_owners: dict[str, Any] = {name: self._label_owner(name, own[name]) for name in own}
        self.driver: Any = self.nested.aggregation_server(self.seats[SERVER], settings.config, rounds)
        self._connect(between)

    @classmethod
    def from_toml(
        cls, path: str | Path, *, seed: int | None = None, allow_models: Sequence[str] = ()
    ) -> MultiFederation:
        """From a federation file; `seed` overrides the file's, `allow_models` lists the code that it may name."""
        return cls.from_settings(Settings.from_toml(Path(path), allow_models=allow_models), seed=seed)

    @classmethod
    def from_settings(cls, settings: Settings, *, seed: int | None = None) -> MultiFederation:
        """From checked settings; tables are read from where the settings say."""
        if seed is not None:
            settings = dataclasses.replace(settings, engine=dataclasses.replace(settings.engine, seed=seed))
        if settings.data.dataset is not None:
            return cls(settings, from_dataset(settings))
        return cls(settings, from_tables(settings, read_labels(settings), read_tables(settings)))

    @classmethod
    def from_frames(
        cls,
        label_owners: Mapping[str, pd.DataFrame],
        data_owners: Mapping[str, pd.DataFrame],
        *,
        id: str,  # noqa: A002 - the word users know
        label: str,
        settings: Mapping[str, Any] | None = None,
    ) -> MultiFederation:
        """From data frames by organisation; of a label owner's, only the columns `id` and `label` are read.

        `settings` has the tables of a federation file; its lists of owners may add rules and models by name. They are
        the caller's own, and so are the import paths that they name as models.
        """
        given = {"algorithm": {"name": nested_names()[0]}, **(settings or {})}
        for section, frames in (("label_owners", label_owners), ("data_owners", data_owners)):
            named = {one.get("name"): one for one in given.get(section, [])}
            given[section] = [named.pop(name, {"name": name}) for name in frames] + list(named.values())
        given["label_owners"] = [{"label": label, **one} for one in given["label_owners"]]
        checked = Settings.from_mapping({**given, "data": {**given.get("data", {}), "id": id}})
        checked = dataclasses.replace(checked, allow_models=checked.code())
        labelled, columns = labels_of(checked, label_owners), tables_of(checked, data_owners)
        return cls(checked, from_tables(checked, labelled, columns))

    @classmethod
    def load(cls, folder: str | Path, **which: Any) -> MultiFederation:
        """A saved one, trained as far as it was; see `loading.load_multi`."""
        from colonnade.federation.loading import load_multi

        return load_multi(folder, **which)

    def train(self) -> Iterator[RoundDone]:
        """Train from where it stands to the last round."""
        return trained(self.driver, self.batches, self.settings)

    def fit(self, out: str | Path | None = None, *, resume: bool = False, watch: Watch | None = None) -> Outcome:
        """Train with evaluation after every round and early stop; with `out`, keep a run directory."""
        from colonnade.federation.fit import fit

        return fit(self, None if out is None else Path(out), resume=resume, watch=watch)

    def outputs(self, owner: str, split: str, model: Model = "aggregated") -> Tensor:
        """A model's outputs for a label owner's rows of a split, computed together with the data owners."""
        asks = self.label_owners[owner]
        chunks = self.agreed[owner].chunks(split)
        return torch.cat([self.nested.predict(asks, asks.peers, rows, model) for rows in chunks])

    def evaluate(self, split: str = "test", *, model: Model = "aggregated") -> dict[str, float]:
        """The loss and scores on a split: each label owner measures its own rows, and their mean is weighted by rows
        (`mean_scores` says which of them are then those of all rows).

        With model="own", each with the model that its last local training left."""
        return self.score(split, model).all

    def score(self, split: str, model: Model = "aggregated") -> Scores:
        each, rows = {}, {}
        for name, batches in self.agreed.items():
            if split in batches.splits:
                mine = batches.splits[split]
                labels = self.label_owners[name].labels[mine.to(self.device)]  # drawn ones where its rule draws
                each[name] = measured(self.holdings, self.outputs(name, split, model), labels)
                rows[name] = len(mine)
        if not each:
            there = ", ".join(map(repr, self.batches.splits))
            raise ConfigError(f"No label owner has rows called {split!r}; there are {there}.")
        return Scores(mean_scores(each, rows), each)

    def predict(
        self, ids: Sequence[str] | None = None, *, owner: str | None = None, model: Model = "aggregated"
    ) -> Predictions:
        """Labels and scores for rows of a label owner (the first, unless named), by id; all its rows without ids."""
        owner = self.owner_named(owner)
        known = self.holdings.label_owners[owner].ids
        whose, cure = (
            f"'{owner}' has in common with all data owners",
            "Ask for its own rows, or as another label owner.",
        )
        wanted, asked = asked_for(ids, known, whose, cure, self.settings.alignment)
        batches = self.agreed[owner]
        agreed = batches.splits
        batches.splits = {**agreed, "predict": asked}
        try:
            outputs = self.outputs(owner, "predict", model)
        finally:
            batches.splits = agreed  # what was asked is no part of what a run agreed on
        named = self.settings.id_of(self.settings.label_owners.get(owner))
        return dataclasses.replace(decoded(self.holdings, wanted, outputs), id_column=named)

    def owner_named(self, name: str | None) -> str:
        """A label owner; the first where none is named."""
        if name is not None and name not in self.label_owners:
            hint = did_you_mean(name, list(self.label_owners))
            raise ConfigError(f"{name!r} is no label owner here{hint}; there are {', '.join(self.label_owners)}.")
        return name or next(iter(self.label_owners))

    def save(self, folder: str | Path) -> None:
        """Every party's state under its own folder; `load` continues or predicts from there."""
        from colonnade.runs.run_directory import RunDirectory

        RunDirectory.create(Path(folder), self).checkpoint(self)

    @property
    def ledgers(self) -> dict[str, Ledger]:
        """Each organisation's own record of what left it and arrived."""
        return {name: seat.ledger for name, seat in self.seats.items()}

    def state_of(self, party: str) -> State:
        """All that one organisation must remember."""
        state: State = {"seat": self.seats[party].state()}
        for role, held in self._roles(party).items():
            state[role] = held.state()
        if party in self.drawn_by:
            state["drawn"] = self.label_owners[party].labels[self._trained(party)]
        return state

    def load_state_of(self, party: str, state: State) -> None:
        """Continue one organisation from `state_of`."""
        self.seats[party].load_state(state["seat"])
        for role, held in self._roles(party).items():
            held.load_state(state[role])
        if "drawn" in state and "train" in self.agreed[party].splits:  # drawn once: a second draw would cost again
            self.label_owners[party].labels[self._trained(party)] = state["drawn"].to(self.device)

    def restack(self) -> None:
        """Nothing is kept stacked between rounds."""

    @property
    def accounts(self) -> dict[str, Account]:
        """Of every party whose rules promise something for its columns."""
        return accounts_of(self.seats)

    def keep_accounts(self, folder: Callable[[str], Path]) -> None:
        """Each party writes what it spends into its own folder before it releases anything."""
        for name, account in self.accounts.items():
            account.keep(folder(name) / JOURNAL, ids=self.settings.alignment.ids, sync_every=SYNC_EVERY)

    @property
    def widths(self) -> dict[str, int]:
        """How many numbers one row's embedding has at each data owner."""
        sent = next(iter(self.label_owners.values())).shapes
        return {name: math.prod(shape) for name, shape in sent.items()}

    def planned(self) -> list[tuple[Agreed, str, int]]:
        """How often a whole run releases the rows of each label owner's splits."""
        times = planned(self.settings.train.epochs)
        times["train"] *= self.settings.config.local_epochs
        alone = {name: Agreed({name: (self.agreed[name], self.agreed.orders[name])}) for name in self.agreed}
        return [(one, split, n) for one in alone.values() for split, n in times.items() if split in one.splits]

    def _roles(self, party: str) -> dict[str, Any]:
        """What an organisation is here, by the names of a checkpoint."""
        found = {"features": self.owners.get(party), "labels": self.label_owners.get(party)}
        return {role: held for role, held in found.items() if held is not None} or {"server": self.driver}

    def _trained(self, owner: str) -> Tensor:
        return self.agreed[owner].splits["train"].to(self.device)

    def _label_owner(self, name: str, batches: Batches) -> Any:
        labels = self.holdings.label_owners[name].labels
        owner, event = label_owner(self.settings, self.seats[name], labels, self.holdings.loss, batches)
        if event is not None:
            self.drawn_by[name] = event
        return owner

    def _connect(self, between: Between | None) -> None:
        """Who may ask whom: label owners the data owners, the aggregation server the label owners."""
        engine = self.settings.engine
        patience = Patience(engine, elsewhere=between is not None)
        lies = between or (lambda _, transport: transport)
        parallel: Any = engine.threads
        below: Transport = InProcess(self.owners, through_bytes=engine.through_bytes, parallel=parallel)
        for owner in self.label_owners.values():
            owner.peers = Peers(owner.name, self.owners, patience.around(lies(owner.name, below)), owner.ledger)
            owner.meet(owner.peers.ask(self.nested.introduce()))
            widths = {name: shape[-1] for name, shape in owner.shapes.items()}
            patience.look(owner.peers, owner.rows, widths, self.algorithm)
        stack: Any = "off" if patience.needed else engine.cohort
        above = Drivers(self.label_owners, stack=stack, through_bytes=engine.through_bytes)
        self.driver.peers = Peers(SERVER, self.label_owners, patience.around(lies(SERVER, above)), self.driver.ledger)
        patience.look(self.driver.peers, self.driver.rows, {}, self.algorithm)


def federation_for(settings: Settings, *, seed: int | None = None) -> Federation | MultiFederation:
    """Of the kind that the settings ask for."""
    kind: type[Federation | MultiFederation] = MultiFederation if settings.label_owners else Federation
    return kind.from_settings(settings, seed=seed)


def trained(server: Any, batches: Any, settings: Settings) -> Iterator[RoundDone]:
    """The rounds that an aggregation server drives, counted in `batches.done`."""
    for done in nested_of(settings).train(server, server.peers, settings.train.epochs):
        if not np.isfinite(done.loss):
            raise Diverged(
                f"Training diverged: the loss is {done.loss} in round {done.number + 1}. Lower learning_rate, "
                "server_rate or local_epochs."
            )
        batches.done = done.number + 1
        batch = Batch(f"round/{done.number}", done.rows, done.number, 0, done.number)
        yield RoundDone(batch, done.loss, done.losses, done.dropped)


def mean_scores(each: Mapping[str, Mapping[str, float]], rows: Mapping[str, int]) -> dict[str, float]:
    """Weighted by rows, over those who have the score: AUC needs rows of both classes.

    Of the loss, accuracy and MAE this is the score on all rows together, and so it is of RMSE, whose squares are
    averaged. Of R squared, AUC, precision, recall and F1 it is a mean of the owners' scores and no more."""
    found = {}
    for name in next(iter(each.values())):
        power = 2 if name == "rmse" else 1
        values = {owner: scores[name] ** power for owner, scores in each.items() if np.isfinite(scores[name])}
        total = sum(rows[owner] for owner in values)
        mean = sum(value * rows[owner] for owner, value in values.items()) / total if total else float("nan")
        found[name] = mean ** (1 / power)
    return found


def _columns(held: Holding) -> Tensor:
    assert held.features is not None
    return held.features


def _check_parties(settings: Settings, holdings: Shares) -> None:
    if not settings.label_owners:
        raise ConfigError(f"{settings.algorithm!r} has one label owner, and this is for several. Use a Federation.")
    if not holdings.data_owners:
        raise DataError("No organisation holds any feature columns; there is nothing to learn from.")
    for name in settings.parties:  # else its rules would protect nobody
        if name not in holdings.data_owners:
            hint = did_you_mean(name, list(holdings.data_owners))
            there = ", ".join(map(repr, holdings.data_owners))
            raise ConfigError(f"[[data_owners]] {name!r} holds no columns here{hint}; there are {there}.")
