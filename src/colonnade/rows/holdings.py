"""What each organisation holds: columns of all rows, and labels of the rows of each label owner.

    clinic   a label owner: its ids in one order, its labels, its own training, validation and test rows
    lab      columns of the rows of all label owners, prepared once, on the training rows of all of them

One label owner is the case of one: then all rows are its rows, in its order. `Predictions` are what a joint model says
about rows that are asked for by their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core import Agreed, Batches
from colonnade.core.message import Entry
from colonnade.datasets.preprocess import Labels, Preprocessor
from colonnade.datasets.table import Index, Table, packed, unpacked
from colonnade.errors import ConfigError, DataError
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared
from colonnade.privacy.drawn_labels import DrawnLabels
from colonnade.settings.federation_file import Settings

if TYPE_CHECKING:
    import pandas as pd

State = dict[str, Any]
Ids = NDArray[np.str_]
Crossed = dict[str, list[Entry]]
NOBODY = torch.zeros(0, dtype=torch.int64)


@dataclass
class Columns:
    """One organisation's columns of all rows, and how they became numbers."""

    features: Tensor
    preprocessor: Preprocessor | None = None
    own: Ids | None = None  # what its owner calls each row, where `Holdings.ids` are what it is called with others
    every: Tensor | None = None  # the columns of all its own rows but those held out, where its model is pretrained


@dataclass
class LabelledRows:
    """One label owner's rows in its order. `rows` are their numbers among all rows, None where these are all of them in
    the same order; `splits` count within its own. Where its labels are elsewhere, `labels` is empty."""

    packed: NDArray[np.bytes_]  # the ids, as in a table
    labels: Tensor
    splits: dict[str, Tensor]
    rows: Tensor | None = None
    whose: str = ""  # what the names of its batches begin with; "" where it is the only label owner
    salt: str = ""  # what its split was drawn with, where others are not to know
    drawn: DrawnLabels | None = None  # at a site: where labels that are drawn at random are kept over its runs
    own: Ids | None = None  # what its owner calls each row, as of columns
    is_told: bool = False  # whether others must be told the sides: they do not follow from the ids
    weights: Tensor | None = None  # how much each row counts, where they differ; nobody else is told
    numbers: Tensor | None = None  # that put rows into batches, where these do not follow from ids (`core.by_id`)

    @property
    def trained(self) -> Tensor:
        """Where the rows that it trains with are among all rows."""
        return self.splits["train"] if self.rows is None else self.rows[self.splits["train"]]

    @property
    def ids(self) -> Ids:
        """What its rows are called."""
        return unpacked(self.packed)

    @cached_property
    def index(self) -> Index:
        """Where the row of an id is among its own."""
        return Index(self.packed)

    def called(self, names: Ids, own: Ids) -> LabelledRows:
        """Give the same rows other names, in the order of these; `own` are the names that they have here."""
        rows = torch.from_numpy(self.index.find(own)[0])
        splits = {split: rows.argsort()[known] for split, known in self.splits.items()}
        numbers = None if self.numbers is None else self.numbers[rows]
        return replace(self, packed=packed(names), splits=splits, numbers=numbers)


