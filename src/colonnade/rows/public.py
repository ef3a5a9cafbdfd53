"""Named public data sets: their columns cut into parties, their training rows dealt to
label owners."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade import datasets
from colonnade.core.batches import seed_for
from colonnade.datasets.preprocess import Labels, Preprocessor
from colonnade.datasets.table import Table, packed
from colonnade.errors import ConfigError
from colonnade.rows.holdings import Columns, Holdings, labelled_rows
from colonnade.rows.making import divide
from colonnade.rows.prepared import prepared_as
from colonnade.settings.federation_file import Settings
from colonnade.settings.sections import DataSettings, known_classes


def from_dataset(settings: Settings) -> Holdings:
    """All parties of a named data set, each row with one label owner. Official test
    rows stay test rows. Several label owners are dealt them evenly, with all classes,
    so that the loss and accuracy weighted by rows are those on all of them; AUC,
    precision, recall and F1 are means of the owners' scores."""
    data = settings.data
    seed = settings.engine.seed
    source = datasets.load(str(data.dataset))
    official = 0 if source.test is None else len(source.test)
    y = torch.from_numpy(
        np.concatenate(
            [part.y for part in (source.train, source.test) if part is not None]
        )
    )
    own = {data.labels_at: torch.arange(len(source.train))}
    tests: tuple[Tensor, ...] = (torch.arange(len(source.train), len(y)),)
    if settings.label_owners:
        random = torch.Generator().manual_seed(seed_for(seed, "dealt"))
        own = deal(settings, y[: len(source.train)], source.classes, random)
        tests = (
            torch.randperm(official, generator=random) + len(source.train)
        ).tensor_split(len(own))
    every = torch.cat([*own.values(), *tests]).sort().values
    owners = {}
    train = []
    for (name, mine), test in zip(own.items(), tests, strict=True):
        ids = mine.numpy().astype(np.str_)
        cut_by = data.changed(test=0.0) if official else data
        splits = divide(ids, cut_by, seed, name, shared=settings.shared)
        train.append(mine[splits["train"]])
        if official:
            splits["test"] = torch.arange(len(mine), len(mine) + len(test))
        rows = torch.cat([mine, test])
        at = torch.searchsorted(every, rows)
        labels = y[rows].to(torch.int64)
        owners[name] = labelled_rows(
            settings, name, rows.numpy().astype(np.str_), splits, at, labels
        )
    columns = cut(source, settings, torch.cat(train))
    if len(every) < len(y):
        columns = {
            name: dataclasses.replace(held, features=held.features[every])
            for name, held in columns.items()
        }
    encoder = Labels(", ".join(own), "classification", source.classes)
    if data.positive is not None:
        encoder = encoder.with_positive(data.positive)
    elif len(source.classes) == 2:
        labels = y[torch.cat(train)]
        commonest = source.classes[int(2 * labels.sum() > len(labels))]
        encoder = encoder.with_rarer_positive([(commonest, len(labels))])
    return Holdings(
        columns,
        owners,
        packed(every.numpy().astype(np.str_)),
        encoder,
        server=settings.server,
    )


def deal(
    settings: Settings, y: Tensor, classes: tuple[Any, ...], random: torch.Generator
) -> dict[str, Tensor]:
    """Choose the training rows of a data set that each label owner gets: its classes in
    the proportions they have in the data set. Those who want certain classes choose
    first; whoever is then short of a class gets more of its others.
    """
    owners = settings.label_owners
    free = torch.ones(len(y), dtype=torch.bool)
    dealt: dict[str, Tensor] = {}
    for name in sorted(owners, key=lambda owner: owners[owner].classes is None):
        wanted = sorted(known_classes(name, owners[name], classes))
        left = {label: (free & (y == label)).nonzero()[:, 0] for label in wanted}
        held = sum(map(len, left.values()))
        count = owners[name].rows or len(y) // len(owners)
        if count > held:
            raise ConfigError(
                f"[[label_owners]] {name!r} is to get {count} rows, and {held} of its"
                f" classes are left of {len(y)}. Set rows to fewer, there or at others."
            )
        sizes = [int((y == label).sum()) for label in wanted]
        shares = _in_proportion(count, sizes, [len(rows) for rows in left.values()])
        drawn = [
            rows[torch.randperm(len(rows), generator=random)[:share]]
            for rows, share in zip(left.values(), shares, strict=True)
        ]
        dealt[name] = torch.cat(drawn).sort().values
        free[dealt[name]] = False
    return {name: dealt[name] for name in owners}


