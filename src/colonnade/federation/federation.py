"""A federation: organisations with their roles, who drives, and what carries the calls.

federation = Federation.from_toml("federation.toml")
for step in federation.train():          # or federation.fit(), which also evaluates, stops early and saves
    ...
federation.evaluate("test"), federation.predict(["17", "23"]), federation.save("run")

With one label owner, it drives the feature owners. With several ([[label_owners]] and
[[data_owners]]) an aggregation server drives the label owners, and each of them drives
the data owners.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.algorithms import find
from colonnade.alignment.keys import row_names
from colonnade.core import (
    DpEvent,
    Ledger,
    Organisation,
    Peers,
    Rows,
    Step,
    Transport,
    roles,
)
from colonnade.core.batches import PREDICT, Progress
from colonnade.datasets.table import Table
from colonnade.errors import ConfigError, DataError, Diverged, did_you_mean
from colonnade.federation.call_policy import (
    calibrated,
    left_out,
    presence_of,
    stand_ins,
)
from colonnade.federation.fit import Outcome, Record, Watch, fit
from colonnade.federation.frames import check_frames, settings_for
from colonnade.federation.organisation import (
    accounts_of,
    agreed_on,
    check_affordable,
    check_parties,
    check_starts,
    device_of,
    holdings_of,
    organise,
    training_rows,
    warn_untrained,
)
from colonnade.federation.scores import Scores, scored
from colonnade.privacy import Account
from colonnade.rows.asked import Question, asked_for, each_once, rows_asked_for
from colonnade.rows.holdings import (
    Holdings,
    Predictions,
    labels_of,
    tables_of,
    with_tables,
)
from colonnade.rows.making import from_tables
from colonnade.rows.missing import some_of, warn_missing
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.federation_file import Settings
from colonnade.settings.selection import SERVER
from colonnade.transport import (
    Cohort,
    Cohorts,
    InProcess,
    Recording,
    groups,
    worth_stacking,
)
from colonnade.transport.kept_up import with_retries

if TYPE_CHECKING:
    import pandas as pd

Between = Callable[[str, Transport], Transport]
"""The name of the party that asks, and what would carry its calls to the parties here
-> what carries them."""


@contextmanager
def known_away(peers: Peers, parties: Collection[str]) -> Iterator[None]:
    """Within the context, these parties are not asked where others may be missing."""
    if peers.missing is None:
        yield
        return
    peers.missing.known_away = parties
    try:
        yield
    finally:
        peers.missing.known_away = ()


@dataclass
class Elsewhere:
    """The part of a federation that is not in this process."""

    here: Collection[str]  # the organisations that are
    asked: Sequence[str] = ()  # whom these ask elsewhere
    # has label owners say how good the model is
    score: Callable[[str, str | None], Scores] | None = None
    counts: bool = False  # whether a party there counts what its rows are released with
    # has others keep their best models, or take them; whether all do
    best: Callable[[bool], bool] = lambda _: True


class Federation:
    """Everything that `settings` and `holdings` describe, in this process but for what
    is `elsewhere`.

    `between` carries the calls to those who are elsewhere; it may also put something
    between parties of one process, such as a network that loses calls.
    """

    def __init__(
        self,
        settings: Settings,
        holdings: Holdings,
        *,
        record: bool = False,
        between: Between | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.given = settings
        self.holdings = holdings
        self.elsewhere = elsewhere or Elsewhere(holdings.names)
        if elsewhere is None:
            check_parties(settings, holdings)
            settings = settings.with_few_epochs()
        self.settings = settings = settings.for_rows(
            training_rows(holdings), holdings.outputs
        )
        self.algorithm = find(settings.algorithm)
        self.device = device_of(settings.engine.device)
        self.agreed = agreed_on(settings, holdings)
        self.batches: Progress = self.algorithm.progress(
            self.agreed, settings.train.epochs
        )
        apart = holdings.away if settings.rows_differ else ()
        self.agreed_apart = {
            name: agreed_on(settings, holdings, name) for name in apart
        }
        self.organisations: dict[str, Organisation] = {
            name: organise(
                name,
                settings,
                holdings,
                self.agreed_apart.get(name, self.agreed),
                self.device,
            )
            for name in holdings.names
            if name in self.elsewhere.here
        }
        playing = self._playing("features")
        self.owners: dict[str, Any] = {
            name: playing[name] for name in holdings.columns if name in playing
        }
        self.label_owners: dict[str, Any] = self._playing("labels")
        self.driver: Any = next(
            iter([*self._playing("server").values(), *self.label_owners.values()]), None
        )
        self.history: list[Record] = []  # of the epochs that `fit` trained
        self.is_trained = not self.algorithm.trains  # or was loaded
        self.recording: Recording | None = None
        self.cohorts: list[Cohort] = []  # none before it trains
        self._connect(
            between or (lambda _, transport: transport), record, between is not None
        )

    @classmethod
    def from_toml(
        cls,
        path: str | Path,
        *,
        seed: int | None = None,
        record: bool = False,
        allow_models: Sequence[str] = (),
    ) -> Federation:
        """Build it from a federation file; `seed` overrides the file's, `allow_models`
        lists code that it may name."""
        return cls.from_settings(
            Settings.from_toml(Path(path), allow_models=allow_models),
            seed=seed,
            record=record,
        )

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        *,
        tables: Mapping[str, Table] | None = None,
        seed: int | None = None,
        record: bool = False,
        between: Between | None = None,
        start_from: str | Path | None = None,
        resumes: str | Path | None = None,
    ) -> Federation:
        """From checked settings; tables are read from where the settings say, unless
        given. It starts with the models of the run `start_from`, on newer rows. Columns
        become numbers as there, or as in the run that it `resumes`."""
        settings = settings.with_seed(seed)
        named = start_from or resumes
        if named is None:
            return cls(
                settings, holdings_of(settings, tables), record=record, between=between
            )
        run = RunDirectory(Path(named))
        if start_from is not None:
            before = run.settings(settings.allow_models)
            own = {
                name: party.model
                for name, party in before.parties.items()
                if isinstance(party.model, Mapping)
            }
            settings = settings.with_models(before.model, own)
            check_starts(settings, before, run.path)
            run.check_whole()
        fitted = (
            run.fitted_earlier(settings)
            if start_from is None
            else run.all_fitted(settings)
        )
        federation = cls(
            settings,
            holdings_of(settings, tables, fitted=fitted),
            record=record,
            between=between,
        )
        if start_from is not None:
            run.start(federation)
        return federation

    @classmethod
    def from_frames(
        cls,
        frames: Mapping[str, pd.DataFrame],
        *,
        id: str | Sequence[str | Sequence[str]],  # noqa: A002 - the word users know
        label: str,
        positive: str | int | float | bool | None = None,
        settings: Mapping[str, Any] | None = None,
        label_owners: Mapping[str, pd.DataFrame] | None = None,
        record: bool = False,
        start_from: str | Path | None = None,
    ) -> Federation:
        """Build a federation from data frames, one for each organisation.

        The settings are the caller's own, and so are the import paths that they name as
        models.

        Args:
            frames: Each organisation's table. The one with the column `label` is the
                label owner's.
            id: The id column, or a list of keys that are tried in turn
                (`alignment.keys`).
            label: The column to predict.
            positive: Of two classes, the one that scores, curves and thresholds are
                about. By default the rarer one of the training rows.
            settings: The tables of a federation file, as in
                {"algorithm": {"name": "splitnn"}, "train": {"epochs": 5}}.
            label_owners: Where several organisations hold labels, their tables, of
                which only the columns `id` and `label` are read. `frames` are then the
                data owners', and the lists of owners in `settings` may add rules and
                models by name.
            record: Whether to keep everything that crosses, for attacks.
            start_from: A run directory whose models and prepared columns training
                begins with.
        """
        checked = settings_for(
            frames, id, label, settings or {}, label_owners, positive=positive
        )
        if label_owners is None:
            return cls.from_settings(
                checked,
                tables=tables_of(checked, frames),
                record=record,
                start_from=start_from,
            )
        if start_from is not None:
            raise ConfigError(
                "A run of several label owners cannot start from another one yet: leave"
                " out start_from."
            )
        holdings = from_tables(
            checked, tables_of(checked, frames), labels_of(checked, label_owners)
        )
        return cls(checked, holdings, record=record)

    def _repr_html_(self) -> str:
        """Show in a notebook who holds what."""
        held = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(' and '.join(self.holdings.roles(name)) or 'no data')}</td></tr>"
            for name in self.organisations
        )
        return f"<p>{escape(repr(self)[1:-1])}</p><table><tr><th>party</th><th>holds</th></tr>{held}</table>"

    def __repr__(self) -> str:
        rows = ", ".join(
            f"{len(rows):,} {split} rows" for split, rows in self.batches.splits.items()
        )
        return (
            f"<Federation: {self.settings.algorithm} of"
            f" {', '.join(self.organisations)}; {rows}>"
        )

    def train(self) -> Iterator[Step]:
        """Train from here to the last epoch, a batch or a round per step; `settle`
        before looking at a model."""
        self.is_trained = True
        self._stack()
        try:
            for step in self.algorithm.steps(
                self.driver, self.driver.peers, self.batches
            ):
                if not np.isfinite(step.loss):
                    raise Diverged(
                        f"Training diverged: the loss is {step.loss} at batch"
                        f" {step.batch.name}. Lower learning_rate, or local_steps,"
                        " local_epochs or server_rate where the algorithm has them."
                    )
                yield step
            self.settle()
        finally:
            for cohort in self.cohorts:
                cohort.settle()

    def fit(
        self,
        out: str | Path | None = None,
        *,
        resume: bool = False,
        watch: Watch | None = None,
    ) -> Outcome:
        """Train with evaluation after every epoch and early stop; with `out`, keep a
        run directory."""
        return fit(self, None if out is None else Path(out), resume=resume, watch=watch)

    def save(self, folder: str | Path) -> None:
        """Save every party's state under its own folder; `load` continues or predicts
        from there."""
        run = RunDirectory(Path(folder))
        run.begin(self)
        run.checkpoint(self)

    def outputs(
        self, split: str, owner: str | None = None, model: str | None = None
    ) -> Tensor:
        """The joint model's outputs for the rows of a split, of the first label owner
        unless an `owner` is named. Where label owners have a model of their own beside
        the aggregated one, `model` is "own" or "aggregated"."""
        name = self.owner_named(owner)
        answered = self._outputs(name, self.chunks(split, name), model)
        return torch.cat([outputs for outputs, _ in answered])

    def chunks(self, split: str, owner: str | None = None) -> list[Rows]:
        """The rows of a split, or of what is asked for by this name, in the pieces in
        which the label owner asks for them: no answer about one is too large."""
        name = self.owner_named(owner)
        batches = self.agreed[name]
        most = self.label_owners[name].rows_at_once(batches.called(split))
        return batches.chunks(split, most=most)

    def _outputs(
        self, owner: str, chunks: Sequence[Any], model: str | None
    ) -> Iterator[tuple[Tensor, list[str]]]:
        """Compute the outputs of each chunk of rows, and who was missing."""
        asks = self.label_owners[owner]
        for rows in chunks:
            outputs = self.algorithm.outputs(asks, asks.peers, rows, model)
            silent = (
                [] if (missing := asks.peers.missing) is None else missing.of(rows.name)
            )
            yield (
                (
                    calibrated(self.algorithm, asks, silent, outputs)
                    if silent
                    else outputs
                ),
                silent,
            )

    def evaluate(
        self,
        split: str = "test",
        *,
        model: str | None = None,
        without: Collection[str] = (),
    ) -> dict[str, float]:
        """The loss and scores on a split; it asks the parties, and with budgets it
        costs. Each label owner compares with its labels; of several, the mean is
        weighted by rows (`mean_scores` says which of them are then those of all rows).
        Where rows may lack a partner, `without` names some that are not asked."""
        with left_out(self.peers, without) if without else nullcontext():
            return self.score(split, model).all

    def score(self, split: str, model: str | None = None) -> Scores:
        """Do as `evaluate`, and give beside it the scores on the rows of each of
        several label owners."""
        if self.elsewhere.score is not None:
            return self.elsewhere.score(split, model)
        return scored(self, split, model)

    def predict(
        self,
        ids: Sequence[str] | None = None,
        *,
        frames: Mapping[str, pd.DataFrame] | None = None,
        owner: str | None = None,
        model: str | None = None,
        strict: bool = False,
    ) -> Predictions:
        """Predict labels and scores for rows, by id. The other parties are asked, which
        may cost them budget.

        Args:
            ids: The rows to predict. By default all rows that the label owner shares with
                all feature owners, sorted by id as text. Join the result to a table by
                id, not by position.
            frames: New rows, as a data frame for each feature owner. They need no label.
            owner: The label owner that asks, where there are several. By default the
                first.
            model: "own" or "aggregated", where label owners have a model of each kind.
            strict: Raise where an id cannot be predicted. By default the others are
                predicted, with a warning, and the result says who lacks it (`missing`).
        """
        warn_untrained(self.is_trained)
        if frames is not None:
            check_frames(frames)
            return self._of_new_rows(frames, ids, owner, model, strict=strict)
        name = self.owner_named(owner)
        question = self.question(ids, name, strict=strict)
        if question.missing:
            warn_missing(question.missing, len(question.asked), stacklevel=3)
        groups = self.holdings.by_absence(question.rows)
        # before anybody is asked, so that nobody pays for nothing
        self._check_budgets(name, question.rows, groups)
        parts: list[Tensor] = []
        missed: list[str] = []  # for each row, the parties that had no part in it
        for places, away in groups:
            outputs, missed_here = self._answers(
                name, question.rows[places], away, model
            )
            parts.append(outputs)
            missed += missed_here
        order = torch.cat([places for places, _ in groups]).argsort()
        outputs = torch.cat(parts)[order.to(self.device)]
        peers = self.label_owners[name].peers
        may_miss = peers.missing is not None or peers.presence is not None
        return dataclasses.replace(
            self.holdings.predicted(question.ids, outputs),
            degraded=tuple(missed[at] for at in order.tolist()) if may_miss else None,
            id_column=self.settings.id_column_of(name),
            asked=question.asked,
            missing=question.missing if question.tells_missing else None,
        )

    def question(
        self,
        ids: Sequence[str] | None = None,
        owner: str | None = None,
        *,
        strict: bool = False,
    ) -> Question:
        """The rows to predict, and the ids among those asked for that cannot be; nobody
        is asked. The arguments are those of `predict`."""
        name = self.owner_named(owner)
        if self.settings.rows_differ:
            whose = f"'{name}' trains with"
            needed = [name]
        else:
            whose = f"'{name}' shares with all who hold columns"
            needed = list(dict.fromkeys([name, *self.shapes]))
        who_lacks = self.holdings.missing
        question = asked_for(
            ids,
            self.holdings.label_owners[name].index,
            whose,
            partial(row_names, self.settings),
            lambda row: who_lacks.get(row, some_of(needed)),
            strict=strict,
        )
        return question.also(who_lacks) if ids is None and who_lacks else question

    def _check_budgets(
        self, owner: str, rows: Tensor, groups: Sequence[tuple[Tensor, list[str]]]
    ) -> None:
        """Raise where a budget does not cover these rows."""
        for places, away in groups:
            with self.asking(owner, rows[places], away) as chunks:
                check_affordable(self, owner, chunks, away)

    def _answers(
        self, owner: str, rows: Tensor, away: Collection[str], model: str | None
    ) -> tuple[Tensor, list[str]]:
        """The outputs for rows that the parties in `away` lack and, for each row, which
        parties had no part in it."""
        peers = self.label_owners[owner].peers
        lacking = [*away] if peers.presence is not None else []
        parts: list[Tensor] = []
        missed: list[str] = []
        with known_away(peers, away), self.asking(owner, rows, away) as chunks:
            for outputs, silent in self._outputs(owner, chunks, model):
                parts.append(outputs)
                missed += [" ".join([*lacking, *silent])] * len(outputs)
        return torch.cat(parts), missed

    @contextmanager
    def asking(
        self, owner: str, rows: Tensor, away: Collection[str], purpose: str = PREDICT
    ) -> Iterator[list[Rows]]:
        """Within the context, these rows are a batch at every party that holds them;
        those in `away` are not asked."""
        with ExitStack() as stack:
            if (presence := self.label_owners[owner].peers.presence) is not None:
                stack.enter_context(presence.without(away))
            for party, apart in self.agreed_apart.items():
                if party not in away:
                    stack.enter_context(apart[owner].asking(rows, purpose))
            stack.enter_context(self.agreed[owner].asking(rows, purpose))
            yield self.chunks(purpose, owner)

    def _of_new_rows(
        self,
        frames: Mapping[str, pd.DataFrame],
        ids: Sequence[str] | None,
        owner: str | None,
        model: str | None,
        *,
        strict: bool,
    ) -> Predictions:
        """Predict other rows with the same models; what crosses is in the same ledgers."""
        if self.accounts:
            raise ConfigError(
                "Budgets are counted in a run's store, and new rows have none here."
                " Save the run (fit(out=...)), and predict with it: colonnade.load(DIR,"
                ' ids="all", frames=...).predict().'
            )
        fitted = {
            name: organisation.fitted
            for name, organisation in self.organisations.items()
            if name != SERVER
        }
        wanted = None if ids is None else each_once(self.settings, ids)
        rows = rows_asked_for(
            self.settings,
            fitted,
            wanted,
            self.owner_named(owner),
            frames,
            strict=strict,
        )
        self.settle()
        other = Federation(self.settings, rows.holdings(rows.ids))
        for name, organisation in other.organisations.items():
            organisation.load_state(self.organisations[name].state())
        other.restack()
        try:
            return other.predict(ids, owner=owner, model=model, strict=strict)
        finally:
            self.restack()
            for name, organisation in other.organisations.items():
                self.organisations[name].ledger.add(organisation.ledger.take())
                self.organisations[name].outbox.go_on_from(organisation.outbox)

    @property
    def heads(self) -> Tensor | None:
        """All heads of the driver as one matrix, a block of rows per party; None where
        it has none."""
        heads = self.algorithm.heads
        return None if heads is None or self.driver is None else heads(self.driver)

    def owner_named(self, name: str | None) -> str:
        """Check the name of a label owner, or take the first where none is named."""
        if name is not None and name not in self.label_owners:
            hint = did_you_mean(name, list(self.label_owners))
            raise ConfigError(
                f"{name!r} is no label owner here{hint}; there are"
                f" {', '.join(self.label_owners)}."
            )
        return name or next(iter(self.label_owners))

    @property
    def ledgers(self) -> dict[str, Ledger]:
        """Each organisation's own record of what left it and arrived."""
        return {
            name: organisation.ledger
            for name, organisation in self.organisations.items()
        }

    @property
    def drawn_by(self) -> dict[str, DpEvent]:
        """By label owner that learns from labels drawn at random, how they were drawn."""
        return {
            name: owner.drawn
            for name, owner in self.label_owners.items()
            if owner.drawn is not None
        }

    @property
    def labels(self) -> Tensor:
        """What the one label owner learns from and measures with: of training rows the
        drawn ones, where its rule draws. A score on the true ones would tell more about
        them than its epsilon allows."""
        labels: Tensor = self.label_owners[self.holdings.label_owner].labels
        return labels

    @property
    def ids(self) -> NDArray[np.str_]:
        """The ids behind all row numbers."""
        return self.holdings.ids

    @property
    def peers(self) -> Peers:
        """The parties that the driver asks."""
        peers: Peers = self.driver.peers
        return peers

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one row's embedding at each party with columns."""
        return dict(next(iter(self.label_owners.values())).shapes)

    @property
    def widths(self) -> dict[str, int]:
        """How many numbers one row's embedding has at each party with columns."""
        return {name: math.prod(shape) for name, shape in self.shapes.items()}

    @property
    def accounts(self) -> dict[str, Account]:
        """The accounts of all parties whose rules promise something for their columns."""
        return accounts_of(self.organisations)

    def settle(self) -> None:
        """Give stacked parties their own parameters back, and parties elsewhere what
        waits for their next call."""
        for stacked_or_asked in (
            *self.cohorts,
            *(owner.peers for owner in self.label_owners.values()),
        ):
            stacked_or_asked.settle()

    def restack(self) -> None:
        """Let stacked parties take over states that were loaded."""
        self.is_trained = True
        for cohort in self.cohorts:
            cohort.restack()
        self._stack()

    def _playing(self, role: str) -> dict[str, Any]:
        return {
            name: member.roles[role]
            for name, member in self.organisations.items()
            if role in member.roles
        }

    def _connect(self, between: Between, record: bool, reaches: bool) -> None:
        """Give each driver its peers: to a label owner those with columns, to the
        aggregation server label owners."""
        engine = self.settings.engine
        algorithm = self.algorithm
        self.guarded = guarded = reaches or engine.on_missing != "fail"
        around: Callable[[Transport], Transport] = (
            partial(with_retries, engine=engine)
            if guarded
            else (lambda transport: transport)
        )
        below = InProcess(
            self.owners,
            through_bytes=engine.through_bytes,
            parallel=engine.threads,
        )
        names = list(self.elsewhere.asked) or list(self.owners)
        for owner in self.label_owners.values():
            transport = between(owner.name, below)
            owner.peers = Peers(owner.name, names, around(transport), owner.ledger)
            if self.settings.rows_differ or self.settings.party_dropout:
                owner.peers.presence = presence_of(
                    self.settings, self.holdings, owner, names, algorithm
                )
            owner.agreed_apart = {
                name: apart.fingerprint() for name, apart in self.agreed_apart.items()
            }
            owner.meet(owner.peers.ask(roles.Introduce()))
            owner.peers.transport = around(self._recorded(transport, record))
            if guarded:
                owner.peers.look(
                    owner.rows,
                    owner.widths,
                    algorithm.releases,
                    algorithm.of_told_width,
                )
            if engine.on_missing in ("stale", "skip"):
                owner.peers.missing = stand_ins(engine.on_missing, owner)
        if self.driver is not None and self.driver.name == SERVER:
            above = InProcess(
                self.label_owners,
                through_bytes=engine.through_bytes,
                parallel="never",  # they ask the same parties, which answer in one order
            )
            carried = around(self._recorded(between(SERVER, above), record))
            asked = list(self.elsewhere.asked) or list(self.label_owners)
            self.driver.peers = Peers(SERVER, asked, carried, self.driver.ledger)
            if guarded:
                self.driver.peers.look(
                    self.driver.rows, {}, algorithm.releases, algorithm.of_told_width
                )

    def _recorded(self, transport: Transport, record: bool) -> Transport:
        self.recording = Recording(transport, beside=self.recording) if record else None
        return self.recording or transport

    def _stack(self) -> None:
        """Let parties of one shape compute as one where that pays: once they train, or
        have the states of who did."""
        settings, engine = self.settings, self.settings.engine
        apart = (
            self.guarded
            or settings.rows_differ
            or settings.party_dropout
            or self.algorithm.nested is not None
        )
        if self.cohorts or self.driver is None or apart or engine.through_bytes:
            return
        alike = [] if engine.cohort == "off" else groups(self.owners)
        rows = settings.train.batch_size
        self.cohorts = [
            Cohort(group)
            for group in alike
            if engine.cohort == "on" or worth_stacking(group, rows)
        ]
        if self.cohorts and self.recording is not None:
            self.recording.inner = Cohorts(self.recording.inner, self.cohorts)
        elif self.cohorts:
            self.peers.transport = Cohorts(self.peers.transport, self.cohorts)


