"""What each organisation holds: its table, read as the settings say, with ids as all
compare them; and what comes of all tables (`making`): columns of all rows, and labels
of the rows of each label owner.

    clinic   a label owner: its ids in one order, its labels, its own training, validation and test rows
    lab      columns of the rows of all label owners, prepared once, on the training rows of all of them

One label owner is the case of one: then all rows are its rows, in its order.
`Predictions` are what a joint model says about rows that are asked for by their ids
(`asked`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.alignment.ids import with_normalised_ids
from colonnade.alignment.keys import written_in
from colonnade.core import Agreed, Batches
from colonnade.core.ledger import Entry
from colonnade.datasets.preprocess import Labels, Preprocessor
from colonnade.datasets.table import (
    Index,
    Table,
    packed,
    read_table,
    table_from_frame,
    unpacked,
)
from colonnade.datasets.table_files import as_written, check_present, names_in, readable
from colonnade.errors import ConfigError, did_you_mean
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared
from colonnade.privacy.drawn_labels import DrawnLabels
from colonnade.rows.groups import Owner, people
from colonnade.rows.missing import DEGRADED, Missing, with_missing
from colonnade.settings.alignment import Key
from colonnade.settings.federation_file import Settings
from colonnade.settings.schema import place_of
from colonnade.settings.sections import PartySettings

if TYPE_CHECKING:
    import pandas as pd

PIECE = 65_536  # rows read at a time
State = dict[str, Any]
Ids = NDArray[np.str_]
Splits = dict[str, Tensor]
Crossed = dict[str, list[Entry]]
NOBODY = torch.zeros(0, dtype=torch.int64)


@dataclass
class Columns:
    """One organisation's columns of all rows, and how they became numbers."""

    features: Tensor
    preprocessor: Preprocessor | None = None
    # what its owner calls each row, where `Holdings.ids` are what it is called with
    # others
    own: Ids | None = None
    # the columns of all its own rows but those held out, where its model is pretrained
    every: Tensor | None = None