def _in_proportion(count: int, sizes: list[int], most: list[int]) -> list[int]:
    """Split `count` into whole numbers as `sizes` are, none above its `most`; what one
    lacks the others give."""
    exact = [0.0] * len(sizes)
    open_ = set(range(len(sizes)))
    while open_:
        wanted = count - sum(most[at] for at in range(len(sizes)) if at not in open_)
        weight = sum(sizes[at] for at in open_)
        for at in open_:
            exact[at] = wanted * sizes[at] / weight
        full = {at for at in open_ if exact[at] > most[at]}
        for at in full:
            exact[at] = most[at]
        if not full:
            break
        open_ -= full
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda at: shares[at] - exact[at])
    for at in by_remainder[: count - sum(shares)]:
        shares[at] += 1
    return shares


def cut(
    source: datasets.Dataset, settings: Settings, train: Tensor
) -> dict[str, Columns]:
    """Divide the columns of all rows, the official test rows last, and prepare them on
    the training rows."""
    return (_cut_table if source.kind == "tabular" else _cut_array)(
        source, settings, train
    )


def _cut_table(
    source: datasets.Dataset, settings: Settings, train: Tensor
) -> dict[str, Columns]:
    """Divide columns as the parties' settings name them, or else into runs; each party
    prepares its own."""
    import pandas as pd

    frame = pd.concat(
        [part.frame() for part in (source.train, source.test) if part is not None],
        ignore_index=True,
    )
    given = {
        name: list(party.columns)
        for name, party in settings.parties.items()
        if party.columns
    }
    if not given:
        runs = datasets.column_runs(frame.shape[1], settings.data.parts)
        names = datasets.party_names(len(runs))
        given = {
            name: [str(frame.columns[c]) for c in run]
            for name, run in zip(names, runs, strict=True)
        }
    ids = np.arange(len(frame)).astype(np.str_)
    parties = {}
    for name, part in datasets.by_names(frame, given).items():
        table = Table(name, packed(ids), part)
        preprocessor = Preprocessor.fit(
            table, train, **prepared_as(settings, name, len(source.classes))
        )
        parties[name] = Columns(preprocessor.transform(table), preprocessor)
    return parties


def _cut_array(
    source: datasets.Dataset, settings: Settings, train: Tensor
) -> dict[str, Columns]:
    """Pictures, voxels and points, scaled by the public set's own mean and deviation,
    then cut; features as published. Views are cut first and scaled one by one, so that
    those nobody is given cost no memory as floats."""
    data = settings.data
    whole = _whole(source)
    if source.kind == "views" and data.split == "views":
        seen = datasets.picture_views(whole, _count(data))
        return {name: Columns(_scaled(view, train)) for name, view in seen.items()}
    by_channel = whole.dim() == 4 or source.kind == "points"
    x = (
        whole.to(torch.float32)
        if source.kind == "features"
        else _scaled(whole, train, by_channel)
    )
    match data.split:
        case "columns":
            parts = datasets.column_blocks(x.flatten(1), data.parts)
        case "strips":
            parts = datasets.image_strips(x, _count(data))
        case "patches":
            grid = (
                data.parts
                if isinstance(data.parts, tuple)
                else (data.parts, data.parts)
            )
            if len(grid) != 2:
                raise ConfigError(
                    "[data] parts must be [rows, columns] for patches; found"
                    f" {list(grid)}."
                )
            parts = datasets.image_patches(
                x, (grid[0], grid[1]), size=data.patch, pad=True
            )
        case _:
            parts = datasets.views(x)
    return {name: Columns(features) for name, features in parts.items()}


def _whole(source: datasets.Dataset) -> Tensor:
    """All rows, the official test rows last; colours before height and width."""
    x = torch.from_numpy(
        np.concatenate(
            [part.array() for part in (source.train, source.test) if part is not None]
        )
    )
    return (
        x.permute(0, 3, 1, 2)
        if source.kind == "image" and x.dim() == 4 and x.shape[-1] in (1, 3)
        else x
    )


def _scaled(whole: Tensor, train: Tensor, by_channel: bool = False) -> Tensor:
    x = whole.to(torch.float32)
    axes = [axis for axis in range(x.dim()) if axis != 1] if by_channel else None
    seen = x[train]
    mean = seen.mean() if axes is None else seen.mean(axes, keepdim=True)
    deviation = seen.std() if axes is None else seen.std(axes, keepdim=True)
    return (x - mean) / deviation.clamp_min(1e-8)


def _count(data: DataSettings) -> int:
    if not isinstance(data.parts, int):
        raise ConfigError(
            f"[data] parts must be a whole number for {data.split}; found"
            f" {list(data.parts)}."
        )
    return data.parts
