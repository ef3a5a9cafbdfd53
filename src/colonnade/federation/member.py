"""An organisation that holds columns in somebody else's run: its seat, its feature owner, its own folder of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade import models
from colonnade.algorithms import complete, find
from colonnade.core import Batches, Ledger, Seat, checkpoint, roles
from colonnade.core.party import State, seed_for
from colonnade.datasets.labels import Labels
from colonnade.errors import ConfigError, DataError
from colonnade.federation.federation import Federation
from colonnade.federation.guarantees import guarantees
from colonnade.federation.holdings import Holding, Holdings, _divide, _named, from_dataset, from_tables
from colonnade.federation.party_file import Own
from colonnade.federation.run_directory import RunDirectory
from colonnade.federation.seats import accounts_of, make_seat
from colonnade.privacy import Account

if TYPE_CHECKING:
    from colonnade.datasets.table import Table

ACCOUNT, JOURNAL = "account", "spent.journal"
"""What all runs spent together, in the organisation's folder of runs; and what one spent since it was last saved."""


class Member:
    """What a `Federation` is to the driver, for one organisation with columns: it has the same state to save."""

    driver: Any = None
    drawn: Any = None
    _lock: IO[str] | None = None
    drawn_by: Any = {}  # noqa: RUF012 - labels are elsewhere

    def __init__(
        self, own: Own, holdings: Holdings, outputs: int, folder: Path, *, device: torch.device, resume: bool
    ) -> None:
        settings = own.local
        train, name = settings.train, own.name
        self.name, self.settings, self.holdings, self.device = name, settings, holdings, device
        self.algorithm = find(settings.algorithm)
        agreed: dict[str, Any] = {"seed": settings.engine.seed, "reshuffle": train.reshuffle}
        self.batches = Batches(holdings.splits, batch_size=train.batch_size, epochs=train.epochs, **agreed)
        seat = make_seat(name, settings, holdings, self.batches, releases=self.algorithm.REVEALS, device=device)
        self.seats = {name: seat}
        self.owner = self._feature_owner(outputs)
        self.owners = {name: self.owner}
        self.runs, self.number = own.runs, folder.name
        self._alone()
        as_federation = cast(Federation, self)
        if resume:
            self.run = RunDirectory(folder)
            settings.check_continues(self.run.settings())
            self.run.restore(as_federation)
            self.run.keep(settings)
        else:
            self.run = RunDirectory.create(folder, as_federation)
            self.save(0)

    def save(self, step: int) -> None:
        """A checkpoint of this organisation, where the driver says that training stands."""
        self.batches.done = step
        for account in self.accounts.values():  # first: between the two, a crash would count twice, never not at all
            checkpoint.write(self.runs / ACCOUNT, {"run": self.number, "meter": account.state()})
        self.run.checkpoint(cast(Federation, self))

    def close(self, outcome: str, refused: int) -> None:
        """This organisation's own summary; another run may begin."""
        book = self.seats[self.name].ledger
        self.run.write_summary(
            {
                "party": self.name,
                "algorithm": self.settings.algorithm,
                "parties": {self.name: ["features"]},
                "rows": {split: len(rows) for split, rows in self.batches.splits.items()},
                "rounds": self.batches.done,
                "stopped": outcome,
                "bytes": {self.name: {"out": book.total("out"), "in": book.total("in")}},
                "refused_calls": refused,
                "privacy": [guarantee.to_json() for guarantee in guarantees(cast(Federation, self))],
            }
        )
        self.leave()

    def leave(self) -> None:
        if self._lock is not None:
            self._lock.close()

    @property
    def ledgers(self) -> dict[str, Ledger]:
        return {self.name: self.seats[self.name].ledger}

    @property
    def accounts(self) -> dict[str, Account]:
        return accounts_of(self.seats)

    def keep_accounts(self, folder: Any) -> None:
        for name, account in self.accounts.items():
            self._carry_over(account)
            account.keep(folder(name) / JOURNAL)

    def _carry_over(self, account: Account) -> None:
        """A budget is for all runs: whoever starts a new one goes on where the last one ended."""
        if not (self.runs / ACCOUNT).exists():
            return
        before, agreed = checkpoint.read(self.runs / ACCOUNT), (account.rows, account.batch_size)
        account.load_state(before["meter"])
        account.rows, account.batch_size = agreed
        if before["run"] != self.number:
            account.replay(self.runs / str(before["run"]) / "parties" / self.name / JOURNAL)

    def _alone(self) -> None:
        """One run at a time where releases are counted, else two could spend the same budget."""
        if not self.accounts:
            return
        import fcntl

        self.runs.mkdir(parents=True, exist_ok=True)
        self._lock = (self.runs / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"'{self.name}' takes part in another run, and counts its budget for one at a time. Wait for its end."
            ) from None

    def state_of(self, party: str) -> State:
        return {"seat": self.seats[party].state(), "features": self.owner.state()}

    def load_state_of(self, party: str, state: State) -> None:
        self.seats[party].load_state(state["seat"])
        self.owner.load_state(state["features"])

    def restack(self) -> None:
        """Nobody is stacked here."""

    def settle(self) -> None:
        """Nobody is stacked here."""

    def _feature_owner(self, outputs: int) -> roles.FeatureOwner:
        name, settings = self.name, self.settings
        features = self.holdings.parties[name].features
        assert features is not None
        spec = settings.parties[name].model or settings.model or "mlp"
        seed = settings.engine.seed
        model = models.build(spec, tuple(features.shape[1:]), seed=seed_for(seed, name, "model"), owner=name)
        model = complete(self.algorithm, model, features[:1], outputs, seed=seed_for(seed, name, "head"))
        model = models.seeded(model, self.seats[name].generator, owner=name)
        owner: roles.FeatureOwner = self.algorithm.FeatureOwner(self.seats[name], features, model, settings.config)
        return owner


