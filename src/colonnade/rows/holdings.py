"""What each organisation holds, ready to train: columns as tensors, labels, and the rows everybody agreed on.

From the parties' own tables, or from a named public data set cut into parties for a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade import datasets
from colonnade.alignment.ids import comparable
from colonnade.alignment.settings import AlignmentSettings
from colonnade.core.ledger import Entry
from colonnade.datasets.split import Split, train_validation_test
from colonnade.errors import ConfigError, DataError
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared
from colonnade.settings.federation_file import DataSettings, Settings

if TYPE_CHECKING:
    from colonnade.datasets.labels import Labels
    from colonnade.datasets.preprocess import Preprocessor
    from colonnade.datasets.table import Table

State = dict[str, Any]
Crossed = dict[str, list[Entry]]


@dataclass
class Holding:
    """One organisation's part: columns, labels, or both."""

    features: Tensor | None = None
    labels: Tensor | None = None
    preprocessor: Preprocessor | None = None

    def roles(self) -> list[str]:
        found = {"features": self.features, "labels": self.labels}
        return [role for role, held in found.items() if held is not None]


@dataclass
class Holdings:
    """All organisations, in party order; `splits` are row numbers into the agreed order `ids`."""

    parties: dict[str, Holding]
    ids: NDArray[np.str_]
    splits: dict[str, Tensor]
    label_owner: str
    encoder: Labels
    away: dict[str, Tensor] = field(default_factory=dict)  # of a party that lacks some rows: which; only to predict
    aligned: Crossed = field(default_factory=dict)  # what crossed while rows were agreed on, as each party noted it

    def by_absence(self, rows: Tensor) -> list[tuple[Tensor, list[str]]]:
        """Places in `rows` and who lacks those rows: first where nobody does."""
        if not self.away:
            return [(torch.arange(len(rows)), [])]
        lacks = torch.stack([lacking[rows] for lacking in self.away.values()], dim=1)
        patterns, which = torch.unique(lacks, dim=0, return_inverse=True)
        return [
            ((which == number).nonzero().flatten(), [k for k, gone in zip(self.away, pattern, strict=True) if gone])
            for number, pattern in enumerate(patterns.tolist())
        ]

    @cached_property
    def index(self) -> Index:
        """Where the row of an id is."""
        return Index(self.ids)

    @property
    def loss(self) -> Loss:
        return loss_for(self.encoder)

    @property
    def names(self) -> list[str]:
        return list(self.parties)

    def roles(self, party: str) -> list[str]:
        """What an organisation holds."""
        return self.parties[party].roles()

    def state_of(self, party: str) -> State:
        """How a party's columns and labels become numbers: kept in its own folder."""
        holding = self.parties[party]
        state: State = {}
        if holding.preprocessor is not None:
            state["columns"] = holding.preprocessor.state()
        if party == self.label_owner:
            state["labels"] = self.encoder.state()
        return state


def loss_for(encoder: Labels) -> Loss:
    """What a label owner trains with, from the kind of label."""
    if encoder.task == "regression":
        return Squared()
    classes = len(encoder.classes)
    return Logistic() if classes == 2 else CrossEntropy(classes)


def from_tables(
    settings: Settings,
    tables: Mapping[str, Table],
) -> Holdings:
    """Align, split, and let each party prepare its own columns on its own training rows."""
    from colonnade.datasets.labels import Labels
    from colonnade.datasets.preprocess import Preprocessor

    owner = _label_owner({name: table.label is not None for name, table in tables.items()})
    crossed: Crossed = {}
    if settings.data.align == "private":
        tables, crossed = in_common(settings, tables, owner)
    order = datasets.align(tables)
    split = _divide(len(order), settings.data, settings.engine.seed)
    mine = tables[owner].in_order(order)
    assert mine.label is not None
    task: Any = settings.data.task
    encoder = Labels.fit(mine.label, split.train, owner=owner, task=task)
    parties = {}
    for name in tables:  # one after the other: only one table is in memory twice
        table = mine if name == owner else tables[name].in_order(order)
        held = Holding(labels=encoder.encode(mine.label) if name == owner else None)
        if table.columns:
            held.preprocessor = Preprocessor.fit(table, split.train, scale=_scale(settings, name))
            held.features = held.preprocessor.transform(table)
        parties[name] = held
    return Holdings(parties, order, _named(split), owner, encoder, aligned=crossed)


def in_common(settings: Settings, tables: Mapping[str, Table], driver: str) -> tuple[dict[str, Table], Crossed]:
    """Only the rows whose ids all parties hold, which they find out without showing each other the rest; and what
    crossed for it."""
    from colonnade.alignment import Ids, align_here

    settings.alignment.check_trains()
    ids = {name: Ids.of(name, [table.ids.tolist()]) for name, table in tables.items()}
    aligned = align_here(ids, settings.alignment, driver=driver, through_bytes=settings.engine.through_bytes)
    if not aligned.found.common:
        raise DataError("No id is held by all parties, so there is no row to train on. Compare how ids are written.")
    common = {name: table.in_order(table.ids[aligned.rows[name]]) for name, table in tables.items()}
    return common, {name: book.entries for name, book in aligned.ledgers.items()}


