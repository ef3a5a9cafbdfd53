"""ModelNet10 from the meshes of its public home: ModelNet10.zip, or the folder it
unpacks to.

The compact file's voxels were made from the same meshes by another program. Here they
are made by `voxelise`, in the same size, place and orientation, yet not voxel for voxel
the same. So a checksum cannot tell whether these are the published shapes, and the
numbers of meshes in each class are compared instead. Do not mix the two in one
experiment.

Triangle meshes: reading Object File Format (.off), and turning a shape into solid
voxels.

An OFF file is the word OFF, the numbers of vertices, faces and edges, then one vertex
and one face a line. In some files of ModelNet the counts follow the word without a gap
("OFF3514 3546 0"); these are read too.
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from colonnade.datasets.dataset import Parts, Rows
from colonnade.datasets.formats import read_kept
from colonnade.datasets.progress import progress
from colonnade.errors import DataError

SPACING = 0.45
"""How far apart samples of the surface lie at most, in voxels."""

DECIMALS = 6
"""Coordinates in voxels are rounded to so many, so that float errors do not decide in
which voxel a flat side lies."""

AT_ONCE = 1 << 20
"""How many samples are held in memory at a time."""


def read_off(
    raw: bytes, shown: str = "this mesh"
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Vertices [V, 3], and triangles [F, 3] of vertex numbers; a polygon becomes a fan
    around its first corner. Comments from `#` to the end of the line and anything after
    a face's corners (its colour) are passed over."""
    lines = raw.splitlines()
    if b"#" in raw:
        lines = [line.partition(b"#")[0] for line in lines]
    lines = [line for line in lines if line.strip()]
    if not lines or not lines[0].lstrip().startswith(b"OFF"):
        raise _wrong(shown, "must begin with the word OFF, and does not")
    glued = lines[0].strip().removeprefix(b"OFF").strip()
    body = [glued, *lines[1:]] if glued else lines[1:]
    try:
        vertices, faces = (int(word) for word in (body[0] if body else b"").split()[:2])
    except ValueError:
        raise _wrong(
            shown,
            "must give the numbers of vertices and faces after the word OFF, and"
            " does not",
        ) from None
    if vertices < 1 or faces < 1:
        raise _wrong(
            shown, f"must have vertices and faces, and announces {vertices} and {faces}"
        )
    if len(body) < 1 + vertices + faces:
        raise _wrong(
            shown,
            f"announces {vertices} vertices and {faces} faces, one a line, and has only"
            f" {len(body) - 1} lines of them",
        )
    points = _points(body[1 : 1 + vertices], shown)
    triangles = _triangles(body[1 + vertices : 1 + vertices + faces], shown)
    if triangles.min() < 0 or triangles.max() >= vertices:
        raise _wrong(
            shown,
            "has a face with a corner that is not among its vertices, which are"
            f" numbered 0 to {vertices - 1}",
        )
    return points, triangles


def _points(lines: list[bytes], shown: str) -> NDArray[np.float64]:
    try:
        points = np.array(b" ".join(lines).split(), dtype=np.float64).reshape(
            len(lines), 3
        )
    except ValueError:
        points = np.array([np.nan])
    if not np.isfinite(points).all():
        raise _wrong(
            shown, "must give each vertex as three finite numbers, and does not"
        )
    return points


def _triangles(lines: list[bytes], shown: str) -> NDArray[np.int64]:
    try:
        words = b" ".join(lines).split()
        if len(words) == 4 * len(lines):
            faces = np.array(words, dtype=np.int64).reshape(-1, 4)
            if (faces[:, 0] == 3).all():
                return faces[:, 1:]
        return np.array(
            [triangle for line in lines for triangle in _fan(line)], dtype=np.int64
        )
    except (ValueError, OverflowError):
        raise _wrong(
            shown,
            "must give each face as its number of corners, 3 or more, and then these,"
            " and does not",
        ) from None


def _fan(line: bytes) -> list[tuple[int, int, int]]:
    words = line.split()
    count = int(words[0])
    corners = [int(word) for word in words[1 : 1 + count]]
    if count < 3 or len(corners) < count:
        raise ValueError("too few corners")
    return [(corners[0], *pair) for pair in pairwise(corners[1:])]


def _wrong(shown: str, rule: str) -> DataError:
    return DataError(f"The OFF file {shown} {rule}. Fetch it again, or repair it.")