@dataclass
class LabelledRows:
    """One label owner's rows in its order. `rows` are their numbers among all rows,
    None where these are all of them in the same order; `splits` count within its own.
    Where its labels are elsewhere, `labels` is empty."""

    packed: NDArray[np.bytes_]  # the ids, as in a table
    labels: Tensor
    splits: Splits
    rows: Tensor | None = None
    # what the names of its batches begin with; "" where it is the only label owner
    whose: str = ""
    salt: str = ""  # what its split was drawn with, where others are not to know
    # at a site: where labels that are drawn at random are kept over its runs
    drawn: DrawnLabels | None = None
    own: Ids | None = None  # what its owner calls each row, as of columns
    # whether others must be told the sides: they do not follow from the ids
    is_told: bool = False
    # how much each row counts, where they differ; nobody else is told
    weights: Tensor | None = None
    # that put rows into batches, where these do not follow from ids (`core.by_id`)
    numbers: Tensor | None = None

    @property
    def trained(self) -> Tensor:
        """Where the rows that it trains with are among all rows."""
        return (
            self.splits["train"]
            if self.rows is None
            else self.rows[self.splits["train"]]
        )

    @property
    def ids(self) -> Ids:
        """What its rows are called."""
        return unpacked(self.packed)

    @cached_property
    def index(self) -> Index:
        """Where the row of an id is among its own."""
        return Index(self.packed)

    def called(self, names: Ids, own: Ids) -> LabelledRows:
        """Give the same rows other names, in the order of these; `own` are the names
        that they have here."""
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
    # label owners that one row has at most: so often is it released where others are
    # once
    known_to: int = 1
    # who takes part without data: what adds the weights of several label owners up
    server: tuple[str, ...] = ()
    # of a party that lacks some of the rows: which
    away: dict[str, Tensor] = field(default_factory=dict)
    # with each partner, how many by which key
    matched: dict[str, dict[str, int]] = field(default_factory=dict)
    # what crossed while rows were agreed on, as each party noted it
    aligned: Crossed = field(default_factory=dict)
    # how many rows train, where this was told since some are not held here; 0: those
    # that are
    trained: int = 0
    # whether columns become numbers as an earlier run learned it, whose models it
    # starts with
    earlier: bool = False
    # of the joint model, where labels are elsewhere and this was told
    outputs_elsewhere: int | None = None
    # of rows that were asked for and cannot be predicted, by id: who lacks them
    missing: Missing = field(default_factory=dict)

    @classmethod
    def of_one(
        cls,
        columns: dict[str, Columns],
        labels: Tensor,
        ids: Ids,
        splits: Splits,
        label_owner: str,
        encoder: Labels,
    ) -> Holdings:
        """Build holdings of one label owner, in whose order all rows stand."""
        kept = packed(ids)
        return cls(
            columns, {label_owner: LabelledRows(kept, labels, splits)}, kept, encoder
        )

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
            raise ConfigError(
                "This works with one label owner, and here are"
                f" {', '.join(self.label_owners)}."
            )
        return next(iter(self.label_owners))

    @property
    def labelled(self) -> LabelledRows:
        """The rows of the one label owner."""
        return self.label_owners[self.label_owner]

    @property
    def splits(self) -> Splits:
        """How the rows of the one label owner are divided."""
        return self.labelled.splits

    @property
    def trained_rows(self) -> Tensor:
        """The rows that any label owner trains on, in order."""
        trained = [
            held.trained
            for held in self.label_owners.values()
            if "train" in held.splits
        ]
        return (
            torch.from_numpy(np.unique(torch.cat(trained).numpy()))
            if trained
            else NOBODY
        )

    @property
    def loss(self) -> Loss:
        return loss_for(self.encoder)

    @property
    def outputs(self) -> int:
        """How many numbers the joint model gives for a row."""
        return (
            self.loss.outputs
            if self.outputs_elsewhere is None
            else self.outputs_elsewhere
        )

    def predicted(self, ids: Ids, outputs: Tensor) -> Predictions:
        """Translate outputs of the joint model into labels and scores."""
        labels = self.encoder.decode(self.loss.decide(outputs))
        if self.encoder.task == "regression":
            return Predictions(ids, labels, labels[:, None], ())
        return Predictions(
            ids,
            labels,
            self.loss.scores(outputs).double().cpu().numpy(),
            self.encoder.classes,
            positive=self.encoder.positive_class,
        )

    def own_ids(self, party: str) -> Ids:
        """What an organisation calls each row, whoever it shares it with: by this it
        counts what rows have paid."""
        held = self.columns.get(party)
        return self.ids if held is None or held.own is None else held.own

    def roles(self, party: str) -> list[str]:
        """List what an organisation holds: features, labels, or both."""
        held = {"features": party in self.columns, "labels": party in self.label_owners}
        return [role for role, holds in held.items() if holds]

    def state_of(self, party: str) -> State:
        """Describe how a party's columns and labels become numbers, which is kept in
        its own folder."""
        state: State = {}
        if (
            party in self.columns
            and (prepared := self.columns[party].preprocessor) is not None
        ):
            state["columns"] = prepared.state()
            state |= {"known_to": self.known_to} if self.known_to > 1 else {}
        if party in self.label_owners:
            state["labels"] = self.encoder.state()
            state |= {"salt": salt} if (salt := self.label_owners[party].salt) else {}
        return state | ({"earlier": True} if self.earlier else {})

    def agreed(
        self, make: Callable[[Splits, LabelledRows, str], Batches], party: str = ""
    ) -> Agreed:
        """Build each label owner's batches, and say where its rows are here. `make`
        gives the batches of some splits, of which rows, and by whose name. For a
        `party` that lacks rows, they are batches of those that it holds."""
        return Agreed(
            {
                name: (
                    make(self._held_by(party, held.splits), held, held.whose),
                    held.rows,
                )
                for name, held in self.label_owners.items()
            }
        )

    def part_of(self, party: str) -> LabelledRows:
        """The rows of the one label owner that a party holds, and how these are
        divided."""
        held = self.labelled
        lacks = self.away.get(party)
        if lacks is None:
            return held
        number = (~lacks).cumsum(0) - 1
        splits = {
            split: number[rows]
            for split, rows in self._held_by(party, held.splits).items()
        }
        numbers = None if held.numbers is None else held.numbers[~lacks]
        return replace(
            held,
            packed=held.packed[~lacks.numpy()],
            labels=held.labels[:0],
            splits=splits,
            numbers=numbers,
        )

    def _held_by(self, party: str, splits: Splits) -> Splits:
        if party not in self.away:
            return splits
        held = {split: rows[~self.away[party][rows]] for split, rows in splits.items()}
        return {split: rows for split, rows in held.items() if len(rows)}

    def divided(self, cut: Callable[[Splits], Splits]) -> Holdings:
        """Divide each label owner's rows otherwise."""
        owners = {
            name: replace(held, splits=cut(held.splits))
            for name, held in self.label_owners.items()
        }
        return replace(self, label_owners=owners)

    def by_absence(self, rows: Tensor) -> list[tuple[Tensor, list[str]]]:
        """Group the places in `rows` by who lacks those rows; rows that nobody lacks
        come first."""
        if not self.away:
            return [(torch.arange(len(rows)), [])]
        lacks = torch.stack([lacking[rows] for lacking in self.away.values()], dim=1)
        patterns, which = torch.unique(lacks, dim=0, return_inverse=True)
        return [
            (
                (which == number).nonzero().flatten(),
                [k for k, gone in zip(self.away, pattern, strict=True) if gone],
            )
            for number, pattern in enumerate(patterns.tolist())
        ]