@dataclass
class Holdings:
    """What organisations hold of the rows `ids`, as far as it is known here."""

    columns: dict[str, Columns]
    label_owners: dict[str, LabelledRows]
    packed: NDArray[np.bytes_]  # the ids, as in a table
    encoder: Labels
    known_to: int = 1  # label owners that one row has at most: so often is it released where others are once
    server: tuple[str, ...] = ()  # who takes part without data: what adds the weights of several label owners up
    away: dict[str, Tensor] = field(default_factory=dict)  # of a party that lacks some of the rows: which
    matched: dict[str, dict[str, int]] = field(default_factory=dict)  # with each partner, how many by which key
    aligned: Crossed = field(default_factory=dict)  # what crossed while rows were agreed on, as each party noted it
    trained: int = 0  # how many rows train, where this was told since some are not held here; 0: those that are
    earlier: bool = False  # whether columns become numbers as an earlier run learned it, whose models it starts with
    outputs_elsewhere: int | None = None  # of the joint model, where labels are elsewhere and this was told

    @classmethod
    def of_one(
        cls,
        columns: dict[str, Columns],
        labels: Tensor,
        ids: Ids,
        splits: dict[str, Tensor],
        label_owner: str,
        encoder: Labels,
    ) -> Holdings:
        """Build holdings of one label owner, in whose order all rows stand."""
        kept = packed(ids)
        return cls(columns, {label_owner: LabelledRows(kept, labels, splits)}, kept, encoder)

    @property
    def ids(self) -> Ids:
        """What rows are called. They are text for as long as they are used."""
        return unpacked(self.packed)

    @property
    def names(self) -> list[str]:
        """Every organisation once: label owners first; the party without data last."""
        return list(dict.fromkeys([*self.label_owners, *self.columns, *self.server]))

    @property
    def label_owner(self) -> str:
        """The one label owner."""
        if len(self.label_owners) != 1:
            raise ConfigError(f"This works with one label owner, and here are {', '.join(self.label_owners)}.")
        return next(iter(self.label_owners))

    @property
    def labelled(self) -> LabelledRows:
        """The rows of the one label owner."""
        return self.label_owners[self.label_owner]

    @property
    def splits(self) -> dict[str, Tensor]:
        """How the rows of the one label owner are divided."""
        return self.labelled.splits

    @property
    def trained_rows(self) -> Tensor:
        """The rows that any label owner trains on, in order."""
        trained = [held.trained for held in self.label_owners.values() if "train" in held.splits]
        return torch.from_numpy(np.unique(torch.cat(trained).numpy())) if trained else NOBODY

    @property
    def loss(self) -> Loss:
        return loss_for(self.encoder)

    @property
    def outputs(self) -> int:
        """How many numbers the joint model gives for a row."""
        return self.loss.outputs if self.outputs_elsewhere is None else self.outputs_elsewhere

    def predicted(self, ids: Ids, outputs: Tensor) -> Predictions:
        """Translate outputs of the joint model into labels and scores."""
        labels = self.encoder.decode(self.loss.decide(outputs))
        if self.encoder.task == "regression":
            return Predictions(ids, labels, labels[:, None], ())
        return Predictions(ids, labels, self.loss.scores(outputs).double().cpu().numpy(), self.encoder.classes)

    def own_ids(self, party: str) -> Ids:
        """What an organisation calls each row, whoever it shares it with: by this it counts what rows have paid."""
        held = self.columns.get(party)
        return self.ids if held is None or held.own is None else held.own

    def roles(self, party: str) -> list[str]:
        """List what an organisation holds: features, labels, or both."""
        held = {"features": party in self.columns, "labels": party in self.label_owners}
        return [role for role, holds in held.items() if holds]

    def state_of(self, party: str) -> State:
        """Describe how a party's columns and labels become numbers, which is kept in its own folder."""
        state: State = {}
        if party in self.columns and (prepared := self.columns[party].preprocessor) is not None:
            state["columns"] = prepared.state()
            state |= {"known_to": self.known_to} if self.known_to > 1 else {}
        if party in self.label_owners:
            state["labels"] = self.encoder.state()
            state |= {"salt": salt} if (salt := self.label_owners[party].salt) else {}
        return state | ({"earlier": True} if self.earlier else {})

    def agreed(self, make: Callable[[dict[str, Tensor], LabelledRows, str], Batches], party: str = "") -> Agreed:
        """Build each label owner's batches, and say where its rows are here. `make` gives the batches of some splits,
        of which rows, and by whose name. For a `party` that lacks rows, they are batches of those that it holds."""
        return Agreed(
            {
                name: (make(self._held_by(party, held.splits), held, held.whose), held.rows)
                for name, held in self.label_owners.items()
            }
        )

    def part_of(self, party: str) -> LabelledRows:
        """The rows of the one label owner that a party holds, and how these are divided."""
        held, lacks = self.labelled, self.away.get(party)
        if lacks is None:
            return held
        number = (~lacks).cumsum(0) - 1
        splits = {split: number[rows] for split, rows in self._held_by(party, held.splits).items()}
        numbers = None if held.numbers is None else held.numbers[~lacks]
        return replace(held, packed=held.packed[~lacks.numpy()], labels=held.labels[:0], splits=splits, numbers=numbers)

    def _held_by(self, party: str, splits: dict[str, Tensor]) -> dict[str, Tensor]:
        if party not in self.away:
            return splits
        held = {split: rows[~self.away[party][rows]] for split, rows in splits.items()}
        return {split: rows for split, rows in held.items() if len(rows)}

    def divided(self, cut: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Holdings:
        """Divide each label owner's rows otherwise."""
        owners = {name: replace(held, splits=cut(held.splits)) for name, held in self.label_owners.items()}
        return replace(self, label_owners=owners)

    def by_absence(self, rows: Tensor) -> list[tuple[Tensor, list[str]]]:
        """Group the places in `rows` by who lacks those rows; rows that nobody lacks come first."""
        if not self.away:
            return [(torch.arange(len(rows)), [])]
        lacks = torch.stack([lacking[rows] for lacking in self.away.values()], dim=1)
        patterns, which = torch.unique(lacks, dim=0, return_inverse=True)
        return [
            ((which == number).nonzero().flatten(), [k for k, gone in zip(self.away, pattern, strict=True) if gone])
            for number, pattern in enumerate(patterns.tolist())
        ]


@dataclass(frozen=True, eq=False)
class Predictions:
    """One row per id: the predicted label, and a score per class (or the value itself). Ids are text, as parties
    compare them; to join them to a table of numbers: `table.astype({"id": str}).merge(found.to_frame(), on="id")`."""

    ids: Ids
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

    def _repr_html_(self) -> str:
        """Show the predictions in a notebook."""
        shown: Any = self.to_frame()
        return str(shown.to_html(max_rows=10, notebook=True))


def labelled_rows(
    settings: Settings, owner: str, ids: Ids, splits: dict[str, Tensor], at: Tensor, labels: Tensor = NOBODY
) -> LabelledRows:
    """Describe a label owner's rows, `at` these places among all rows; those of the one label owner are all of them."""
    kept = packed(ids)
    return LabelledRows(kept, labels, splits, at, owner) if settings.shared else LabelledRows(kept, labels, splits)


def asked_by(settings: Settings, owner: str, owners: Sequence[str], ids: Ids) -> dict[str, LabelledRows]:
    """Describe rows that one label owner is to predict, and no rows of the others; no label is known."""
    every = torch.arange(len(ids))
    asks = labelled_rows(settings, owner, ids, {"predict": every}, every, torch.zeros(len(ids), dtype=torch.int64))
    nothing = {name: labelled_rows(settings, name, ids[:0], {}, NOBODY) for name in owners}
    return {name: asks if name == owner else other for name, other in nothing.items()}


class AskedFor:
    """The rows of these ids, all of one label owner (the first unless named), prepared as `Holdings.state_of`
    remembers: nothing is learned, and no labels are needed. `columns` are the tables of those with columns; they may
    hold rows that are new since training. Where settings say that rows may lack a party, it may hold some of the rows
    only, or have no table at all; but every row must be held by somebody. All that can be wrong with any of the rows is
    told here, before somebody is asked for the first."""

    def __init__(
        self,
        settings: Settings,
        columns: Mapping[str, Table],
        fitted: Mapping[str, State],
        ids: Sequence[str] | Ids,
        owner: str | None = None,
    ) -> None:
        self.settings, self.columns, self.may_lack = settings, columns, settings.may_lack
        self.owners = [name for name, state in fitted.items() if "labels" in state]
        self.asks = owner if owner in self.owners else self.owners[0]
        self.ids = ids = np.asarray(ids, dtype=np.str_)
        self.prepared = {
            name: Preprocessor.from_state(state["columns"]) for name, state in fitted.items() if "columns" in state
        }
        self.encoder = Labels.from_state(fitted[self.asks]["labels"])
        self.known_to = max((int(state.get("known_to", 1)) for state in fitted.values()), default=1)
        self.ways: dict[str, dict[str, str]] = {}
        nobody = np.ones(len(ids), dtype=bool)
        for name, prepared in self.prepared.items():
            rows, held = self._rows(name, ids)
            self.ways[name] = prepared.check(columns[name], rows) if len(rows) else {}
            nobody &= ~held
        if nobody.any():
            raise DataError(
                f"{nobody.sum()} of {len(ids)} ids are in no party's table, such as {str(ids[nobody][0])!r}."
            )

    def holdings(self, wanted: Sequence[str] | Ids) -> Holdings:
        """Say what organisations hold of the rows, or of some of them, in the order of these ids."""
        ids = np.asarray(wanted, dtype=np.str_)
        held_columns, away = {}, {}
        for name, prepared in self.prepared.items():
            rows, held = self._rows(name, ids)
            own, features = None, torch.zeros(0, len(prepared.names))
            if len(rows):
                mine = self.columns[name].taking(rows)
                features, own = prepared.transform(mine, self.ways[name]), mine.own
            if not held.all():
                away[name] = torch.from_numpy(~held)
                known, features = features, torch.zeros(len(ids), len(prepared.names))
                features[~away[name]] = known  # nobody is asked for a row that it lacks
                own = None if own is None else own_names(own, ids, ~away[name])
            held_columns[name] = Columns(features, prepared, own)
        asked = asked_by(self.settings, self.asks, self.owners, ids)
        return Holdings(held_columns, asked, packed(ids), self.encoder, self.known_to, self.settings.server, away)

    def _rows(self, name: str, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Find the rows of a party's table that have these ids, and which of the ids they are."""
        if name in self.columns and not self.may_lack:
            return self.columns[name].rows_of(ids), np.ones(len(ids), dtype=bool)
        if name in self.columns:
            rows, held = self.columns[name].find(ids)
            return rows[held], held
        if self.may_lack:
            return np.zeros(0, dtype=np.int64), np.zeros(len(ids), dtype=bool)
        raise DataError(
            f"'{name}' took part in training, and there is no table of it. Give it: frames={{{name!r}: frame}}, "
            f'or --table {name}=FILE. To predict without a party, train with [federation] on_missing = "skip".'
        )


def own_names(names: Ids, ids: Ids, held: Tensor) -> Ids:
    """List what an owner calls each row that it holds; the other rows keep their ids."""
    own = ids.astype(object)
    own[held.numpy()] = names
    return own.astype(np.str_)


def loss_for(encoder: Labels) -> Loss:
    """Choose the loss that a label owner trains with, by the kind of its label."""
    if encoder.task == "regression":
        return Squared()
    classes = len(encoder.classes)
    return Logistic() if classes == 2 else CrossEntropy(classes)


def listed(ids: Sequence[object]) -> list[str]:
    """Give the ids to predict as text; there must be at least one."""
    if isinstance(ids, str):
        raise DataError(f"The ids to predict are a list; found the text {ids!r}. Write [{ids!r}].")
    if not len(ids):
        raise DataError("There are no ids to predict. Give at least one.")
    return [str(name) for name in ids]


def asked_for(
    ids: Sequence[str] | None, index: Index, whose: str, names_of: Callable[[list[str]], list[str]]
) -> tuple[Ids, Tensor]:
    """Give the ids to predict as they are spelled, or all known ones where none are given, and their row numbers.
    `names_of` says what rows are called that are spelled so."""
    if ids is None:
        return unpacked(index.packed), torch.arange(len(index))
    wanted = np.array(listed(ids), dtype=np.str_)
    rows, there = index.find(np.array(names_of(wanted.tolist())))
    if not there.all():
        absent = wanted[~there]
        raise DataError(
            f"{len(absent)} of {len(wanted)} ids are not among the {len(index)} rows that {whose}, such as "
            f"{str(absent[0])!r}. Predict ids that every party's table holds."
        )
    return wanted, torch.from_numpy(rows)
