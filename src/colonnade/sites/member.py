"""An organisation that holds columns in somebody else's run: its seat, its feature owner, its own folder of the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade import models
from colonnade.algorithms import find
from colonnade.core import Batches, Seat, roles
from colonnade.core.party import State
from colonnade.datasets.labels import Labels
from colonnade.errors import ConfigError, DataError
from colonnade.federation.federation import Federation
from colonnade.federation.guarantees import guarantees
from colonnade.federation.local_model import local_model, models_told
from colonnade.federation.seats import accounts_of, make_seat
from colonnade.rows.holdings import Holding, Holdings, _divide, _named, from_dataset, from_tables
from colonnade.rows.tables import read_own
from colonnade.runs.budget_over_runs import Purse
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import Own
from colonnade.sites.saves import marked

if TYPE_CHECKING:
    from colonnade.datasets.table import Table


@dataclass(frozen=True)
class Asked:
    """Rows of an organisation's that `by` is to predict, and with which checkpoint of the run."""

    by: str
    ids: NDArray[np.str_]
    columns: torch.Tensor
    number: int
    outputs: int


class Member:
    """What a `Federation` is to the driver, for one organisation with columns: it has the same state to save."""

    driver: Any = None
    drawn: Any = None
    drawn_by: Any = {}  # noqa: RUF012 - labels are elsewhere

    def __init__(
        self,
        own: Own,
        holdings: Holdings,
        outputs: int,
        folder: Path,
        *,
        device: torch.device,
        resumed: int | None = None,  # the checkpoint to go back to, 0 where not all had one
        loaded: int | None = None,  # the checkpoint to predict with
    ) -> None:
        settings = own.local
        train, name = settings.train, own.name
        self.name, self.settings, self.holdings, self.device = name, settings, holdings, device
        self.predicts, self.outputs = loaded is not None, outputs
        self.algorithm = find(settings.algorithm)
        agreed: dict[str, Any] = {"seed": settings.engine.seed, "reshuffle": train.reshuffle}
        size = self.algorithm.batch_size(train.batch_size, len(holdings.splits.get("train", ())))
        self.batches = Batches(holdings.splits, batch_size=size, epochs=train.epochs, **agreed)
        seat = make_seat(name, settings, holdings, self.batches, device=device)
        self.seats, self.ledgers = {name: seat}, {name: seat.ledger}
        self.accounts, self.asked = accounts_of(self.seats), self.batches
        self.owner = self._feature_owner(outputs)
        self.owners = {name: self.owner}
        self.purse = Purse(name, own.runs, folder.name, self.accounts, settings.alignment.ids)
        self.keep_accounts = self.purse.keep
        self.run = RunDirectory(folder)
        with self.purse.held():
            self._begin(resumed, loaded)

    def _begin(self, resumed: int | None, loaded: int | None) -> None:
        settings, as_federation = self.settings, cast(Federation, self)
        if loaded is not None:
            self.run.load(as_federation, marked(self.run, loaded))
            self.run.follow(as_federation)
            return
        if resumed is not None:
            self.run.back_to(resumed)
        if resumed:
            settings.check_continues(self.run.settings())
            self.run.restore(as_federation)
            self.run.keep(settings)
        else:
            self.run.begin(as_federation)
            self.save(0, 1)

    def save(self, step: int, number: int, common: int | None = None) -> None:
        """A checkpoint of this organisation, where the driver says that training stands; `common` is kept as well."""
        self.batches.done, self.run.common = step, common
        self.run.checkpoint(cast(Federation, self), number=number)

    def close(self, outcome: str, refused: int) -> None:
        """This organisation's own summary; another run may begin."""
        book = self.seats[self.name].ledger
        self.run.write_summary(
            {
                "party": self.name,
                "algorithm": self.settings.algorithm,
                "parties": {self.name: ["features"]},
                "models": models_told(self.settings, self.seats),
                "rows": {split: len(rows) for split, rows in self.batches.splits.items()},
                "rounds": self.batches.done,
                "stopped": outcome,
                "bytes": {self.name: {"out": book.total("out"), "in": book.total("in")}},
                "outputs": self.outputs,
                "refused_calls": refused,
                "privacy": [guarantee.to_json() for guarantee in guarantees(cast(Federation, self))],
            }
        )
        self.run.finish()
        self.purse.leave()

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
        model = local_model(settings, self.seats[name], features, self.algorithm, outputs)
        owner: roles.FeatureOwner = self.algorithm.feature_owner(self.seats[name], features, model, settings.config)
        return owner


def to_predict(own: Own, device: torch.device, look: Asked, folder: Path) -> Member:
    """As a checkpoint of the run left it, for rows that somebody is to predict."""
    ids = look.ids
    part = Holdings(
        {own.name: Holding(look.columns)}, ids, {"predict": torch.arange(len(ids))}, own.driver,
        Labels(own.driver, "classification"),
    )  # fmt: skip
    return Member(own, part, look.outputs, folder, device=device, loaded=look.number)


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

    table = read_own(own.settings, own.name)
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
    size = find(own.settings.algorithm).batch_size(train.batch_size, len(holdings.splits.get("train", ())))
    batches = Batches(holdings.splits, batch_size=size, epochs=train.epochs, seed=seed)
    seat = make_seat(own.name, own.local, holdings, batches, device=torch.device("cpu"))
    features = holdings.parties[own.name].features
    if features is not None:
        spec = own.settings.parties[own.name].model or own.settings.model or "mlp"
        models.build(spec, tuple(features.shape[1:]), seed=0, owner=own.name, allow=own.settings.allow_models)
    return holdings, seat