def to_predict(
    tables: Mapping[str, Table], fitted: Mapping[str, State], ids: Sequence[str], *, may_lack: bool = False
) -> Holdings:
    """Only these rows, prepared as `state_of` remembers: nothing is learned, and no labels are needed.

    `tables` are those of the parties with columns; they may hold rows that are new since training. With `may_lack` a
    party may hold some of the rows only, or have no table at all; but every row must be held by somebody.
    """
    from colonnade.datasets.labels import Labels
    from colonnade.datasets.preprocess import Preprocessor

    order = np.array(list(ids), dtype=np.str_)
    owner = next(name for name, state in fitted.items() if "labels" in state)
    parties = {name: Holding() for name in fitted}
    away: dict[str, Tensor] = {}
    for name in [name for name, state in fitted.items() if "columns" in state]:
        prepared = Preprocessor.from_state(fitted[name]["columns"])
        held = np.ones(len(order), dtype=bool)
        if may_lack:
            held = np.isin(order, tables[name].ids if name in tables else np.array([], dtype=np.str_))
        if held.all():
            parties[name] = Holding(prepared.transform(tables[name].in_order(order)), preprocessor=prepared)
            continue
        away[name] = torch.from_numpy(~held)
        features = torch.zeros(len(order), len(prepared.names))  # nobody is asked for a row that it lacks
        if held.any():
            features[~away[name]] = prepared.transform(tables[name].in_order(order[held]))
        parties[name] = Holding(features, preprocessor=prepared)
    columns = [name for name, holding in parties.items() if holding.features is not None]
    if len(away) == len(columns) and bool((nobody := torch.stack(list(away.values())).all(0)).any()):
        lost = order[nobody.numpy()]
        raise DataError(f"{len(lost)} of {len(order)} ids are in no party's table, such as {str(lost[0])!r}.")
    parties[owner].labels = torch.zeros(len(order), dtype=torch.int64)
    encoder = Labels.from_state(fitted[owner]["labels"])
    return Holdings(parties, order, {"predict": torch.arange(len(order))}, owner, encoder, away)


