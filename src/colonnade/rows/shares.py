"""What each organisation holds where several have labels: every label owner's own rows, and all rows at data owners.

Each label owner finds the rows that it has in common with all data owners, and divides them by itself:

    north    its ids in one order, its labels, its own train, validation and test rows
    south    likewise; some people may be known to both
    lab      the columns of all of these rows, prepared once, on the training rows of all label owners

Which side of the division a row falls on follows from its id and the agreed seed. So a row that two label owners know
is on the same side at both, and nobody is tested on what another has trained with. (Numbers of rows in the place of
shares do not always hold that where label owners have rows in common, and are refused where they do not.)

The label owners must mean the same by an output, so they agree on the union of their classes: each tells the others the
names of the classes in its training rows (of numbers: how many, their sum and their sum of squares).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade import datasets
from colonnade.core.party import seed_for
from colonnade.errors import ConfigError, DataError
from colonnade.optim.losses import Loss
from colonnade.rows.holdings import Crossed, Holding, State, cut, in_common, loss_for
from colonnade.settings.federation_file import DataSettings, Settings
from colonnade.settings.owners import SERVER, known_classes

if TYPE_CHECKING:
    from colonnade.datasets.labels import Labels
    from colonnade.datasets.table import Table

Ids = NDArray[np.str_]


@dataclass
class Share:
    """One label owner's rows: `rows` are their numbers among all rows; `splits` count within the share."""

    ids: Ids
    rows: Tensor
    labels: Tensor
    splits: dict[str, Tensor]


@dataclass
class Shares:
    """All organisations: label owners with their rows, data owners with the columns of all rows `ids`."""

    label_owners: dict[str, Share]
    data_owners: dict[str, Holding]
    ids: Ids
    encoder: Labels
    known_to: int  # label owners that one row has at most: so often is it released where others are once
    aligned: Crossed = field(default_factory=dict)  # what crossed while rows were agreed on, as each noted it

    @property
    def loss(self) -> Loss:
        return loss_for(self.encoder)

    @property
    def names(self) -> list[str]:
        """Every organisation once; the party without data last."""
        return list(dict.fromkeys([*self.label_owners, *self.data_owners, SERVER]))

    def roles(self, party: str) -> list[str]:
        """What an organisation holds."""
        held = {"features": party in self.data_owners, "labels": party in self.label_owners}
        return [role for role, holds in held.items() if holds]

    def state_of(self, party: str) -> State:
        """How a party's columns and labels become numbers: kept in its own folder."""
        state: State = {}
        if party in self.data_owners and (prepared := self.data_owners[party].preprocessor) is not None:
            state |= {"columns": prepared.state(), "known_to": self.known_to}
        if party in self.label_owners:
            state["labels"] = self.encoder.state()
        return state


def from_tables(settings: Settings, labelled: Mapping[str, Table], columns: Mapping[str, Table]) -> Shares:
    """Let each label owner align itself with all data owners; then divide, agree on classes, and prepare columns."""
    import pandas as pd

    from colonnade.datasets.labels import Labels

    crossed: Crossed = {}
    rows = {name: _common(settings, name, table, columns, crossed) for name, table in labelled.items()}
    ids = {name: table.ids for name, table in rows.items()}
    held = {name: own_columns(settings, name, table, ids) for name, table in columns.items()}
    placed = next(iter(held.values())) if held else own_columns(settings, "", None, ids)
    splits = {name: share.splits for name, share in placed.label_owners.items()}
    learned = [_label(table).iloc[splits[name]["train"].numpy()] for name, table in rows.items()]
    task: Any = settings.data.task
    encoder = Labels.fit(pd.concat(learned, ignore_index=True), owner=", ".join(rows), task=task)
    shares = {
        name: dataclasses.replace(share, labels=encoded(encoder, name, rows[name]))
        for name, share in placed.label_owners.items()
    }
    parts = {name: one.data_owners[name] for name, one in held.items()}
    return Shares(shares, parts, placed.ids, encoder, placed.known_to, crossed)


