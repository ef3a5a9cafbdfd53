"""From tables to holdings: which rows are common, how they are divided, and what becomes of columns and labels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.alignment.ids import ids_of, matched_names, renamed, shared
from colonnade.alignment.settings import in_words
from colonnade.datasets.preprocess import Labels, Preprocessor
from colonnade.datasets.progress import watched
from colonnade.datasets.table import Table, align, how_written, packed
from colonnade.errors import DataError
from colonnade.rows.holdings import Columns, Crossed, Holdings, Ids, State, labelled_rows, own_names
from colonnade.rows.splits import by_time, check_sides, completed, divide, listed_sides, named_sides
from colonnade.rows.tables import written_ids
from colonnade.settings.federation_file import Settings, prepared_as
from colonnade.settings.rules import LABELS


def from_tables(
    settings: Settings,
    columns: Mapping[str, Table],
    labelled: Mapping[str, Table] | None = None,
    *,
    salt: str = "",
    encoder: Labels | None = None,
    fitted: Mapping[str, State] | None = None,
) -> Holdings:
    """Each label owner aligns itself with all who hold columns and divides its rows; they agree on classes, unless they
    did and have an `encoder`; and each party prepares its own columns on its own training rows.

    `columns` are in party order. Where no other tables are `labelled`, the one with a label is the label owner's, and
    its other columns are a party's too. With a `salt` the one label owner alone can work out how its rows are divided
    (`rows.splits`); those of several are divided by id alone. What was `fitted` by an earlier run is not learned anew:
    its models know no other numbers.
    """
    import pandas as pd

    labelled = labelled or _the_one_labelled(settings, columns)
    found = _aligned(settings, columns, labelled)
    rows = found.rows
    task: Any = settings.data.task
    if settings.shared:
        placed = place(settings, {name: table.ids for name, table in rows.items()})
    else:
        placed, task = _placed(settings, found, salt)
    placed = replace(placed, away=found.lacked, matched=found.matched)
    if encoder is None:
        splits = {name: held.splits for name, held in placed.label_owners.items()}
        learned = [_label(table).iloc[splits[name]["train"].numpy()] for name, table in rows.items()]
        encoder = Labels.fit(pd.concat(learned, ignore_index=True), owner=", ".join(rows), task=task)
    owners = {}
    for name, one in placed.label_owners.items():
        labels = replace(encoder, owner=name).encode(_label(rows[name]))
        weights = _weights(rows[name], one.splits["train"])
        owners[name] = replace(one, labels=labels, own=rows[name].own, weights=weights)
    placed = replace(placed, encoder=encoder)
    known_columns = {name: state.get("columns") for name, state in (fitted or {}).items()}
    held = {
        name: own_columns(settings, name, table, placed, known_columns.get(name))
        for name, table in found.columns.items()
        if table.columns
    }
    return replace(placed, columns=held, label_owners=owners, aligned=found.crossed, earlier=bool(fitted))


def _the_one_labelled(settings: Settings, columns: Mapping[str, Table]) -> dict[str, Table]:
    """The table with labels, where one of those with columns has them."""
    owners = [name for name, table in columns.items() if table.label is not None]
    if len(owners) != 1:
        found = ", ".join(map(repr, owners)) or "none"
        raise DataError(f"Exactly one party must name its label column (label = ...); found {found}.")
    if settings.data.align == "exact" and not settings.rows_differ:
        align(columns)  # that all hold the same ids
    return {owners[0]: columns[owners[0]]}


@dataclass
class _Aligned:
    """Tables whose rows are called alike: of each label owner those that train, and of the others all columns."""

    rows: Mapping[str, Table]
    columns: Mapping[str, Table]
    crossed: Crossed
    is_told: bool = False  # whether a label owner must tell which rows these are: others cannot count them
    lacked: dict[str, Tensor] = field(default_factory=dict)  # by party, which of the rows it does not hold
    matched: dict[str, dict[str, int]] = field(default_factory=dict)  # by party, how many rows each key matched


def _aligned(settings: Settings, columns: Mapping[str, Table], labelled: Mapping[str, Table]) -> _Aligned:
    """Find the rows that parties have in common: all of them, or each with the label owner where rows differ."""
    crossed: Crossed = {}
    if settings.rows_differ:
        return _pairwise(settings, labelled, columns)
    if len(settings.keys) > 1 and len(columns) > 1:
        ((owner, table),) = labelled.items()
        tables = {**columns, owner: with_labels(table)}
        found, crossed = _found(settings, tables, owner)
        called = {name: matched_names(held, found[name]) for name, held in tables.items()}  # as all call rows
        return _Aligned({owner: shared(tables[owner], found[owner])}, called, crossed)
    common = {name: _common(settings, name, table, columns, crossed) for name, table in labelled.items()}
    some_lack_labels = any(len(common[name]) < len(table) for name, table in labelled.items())
    return _Aligned(common, columns, crossed, some_lack_labels)


def _placed(settings: Settings, found: _Aligned, salt: str) -> tuple[Holdings, str]:
    """The rows of the one label owner, divided as it alone may know, and whether its labels are classes or numbers."""
    ((owner, table),) = found.rows.items()
    task: Any = settings.data.task
    known = Labels.fit(_label(table), owner=owner, task=task)
    divided, is_told = _divided(settings, owner, table, known, salt)
    placed = place(settings, {owner: table.ids}, divided)
    is_told |= found.is_told
    one = replace(placed.label_owners[owner], salt=salt if is_told else "", is_told=is_told)
    return replace(placed, label_owners={owner: one}), known.task


def _divided(settings: Settings, owner: str, table: Table, known: Labels, salt: str) -> tuple[dict[str, Tensor], bool]:
    """How the one label owner divides its rows, and whether others must be told. Where its labels are drawn at random
    before they are used, sides do not follow them: that would tell more than its epsilon allows."""
    data, seed = settings.data, settings.engine.seed
    party = settings.parties.get(owner)
    drawn = party is not None and LABELS in party.outbox
    by_class = data.stratify and not drawn and known.task == "classification"
    strata = known.encode(_label(table)).numpy() if by_class else None
    sides = None
    if (cells := table.aside.get("split_by")) is not None:
        sides = named_sides(cells) if data.test_from is None else None
        if sides is None:
            return by_time(cells, data, owner), True
    elif party is not None and party.test_ids is not None:
        listed = settings.names_of(written_ids(Path(party.test_ids), settings.keys_at(owner), whose=f"'{owner}'"))
        sides = listed_sides(np.array(listed, dtype=np.str_), table.ids, owner)
    if sides is not None:
        return completed(sides, table.ids, data, seed, owner, strata, salt), True
    return divide(table.ids, data, seed, owner, strata=strata, salt=salt if by_class else ""), by_class


def place(settings: Settings, ids: Mapping[str, Ids], divided: Mapping[str, Tensor] | None = None) -> Holdings:
    """All rows, sorted by id: where those of each label owner are, and how it divides them. Nobody's data are in it.
    With one label owner its rows may be `divided` already, by who knows more than ids."""
    data, seed = settings.data, settings.engine.seed
    splits = {
        owner: divide(known, data, seed, owner, shared=settings.shared) if divided is None else dict(divided)
        for owner, known in ids.items()
    }
    every = np.unique(np.concatenate(list(ids.values())))
    at = {owner: torch.from_numpy(np.searchsorted(every, known)) for owner, known in ids.items()}
    check_sides(settings.data, splits, at, len(every))
    owners = {owner: labelled_rows(settings, owner, known, splits[owner], at[owner]) for owner, known in ids.items()}
    known_to = int(torch.bincount(torch.cat(list(at.values()))).max())
    return Holdings({}, owners, packed(every), Labels(", ".join(ids), "classification"), known_to, settings.server)


def own_columns(settings: Settings, name: str, table: Table, placed: Holdings, fitted: State | None = None) -> Columns:
    """One organisation's columns of all rows, prepared on the training rows of all label owners, or as was `fitted`."""
    train = placed.trained_rows
    if not settings.rows_differ or name in placed.label_owners:
        mine = table.in_order(placed.ids)
        prepared = _prepared(settings, name, mine, train, placed, fitted)
        columns = Columns(prepared.transform(mine), prepared, mine.own)
    else:
        lacks = placed.away.get(name, torch.zeros(len(placed.packed), dtype=torch.bool))
        columns = _some_columns(settings, name, table, placed, ~lacks, fitted)
    if settings.train.pretrain and columns.preprocessor is not None:
        mine, learned = _not_held_out(table, placed.ids, train)
        columns.every = columns.preprocessor.transform(mine.taking(learned.numpy()))
    return columns