def own_holdings(own: Own, rows: NDArray[Any] | None) -> Holdings:
    """What one organisation holds and nobody else: columns of its own table, or its part of a public data set."""
    from colonnade.datasets.preprocess import Preprocessor

    settings, name = own.settings, own.name
    if settings.data.dataset is not None:
        whole = from_dataset(settings)
        if name not in whole.parties:
            raise ConfigError(f"{name!r} is no party of this data set's; there are {', '.join(whole.parties)}.")
        return Holdings({name: whole.parties[name]}, whole.ids, whole.splits, whole.label_owner, whole.encoder)
    table = read_own_table(own, rows)
    if not table.columns:
        raise DataError(f"'{name}' holds no feature columns, and it is not the label owner. Name some columns.")
    split = _divide(len(table), settings.data, settings.engine.seed)
    scale: Any = settings.parties[name].scale
    prepared = Preprocessor.fit(table, split.train, scale=scale)
    part = Holding(prepared.transform(table), preprocessor=prepared)
    elsewhere = Labels(own.driver, "classification")
    return Holdings({name: part}, table.ids, _named(split), own.driver, elsewhere)


def read_own_table(own: Own, rows: NDArray[Any] | None) -> Table:
    """This organisation's table in the order of its ids; `rows` are some of that order's."""
    from colonnade import datasets
    from colonnade.datasets.table import read_table

    party = own.settings.parties[own.name]
    assert party.table is not None
    table = read_table(party.table, owner=own.name, id=own.settings.data.id, label=party.label, columns=party.columns)
    order = datasets.align({own.name: table})
    return table.in_order(order if rows is None else np.sort(order[rows]))


def rehearse(own: Own) -> tuple[Holdings, Seat]:
    """What an organisation can check by itself before anybody calls: its table, columns, model, rules and budget."""
    if own.drives and own.settings.data.dataset is None:
        exact = replace(own.local, data=replace(own.local.data, align="exact"))
        holdings = from_tables(exact, {own.name: read_own_table(own, None)})
    else:
        holdings = own_holdings(own, None)
    train, seed = own.settings.train, own.settings.engine.seed
    batches = Batches(holdings.splits, batch_size=train.batch_size, epochs=train.epochs, seed=seed)
    releases = find(own.settings.algorithm).REVEALS
    seat = make_seat(own.name, own.local, holdings, batches, releases=releases, device=torch.device("cpu"))
    features = holdings.parties[own.name].features
    if features is not None:
        spec = own.settings.parties[own.name].model or own.settings.model or "mlp"
        models.build(spec, tuple(features.shape[1:]), seed=0, owner=own.name)
    return holdings, seat
