"""Cutting one data set into the parts of several parties, and rows into training,
validation and test.

Vertical splits cut columns or pixels, never rows. Each part is a copy: no party's
tensor carries another party's values in its storage. Put together again, the parts give
back the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.batches import shuffled
from colonnade.datasets.table_files import check_present, listing
from colonnade.errors import ConfigError
from colonnade.first_use import pandas as pd


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers in rising order: disjoint, and together all rows."""

    train: Tensor
    validation: Tensor
    test: Tensor


def party_names(parts: int) -> list[str]:
    """client_01, client_02, ...; with enough digits that the names sort in party order."""
    digits = max(2, len(str(parts)))
    return [f"client_{at:0{digits}d}" for at in range(1, parts + 1)]


def by_names(
    frame: pd.DataFrame, parties: Mapping[str, Sequence[str]]
) -> dict[str, pd.DataFrame]:
    """Give each party the columns named for it; columns nobody is given are left out."""
    counts = Counter(name for columns in parties.values() for name in columns)
    shared = [name for name, count in counts.items() if count > 1]
    if shared:
        raise ConfigError(
            f"A column goes to one party, and {listing(shared)} is given more than"
            " once. Give it to one."
        )
    for party, columns in parties.items():
        if not columns:
            raise ConfigError(
                f"'{party}' is given no columns. Give it one, or leave the party out."
            )
        check_present(
            columns,
            [str(name) for name in frame.columns],
            owner=party,
            part="column in this split",
        )
    return {party: frame[list(columns)].copy() for party, columns in parties.items()}