class Index:
    """Row numbers by id: two arrays, since a dict of a million ids takes ten times as much."""

    def __init__(self, ids: NDArray[np.str_]) -> None:
        self.ids, self.order = ids, np.argsort(ids, kind="stable")

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, wanted: NDArray[np.str_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The row of each id, and whether there is one."""
        if not len(self):
            return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
        found = np.searchsorted(self.ids, wanted, sorter=self.order)
        rows: NDArray[np.int64] = self.order[np.minimum(found, len(self) - 1)]
        return rows, self.ids[rows] == wanted


def asked_for(
    ids: Sequence[str] | None,
    known: NDArray[np.str_] | Index,
    whose: str,
    cure: str,
    compared: AlignmentSettings | None = None,
) -> tuple[NDArray[np.str_], Tensor]:
    """The ids to predict as they are spelled, all that are known where none are given, and their row numbers."""
    index = known if isinstance(known, Index) else Index(known)
    if ids is None:
        return index.ids, torch.arange(len(index))
    if isinstance(ids, str):
        raise DataError(f"The ids to predict are a list; found the text {ids!r}. Write [{ids!r}].")
    wanted = np.array([str(one) for one in ids], dtype=np.str_)
    if not len(wanted):
        raise DataError("There are no ids to predict. Give at least one.")
    rows, there = index.find(wanted if compared is None else np.array(comparable(wanted.tolist(), compared)))
    if not there.all():
        absent = wanted[~there]
        raise DataError(
            f"{len(absent)} of {len(wanted)} ids are not among the {len(index)} rows that {whose}, such as "
            f"{str(absent[0])!r}. {cure}"
        )
    return wanted, torch.from_numpy(rows)


def from_dataset(settings: Settings) -> Holdings:
    """A named public data set cut into parties, with its official test rows where it has some."""
    from colonnade.datasets.labels import Labels

    data = settings.data
    source = datasets.load(str(data.dataset))
    test_rows = 0 if source.test is None else len(source.test)
    split = _divide(len(source.train), data, settings.engine.seed, official_test=test_rows)
    parties = cut(source, settings, split.train)
    parties.setdefault(data.labels_at, Holding()).labels = torch.from_numpy(
        np.concatenate([part.y for part in (source.train, source.test) if part is not None])
    )
    ids = np.arange(len(source.train) + test_rows).astype(np.str_)
    return Holdings(
        parties, ids, _named(split), data.labels_at, Labels(data.labels_at, "classification", source.classes)
    )


def cut(source: datasets.Dataset, settings: Settings, train: Tensor) -> dict[str, Holding]:
    """All rows, the official test rows last, with their columns divided; prepared on the training rows."""
    return (_cut_table if source.kind == "tabular" else _cut_array)(source, settings, train)


def _cut_table(source: datasets.Dataset, settings: Settings, train: Tensor) -> dict[str, Holding]:
    """Columns as the parties' settings name them, or in runs; each party prepares its own."""
    import pandas as pd

    from colonnade.datasets.preprocess import Preprocessor
    from colonnade.datasets.table import Table

    frame = pd.concat([part.frame() for part in (source.train, source.test) if part is not None], ignore_index=True)
    given = {name: list(party.columns) for name, party in settings.parties.items() if party.columns}
    if not given:
        runs = datasets.column_runs(frame.shape[1], settings.data.parts)
        names = datasets.party_names(len(runs))
        given = {name: [str(frame.columns[c]) for c in run] for name, run in zip(names, runs, strict=True)}
    ids = np.arange(len(frame)).astype(np.str_)
    parties = {}
    for name, part in datasets.by_names(frame, given).items():
        table = Table(name, ids, part)
        preprocessor = Preprocessor.fit(table, train, scale=_scale(settings, name))
        parties[name] = Holding(preprocessor.transform(table), preprocessor=preprocessor)
    return parties


def _cut_array(source: datasets.Dataset, settings: Settings, train: Tensor) -> dict[str, Holding]:
    """Pictures, voxels and points, scaled by the public set's own mean and deviation, then cut; features as published.

    Views are cut first and scaled one by one, so that those nobody is given cost no memory as floats.
    """
    data = settings.data
    whole = _whole(source)
    if source.kind == "views" and data.split == "views":
        seen = datasets.picture_views(whole, _count(data))
        return {name: Holding(_scaled(view, train)) for name, view in seen.items()}
    by_channel = whole.dim() == 4 or source.kind == "points"
    x = whole.to(torch.float32) if source.kind == "features" else _scaled(whole, train, by_channel)
    match data.split:
        case "columns":
            parts = datasets.column_blocks(x.flatten(1), data.parts)
        case "strips":
            parts = datasets.image_strips(x, _count(data))
        case "patches":
            grid = data.parts if isinstance(data.parts, tuple) else (data.parts, data.parts)
            if len(grid) != 2:
                raise ConfigError(f"[data] parts must be [rows, columns] for patches; found {list(grid)}.")
            parts = datasets.image_patches(x, (grid[0], grid[1]), size=data.patch, pad=True)
        case _:
            parts = datasets.views(x)
    return {name: Holding(features) for name, features in parts.items()}


def _whole(source: datasets.Dataset) -> Tensor:
    """All rows, the official test rows last; colours before height and width."""
    x = torch.from_numpy(np.concatenate([part.array() for part in (source.train, source.test) if part is not None]))
    return x.permute(0, 3, 1, 2) if source.kind == "image" and x.dim() == 4 and x.shape[-1] in (1, 3) else x


def _scaled(whole: Tensor, train: Tensor, by_channel: bool = False) -> Tensor:
    x = whole.to(torch.float32)
    axes = [axis for axis in range(x.dim()) if axis != 1] if by_channel else None
    seen = x[train]
    mean = seen.mean() if axes is None else seen.mean(axes, keepdim=True)
    deviation = seen.std() if axes is None else seen.std(axes, keepdim=True)
    return (x - mean) / deviation.clamp_min(1e-8)


def _divide(rows: int, data: DataSettings, seed: int, official_test: int = 0) -> Split:
    """Training, validation and test rows; an official test set comes after the others and stays whole."""
    validation, test = (int(v) if v >= 1 else v for v in (data.validation, data.test))
    split = train_validation_test(rows, validation=validation, test=0 if official_test else test, seed=seed)
    return Split(split.train, split.validation, torch.arange(rows, rows + official_test)) if official_test else split


def _named(split: Split) -> dict[str, Tensor]:
    named = {"train": split.train, "validation": split.validation, "test": split.test}
    return {name: rows for name, rows in named.items() if len(rows)}


def _scale(settings: Settings, party: str) -> Any:
    return settings.parties[party].scale if party in settings.parties else "standard"


def _label_owner(has_label: Mapping[str, bool]) -> str:
    owners = [name for name, has in has_label.items() if has]
    if len(owners) != 1:
        found = ", ".join(map(repr, owners)) or "none"
        raise DataError(f"Exactly one party must name its label column (label = ...); found {found}.")
    return owners[0]


def _count(data: DataSettings) -> int:
    if not isinstance(data.parts, int):
        raise ConfigError(f"[data] parts must be a whole number for {data.split}; found {list(data.parts)}.")
    return data.parts