@dataclass(frozen=True, eq=False)
class Predictions:
    """One row per id: the predicted label, and a score per class (or the value itself).
    Ids are text, as parties compare them; to join them to a table of numbers:
    `table.astype({"id": str}).merge(found.to_frame(), on="id")`.

    The arrays have the rows that were predicted. The frame has all that were asked for:
    of those in `missing` it says who lacks them."""

    ids: Ids
    labels: NDArray[Any]
    scores: NDArray[np.float64]
    classes: tuple[Any, ...]
    # per row who was missing, "" for nobody; None: then it is an error
    degraded: tuple[str, ...] | None = None
    id_column: str = "id"  # as the asker's table calls it
    # of two classes the one that is looked for, as [data] positive says
    positive: Any = None
    # all ids asked for, in order; None: those that were predicted
    asked: Ids | None = None
    # by id that could not be predicted, who lacks the row; None: that is an error
    missing: Missing | None = None

    @property
    def in_order(self) -> list[int]:
        """The places of the classes, with the positive one of two in front."""
        return sorted(
            range(len(self.classes)),
            key=lambda place: self.classes[place] != self.positive,
        )

    @property
    def score(self) -> NDArray[np.float64]:
        """The score of the positive class of each row."""
        if self.positive is None:
            raise ConfigError(
                "Only predictions of two classes have one score a row; these have"
                f" {len(self.classes)} classes. Read `scores`."
            )
        place = self.classes.index(self.positive)
        column: NDArray[np.float64] = self.scores[:, place]
        return column

    def to_frame(self, id_column: str | None = None) -> pd.DataFrame:
        """A data frame with a row for every id asked, in that order.

        Args:
            id_column: The name of the column with the ids; by default the name that it
                has in the asker's table.
        """
        import pandas as pd

        asked = self.ids if self.asked is None else self.asked
        frame = pd.DataFrame({"prediction": self.labels})
        for place in self.in_order:
            frame[f"score_{self.classes[place]}"] = self.scores[:, place]
        if self.degraded is not None:
            frame[DEGRADED] = list(self.degraded)
        if self.missing is not None:
            frame = with_missing(frame, asked.tolist(), self.missing)
        frame.insert(0, id_column or self.id_column, asked, allow_duplicates=True)
        return frame

    def _repr_html_(self) -> str:
        """Show the predictions in a notebook."""
        shown: Any = self.to_frame()
        return str(shown.to_html(max_rows=10, notebook=True))


def labelled_rows(
    settings: Settings,
    owner: str,
    ids: Ids,
    splits: Splits,
    at: Tensor,
    labels: Tensor = NOBODY,
) -> LabelledRows:
    """Describe a label owner's rows, `at` these places among all rows; those of the one
    label owner are all of them."""
    kept = packed(ids)
    return (
        LabelledRows(kept, labels, splits, at, owner)
        if settings.shared
        else LabelledRows(kept, labels, splits)
    )


def own_names(names: Ids, ids: Ids, held: Tensor) -> Ids:
    """List what an owner calls each row that it holds; the other rows keep their ids."""
    own = ids.astype(object)
    own[held.numpy()] = names
    return own.astype(np.str_)


def loss_for(encoder: Labels) -> Loss:
    """Choose the loss that a label owner trains with, by the kind of its label."""
    if encoder.task == "regression":
        return Squared(unit=encoder.unit)
    classes = len(encoder.classes)
    return Logistic() if classes == 2 else CrossEntropy(classes)


def read_tables(
    settings: Settings, fitted: Mapping[str, State] | None = None
) -> dict[str, Table]:
    """Read the tables of all that hold columns, and of the one label owner.

    Args:
        settings: Who takes part, with which files.
        fitted: What training learned of each party's columns, where it is over: what
            was text then is read as text again.
    """
    if not settings.parties:
        where = place_of(settings.section, "NAME")
        raise ConfigError(
            f"Nobody holds columns. Add {where} with table = ..., or [data] dataset"
            " = ..."
        )
    return {
        name: read_own(settings, name, (fitted or {}).get(name))
        for name in settings.parties
    }