def _not_held_out(table: Table, ids: Ids, train: Tensor) -> tuple[Table, Tensor]:
    """All rows of an owner in an order that follows from its own names, and which of them nobody holds out."""
    mine = table.taking(np.argsort(table.ids if table.own is None else table.own))
    out = np.delete(ids, train.numpy())
    return mine, torch.from_numpy((~np.isin(mine.ids, out)).nonzero()[0])


def _prepared(
    settings: Settings, name: str, table: Table, rows: Tensor, placed: Holdings, fitted: State | None
) -> Preprocessor:
    """How its columns become numbers: learned from these rows, unless it was `fitted` before."""
    if fitted is not None:
        return Preprocessor.from_state(fitted)
    return Preprocessor.fit(table, rows, **prepared_as(settings, name, placed.outputs))


def _some_columns(
    settings: Settings, name: str, table: Table, placed: Holdings, held: Tensor, fitted: State | None
) -> Columns:
    """The columns of who holds some of the rows only, zero in the others. They are prepared on all its own rows but
    those that are held out from training: few may be common, and nobody else is needed for it."""
    ids = placed.ids
    mine, learned = _not_held_out(table, ids, placed.trained_rows)
    prepared = _prepared(settings, name, mine, learned, placed, fitted)
    known = prepared.transform(mine)
    features = known.new_zeros(len(held), *known.shape[1:])  # nobody is asked for a row that it lacks
    rows, _ = mine.find(ids[held.numpy()])
    features[held] = known[torch.from_numpy(rows)]
    return Columns(features, prepared, None if mine.own is None else own_names(mine.own[rows], ids, held))


