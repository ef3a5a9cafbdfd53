"""A federation: organisations with their roles, who drives, and what carries the calls.

federation = Federation.from_toml("federation.toml")
for step in federation.train():          # or federation.fit(), which also evaluates, stops early and saves
    ...
federation.evaluate("test"), federation.predict(["17", "23"]), federation.save("run")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.algorithms import find
from colonnade.core import Batches, DpEvent, Ledger, Peers, Step, Transport, roles
from colonnade.core.checks import did_you_mean
from colonnade.core.party import State
from colonnade.errors import ConfigError, DataError, Diverged
from colonnade.evaluate.metrics import measure
from colonnade.federation.call_policy import Patience
from colonnade.federation.local_model import local_model
from colonnade.federation.seats import accounts_of, draw_labels, make_seat
from colonnade.privacy import Account
from colonnade.privacy.calibrate import planned
from colonnade.rows.holdings import Holdings, asked_for, from_dataset, from_tables
from colonnade.rows.shares import Shares
from colonnade.rows.tables import read_tables, tables_of
from colonnade.runs.budget_over_runs import JOURNAL, SYNC_EVERY
from colonnade.settings.federation_file import PartySettings, Settings
from colonnade.transport import Cohort, Cohorts, InProcess, Recording, groups, worth_stacking

if TYPE_CHECKING:
    import pandas as pd

    from colonnade.datasets.table import Table
    from colonnade.federation.fit import Outcome, Watch


@dataclass(frozen=True, eq=False)
class Predictions:
    """One row per id: the predicted label, and a score per class (or the value itself)."""

    ids: NDArray[np.str_]
    labels: NDArray[Any]
    scores: NDArray[np.float64]
    classes: tuple[Any, ...]
    degraded: tuple[str, ...] | None = None  # per row who was missing, "" for nobody; None: then it is an error
    id_column: str = "id"  # as the asker's table calls it

    def to_frame(self, id_column: str | None = None) -> pd.DataFrame:
        import pandas as pd

        frame = pd.DataFrame({"prediction": self.labels})
        frame.insert(0, id_column or self.id_column, self.ids, allow_duplicates=True)
        for number, name in enumerate(self.classes):
            frame[f"score_{name}"] = self.scores[:, number]
        if self.degraded is not None:
            frame["degraded"] = list(self.degraded)
        return frame


@dataclass(frozen=True)
class Scores:
    """Of the joint model on a split: on all rows, and where there are several label owners, on the rows of each."""

    all: dict[str, float]
    each: dict[str, dict[str, float]] = field(default_factory=dict)


Reach = Callable[[Transport], tuple[Transport, Sequence[str]]]
"""Given what carries calls to the parties here: what also carries them elsewhere, and all who hold columns."""


class Federation:
    """Everything that `settings` and `holdings` describe, in this process; with `reach`, others are elsewhere."""

    counted_elsewhere = False  # whether a party elsewhere counts what its rows are released with

    def __init__(
        self, settings: Settings, holdings: Holdings, *, record: bool = False, reach: Reach | None = None
    ) -> None:
        for name in settings.parties:  # else its rules would protect nobody
            if name not in holdings.parties:
                hint = did_you_mean(name, list(holdings.parties))
                there = ", ".join(map(repr, holdings.parties))
                raise ConfigError(f"[parties.{name}] is no party of this federation{hint}; there are {there}.")
        self.settings, self.holdings = settings, holdings
        self.algorithm = find(settings.algorithm)
        self.device = device_of(settings.engine.device)
        train, seed = settings.train, settings.engine.seed
        size = self.algorithm.batch_size(train.batch_size, len(holdings.splits.get("train", ())))
        agreed: dict[str, Any] = {"batch_size": size, "seed": seed, "reshuffle": train.reshuffle}
        self.batches = Batches(holdings.splits, epochs=train.epochs, **agreed)
        self.seats = {
            name: make_seat(name, settings, holdings, self.batches, device=self.device) for name in holdings.parties
        }
        self.owners: dict[str, roles.FeatureOwner] = {
            name: self._feature_owner(name) for name, held in holdings.parties.items() if held.features is not None
        }
        if not self.owners and reach is None:
            raise DataError("No party holds any feature columns; there is nothing to learn from.")
        labels = holdings.parties[holdings.label_owner].labels
        assert labels is not None
        seat = self.seats[holdings.label_owner]
        given, self.drawn = draw_labels(labels, seat)
        self.driver: roles.LabelOwner = self.algorithm.label_owner(seat, given, holdings.loss, settings.config)
        parallel: Any = settings.engine.threads
        transport: Transport = InProcess(self.owners, through_bytes=settings.engine.through_bytes, parallel=parallel)
        names: Iterable[str] = self.owners
        if reach is not None:
            transport, names = reach(transport)
        patience = Patience(settings.engine, elsewhere=reach is not None)
        self.peers = self.driver.peers = Peers(seat.name, names, patience.around(transport), seat.ledger)
        self.driver.meet(self.peers.ask(roles.Introduce()))
        self.cohorts = [] if patience.needed else self._cohorts()
        transport = Cohorts(transport, self.cohorts) if self.cohorts else transport
        self.recording = Recording(transport) if record else None
        self.peers.transport = patience.around(self.recording or transport)
        patience.mind(self.peers, self.driver, self.algorithm)

    @classmethod
    def from_toml(
        cls, path: str | Path, *, seed: int | None = None, record: bool = False, allow_models: Sequence[str] = ()
    ) -> Federation:
        """From a federation file; `seed` overrides the file's, `allow_models` lists the code that it may name."""
        return cls.from_settings(Settings.from_toml(Path(path), allow_models=allow_models), seed=seed, record=record)

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        *,
        tables: Mapping[str, Table] | None = None,
        seed: int | None = None,
        record: bool = False,
    ) -> Federation:
        """From checked settings; tables are read from where the settings say, unless given."""
        if settings.label_owners:
            raise ConfigError(
                f"{settings.algorithm!r} has several label owners, and a Federation has one. Use a MultiFederation."
            )
        if seed is not None:
            settings = dataclasses.replace(settings, engine=dataclasses.replace(settings.engine, seed=seed))
        if settings.data.dataset is not None and tables is None:
            return cls(settings, from_dataset(settings), record=record)
        return cls(settings, from_tables(settings, tables or read_tables(settings)), record=record)

    @classmethod
    def from_frames(
        cls,
        frames: Mapping[str, pd.DataFrame],
        *,
        id: str,  # noqa: A002 - the word users know
        label: str,
        settings: Mapping[str, Any] | None = None,
        record: bool = False,
    ) -> Federation:
        """From data frames, one per organisation; the one with the column `label` is the label owner.

        `settings` has the tables of a federation file: {"algorithm": {"name": "vimadmm"}, "train": {"epochs": 5}}.
        They are the caller's own, and so are the import paths that they name as models.
        """
        from colonnade.datasets.table import check_frames

        check_frames(frames, label)
        if settings is not None and not isinstance(settings, Mapping):
            raise ConfigError(f"settings is a mapping of tables; found {settings!r}. For a file: Federation.from_toml.")
        given = dict(settings or {})
        given["data"] = {**given.get("data", {}), "id": id}
        named = given.get("parties", {})
        parties: dict[str, dict[str, Any]] = {name: dict(named.get(name, {})) for name in [*frames, *named]}
        for name, frame in frames.items():
            if label in frame.columns:
                parties[name]["label"] = label
        checked = Settings.from_mapping({**given, "parties": parties})
        checked = dataclasses.replace(checked, allow_models=checked.code())
        return cls.from_settings(checked, tables=tables_of(checked, frames), record=record)

    def __repr__(self) -> str:
        rows = {split: len(rows) for split, rows in self.batches.splits.items()}
        told = ", ".join(f"{count:,} {split} rows" for split, count in rows.items())
        return f"<Federation: {self.settings.algorithm} of {', '.join(self.seats)}; {told}>"

    def train(self) -> Iterator[Step]:
        """Train from where it stands to the last epoch, one batch per step."""
        try:
            for step in self.algorithm.steps(self.driver, self.peers, self.batches):
                if not np.isfinite(step.loss):
                    raise Diverged(
                        f"Training diverged: the loss is {step.loss} at batch {step.batch.name}. "
                        "Lower learning_rate, or local_steps where the algorithm has them."
                    )
                yield step
        finally:
            self.settle()

    def fit(self, out: str | Path | None = None, *, resume: bool = False, watch: Watch | None = None) -> Outcome:
        """Train with evaluation after every epoch and early stop; with `out`, keep a run directory."""
        from colonnade.federation.fit import fit

        return fit(self, None if out is None else Path(out), resume=resume, watch=watch)

    def outputs(self, split: str) -> Tensor:
        """The joint model's outputs for the rows of a split, computed together by all parties."""
        return torch.cat([outputs for outputs, _ in self._outputs(split)])

    def _outputs(self, split: str) -> Iterator[tuple[Tensor, list[str]]]:
        """Of each chunk of a split the outputs, and who was missing."""
        missing = self.peers.missing
        for rows in self.batches.chunks(split):
            outputs = self.algorithm.predict(self.driver, self.peers, rows)
            yield outputs, [] if missing is None else missing.of(rows.name)

    def evaluate(self, split: str = "test") -> dict[str, float]:
        """The loss and scores on a split; the label owner compares with its labels."""
        outputs = self.outputs(split)
        return measured(self.holdings, outputs, self.labels[self.batches.splits[split].to(self.device)])

    def score(self, split: str) -> Scores:
        return Scores(self.evaluate(split))

    def predict(self, ids: Sequence[str] | None = None) -> Predictions:
        """Labels and scores for rows that every party holds, by id; all rows without ids."""
        cure = "Predict ids that every party's table holds."
        wanted, asked = asked_for(ids, self.holdings.index, "all parties share", cure, self.settings.alignment)
        agreed = self.batches.splits
        found: list[tuple[Tensor, list[str]]] = []
        missing, groups = self.peers.missing, self.holdings.by_absence(asked)
        try:
            for places, away in groups:
                self.batches.splits = {**agreed, "predict": asked[places]}
                if missing is not None:
                    missing.known_away = away
                found += self._outputs("predict")
        finally:
            self.batches.splits = agreed  # what was asked is no part of what a run agreed on
            if missing is not None:
                missing.known_away = ()
        order = torch.cat([places for places, _ in groups]).argsort()
        outputs = torch.cat([some for some, _ in found])[order.to(self.device)]
        degraded = [" ".join(away) for some, away in found for _ in some]
        said = None if missing is None else tuple(degraded[place] for place in order.tolist())
        named = self.settings.id_of(self.settings.parties.get(self.driver.name))
        return dataclasses.replace(decoded(self.holdings, wanted, outputs), degraded=said, id_column=named)

    def save(self, folder: str | Path) -> None:
        """Every party's state under its own folder; `load` continues or predicts from there."""
        from colonnade.runs.run_directory import RunDirectory

        RunDirectory.create(Path(folder), self).checkpoint(self)

    @property
    def ledgers(self) -> dict[str, Ledger]:
        """Each organisation's own record of what left it and arrived."""
        return {name: seat.ledger for name, seat in self.seats.items()}

    @property
    def drawn_by(self) -> dict[str, DpEvent]:
        """Of a label owner that learns from labels drawn at random, how they were drawn."""
        return {} if self.drawn is None else {self.driver.name: self.drawn}

    @property
    def labels(self) -> Tensor:
        """What the label owner learns from and measures with: of training rows the drawn ones, where its rule draws.
        A score on the true ones would tell more about them than its epsilon allows."""
        return self.driver.labels

    @property
    def widths(self) -> dict[str, int]:
        """Of one row's embedding at each party with columns."""
        return dict(self.driver.widths)

    def planned(self) -> list[tuple[Batches, str, int]]:
        """How often a whole run releases the rows of each split."""
        times = planned(self.algorithm.passes(self.settings.train.epochs))
        return [(self.batches, split, n) for split, n in times.items() if split in self.batches.splits]

    def settle(self) -> None:
        """Give stacked parties their own parameters back."""
        for cohort in self.cohorts:
            cohort.settle()

    def state_of(self, party: str) -> State:
        """All that one organisation must remember."""
        self.settle()
        state: State = {"seat": self.seats[party].state()}
        if party in self.owners:
            state["features"] = self.owners[party].state()
        if party == self.driver.name:
            state["labels"] = self.driver.state()
            if self.peers.missing is not None:
                state["missing"] = self.peers.missing.state()
            if self.drawn is not None and "train" in self.batches.splits:
                state["drawn"] = self.driver.labels[self.batches.splits["train"].to(self.device)]
        return state

    def load_state_of(self, party: str, state: State) -> None:
        """Continue one organisation from `state_of`."""
        self.seats[party].load_state(state["seat"])
        if party in self.owners:
            self.owners[party].load_state(state["features"])
        if party == self.driver.name:
            self.driver.load_state(state["labels"])
            if self.peers.missing is not None:
                self.peers.missing.load_state(state.get("missing", {}))
            if "drawn" in state and "train" in self.batches.splits:  # drawn once: a second draw would cost again
                self.driver.labels[self.batches.splits["train"].to(self.device)] = state["drawn"].to(self.device)

    def restack(self) -> None:
        """After `load_state_of`: stacked parties take the loaded state over."""
        for cohort in self.cohorts:
            cohort.restack()

    @property
    def accounts(self) -> dict[str, Account]:
        """Of every party whose rules promise something for its columns."""
        return accounts_of(self.seats)

    def keep_accounts(self, folder: Callable[[str], Path]) -> None:
        """Each party writes what it spends into its own folder before it releases anything."""
        for name, account in self.accounts.items():
            account.keep(folder(name) / JOURNAL, ids=self.settings.alignment.ids, sync_every=SYNC_EVERY)

    def _feature_owner(self, name: str) -> roles.FeatureOwner:
        features = self.holdings.parties[name].features
        assert features is not None
        model = local_model(self.settings, self.seats[name], features, self.algorithm, self.holdings.loss.outputs)
        owner: roles.FeatureOwner = self.algorithm.feature_owner(
            self.seats[name], features, model, self.settings.config
        )
        owner.serves_for = {self.holdings.label_owner}
        return owner

    def _party(self, name: str) -> PartySettings:
        return self.settings.parties.get(name, PartySettings())

    def _cohorts(self) -> list[Cohort]:
        engine, rows = self.settings.engine, self.settings.train.batch_size
        if engine.cohort == "off" or engine.through_bytes:
            return []
        return [Cohort(group) for group in groups(self.owners) if engine.cohort == "on" or worth_stacking(group, rows)]


def decoded(holdings: Holdings | Shares, ids: NDArray[np.str_], outputs: Tensor) -> Predictions:
    """Outputs as labels and scores."""
    loss, encoder = holdings.loss, holdings.encoder
    labels = encoder.decode(loss.decide(outputs))
    if encoder.task == "regression":
        return Predictions(ids, labels, labels[:, None], ())
    return Predictions(ids, labels, loss.scores(outputs).double().cpu().numpy(), encoder.classes)


def measured(holdings: Holdings | Shares, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """The loss and scores of outputs, errors in the label's own units."""
    found = measure(holdings.loss, outputs, labels)
    for name in {"rmse", "mae"} & set(found):
        found[name] *= holdings.encoder.scale
    return found


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"[federation] device {name!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return device
