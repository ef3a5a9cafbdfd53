"""From tables to holdings: which rows are common; which train, validate and test; what
becomes of columns and labels.

Rows are divided by id: which side a row falls on follows from its id and the agreed
seed. So a row that two label owners know is on the same side at both, nobody is tested
on what another has trained with, and a row stays where it is when others are added.
(Numbers of rows in the place of shares do not always hold that where label owners have
rows in common, and are refused where they do not.)

By id and class, where one organisation holds the labels: every class is divided alike,
so that a rare one is on all sides, and in training whatever the seed. By a column of
the label owner's ([data] split_by), which names the side of each row or has a time; or
by a list of test ids ([data] test_ids).

Where sides follow from labels or a column, the label owner tells them to the others
(`sides`). Between sites their order is then drawn from a salt that it keeps to itself:
with an order that all know, a row beyond the others' border would show its class.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.alignment.ids import matched_names, shared
from colonnade.alignment.keys import row_names
from colonnade.datasets.preprocess import Labels, Preprocessor, commonest_class
from colonnade.datasets.table import Table, align, packed
from colonnade.errors import ConfigError, DataError
from colonnade.rows.holdings import (
    Columns,
    Crossed,
    Holdings,
    Ids,
    State,
    labelled_rows,
    own_names,
    written_ids,
)
from colonnade.rows.matching import Aligned, add_to, in_common, match, pairwise
from colonnade.rows.prepared import prepared_as
from colonnade.rows.sides import SIDES, by_time, listed_sides, named_sides
from colonnade.rows.target_scale import target_scale_of
from colonnade.settings.federation_file import Settings
from colonnade.settings.sections import LABELS, DataSettings

Whole = NDArray[np.int64]
SPLIT = 3
"""The version of this way, which a run keeps: 1 divided the rows of one label owner by
their position; 2 by id alone, which is `stratify = false` today."""


def from_tables(
    settings: Settings,
    columns: Mapping[str, Table],
    labelled: Mapping[str, Table] | None = None,
    *,
    salt: str = "",
    encoder: Labels | None = None,
    fitted: Mapping[str, State] | None = None,
) -> Holdings:
    """Each label owner aligns itself with all who hold columns and divides its rows;
    they agree on classes, unless they did and have an `encoder`; and each party
    prepares its own columns on its own training rows.

    `columns` are in party order. Where no other tables are `labelled`, the one with a
    label is the label owner's, and its other columns are a party's too. With a `salt`
    the one label owner alone can work out how its rows are divided; those of several
    are divided by id alone. What was `fitted` by an earlier run is not learned anew:
    its models know no other numbers.
    """
    labelled = labelled or the_one_labelled(settings, columns)
    common = aligned(settings, columns, labelled)
    rows = common.rows
    task: Any = settings.data.task
    if settings.shared:
        placed = place(settings, {name: table.ids for name, table in rows.items()})
    else:
        placed, task = _placed(settings, common, salt)
    placed = replace(placed, away=common.lacked, matched=common.matched)
    if encoder is None:
        encoder = _learned_labels(settings, rows, placed, task)
    owners = {}
    for name, mine in placed.label_owners.items():
        labels = replace(encoder, owner=name).encode(label_of(rows[name]))
        weights = _weights(rows[name], mine.splits["train"])
        owners[name] = replace(mine, labels=labels, own=rows[name].own, weights=weights)
    placed = replace(placed, encoder=encoder)
    known_columns = {
        name: state.get("columns") for name, state in (fitted or {}).items()
    }
    held = {
        name: own_columns(settings, name, table, placed, known_columns.get(name))
        for name, table in common.columns.items()
        if table.columns
    }
    return replace(
        placed,
        columns=held,
        label_owners=owners,
        aligned=common.crossed,
        earlier=bool(fitted),
    )


def _with_positive(
    settings: Settings, encoder: Labels, training_labels: Mapping[str, Any]
) -> Labels:
    """Choose the positive one of two classes: as [data] positive says, else the rarer
    one of the training rows.

    Labels that are drawn at random before they are used are not counted, since that
    would tell more of them than their epsilon allows. Then the positive class is the
    second in order.
    """
    if settings.data.positive is not None:
        return encoder.with_positive(settings.data.positive)
    commonest = [
        (commonest_class(labels), len(labels))
        for owner, labels in training_labels.items()
        if not draws_labels(settings, owner)
    ]
    return encoder.with_rarer_positive(commonest)


def draws_labels(settings: Settings, owner: str) -> bool:
    """Whether a label owner's rule draws its labels at random before they are used."""
    among_label_owners = settings.label_owners.get(owner)
    among_parties = settings.parties.get(owner)
    held = among_label_owners or among_parties
    return held is not None and LABELS in held.outbox