def in_common(settings: Settings, tables: Mapping[str, Table], driver: str) -> tuple[dict[str, Table], Crossed]:
    """Only the rows whose ids all parties hold, and what crossed to find them."""
    found, entries = _found(settings, tables, driver)
    return {name: shared(table, found[name]) for name, table in tables.items()}, entries


def _found(
    settings: Settings, tables: Mapping[str, Table], driver: str, *, may_be_none: bool = False
) -> tuple[dict[str, list[NDArray[np.int64]]], Crossed]:
    """Of each party the rows that all hold, by each key, which they find out without showing each other the rest; and
    what crossed for it. As long as ids and settings are the same, it is found once (`alignment.kept`)."""
    from colonnade.alignment import align_here, kept  # and no protocol where rows are found by their names

    settings.alignment.check_trains()
    ids = {name: ids_of(table) for name, table in tables.items()}
    through_bytes = settings.engine.through_bytes
    key, every = None, {}
    if len(settings.keys) == 1:
        every = {name: one for name, (one,) in ids.items()}
        key = kept.key_of(every, settings.alignment, driver, through_bytes=through_bytes)
    known = kept.look_up(key, every)
    if known is not None:
        rows, entries = known
        return {name: [rows[name]] for name in tables}, entries
    with watched(f"aligning {' and '.join(tables)}") as watch:
        aligned = align_here(ids, settings.alignment, driver=driver, through_bytes=through_bytes, watch=watch)
    if not aligned.found.common and not may_be_none:
        cure = how_written({name: frozenset(table.ids.tolist()) for name, table in tables.items()})
        raise DataError(
            f"No id is held by all parties, so there is no row to train on. {cure or 'Compare how ids are written.'}"
        )
    entries = {name: book.entries for name, book in aligned.ledgers.items()}
    kept.keep(key, aligned.rows, entries)
    return aligned.by_key, entries