def own_columns(settings: Settings, name: str, table: Table | None, ids: Mapping[str, Ids]) -> Shares:
    """What one data owner needs to know: by label owner the rows they share, and its columns of all of them."""
    from colonnade.datasets.labels import Labels
    from colonnade.datasets.preprocess import Preprocessor

    splits = {owner: divide(known, settings.data, settings.engine.seed, owner) for owner, known in ids.items()}
    every = np.unique(np.concatenate(list(ids.values())))
    at = {owner: torch.from_numpy(np.searchsorted(every, known)) for owner, known in ids.items()}
    _check_sides(settings.data, splits, at, len(every))
    held = {}
    if table is not None:
        train = torch.from_numpy(np.unique(torch.cat([at[owner][splits[owner]["train"]] for owner in ids]).numpy()))
        mine = table.in_order(every)
        prepared = Preprocessor.fit(mine, train, scale=_scale(settings, name))
        held[name] = Holding(prepared.transform(mine), preprocessor=prepared)
    nobody = torch.zeros(0, dtype=torch.int64)
    shares = {owner: Share(known, at[owner], nobody, splits[owner]) for owner, known in ids.items()}
    known_to = int(torch.bincount(torch.cat(list(at.values()))).max())
    return Shares(shares, held, every, Labels(", ".join(ids), "classification"), known_to)


def _check_sides(
    data: DataSettings, splits: Mapping[str, Mapping[str, Tensor]], at: Mapping[str, Tensor], rows: int
) -> None:
    """That no row is on one side of the division at one label owner and on another at another."""
    least, most = torch.full((rows,), 4, dtype=torch.int8), torch.zeros(rows, dtype=torch.int8)
    for owner, divided in splits.items():
        for side, name in enumerate(("train", "validation", "test"), 1):
            if name in divided:
                mine = at[owner][divided[name]]
                least[mine], most[mine] = least[mine].clamp_max(side), most[mine].clamp_min(side)
    torn = most > least
    if bool(torn.any()):
        owners = " and ".join(f"'{owner}'" for owner in at if bool(torn[at[owner]].any()))
        raise ConfigError(
            f"[data] validation = {data.validation:g} and test = {data.test:g} count rows, and {owners} would divide "
            f"{int(torn.sum())} rows that they share differently: one would be tested on what another has trained "
            "with. Give shares instead of numbers, as in validation = 0.1 and test = 0.2."
        )


def own_labels(settings: Settings, name: str, table: Table, encoder: Labels) -> Shares:
    """What one label owner needs to know: its own rows in the agreed order, and what the labels mean to all."""
    splits = divide(table.ids, settings.data, settings.engine.seed, name)
    share = Share(table.ids, torch.arange(len(table)), encoded(encoder, name, table), splits)
    return Shares({name: share}, {}, table.ids, encoder, known_to=1)


def encoded(encoder: Labels, owner: str, table: Table) -> Tensor:
    return dataclasses.replace(encoder, owner=owner).encode(_label(table))


def from_dataset(settings: Settings) -> Shares:
    """A named public data set: columns cut for data owners, training rows dealt to label owners, each row to one.

    Official test rows are dealt evenly, with all classes, so that the loss and accuracy weighted by rows are those on
    all of them; AUC, precision, recall and F1 are means of the owners' scores.
    """
    from colonnade.datasets.labels import Labels

    data, seed = settings.data, settings.engine.seed
    source = datasets.load(str(data.dataset))
    official = 0 if source.test is None else len(source.test)
    y = torch.from_numpy(np.concatenate([part.y for part in (source.train, source.test) if part is not None]))
    random = torch.Generator().manual_seed(seed_for(seed, "dealt"))
    own = deal(settings, y[: len(source.train)], source.classes, random)
    tests = (torch.randperm(official, generator=random) + len(source.train)).tensor_split(len(own))
    shares, train = {}, []
    every = torch.cat([*own.values(), *tests]).sort().values
    for (name, mine), test in zip(own.items(), tests, strict=True):
        ids = mine.numpy().astype(np.str_)
        splits = divide(ids, dataclasses.replace(data, test=0.0) if official else data, seed, name)
        train.append(mine[splits["train"]])
        if official:
            splits["test"] = torch.arange(len(mine), len(mine) + len(test))
        all_ = torch.cat([mine, test])
        shares[name] = Share(
            all_.numpy().astype(np.str_), torch.searchsorted(every, all_), y[all_].to(torch.int64), splits
        )
    held = {
        name: Holding(None if one.features is None else one.features[every], preprocessor=one.preprocessor)
        for name, one in cut(source, settings, torch.cat(train)).items()
    }
    encoder = Labels(", ".join(own), "classification", source.classes)
    return Shares(shares, held, every.numpy().astype(np.str_), encoder, known_to=1)