def load(
    folder: str | Path,
    *,
    ids: Sequence[str] | Literal["all"] | None = None,
    owner: str | None = None,
    frames: Mapping[str, pd.DataFrame] | None = None,
    tables: Mapping[str, str] | None = None,
    record: bool = False,
    allow_models: Sequence[str] = (),
) -> Federation:
    """A saved federation, trained as far as it was: to go on with, to explain, or to
    predict rows that may be new. What crosses between parties from here on is in every
    party's ledger-after.jsonl.

    With `ids` it is loaded for prediction: only those rows are read, and they may be
    new since training; `predict` names those that cannot be predicted. "all" reads every
    row that can be. Of several label
    owners the first asks, unless `owner` is named. Tables of those with columns come
    from where the run's settings say, or from `frames` (needed when it was made from
    frames) or `tables` (files). A run with a model of your own names its import path,
    which must be among `allow_models`: a run directory may be somebody else's, and
    importing runs code.
    """
    run = RunDirectory(Path(folder))
    settings = run.settings(allow_models)
    run.check_whole()
    if frames is not None:
        check_frames(frames)
        if tables:
            raise ConfigError(
                "New rows come from `frames` or from `tables` (files), and not from"
                " both."
            )
    # its rows are those of the data set
    public = settings.data.dataset is not None and frames is None
    settings = settings if public else with_tables(settings, tables or {})
    if ids is None or public:
        for name, party in settings.parties.items():
            if (
                frames is not None
                and name in frames
                and party.label not in (None, *frames[name].columns)
            ):
                raise DataError(
                    f"'{name}' has no column {party.label!r}, its label, which"
                    " measuring needs. To predict rows without labels, load them:"
                    ' colonnade.load(folder, ids="all", frames=frames).'
                )
        held = None if frames is None else tables_of(settings, frames)
        fitted = run.fitted_earlier(settings)
        federation = Federation(
            settings, holdings_of(settings, held, run.salt(), fitted), record=record
        )
        run.read(federation)
    else:
        wanted = None if ids == "all" else each_once(settings, ids)
        rows = rows_asked_for(settings, run.all_fitted(settings), wanted, owner, frames)
        federation = Federation(settings, rows.holdings(rows.ids), record=record)
        run.load(federation, run.mark())
    federation.owner_named(owner)
    run.follow(federation)
    run.warn_unfinished(trains=federation.algorithm.trains)
    return federation