def voxelise(
    vertices: NDArray[np.float64],
    faces: NDArray[np.int64],
    size: int = 24,
    padding: int = 3,
) -> NDArray[np.uint8]:
    """The solid shape as a grid of 0 and 1, indexed [x, y, z] as the mesh is;
    ModelNet's z points up.

    The shape is centred, its longest side scaled to `size` voxels, with `padding` empty
    voxels around. Voxels that hold a sample of the surface are set, and then all that
    cannot be reached from outside. Where the mesh is closed this leaves no gap: on a
    step from voxel to voxel through the surface, a sample lies within 0.26 of the
    crossing (SPACING / sqrt(3)), hence in one of the two.
    """
    from scipy.ndimage import label

    side = size + 2 * padding
    triangles = _placed(vertices[faces], size, side / 2)
    surface = np.zeros((side,) * 3, dtype=bool)
    sides = np.linalg.norm(triangles - np.roll(triangles, 1, axis=1), axis=2).max(
        axis=1
    )
    steps = np.maximum(np.ceil((sides / SPACING).round(DECIMALS)).astype(np.int64), 1)
    for step in np.unique(steps):
        weights = _weights(int(step))
        same_steps = triangles[steps == step]
        chunk = max(AT_ONCE // len(weights), 1)
        for start in range(0, len(same_steps), chunk):
            samples = np.einsum(
                "sc,tcd->tsd", weights, same_steps[start : start + chunk]
            ).reshape(-1, 3)
            rounded = samples.round(DECIMALS)
            # A sample between two voxels belongs to the one nearer to the centre. So a
            # box of n voxels fills n voxels, and lies as far from the one end of the
            # grid as from the other.
            places = np.where(
                rounded > side / 2, np.ceil(rounded) - 1, np.floor(rounded)
            ).astype(np.int64)
            surface[tuple(places.T)] = True
    # A rim of one empty voxel joins all that lies outside into one piece, also without
    # padding.
    pieces, _ = label(~np.pad(surface, 1))
    solid: NDArray[np.uint8] = (pieces[1:-1, 1:-1, 1:-1] != pieces[0, 0, 0]).astype(
        np.uint8
    )
    return solid


def _placed(
    corners: NDArray[np.float64], size: int, centre: float
) -> NDArray[np.float64]:
    """The corners in voxels. Only those of faces count: some meshes have stray
    vertices."""
    low = corners.min(axis=(0, 1))
    high = corners.max(axis=(0, 1))
    longest = (high - low).max()
    scale = size / longest if longest > 0 else 1.0
    placed: NDArray[np.float64] = (corners - (low + high) / 2) * scale + centre
    return placed


def _weights(steps: int) -> NDArray[np.float64]:
    """Barycentric coordinates of a triangular grid with this many steps a side, corners
    included: [samples, 3]."""
    first, second = (axis.ravel() for axis in np.indices((steps + 1, steps + 1)))
    inside = first + second <= steps
    return np.stack([first, second, steps - first - second], axis=1)[inside] / steps


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
    """All meshes as voxels [N, 30, 30, 30], class by class and in the order of their
    names."""
    with _opened(path) as (names, content):
        meshes = sorted(mesh for name in names if (mesh := _mesh(name)) is not None)
        parts = {
            split: [mesh for mesh in meshes if mesh[0] == split] for split in counts
        }
        for split, part in parts.items():
            _check(
                path,
                split,
                np.array([kind for _, kind, _, _ in part], dtype=np.int64),
                counts,
            )
        with progress("voxels of ModelNet10", len(meshes), unit="items") as advance:
            train, test = (
                _rows(parts[split], content, advance) for split in ("train", "test")
            )
    return train, test


def read_kept_voxels(paths: Sequence[Path], counts: Counts = COUNTS) -> Parts:
    """Read the voxels that `read_modelnet` made before."""
    train, test = read_kept(paths, (SIDE, SIDE, SIDE), np.uint8, len(FURNITURE))
    for split, rows in (("train", train), ("test", test)):
        _check(paths[0].parent, split, rows.y, counts)
    return train, test


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Callable[[str], bytes]]]:
    """The names of the files in the folder or the archive, and how to read one; nothing
    is unpacked to disk."""
    if path.is_dir():
        names = [part.relative_to(path).as_posix() for part in path.rglob("*.off")]
        yield names, lambda name: (path / name).read_bytes()
        return
    with zipfile.ZipFile(path) as archive:
        yield archive.namelist(), archive.read


def _mesh(name: str) -> tuple[str, int, str, str] | None:
    """Part, class number, file name and full name of a mesh; None for what else the
    archive holds."""
    *above, kind, split, file = ("", "", "", *PurePosixPath(name).parts)
    is_mesh = kind in FURNITURE and split in COUNTS and "__MACOSX" not in above
    if not is_mesh or not re.fullmatch(rf"{kind}_\d+\.off", file):
        return None
    return split, FURNITURE.index(kind), file, name


def _rows(
    meshes: Sequence[tuple[str, int, str, str]],
    content: Callable[[str], bytes],
    advance: Callable[[int], None],
) -> Rows:
    x = np.zeros((len(meshes), SIDE, SIDE, SIDE), dtype=np.uint8)
    for at, (_, _, _, name) in enumerate(meshes):
        x[at] = voxelise(*read_off(content(name), name))
        advance(1)
    return Rows(x, np.array([kind for _, kind, _, _ in meshes], dtype=np.int64))


def _check(path: Path, split: str, y: NDArray[np.int64], counts: Counts) -> None:
    counted = Counter(y.tolist())
    for kind, (label, expected) in enumerate(
        zip(FURNITURE, counts[split], strict=True)
    ):
        if counted[kind] != expected:
            raise DataError(
                f"Data set 'modelnet10' in {path} is not the published one: it has"
                f" {counted[kind]} meshes of {label} in {split}, and {expected} were"
                " expected. Delete the files and load again."
            )