def to_predict(columns: Mapping[str, Table], fitted: Mapping[str, State], ids: Sequence[str], owner: str) -> Shares:
    """Only these rows, all of one label owner, prepared as `state_of` remembers; no labels are needed."""
    from colonnade.datasets.labels import Labels
    from colonnade.datasets.preprocess import Preprocessor

    every = np.unique(np.array(list(ids), dtype=np.str_))
    held = {}
    for name, table in columns.items():
        prepared = Preprocessor.from_state(fitted[name]["columns"])
        held[name] = Holding(prepared.transform(table.in_order(every)), preprocessor=prepared)
    encoder = Labels.from_state(fitted[owner]["labels"])
    known_to = max(int(fitted[name]["known_to"]) for name in columns)
    owners = [name for name, state in fitted.items() if "labels" in state]
    return Shares(asked_by(owner, owners, every), held, every, encoder, known_to)


def asked_by(owner: str, owners: Sequence[str], ids: Ids) -> dict[str, Share]:
    """These rows to predict by one label owner, and nothing of the others; no label is known."""
    nobody, everybody = torch.zeros(0, dtype=torch.int64), torch.arange(len(ids))
    asks = Share(ids, everybody, torch.zeros(len(ids), dtype=torch.int64), {"predict": everybody})
    return {name: asks if name == owner else Share(ids[:0], nobody, nobody, {}) for name in owners}


def divide(ids: Ids, data: DataSettings, seed: int, owner: str) -> dict[str, Tensor]:
    """Training, validation and test rows by a number from 0 to 1 that the seed gives each id: below `test` a row is a
    test row, and up to `validation` above that a validation row. A whole number takes so many, from below."""
    digests = (hashlib.blake2b(f"{seed}/{one}".encode(), digest_size=8).digest() for one in ids.tolist())
    place = np.frombuffer(b"".join(digests), dtype="<u8") / 2.0**64
    test = int(data.test) if data.test >= 1 else int((place < data.test).sum())
    upto = test / len(ids) if data.test >= 1 else data.test
    held_out = test + int(data.validation) if data.validation >= 1 else int((place < upto + data.validation).sum())
    held_out = max(held_out, test)
    if held_out >= len(ids):
        raise ConfigError(
            f"[data] validation = {data.validation} and test = {data.test} leave '{owner}' none of its {len(ids)} rows "
            "for training. Make them smaller."
        )
    order = torch.from_numpy(np.argsort(place, kind="stable"))
    cuts = {"train": order[held_out:], "validation": order[test:held_out], "test": order[:test]}
    for name, share in (("validation", data.validation), ("test", data.test)):
        if share and not len(cuts[name]):
            raise ConfigError(
                f"[data] {name} = {share} of the {len(ids)} rows of '{owner}' is no row at all. Use a larger share, "
                "or 0 for none."
            )
    return {name: rows.sort().values for name, rows in cuts.items() if len(rows)}


def deal(settings: Settings, y: Tensor, classes: tuple[Any, ...], random: torch.Generator) -> dict[str, Tensor]:
    """Which training rows of a data set each label owner gets; those who want certain classes choose first."""
    owners = settings.label_owners
    free = torch.ones(len(y), dtype=torch.bool)
    dealt: dict[str, Tensor] = {}
    for name in sorted(owners, key=lambda one: owners[one].classes is None):
        wanted = known_classes(name, owners[name], classes)
        fitting = (free & torch.isin(y, torch.tensor(sorted(wanted)))).nonzero()[:, 0]
        count = owners[name].rows or len(y) // len(owners)
        if count > len(fitting):
            raise ConfigError(
                f"[[label_owners]] {name!r} is to get {count} rows, and {len(fitting)} of its classes are left of "
                f"{len(y)}. Set rows to fewer, there or at others."
            )
        dealt[name] = fitting[torch.randperm(len(fitting), generator=random)[:count]].sort().values
        free[dealt[name]] = False
    return {name: dealt[name] for name in owners}


def _common(settings: Settings, owner: str, table: Table, columns: Mapping[str, Table], crossed: Crossed) -> Table:
    """A label owner's rows that all data owners hold too, in the agreed order: sorted by id. `crossed` grows by
    what crossed for it."""
    if settings.data.align == "private":
        others = {name: held for name, held in columns.items() if name != owner}
        if owner in columns:  # its own tables it compares by itself
            table = table.in_order(np.intersect1d(table.ids, columns[owner].ids))
        if others:
            common, entries = in_common(settings, {owner: table, **others}, owner)
            table = common[owner]
            for name, noted in entries.items():
                crossed.setdefault(name, []).extend(noted)
        if not len(table):
            raise DataError(f"'{owner}' has no id in common with its own columns. Compare how its ids are written.")
    return table.in_order(np.sort(table.ids))


def _label(table: Table) -> Any:
    assert table.label is not None
    return table.label


def _scale(settings: Settings, party: str) -> Any:
    return settings.parties[party].scale if party in settings.parties else "standard"