def _learned_labels(
    settings: Settings, rows: Mapping[str, Table], placed: Holdings, task: Any
) -> Labels:
    """What labels mean, by the training rows of all label owners; where nobody chose a
    log scale and they are trained on one, that is said."""
    import pandas as pd

    training = []
    start = 0
    for name, table in rows.items():
        training.append(start + placed.label_owners[name].splits["train"].numpy())
        start += len(table)
    scale = target_scale_of(settings)
    encoder = Labels.fit(
        pd.concat([label_of(table) for table in rows.values()], ignore_index=True),
        np.concatenate(training),
        owner=", ".join(rows),
        task=task,
        target_scale=scale,
    )
    if scale == "auto" and encoder.unit.is_log:
        (table,) = rows.values()
        warnings.warn(
            f"'{encoder.owner}' has a label {str(label_of(table).name)!r} above 0 with a"
            " long tail of large values, so its logarithm is trained on. Predictions and"
            " errors are in its own unit. A prediction is a usual value for such a row,"
            ' and sums of predictions are too low. Set target_scale = "linear" under'
            ' [data] to train the label as it is, or "log" to be told this no longer.',
            stacklevel=2,
        )
    learned = {
        name: label_of(table).iloc[placed.label_owners[name].splits["train"].numpy()]
        for name, table in rows.items()
    }
    return _with_positive(settings, encoder, learned)


def the_one_labelled(
    settings: Settings, columns: Mapping[str, Table]
) -> dict[str, Table]:
    """Find the table with labels among those with columns."""
    owners = [name for name, table in columns.items() if table.label is not None]
    if len(owners) != 1:
        named = ", ".join(map(repr, owners)) or "none"
        raise DataError(
            "Exactly one party must name its label column (label = ...); found"
            f" {named}."
        )
    if settings.data.align == "exact" and not settings.rows_differ:
        align(columns)  # that all hold the same ids
    return {owners[0]: columns[owners[0]]}


def aligned(
    settings: Settings, columns: Mapping[str, Table], labelled: Mapping[str, Table]
) -> Aligned:
    """Find the rows that parties have in common: all of them, or each with the label
    owner where rows differ."""
    crossed: Crossed = {}
    if settings.rows_differ:
        ((owner, table),) = labelled.items()
        # nobody need know of rows without a label
        return pairwise(settings, {owner: with_labels(table)}, columns)
    if len(settings.keys) > 1 and len(columns) > 1:
        ((owner, table),) = labelled.items()
        tables = {**columns, owner: with_labels(table)}
        rows, crossed = match(settings, tables, owner)
        # as all call rows
        called = {
            name: matched_names(held, rows[name]) for name, held in tables.items()
        }
        return Aligned({owner: shared(tables[owner], rows[owner])}, called, crossed)
    common = {
        name: _in_common_with(settings, name, table, columns, crossed)
        for name, table in labelled.items()
    }
    some_lack_labels = any(
        len(common[name]) < len(table) for name, table in labelled.items()
    )
    return Aligned(common, columns, crossed, some_lack_labels)


