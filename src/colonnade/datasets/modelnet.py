"""ModelNet10 from the meshes of its public home: ModelNet10.zip, or the folder it unpacks to.

The compact file's voxels were made from the same meshes by another program. Here they are made by `voxelise`, in the
same size, place and orientation, yet not voxel for voxel the same. So a checksum cannot tell whether these are the
published shapes, and the numbers of meshes in each class are compared instead. Do not mix the two in one experiment.
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from colonnade.datasets.dataset import Parts, Rows
from colonnade.datasets.formats import read_array
from colonnade.datasets.meshes import read_off, voxelise
from colonnade.datasets.progress import progress
from colonnade.errors import DataError

__all__ = ["COUNTS", "FURNITURE", "Counts", "read_kept_voxels", "read_modelnet"]

Counts = Mapping[str, tuple[int, ...]]

# fmt: off
FURNITURE = ("bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet")
COUNTS: Counts = {
    "train": (106, 515, 889, 200, 200, 465, 200, 680, 392, 344),
    "test": (50, 100, 100, 86, 86, 100, 86, 100, 100, 100),
}
"""How many meshes of each class the publishers have put into each part."""
# fmt: on

SIDE = 30


def read_modelnet(path: Path, counts: Counts = COUNTS) -> Parts:
    """All meshes as voxels [N, 30, 30, 30], class by class and in the order of their names."""
    with _opened(path) as (names, content):
        meshes = sorted(mesh for name in names if (mesh := _mesh(name)) is not None)
        parts = {split: [mesh for mesh in meshes if mesh[0] == split] for split in counts}
        for split, found in parts.items():
            _check(path, split, np.array([kind for _, kind, _, _ in found], dtype=np.int64), counts)
        with progress("voxels of ModelNet10", len(meshes), unit="items") as advance:
            train, test = (_rows(parts[split], content, advance) for split in ("train", "test"))
    return train, test


def read_kept_voxels(paths: Sequence[Path], counts: Counts = COUNTS) -> Parts:
    """The four arrays that `read_modelnet` made before: x_train, y_train, x_test, y_test."""
    x_train, y_train, x_test, y_test = (read_array(path) for path in paths)
    for split, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if x.shape != (len(y), SIDE, SIDE, SIDE) or x.dtype != np.uint8:
            raise ValueError(f"not {len(y)} voxel grids")
        _check(paths[0].parent, split, y, counts)
    return Rows(x_train, y_train.astype(np.int64)), Rows(x_test, y_test.astype(np.int64))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Callable[[str], bytes]]]:
    """The names of the files in the folder or the archive, and how to read one; nothing is unpacked to disk."""
    if path.is_dir():
        yield [part.relative_to(path).as_posix() for part in path.rglob("*.off")], lambda at: (path / at).read_bytes()
        return
    with zipfile.ZipFile(path) as archive:
        yield archive.namelist(), archive.read


def _mesh(name: str) -> tuple[str, int, str, str] | None:
    """Part, class number, file name and full name of a mesh; None for what else the archive holds."""
    *above, kind, split, file = ("", "", "", *PurePosixPath(name).parts)
    known = kind in FURNITURE and split in COUNTS and "__MACOSX" not in above
    if not known or not re.fullmatch(rf"{kind}_\d+\.off", file):
        return None
    return split, FURNITURE.index(kind), file, name


def _rows(
    meshes: Sequence[tuple[str, int, str, str]], content: Callable[[str], bytes], advance: Callable[[int], None]
) -> Rows:
    x = np.zeros((len(meshes), SIDE, SIDE, SIDE), dtype=np.uint8)
    for at, (_, _, _, name) in enumerate(meshes):
        x[at] = voxelise(*read_off(content(name), name=name))
        advance(1)
    return Rows(x, np.array([kind for _, kind, _, _ in meshes], dtype=np.int64))


def _check(path: Path, split: str, y: NDArray[np.int64], counts: Counts) -> None:
    found = Counter(y.tolist())
    for kind, (label, expected) in enumerate(zip(FURNITURE, counts[split], strict=True)):
        if found[kind] != expected:
            raise DataError(
                f"Data set 'modelnet10' in {path} is not the published one: it has {found[kind]} meshes of {label} in "
                f"{split}, and {expected} were expected. Delete the files and load again."
            )
