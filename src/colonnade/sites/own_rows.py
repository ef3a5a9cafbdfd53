"""What one organisation holds at its own site: read from its own table, or its part of a public data set."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.errors import ConfigError, DataError, InputError
from colonnade.rows.holdings import Holdings, Ids, State
from colonnade.rows.making import NOBODY, from_tables, place, with_labels
from colonnade.rows.making import own_columns as columns_of
from colonnade.rows.public import from_dataset
from colonnade.rows.splits import heard
from colonnade.rows.tables import read_own, read_own_labels
from colonnade.settings.party_file import SiteConfig

if TYPE_CHECKING:
    from colonnade.datasets.preprocess import Labels
    from colonnade.datasets.table import Table

log = logging.getLogger("colonnade.party")
DIGEST = 16
Prepare = Callable[[Ids], torch.Tensor]


def read_own_table(own: SiteConfig) -> Table:
    """This organisation's table in the order of its ids."""
    labels = own.section == "label_owners"
    table = (read_own_labels if labels else read_own)(own.settings, own.name)
    if own.name in own.feature_owners and not table.columns:
        raise DataError(f"'{own.name}' holds no feature columns, and no labels. Name some columns.")
    if table.label is not None and own.private:
        table = with_labels(table)  # nobody need know of the others
    return table.in_order(np.sort(table.ids))


def own_columns(
    own: SiteConfig,
    table: Table | None,
    ids: Mapping[str, Ids],
    outputs: int,
    sides: str = "",
    rows: int = 0,
    numbers: torch.Tensor | None = None,
) -> Holdings:
    """Of one that holds columns: by label owner the rows they share, and its columns of all of them. Without a table,
    its part of a public data set. `sides` and `numbers` are of the one label owner's rows, where it told them; of other
    rows they change nothing, and the label owner sees that these are others. `rows` is how many train, where it was
    told."""
    name = own.name
    if table is None:
        whole = from_dataset(own.settings)
        if name not in whole.columns:
            raise ConfigError(f"{name!r} holds no columns of this data set; there are {', '.join(whole.columns)}.")
        owners = {k: replace(held, labels=NOBODY) for k, held in whole.label_owners.items()}
        part = replace(whole, columns={name: whole.columns[name]}, label_owners=owners)
    else:
        divided = None
        if sides and len(ids) == 1:
            ((owner, known),) = ids.items()
            if (understood := heard(sides, known)) is not None:
                ids, divided = {owner: understood[0]}, understood[1]
        part = place(own.settings, ids, divided)
        if numbers is not None and len(ids) == 1:
            (held,) = part.label_owners.values()
            if numbers.dtype != torch.int64 or tuple(numbers.shape) != (len(held.ids),) or bool((numbers < 0).any()):
                raise DataError(f"'{name}' was told numbers of other rows than the {len(held.ids)} that it shares.")
            held.numbers = numbers.cpu()
        part = replace(part, columns={name: columns_of(own.settings, name, table, part)})
    return replace(part, outputs_elsewhere=outputs, trained=rows)


def own_labels(own: SiteConfig, table: Table | None, encoder: Labels | None, salt: str = "") -> Holdings:
    """Of a label owner: its rows, and the columns that it has beside its labels. Several agree on an `encoder`; one
    draws its split with a `salt` of its own."""
    name = own.name
    if table is None:
        whole = from_dataset(own.settings)
        mine = {name: whole.columns[name]} if name in whole.columns else {}
        held = whole.label_owners[name]
        if held.rows is not None:  # of all rows it knows its own alone
            held = replace(held, rows=torch.arange(len(held.ids)))
        return replace(whole, columns=mine, label_owners={name: held}, ids=held.ids, known_to=1)
    exact = replace(own.local, data=replace(own.settings.data, align="exact"))
    return from_tables(exact, {name: table}, {name: table}, salt=salt, encoder=encoder)


class OwnRows:
    """An organisation's table, read once, and again when its file has changed; one that cannot be read, such as one
    that is half-written, changes nothing."""

    def __init__(self, own: SiteConfig) -> None:
        self.own, self._seen, self._fitted = own, written(own), State()
        self._rows: tuple[Ids, Prepare] | None = None

    def now(self, fitted: State) -> tuple[Ids, Prepare]:
        """The ids, and the columns of some of them, prepared as in training."""
        seen = written(self.own)
        if self._rows is None or fitted != self._fitted:
            self._rows = rows_of(self.own, fitted)
        elif seen != self._seen:
            try:
                self._rows = rows_of(self.own, fitted)
            except InputError as error:
                kind = type(error).__name__
                log.warning("%s: its table changed and cannot be read (%s); the old rows stay", self.own.name, kind)
        self._seen, self._fitted = seen, fitted
        return self._rows


def written(own: SiteConfig) -> tuple[tuple[int, int], ...] | None:
    """When an organisation's tables were written, and their sizes; None where it has none."""
    party = own.settings.parties.get(own.name)
    if party is None or party.table is None:
        return None
    try:
        about = [Path(one).stat() for one in (party.table, *(str(more["table"]) for more in party.tables.values()))]
    except OSError:
        return None
    return tuple((one.st_mtime_ns, one.st_size) for one in about)


def rows_of(own: SiteConfig, fitted: State) -> tuple[Ids, Prepare]:
    """The ids in an organisation's table as it is now, and its columns of some of them, prepared as in training."""
    from colonnade.datasets.preprocess import Preprocessor

    if own.settings.data.dataset is not None:
        whole = from_dataset(own.settings)
        index, features = {one: at for at, one in enumerate(whole.ids.tolist())}, whole.columns[own.name].features
        return whole.ids, lambda ids: features[[index[one] for one in ids.tolist()]]
    prepared = Preprocessor.from_state(fitted["columns"])
    names = tuple(column["name"] for column in fitted["columns"]["columns"])
    brings = replace(own.settings.parties[own.name], label=None, columns=names)
    table = read_own(replace(own.settings, parties={own.name: brings}), own.name)
    return table.ids, lambda ids: prepared.transform(table.in_order(ids))


def has_columns(own: SiteConfig, fitted: State) -> bool:
    """Whether a label owner that asks brings columns itself."""
    if own.settings.data.dataset is None:
        return "columns" in fitted
    return own.name in from_dataset(own.settings).columns


def digests_of(own: SiteConfig, ids: NDArray[Any]) -> list[bytes]:
    """Of ids, keyed with the agreed file's fingerprint."""
    key = own.agreed.encode()
    return [hashlib.blake2b(one.encode(), key=key, digest_size=DIGEST).digest() for one in ids.tolist()]