def read_labels(settings: Settings) -> dict[str, Table]:
    """Read the tables of several label owners."""
    return {name: read_own_labels(settings, name) for name in settings.label_owners}


def read_own(settings: Settings, name: str, fitted: State | None = None) -> Table:
    """Read the table of a party that holds columns, and perhaps the labels; the columns
    as training read them, where it `fitted` them."""
    party = settings.parties[name]
    if party.table is None:
        raise ConfigError(
            f"{place_of(settings.section, name)} must name its table, as in table ="
            f' "{name}.csv". A run that was made from data frames is loaded with them:'
            " colonnade.load(DIR, frames=...)."
        )
    as_text: Sequence[str] = ()
    if fitted is not None and "columns" in fitted:
        as_text = Preprocessor.from_state(fitted["columns"]).text_columns
    return _table_of(settings, name, party, party.table, as_text)


def read_own_labels(settings: Settings, name: str) -> Table:
    """Read the ids and labels of one of several label owners, whatever else its file
    holds."""
    owner = settings.label_owners[name]
    for key, value, example in (
        ("table", owner.table, f"{name}.csv"),
        ("label", owner.label, "diagnosis"),
    ):
        if value is None:
            raise ConfigError(
                f"[[label_owners]] {name!r} must name its {key}, as in {key} ="
                f' "{example}".'
            )
    return _table_of(settings, name, owner, str(owner.table))


def tables_of(
    settings: Settings, frames: Mapping[str, pd.DataFrame]
) -> dict[str, Table]:
    """Do as `read_tables`, with data frames."""
    tables = {}
    for name, frame in frames.items():
        party = settings.parties.get(name)
        if party is None:
            there = ", ".join(map(repr, settings.parties))
            raise ConfigError(
                f"There is a frame for {name!r}, which is no party here; there are"
                f" {there}."
            )
        tables[name] = _table_of(settings, name, party, frame)
    return tables


def labels_of(
    settings: Settings, frames: Mapping[str, pd.DataFrame]
) -> dict[str, Table]:
    """Do as `read_labels`, with data frames."""
    return {
        name: _table_of(settings, name, settings.label_owners[name], frame)
        for name, frame in frames.items()
    }


def with_tables(settings: Settings, tables: Mapping[str, str]) -> Settings:
    """Put these files in the place of those that the settings name."""
    given = dict(tables)
    parties = {
        name: party.changed(table=given.pop(name, party.table))
        for name, party in settings.parties.items()
    }
    for name in given:
        there = f"{did_you_mean(name, list(parties))}; there are {', '.join(parties)}"
        raise ConfigError(
            f"There is a table for {name!r}, which is no party here{there}."
        )
    return replace(settings, parties=parties)


def _table_of(
    settings: Settings,
    name: str,
    owner: Owner,
    source: str | pd.DataFrame,
    as_text: Sequence[str] = (),
) -> Table:
    """Build an owner's table from its file or frame; one of several label owners brings
    no features."""
    columns = owner.columns if isinstance(owner, PartySettings) else ()
    if not settings.plain_ids or (isinstance(owner, PartySettings) and owner.tables):
        return people(settings, name, owner, source, columns, as_text)
    how: Any = {
        "owner": name,
        "id": settings.id_of(owner),
        "label": owner.label,
        "columns": columns,
        "aside": settings.aside_of(owner),
        "gaps": owner.gaps,
    }
    if isinstance(source, str):
        how["as_text"] = as_text
        table = read_table(source, **how)
    else:
        table = table_from_frame(source, **how)
    return table if settings.alignment.ids == "exact" else with_normalised_ids(table)


def written_ids(path: Path, keys: Sequence[Key], whose: str) -> list[str]:
    """List the ids in a .csv or .parquet file as they are written, whatever else it
    holds. Where there are several keys, each row goes by the first that it has."""
    return [name for piece in written_pieces(path, keys, whose) for name in piece]


def written_pieces(path: Path, keys: Sequence[Key], whose: str) -> Iterator[list[str]]:
    """Do as `written_ids`, some rows at a time."""
    first = " | ".join(keys[0])
    with readable(path, whose):
        there = names_in(path)
        known = [key for key in keys if all(column in there for column in key)]
        if not known or (first in there and len(keys[0]) > 1):  # as predictions have it
            known = [(first,)]
        columns = list(dict.fromkeys(column for key in known for column in key))
        check_present(columns, there, owner=whose.strip("'"), part="id")
        for frame in as_written(path, columns, PIECE):
            if known == [(first,)]:
                yield [str(cell) for cell in frame[columns[0]]]
            else:
                yield written_in(
                    {column: frame[column].tolist() for column in columns}, keys
                )