def _common(settings: Settings, owner: str, table: Table, columns: Mapping[str, Table], crossed: Crossed) -> Table:
    """A label owner's rows that all who hold columns hold too, in the agreed order: sorted by id; without those that
    have no label. `crossed` grows by what crossed for it."""
    if settings.data.align == "private":
        others = {name: held for name, held in columns.items() if name != owner}
        table = with_labels(table)  # first: nobody need know of the others
        if owner in columns:  # its own tables it compares by itself
            table = table.in_order(np.intersect1d(table.ids, columns[owner].ids))
        if others:
            in_party_order = {name: table if name == owner else held for name, held in columns.items()}
            common, entries = in_common(settings, {owner: table} | in_party_order, owner)
            table = common[owner]
            _add(crossed, entries)
        if not len(table):
            raise DataError(f"'{owner}' has no id in common with its own columns. Compare how its ids are written.")
    table = with_labels(table)
    return table.in_order(np.sort(table.ids))


def with_labels(table: Table) -> Table:
    """The rows that have a label; how many have none is said."""
    found = table.labelled()
    if not len(found):
        raise DataError(f"'{table.owner}' has no label in any of its {len(table):,} rows. Check the label column.")
    if len(found) < len(table):
        warnings.warn(
            f"'{table.owner}' has {len(table) - len(found):,} rows without a label in {str(_label(table).name)!r}, of "
            f"{len(table):,}. They are left out.",
            stacklevel=2,
        )
    return found


def _pairwise(settings: Settings, labelled: Mapping[str, Table], columns: Mapping[str, Table]) -> _Aligned:
    """All rows of the label owner in the order of their ids, and columns with rows called as the label owner does. Each
    partner is compared with the label owner alone, and nobody learns what another partner holds. Rows of which nobody
    holds a column are left out."""
    ((owner, table),) = labelled.items()
    table = with_labels(table)  # first: nobody need know of the others
    if owner in columns:
        table = table.in_order(np.intersect1d(table.ids, columns[owner].ids))
    held, crossed = dict[str, Ids](), Crossed()
    called, matched = dict(columns), {}
    for name, other in columns.items():
        if name == owner:
            continue
        if settings.data.align == "private":
            found, entries = _found(settings, {owner: table, name: other}, owner, may_be_none=True)
            held[name] = table.ids[np.concatenate(found[owner])]
            if other.keys:
                called[name] = renamed(other, np.concatenate(found[name]), held[name])
                matched[name] = by_key(settings, found[name])
            _add(crossed, entries)
        else:
            held[name] = np.intersect1d(table.ids, other.ids)
    by_itself = not held or (owner in columns and bool(columns[owner].columns))
    ids = table.ids if by_itself else np.concatenate(list(held.values()))
    if not len(ids):
        raise DataError(f"No row of '{owner}' is held by anybody with columns. Compare how ids are written.")
    table = table.in_order(np.unique(ids))
    lacks = {name: torch.from_numpy(~np.isin(table.ids, known)) for name, known in held.items()}
    lacked = {name: mask for name, mask in lacks.items() if bool(mask.any())}
    return _Aligned({owner: table}, called, crossed, True, lacked, matched)


def _add(crossed: Crossed, entries: Crossed) -> None:
    for party, noted in entries.items():
        crossed.setdefault(party, []).extend(noted)


def by_key(settings: Settings, found: Sequence[NDArray[np.int64]]) -> dict[str, int]:
    """How many rows each key matched."""
    return {in_words(key): len(rows) for key, rows in zip(settings.keys, found, strict=True)}


def _label(table: Table) -> Any:
    assert table.label is not None
    return table.label


def _weights(table: Table, train: Tensor) -> Tensor | None:
    """How much each row counts, where a column of the label owner says so; checked."""
    import pandas as pd

    if (cells := table.aside.get("weights")) is None:
        return None
    numbers = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = ~(np.isfinite(numbers) & (numbers >= 0))
    if bad.any():
        raise DataError(
            f"'{table.owner}' has {int(bad.sum())} rows whose weight in {str(cells.name)!r} is no number of 0 or more: "
            "a gap, text, negative or infinite. Fill the cells; 0 leaves a row out of the loss."
        )
    if not numbers[train.numpy()].any():
        raise DataError(f"'{table.owner}' has no training row with a weight above 0 in {str(cells.name)!r}.")
    return torch.tensor(numbers)  # a copy: pandas lends its own to be read only