def _in_common_with(
    settings: Settings,
    owner: str,
    table: Table,
    columns: Mapping[str, Table],
    crossed: Crossed,
) -> Table:
    """Keep a label owner's rows that all who hold columns hold too and that have a
    label, in the agreed order: sorted by id. `crossed` grows by what crossed to find
    them."""
    if settings.data.align == "private":
        others = {name: held for name, held in columns.items() if name != owner}
        table = with_labels(table)  # first: nobody need know of the others
        if owner in columns:  # its own tables it compares by itself
            table = table.in_order(np.intersect1d(table.ids, columns[owner].ids))
        if others:
            in_party_order = {
                name: table if name == owner else held for name, held in columns.items()
            }
            common, entries = in_common(
                settings, {owner: table} | in_party_order, owner
            )
            table = common[owner]
            add_to(crossed, entries)
        if not len(table):
            raise DataError(
                f"'{owner}' has no id in common with its own columns. Compare how its"
                " ids are written."
            )
    table = with_labels(table)
    return table.in_order(np.sort(table.ids))


def with_labels(table: Table) -> Table:
    """Keep the rows that have a label, and say how many have none."""
    labelled = table.labelled()
    if not len(labelled):
        raise DataError(
            f"'{table.owner}' has no label in any of its {len(table):,} rows. Check the"
            " label column."
        )
    if len(labelled) < len(table):
        column = str(label_of(table).name)
        warnings.warn(
            f"'{table.owner}' has {len(table) - len(labelled):,} rows without a label"
            f" in {column!r}, of {len(table):,}. They are left out.",
            stacklevel=2,
        )
    return labelled


def label_of(table: Table) -> Any:
    assert table.label is not None
    return table.label


def _placed(settings: Settings, common: Aligned, salt: str) -> tuple[Holdings, str]:
    """Place and divide the rows of the one label owner, and tell whether its labels are
    classes or numbers."""
    ((owner, table),) = common.rows.items()
    task: Any = settings.data.task
    known = Labels.fit(label_of(table), owner=owner, task=task)
    divided, is_told = _divided(settings, owner, table, known, salt)
    placed = place(settings, {owner: table.ids}, divided)
    is_told |= common.is_told
    mine = replace(
        placed.label_owners[owner], salt=salt if is_told else "", is_told=is_told
    )
    return replace(placed, label_owners={owner: mine}), known.task


def _divided(
    settings: Settings, owner: str, table: Table, known: Labels, salt: str
) -> tuple[dict[str, Tensor], bool]:
    """Divide the rows of the one label owner, and tell whether others must be told how.
    Where its labels are drawn at random before they are used, sides do not follow them:
    that would tell more than its epsilon allows."""
    data = settings.data
    seed = settings.engine.seed
    party = settings.parties.get(owner)
    drawn = draws_labels(settings, owner)
    by_class = data.stratify and not drawn and known.task == "classification"
    strata = known.encode(label_of(table)).numpy() if by_class else None
    sides = None
    if (cells := table.aside.get("split_by")) is not None:
        sides = named_sides(cells) if data.test_from is None else None
        if sides is None:
            return _cut(*by_time(cells, data, owner), data, owner), True
    elif party is not None and party.test_ids is not None:
        listed = row_names(
            settings,
            written_ids(
                Path(party.test_ids), settings.keys_at(owner), whose=f"'{owner}'"
            ),
        )
        sides = listed_sides(np.array(listed, dtype=np.str_), table.ids, owner)
    if sides is not None:
        return completed(sides, table.ids, data, seed, owner, strata, salt), True
    return (
        divide(
            table.ids, data, seed, owner, strata=strata, salt=salt if by_class else ""
        ),
        by_class,
    )


def place(
    settings: Settings,
    ids: Mapping[str, Ids],
    divided: Mapping[str, Tensor] | None = None,
) -> Holdings:
    """Sort all rows by id, and say where those of each label owner are and how it
    divides them. Nobody's data are in it. The rows of the one label owner may be
    `divided` already, by who knows more than ids."""
    data = settings.data
    seed = settings.engine.seed
    splits = {
        owner: (
            divide(known, data, seed, owner, shared=settings.shared)
            if divided is None
            else dict(divided)
        )
        for owner, known in ids.items()
    }
    every = np.unique(np.concatenate(list(ids.values())))
    at = {
        owner: torch.from_numpy(np.searchsorted(every, known))
        for owner, known in ids.items()
    }
    check_sides(settings.data, splits, at, len(every))
    owners = {
        owner: labelled_rows(settings, owner, known, splits[owner], at[owner])
        for owner, known in ids.items()
    }
    known_to = int(torch.bincount(torch.cat(list(at.values()))).max())
    return Holdings(
        {},
        owners,
        packed(every),
        Labels(", ".join(ids), "classification"),
        known_to,
        settings.server,
    )


