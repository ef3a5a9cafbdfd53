"""NUS-WIDE from its owner's files: photographs as 634 low-level features and 1000 tags,
in five classes.

The files are the public ones, whatever separates their numbers (the features by spaces,
the tags by tabs):

    Low_Level_Features/Train_Normalized_CH.dat      and CM55, CORR, EDH, WT; a photograph per line
    NUS_WID_Tags/Train_Tags1k.dat                   0 or 1 for each tag
    Groundtruth/TrainTestLabels/Labels_grass_Train.txt      whether the photograph shows the concept

and the same for Test. A photograph may show several of NUS-WIDE's 81 concepts, or none.
As is usual in work on vertical federated learning, the classes are the five concepts
below and only photographs with exactly one of them are kept: of the training files the
first 60,000, of the test files the first 10,000, or all where there are fewer. The VIM
paper gives these numbers and not its rule; public code for these five concepts takes
the first ones.

The columns are CH (1-64), CM55 (65-289), CORR (290-433), EDH (434-506), WT (507-634),
tags (635-1634), as float32. The publishers have normalised the features; nothing is
scaled here.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from colonnade.datasets.dataset import Parts, Rows
from colonnade.datasets.progress import progress
from colonnade.errors import DataError

CONCEPTS = ("buildings", "grass", "animal", "water", "person")
FEATURES = {"CH": 64, "CM55": 225, "CORR": 144, "EDH": 73, "WT": 128}
TAGS = 1000
WIDTH = sum(FEATURES.values()) + TAGS
ROWS = {"Train": 60_000, "Test": 10_000}

NUS_WIDE_FILES = tuple(
    file
    for part in ROWS
    for file in (
        *(
            f"Low_Level_Features/{part}_Normalized_{feature}.dat"
            for feature in FEATURES
        ),
        f"NUS_WID_Tags/{part}_Tags1k.dat",
        *(
            f"Groundtruth/TrainTestLabels/Labels_{concept}_{part}.txt"
            for concept in CONCEPTS
        ),
    )
)
NUS_WIDE_SUPPLY = (
    "Low_Level_Features/{Train,Test}_Normalized_{CH,CM55,CORR,EDH,WT}.dat,"
    " NUS_WID_Tags/{Train,Test}_Tags1k.dat and "
    "Groundtruth/TrainTestLabels/Labels_{buildings,grass,animal,water,person}_{Train,Test}.txt"
)


def read_nus_wide(paths: Sequence[Path]) -> Parts:
    """Read the data set from the paths of `NUS_WIDE_FILES`, in this order."""
    half = len(NUS_WIDE_FILES) // 2
    with progress("NUS-WIDE", 2 * (len(FEATURES) + 1), unit="items") as advance:
        train = _rows(paths[:half], ROWS["Train"], advance)
        test = _rows(paths[half:], ROWS["Test"], advance)
    return train, test


def _rows(paths: Sequence[Path], limit: int, advance: Callable[[int], None]) -> Rows:
    features = paths[: len(FEATURES) + 1]
    concepts = paths[len(FEATURES) + 1 :]
    shown = _concepts(concepts)
    chosen = np.flatnonzero(shown.sum(axis=0) == 1)[:limit]
    if not len(chosen):
        raise DataError(
            f"Data set 'nus_wide' in {concepts[0].parent} has no photograph that shows"
            f" exactly one of {', '.join(CONCEPTS)}. Supply the publisher's files."
        )
    x = np.empty((len(chosen), WIDTH), dtype=np.float32)
    start = 0
    for path, width in zip(features, (*FEATURES.values(), TAGS), strict=True):
        x[:, start : start + width] = _matrix(path, width, chosen, shown.shape[1])
        start += width
        advance(1)
    tags = x[:, -TAGS:]
    if not ((tags == 0) | (tags == 1)).all():
        raise DataError(
            f"Data set 'nus_wide': {features[-1]} must hold 0 or 1 for each tag, and"
            " holds other numbers."
        )
    return Rows(x, shown[:, chosen].argmax(axis=0).astype(np.int64))


def _concepts(paths: Sequence[Path]) -> NDArray[np.int64]:
    """1 or 0 for each concept and photograph."""
    columns = []
    for path in paths:
        with _opened(path) as lines:
            words = np.array([word for line in lines if (word := line.strip())])
        if not np.isin(words, ("0", "1")).all():
            raise DataError(
                f"Data set 'nus_wide': {path} must hold 0 or 1 on each line, and holds"
                " something else."
            )
        columns.append(words.astype(np.int64))
        if len(columns[-1]) != len(columns[0]):
            raise DataError(
                f"Data set 'nus_wide': {path} has {len(columns[-1])} lines and"
                f" {paths[0].name} has {len(columns[0])}; every file of a part has one"
                " line for each photograph. Copy it from the publisher again."
            )
    return np.stack(columns)


def _matrix(
    path: Path, width: int, chosen: NDArray[np.int64], rows: int
) -> NDArray[np.float32]:
    """The numbers in the chosen lines; a file of 160,000 lines is never in memory as a
    whole."""
    wanted = np.zeros(rows, dtype=bool)
    wanted[chosen] = True
    count = 0

    def selected(lines: IO[str]) -> Iterator[str]:
        nonlocal count
        for line in lines:
            if not line.strip():
                continue
            count += 1
            if count <= rows and wanted[count - 1]:
                if (numbers := len(line.split())) != width:
                    raise DataError(
                        f"Data set 'nus_wide': line {count} of {path} has {numbers}"
                        f" numbers, and {width} were expected. Copy it from the"
                        " publisher again."
                    )
                yield line

    try:
        with _opened(path) as lines:
            values = np.loadtxt(
                selected(lines), dtype=np.float32, ndmin=2, comments=None
            )
    except ValueError:
        raise DataError(
            f"Data set 'nus_wide': {path} holds something that is no number. Copy it"
            " again."
        ) from None
    if count != rows:
        raise DataError(
            f"Data set 'nus_wide': {path} has {count} lines and the concepts' files"
            f" have {rows}; every file of a part has one line for each photograph. Copy"
            " it from the publisher again."
        )
    if not np.isfinite(values).all():
        raise DataError(
            f"Data set 'nus_wide': {path} holds numbers that are not finite. Copy it"
            " again."
        )
    return values


def _opened(path: Path) -> IO[str]:
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
