"""The file formats of public data sets, read without pickle: IDX, npz, CIFAR's binary
batches, delimited text.

Every reader raises ValueError, OSError or one of the archive errors in `BROKEN` on a
damaged file; the catalogue turns these into one sentence.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.datasets.dataset import Rows
from colonnade.datasets.download import written_whole
from colonnade.errors import DataError
from colonnade.installation import hint

BROKEN = (
    ValueError,
    KeyError,
    OSError,
    EOFError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)

CIFAR_RECORD = 1 + 3 * 32 * 32


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes, gzipped or not: two zeros, type 8, the number of
    axes, their sizes, the data."""
    raw = _bytes_of(path)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError("not an IDX file of unsigned bytes")
    start = 4 + 4 * raw[3]
    shape = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4)]
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an npz file; one that would need pickle is refused."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def read_array(path: Path) -> NDArray[Any]:
    """One npy array; one that would need pickle is refused."""
    return np.asarray(np.load(path, allow_pickle=False))


def read_kept(
    paths: Sequence[Path], shape: tuple[int, ...], dtype: type, classes: int
) -> tuple[Rows, Rows]:
    """Arrays that were made of slow files before: x_train, y_train, x_test, y_test;
    `shape` is that of one row."""
    x_train, y_train, x_test, y_test = (read_array(path) for path in paths)
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if (
            x.shape != (len(y), *shape)
            or x.dtype != dtype
            or not np.isin(y, range(classes)).all()
        ):
            raise ValueError(f"not {len(y)} rows of {shape} and their classes")
    return Rows(x_train, y_train.astype(np.int64)), Rows(
        x_test, y_test.astype(np.int64)
    )


def save_array(path: Path, values: NDArray[Any]) -> None:
    """Write an npy array under another name first, so that a reader sees all of it or
    nothing."""
    with written_whole(path) as stream:
        np.save(stream, values, allow_pickle=False)


def read_cifar_batches(
    path: Path,
) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """`cifar-10-binary.tar.gz`, or the folder it unpacks to: per .bin file, images [N,
    32, 32, 3] and labels. A record is one label byte and 3072 pixels, red plane first.
    Members are read, never unpacked to disk."""
    if path.is_dir():
        return {
            part.name: _cifar_records(part.read_bytes())
            for part in sorted(path.glob("*.bin"))
        }
    batches = {}
    with tarfile.open(path) as archive:
        for member in archive:
            stream = (
                archive.extractfile(member) if member.name.endswith(".bin") else None
            )
            if stream is not None:
                batches[Path(member.name).name] = _cifar_records(stream.read())
    return batches


def _cifar_records(raw: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels), records[:, 0].astype(np.int64)


def pillow(needing: str) -> Any:
    """Pillow's module of pictures; raise, and say what is `needing` it, where it is
    missing."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise DataError(
            f"{needing} Pillow, which is not installed. Install it: {hint('plots')}\n"
            "    Or load the data once where Pillow is, and copy the .npy files of the"
            " cache folder."
        ) from None
    return Image


def read_tiles(path: Path, size: int = 32) -> NDArray[np.uint8]:
    """One large picture whose tiles of size x size are the images, row by row: [N,
    size, size, 3]."""
    with pillow("CIFAR-10 in WebP pictures needs").open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    down = pixels.shape[0] // size
    across = pixels.shape[1] // size
    return (
        pixels.reshape(down, size, across, size, 3)
        .swapaxes(1, 2)
        .reshape(-1, size, size, 3)
    )


def read_columns(
    text: str, *, delimiter: str = ",", names: Sequence[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Delimited text as columns: int64 where all are whole numbers, float64 where all
    are numbers, else text. Without `names` the first line holds them."""
    lines = [
        line for line in csv.reader(io.StringIO(text), delimiter=delimiter) if line
    ]
    header = list(names) if names is not None else lines.pop(0)
    return {
        name: _typed(values)
        for name, values in zip(header, zip(*lines, strict=True), strict=True)
    }


def _typed(values: Sequence[str]) -> NDArray[Any]:
    words = np.array(values, dtype=np.str_)
    for kind in (np.int64, np.float64):
        try:
            return words.astype(kind)
        except ValueError:
            continue
    return words


def read_partition(text: str) -> NDArray[np.int64]:
    """A partition file of the clustering benchmark: some header lines, a line of
    dashes, a cluster number per line."""
    lines = [line.strip() for line in text.splitlines()]
    rules = [at for at, line in enumerate(lines) if line and not line.strip("-")]
    if not rules:
        raise ValueError("no line of dashes between header and clusters")
    return np.array([line for line in lines[rules[0] + 1 :] if line], dtype=np.int64)


def text_of(path: Path) -> str:
    """A text file's content, unpacked if it is gzipped."""
    return _bytes_of(path).decode("utf-8-sig")


def zip_member(archive: Path | bytes, name: str) -> bytes:
    """The member of a zip archive with this file name, in whatever folder, also in a
    zip inside the zip."""
    with zipfile.ZipFile(
        archive if isinstance(archive, Path) else io.BytesIO(archive)
    ) as opened:
        for member in opened.namelist():
            if Path(member).name == name:
                return opened.read(member)
        for member in opened.namelist():
            if member.lower().endswith(".zip"):
                try:
                    return zip_member(opened.read(member), name)
                except KeyError:
                    continue
    raise KeyError(f"no {name} in the archive")


def _bytes_of(path: Path) -> bytes:
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
