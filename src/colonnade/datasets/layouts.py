"""Which files a named data set may lie in, and how they become rows.

Two families are understood, each in a folder of the data set's name:

- the public distribution's own files: MNIST's IDX files, CIFAR-10's binary archive,
  UCI's zip, .asc, .data or .csv files, the text files of the clustering suite and of
  the benchmark it took its points from, ModelNet10's meshes, and of those that users
  supply themselves NUS-WIDE's text files and ModelNet40's pictures;
- the compact layout: arrays as one npz file (mnist.npz, birch1.npz,
  modelnet10_voxel30.npz, with x_train, y_train, x_test, y_test, or x and y), tables as
  .csv.gz with English column names, and CIFAR-10 as lossless WebP pictures of 100 x 100
  tiles, one for each batch, beside labels.npz.

A file may be gzipped where the public one is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.datasets import formats
from colonnade.datasets.dataset import Parts, Rows
from colonnade.datasets.modelnet import COUNTS, Counts, read_kept_voxels, read_modelnet
from colonnade.datasets.multi_view import SHAPES, SIDE, VIEWS, VIEWS_FOLDER, read_views
from colonnade.datasets.nus_wide import CONCEPTS, NUS_WIDE_FILES, WIDTH, read_nus_wide

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
DECODED = ("x_train.npy", "y_train.npy", "x_test.npy", "y_test.npy")
CIFAR_TRAIN = tuple(f"data_batch_{at}.bin" for at in range(1, 6))
# fmt: off
LETTER_COLUMNS = (
    "lettr", "x-box", "y-box", "width", "high", "onpix", "x-bar", "y-bar", "x2bar", "y2bar", "xybar", "x2ybr", "xy2br",
    "x-ege", "xegvy", "y-ege", "yegvx",
)
CREDIT_COLUMNS = (
    "status", "duration", "credit_history", "purpose", "amount", "savings", "employment_duration", "installment_rate",
    "personal_status_sex", "other_debtors", "present_residence", "property", "age", "other_installment_plans",
    "housing", "number_credits", "job", "people_liable", "telephone", "foreign_worker", "credit_risk",
)
# fmt: on


@dataclass(frozen=True)
class Layout:
    """Files that together hold the data set. With `slow`, the values are worth keeping
    as plain arrays. Without `exact`, they are computed from the files and cannot have
    the recorded checksum; `read` checks what can be checked. Where several data sets
    share a file, it lies in the folder called `shared`."""

    files: tuple[str, ...]
    read: Callable[[Sequence[Path]], Parts]
    slow: bool = False
    exact: bool = True
    shared: str = ""

    def paths_in(self, folder: Path) -> list[Path] | None:
        """The files in this folder, each as named or with .gz added; None unless all
        are there."""
        paths = [
            _present(folder.parent / self.shared if self.shared else folder, name)
            for name in self.files
        ]
        return None if None in paths else [path for path in paths if path is not None]

    def missing(self, folder: Path) -> list[str]:
        """Which of the files are not in this folder."""
        return [name for name in self.files if _present(folder, name) is None]


def _present(folder: Path, name: str) -> Path | None:
    return next(
        (path for path in (folder / name, folder / f"{name}.gz") if path.exists()), None
    )


def _rows(x: NDArray[Any], y: NDArray[Any]) -> Rows:
    return Rows(x, y.astype(np.int64))


def _from_four(arrays: Sequence[NDArray[Any]]) -> Parts:
    x_train, y_train, x_test, y_test = arrays
    return _rows(x_train, y_train), _rows(x_test, y_test)


def _from_npz(paths: Sequence[Path]) -> Parts:
    arrays = formats.read_npz(paths[0])
    return _from_four(
        [arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    )


def idx_layouts(name: str) -> tuple[Layout, ...]:
    """MNIST and its relatives."""
    return (
        Layout((f"{name}.npz",), _from_npz),
        Layout(
            IDX_FILES,
            lambda paths: _from_four([formats.read_idx(path) for path in paths]),
        ),
    )


def _from_cifar_batches(paths: Sequence[Path]) -> Parts:
    batches = formats.read_cifar_batches(paths[0])
    train = [batches[name] for name in CIFAR_TRAIN]
    images, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    return _rows(images, labels), _rows(*batches["test_batch.bin"])


def _from_cifar_tiles(paths: Sequence[Path]) -> Parts:
    labels = formats.read_npz(paths[0])
    with ThreadPoolExecutor() as pool:
        *train, test = pool.map(formats.read_tiles, paths[1:])
    return _rows(np.concatenate(train), labels["y_train"]), _rows(
        test, labels["y_test"]
    )


CIFAR_LAYOUTS = (
    Layout(
        DECODED, lambda paths: _from_four([formats.read_array(path) for path in paths])
    ),
    Layout(("cifar-10-batches-bin",), _from_cifar_batches),
    Layout(("cifar-10-binary.tar.gz",), _from_cifar_batches, slow=True),
    Layout(
        ("labels.npz", *(f"train_{at}.webp" for at in range(1, 6)), "test.webp"),
        _from_cifar_tiles,
        slow=True,
    ),
)


def _labelled(
    columns: dict[str, NDArray[Any]], label: str, test_from: int | None = None
) -> Parts:
    """Take the label column out as class numbers in sorted order; rows from `test_from`
    on are the test rows."""
    _, y = np.unique(columns[label], return_inverse=True)
    features = {name: column for name, column in columns.items() if name != label}
    if test_from is None:
        return Rows(features, y.astype(np.int64)), None
    train, test = (
        Rows(
            {name: column[part] for name, column in features.items()},
            y[part].astype(np.int64),
        )
        for part in (slice(test_from), slice(test_from, None))
    )
    return train, test


def _text_layouts(
    read: Callable[[str], Parts], file: str, *archives: str
) -> tuple[Layout, ...]:
    """A public text file, as it is or in one of these zip archives."""
    zipped = (
        Layout((name,), lambda paths: read(formats.zip_member(paths[0], file).decode()))
        for name in archives
    )
    return (Layout((file,), lambda paths: read(formats.text_of(paths[0]))), *zipped)


def _credit(text: str) -> Parts:
    # The .asc file has German names and the compact one English names for the same
    # columns in the same order.
    header, body = text.split("\n", 1)
    delimiter = "," if "," in header else " "
    return _labelled(
        formats.read_columns(body, delimiter=delimiter, names=CREDIT_COLUMNS),
        "credit_risk",
    )


SOUTH_GERMAN_LAYOUTS = (
    *_text_layouts(_credit, "south_german_credit.csv"),
    *_text_layouts(
        _credit,
        "SouthGermanCredit.asc",
        "south+german+credit.zip",
        "south+german+credit+update.zip",
    ),
)


def _letter(text: str) -> Parts:
    return _labelled(
        formats.read_columns(text, names=LETTER_COLUMNS), "lettr", test_from=16000
    )


LETTER_LAYOUTS = (
    # with a header
    *_text_layouts(lambda text: _letter(text.split("\n", 1)[1]), "letter.csv"),
    *_text_layouts(_letter, "letter-recognition.data", "letter+recognition.zip"),
)


def _bank(text: str) -> Parts:
    delimiter = ";" if ";" in text.split("\n", 1)[0] else ","
    return _labelled(formats.read_columns(text, delimiter=delimiter), "y")


BANK_LAYOUTS = _text_layouts(_bank, "bank-full.csv", "bank+marketing.zip", "bank.zip")


def _points(values: str, labels: NDArray[Any]) -> Parts:
    return _rows(np.loadtxt(values.splitlines()).astype(np.int32), labels - 1), None


def _points_npz(paths: Sequence[Path], suffix: str = "") -> Parts:
    arrays = formats.read_npz(paths[0])
    return _rows(arrays[f"x{suffix}"].astype(np.int32), arrays[f"y{suffix}"] - 1), None


def _points_partition(paths: Sequence[Path]) -> Parts:
    points, partition = paths
    zipped = partition.suffix == ".zip"
    clusters = (
        formats.zip_member(partition, f"{points.stem}-gt.pa").decode()
        if zipped
        else formats.text_of(partition)
    )
    return _points(formats.text_of(points), formats.read_partition(clusters))


def point_layouts(name: str, partitions: Sequence[str] = ()) -> tuple[Layout, ...]:
    """Points with clusters numbered from 1; `partitions` are the names the original
    ground truth goes by."""
    return (
        Layout((f"{name}.npz",), _points_npz),
        Layout(
            (f"{name}.data", f"{name}.labels0"),
            lambda paths: _points(
                formats.text_of(paths[0]),
                np.loadtxt(formats.text_of(paths[1]).splitlines()),
            ),
        ),
        *(
            Layout((f"{name}.txt", partition), _points_partition)
            for partition in partitions
        ),
    )


def gaussian_layouts(name: str) -> tuple[Layout, ...]:
    """One of the g2mg sets, g2mg_<columns>_<spread>: its own files, or all sets in one
    g2mg/g2mg.npz."""
    read = partial(_points_npz, suffix=name.removeprefix("g2mg"))
    return (*point_layouts(name), Layout(("g2mg.npz",), read, shared="g2mg"))


def voxel_layouts(file: str, counts: Counts = COUNTS) -> tuple[Layout, ...]:
    """Voxel grids in the compact layout; else those made of meshes, kept from before or
    made now."""
    return (
        Layout((file,), _from_npz),
        Layout(DECODED, lambda paths: read_kept_voxels(paths, counts), exact=False),
        *(
            Layout(
                (name,),
                lambda paths: read_modelnet(paths[0], counts),
                slow=True,
                exact=False,
            )
            for name in ("ModelNet10", "ModelNet10.zip")
        ),
    )


NUS_WIDE_LAYOUTS = (
    Layout(
        DECODED,
        lambda paths: formats.read_kept(paths, (WIDTH,), np.float32, len(CONCEPTS)),
        exact=False,
    ),
    Layout(NUS_WIDE_FILES, read_nus_wide, slow=True, exact=False),
)
VIEW_LAYOUTS = (
    Layout(
        DECODED,
        lambda paths: formats.read_kept(
            paths, (VIEWS, SIDE, SIDE), np.uint8, len(SHAPES)
        ),
        exact=False,
    ),
    Layout((VIEWS_FOLDER,), lambda paths: read_views(paths[0]), slow=True, exact=False),
)