def divide(
    ids: Ids,
    data: DataSettings,
    seed: int,
    owner: str,
    *,
    shared: bool = False,
    strata: Whole | None = None,
    salt: str = "",
) -> dict[str, Tensor]:
    """Training, validation and test rows, by a number from 0 to 1 that the seed gives
    each id: the lowest are test rows, those above them validation rows, and so many of
    each as the settings say.

    Where rows may be `shared` by several label owners, a share means all ids whose
    number is below it: about so many, and the same side for a row at everybody. With
    `strata`, the class of each row, every class is divided alike."""
    digests = (
        hashlib.blake2b(f"{salt}{seed}/{name}".encode(), digest_size=8).digest()
        for name in ids.tolist()
    )
    place = np.frombuffer(b"".join(digests), dtype="<u8") / 2.0**64
    if strata is not None:
        place = _within(strata, place)

    def upto(share: float, start: int, above: float) -> int:
        """How many rows a share takes together with the `start` rows below it, which
        end `above`."""
        if share >= 1:
            return start + int(share)
        return (
            max(start, int((place < above + share).sum()))
            if shared
            else start + round(share * len(ids))
        )

    test = upto(data.test, 0, 0.0)
    held_out = upto(
        data.validation, test, test / len(ids) if data.test >= 1 else data.test
    )
    return _cut(np.argsort(place, kind="stable"), test, held_out, data, owner)


def _cut(
    order: Whole, test: int, held_out: int, data: DataSettings, owner: str
) -> dict[str, Tensor]:
    """Cut rows in this order: the first are test rows, and validation rows follow."""
    if held_out >= len(order):
        raise ConfigError(
            f"[data] validation = {data.validation} and test = {data.test} leave"
            f" '{owner}' none of its {len(order)} rows for training. Make them smaller."
        )
    rows = torch.from_numpy(order)
    cuts = {
        "train": rows[held_out:],
        "validation": rows[test:held_out],
        "test": rows[:test],
    }
    for name, share in (("validation", data.validation), ("test", data.test)):
        if share and not len(cuts[name]):
            raise ConfigError(
                f"[data] {name} = {share} of the {len(order)} rows of '{owner}' is no"
                " row at all. Use a larger share, or 0 for none."
            )
    return {name: side.sort().values for name, side in cuts.items() if len(side)}