def even_columns(width: int, parts: int) -> list[range]:
    """The numbers 0 to width - 1 in `parts` runs whose lengths differ by at most one,
    the longer ones first."""
    if not 1 <= parts <= width:
        raise ConfigError(
            f"{width} columns or pixels cannot be split into {parts} parts: ask for 1"
            f" to {width}."
        )
    small, longer = divmod(width, parts)
    starts = [at * small + min(at, longer) for at in range(parts + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def column_runs(width: int, parts: int | Sequence[int]) -> list[range]:
    """Runs of neighbouring columns: so many even ones, or of the widths listed, which
    must add up to all columns."""
    if isinstance(parts, int):
        return even_columns(width, parts)
    fit = all(
        isinstance(part, int) and not isinstance(part, bool) and part >= 1
        for part in parts
    )
    if not fit or sum(parts) != width:
        raise ConfigError(
            f"Widths of parts are whole numbers, 1 or more, that add up to all {width}"
            " columns; found"
            f" {list(parts)}{f', which are {sum(parts)}' if fit else ''}."
        )
    return [range(start, end) for start, end in pairwise([0, *accumulate(parts)])]


def column_blocks(
    x: Tensor | NDArray[Any], parts: int | Sequence[int]
) -> dict[str, Tensor]:
    """A matrix [N, width] in even runs of neighbouring columns, or in runs of the
    widths listed."""
    matrix = _tensor(x, (2,), "a matrix [N, columns]")
    runs = column_runs(matrix.shape[1], parts)
    return _named([matrix[:, run.start : run.stop] for run in runs])


def image_strips(x: Tensor | NDArray[Any], parts: int) -> dict[str, Tensor]:
    """Images [N, H, W] or [N, C, H, W] in horizontal strips, the top one first: MNIST
    in 14 strips of 2 rows."""
    images = _tensor(x, (3, 4), "images [N, H, W] or [N, C, H, W]")
    return _named(
        [
            images[..., run.start : run.stop, :]
            for run in even_columns(images.shape[-2], parts)
        ]
    )


def image_patches(
    x: Tensor | NDArray[Any],
    grid: tuple[int, int],
    *,
    size: int | None = None,
    pad: bool = False,
) -> dict[str, Tensor]:
    """Images [N, H, W] or [N, C, H, W] in a grid of (rows, columns) patches, row by row
    from the top left.

    32 pixels in 3 parts are 11, 11 and 10. With `pad`, zeros below and on the right
    make all patches equally large. With a `size`, patches of so many pixels a side are
    spread evenly and may overlap: 16 of 32 start at 0, 8 and 16.
    """
    images = _tensor(x, (3, 4), "images [N, H, W] or [N, C, H, W]")
    tall, wide = (
        _spread(pixels, parts, size)
        for pixels, parts in zip(images.shape[-2:], grid, strict=True)
    )
    patches = [
        images[..., r.start : r.stop, c.start : c.stop] for r in tall for c in wide
    ]
    if pad:
        height = len(tall[0])
        width = len(wide[0])
        missing = [
            (0, width - patch.shape[-1], 0, height - patch.shape[-2])
            for patch in patches
        ]
        patches = [
            torch.nn.functional.pad(patch, sides)
            for patch, sides in zip(patches, missing, strict=True)
        ]
    return _named(patches)


def _spread(pixels: int, parts: int, size: int | None) -> list[range]:
    """The pixel rows, or columns, of each row or column of patches."""
    if size is None:
        return even_columns(pixels, parts)
    if not 1 <= size <= pixels or parts < 1:
        raise ConfigError(
            f"A patch of {size} pixels, {parts} times, does not fit into {pixels}"
            " pixels."
        )
    starts = [round(at * (pixels - size) / max(parts - 1, 1)) for at in range(parts)]
    return [range(start, start + size) for start in starts]


def views(x: Tensor | NDArray[Any]) -> dict[str, Tensor]:
    """Voxels [N, D, H, W] as three parties see them: the maximum along depth, along
    height, and along width."""
    voxels = _tensor(x, (4,), "voxels [N, D, H, W]")
    return _named([voxels.amax(dim=axis) for axis in (1, 2, 3)])


def picture_views(x: Tensor | NDArray[Any], parts: int) -> dict[str, Tensor]:
    """Pictures of objects from V sides [N, V, ...], a view to each party, spread evenly
    over the sides from the first: four of twelve are the 1st, 4th, 7th and 10th."""
    pictures = torch.as_tensor(x)
    if pictures.ndim < 3:
        raise ConfigError(
            "This split needs views [N, V, ...], and was given shape"
            f" {list(pictures.shape)}."
        )
    sides = pictures.shape[1]
    if not 1 <= parts <= sides:
        raise ConfigError(
            f"{sides} views cannot be given to {parts} parties: ask for 1 to {sides}."
        )
    return _named([pictures[:, at * sides // parts] for at in range(parts)])


def train_validation_test(
    rows: int, *, validation: float, test: float, seed: int
) -> Split:
    """A random split, the same for the same seed. A float is a fraction of the rows, an
    int a number of rows."""
    if rows < 1:
        raise ConfigError(
            f"There are {rows} rows to split, and at least one is needed."
        )
    sizes = {
        name: _size(share, rows, name)
        for name, share in (("validation", validation), ("test", test))
    }
    held_out = sum(sizes.values())
    if held_out >= rows:
        raise ConfigError(
            f"validation={validation} and test={test} take {held_out} of {rows} rows"
            " and leave none for training. Make them smaller."
        )
    order = shuffled(torch.arange(rows), torch.Generator().manual_seed(seed))
    part = torch.zeros(rows, dtype=torch.uint8)
    part[order[rows - held_out :]] = 1
    part[order[rows - sizes["test"] :]] = 2
    return Split(*((part == number).nonzero()[:, 0] for number in range(3)))


def _size(share: float, rows: int, name: str) -> int:
    if (
        isinstance(share, bool)
        or share < 0
        or (isinstance(share, float) and not share < 1)
    ):
        raise ConfigError(
            f"{name} is {share}, and it must be a fraction from 0 up to, but not"
            " including, 1, or a number of rows."
        )
    size = round(share * rows) if isinstance(share, float) else share
    if share > 0 and size == 0:
        raise ConfigError(
            f"{name}={share} of {rows} rows is no row at all. Use a larger fraction, or"
            " 0 for none."
        )
    return size


def _tensor(x: Tensor | NDArray[Any], dims: tuple[int, ...], expected: str) -> Tensor:
    tensor = torch.as_tensor(x)
    if tensor.ndim not in dims:
        raise ConfigError(
            f"This split needs {expected}, and was given shape {list(tensor.shape)}."
            " Reshape it first."
        )
    return tensor


def _named(parts: Sequence[Tensor]) -> dict[str, Tensor]:
    copies = [part.clone(memory_format=torch.contiguous_format) for part in parts]
    return dict(zip(party_names(len(parts)), copies, strict=True))