def _within(strata: Whole, place: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give each row a place from 0 to 1 among those of its class, the last of which is
    a training row for certain."""
    order = np.lexsort((place, strata))
    _, start, count = np.unique(strata[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(start, count)
    within = (rank + 0.5) / np.repeat(count, count)
    within[start + count - 1] = 1.0
    places = np.empty(len(order))
    # of equals, those whose number is lower
    places[order] = within + place[order] * 1e-9
    return places


def completed(
    sides: Whole,
    ids: Ids,
    data: DataSettings,
    seed: int,
    owner: str,
    strata: Whole | None,
    salt: str,
) -> dict[str, Tensor]:
    """Complete the sides: where no row is for validation, some training rows are, as
    many as the settings say."""
    rows = {name: np.flatnonzero(sides == side) for side, name in enumerate(SIDES)}
    if not len(rows["train"]):
        raise DataError(
            f"'{owner}' has no training row left: all are validation or test rows. Mark"
            " some as train."
        )
    if not len(rows["validation"]) and data.validation:
        among = rows["train"]
        cut = divide(
            ids[among],
            data.changed(test=0.0),
            seed,
            owner,
            strata=None if strata is None else strata[among],
            salt=salt,
        )
        rows |= {name: among[cut[name].numpy()] for name in ("train", "validation")}
    return {
        name: torch.from_numpy(side_rows)
        for name, side_rows in rows.items()
        if len(side_rows)
    }


def check_sides(
    data: DataSettings,
    splits: Mapping[str, Mapping[str, Tensor]],
    at: Mapping[str, Tensor],
    rows: int,
) -> None:
    """Check that no row is on one side of the division at one label owner and on
    another at another."""
    least = torch.full((rows,), 4, dtype=torch.int8)
    most = torch.zeros(rows, dtype=torch.int8)
    for owner, divided in splits.items():
        for side, name in enumerate(SIDES, 1):
            if name in divided:
                mine = at[owner][divided[name]]
                least[mine], most[mine] = (
                    least[mine].clamp_max(side),
                    most[mine].clamp_min(side),
                )
    torn = most > least
    if bool(torn.any()):
        owners = " and ".join(
            f"'{owner}'" for owner in at if bool(torn[at[owner]].any())
        )
        raise ConfigError(
            f"[data] validation = {data.validation:g} and test = {data.test:g} count"
            f" rows, and {owners} would divide {int(torn.sum())} rows that they share"
            " differently: one would be tested on what another has trained with. Give"
            " shares instead of numbers, as in validation = 0.1 and test = 0.2."
        )


def own_columns(
    settings: Settings,
    name: str,
    table: Table,
    placed: Holdings,
    fitted: State | None = None,
) -> Columns:
    """Prepare one organisation's columns of all rows, on the training rows of all label
    owners or as was `fitted`."""
    train = placed.trained_rows
    if not settings.rows_differ or name in placed.label_owners:
        mine = table.in_order(
            placed.ids,
            'To train on common rows alone, set align = "private" under [data].',
        )
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
    """Order all rows of an owner by its own names, and tell which of them nobody holds
    out."""
    mine = table.taking(np.argsort(table.ids if table.own is None else table.own))
    out = np.delete(ids, train.numpy())
    return mine, torch.from_numpy((~np.isin(mine.ids, out)).nonzero()[0])


def _prepared(
    settings: Settings,
    name: str,
    table: Table,
    rows: Tensor,
    placed: Holdings,
    fitted: State | None,
) -> Preprocessor:
    """Learn from these rows how columns become numbers, unless it was `fitted` before."""
    if fitted is not None:
        return Preprocessor.from_state(fitted)
    return Preprocessor.fit(table, rows, **prepared_as(settings, name, placed.outputs))


def _some_columns(
    settings: Settings,
    name: str,
    table: Table,
    placed: Holdings,
    held: Tensor,
    fitted: State | None,
) -> Columns:
    """Prepare the columns of an owner that holds some of the rows only; they are zero
    in the others. It learns from all its own rows but those that are held out from
    training: few may be common, and nobody else is needed for it."""
    ids = placed.ids
    mine, learned = _not_held_out(table, ids, placed.trained_rows)
    prepared = _prepared(settings, name, mine, learned, placed, fitted)
    known = prepared.transform(mine)
    # nobody is asked for a row that it lacks
    features = known.new_zeros(len(held), *known.shape[1:])
    rows, _ = mine.find(ids[held.numpy()])
    features[held] = known[torch.from_numpy(rows)]
    return Columns(
        features,
        prepared,
        None if mine.own is None else own_names(mine.own[rows], ids, held),
    )


def _weights(table: Table, train: Tensor) -> Tensor | None:
    """Check how much each row counts, where a column of the label owner says so; None
    where all count alike."""
    import pandas as pd

    if (cells := table.aside.get("weights")) is None:
        return None
    numbers = pd.to_numeric(cells, errors="coerce").to_numpy(
        dtype=np.float64, na_value=np.nan
    )
    bad = ~(np.isfinite(numbers) & (numbers >= 0))
    if bad.any():
        raise DataError(
            f"'{table.owner}' has {int(bad.sum())} rows whose weight in"
            f" {str(cells.name)!r} is no number of 0 or more: a gap, text, negative or"
            " infinite. Fill the cells; 0 leaves a row out of the loss."
        )
    if not numbers[train.numpy()].any():
        raise DataError(
            f"'{table.owner}' has no training row with a weight above 0 in"
            f" {str(cells.name)!r}."
        )
    return torch.tensor(numbers)  # a copy: pandas lends its own to be read only
