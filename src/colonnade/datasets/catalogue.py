"""Data sets by name: `load("mnist")`.

They are looked for in `<folder>/<name>/`, where folder is the argument, else the
environment variable COLONNADE_DATA, and then in the cache folder; `layouts` says which
files are understood. What is not there is downloaded from its public home, unless
offline. On every path the values are compared with a checksum of the content recorded
here, so that the same name is the same data everywhere. One exception is modelnet10,
whose voxels differ between the compact file and the public meshes; `modelnet` says how
these are checked.

The others are modelnet40 and nus_wide, which cannot be downloaded freely. Users supply
their files, and no checksum is recorded to compare them with: sizes and shapes are
checked, and whether they are the published values is the user's to know. What was read
is kept in the cache folder, and read again when the supplied files have changed since.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from colonnade.datasets.dataset import Dataset, Parts, content_checksum
from colonnade.datasets.download import cache_folder, fetch, written_whole
from colonnade.datasets.entries import CATALOGUE, Entry
from colonnade.datasets.formats import BROKEN, save_array
from colonnade.datasets.layouts import DECODED, Layout
from colonnade.errors import ConfigError, DataError, did_you_mean

__all__ = ["CATALOGUE", "FOLDER_VARIABLE", "Entry", "load"]

FOLDER_VARIABLE = "COLONNADE_DATA"
MADE_OF = "made_of.txt"


def load(
    name: str,
    *,
    folder: Path | str | None = None,
    offline: bool = False,
    catalogue: Mapping[str, Entry] = CATALOGUE,
) -> Dataset:
    """The data set of this name; `colonnade datasets` lists them. Downloads it if need
    be, unless `offline`."""
    if name not in catalogue:
        raise ConfigError(
            f"There is no data set {name!r}{did_you_mean(name, list(catalogue))}. The"
            f" names are {', '.join(catalogue)}."
        )
    entry = catalogue[name]
    if entry.built_in is not None:
        try:
            return Dataset(name, entry.kind, *entry.built_in(), entry.classes)
        except ModuleNotFoundError:
            raise DataError(
                f"Data set '{name}' comes with scikit-learn, which is not installed."
                " Install it."
            ) from None
    named = folder or os.environ.get(FOLDER_VARIABLE)
    folders = [*([Path(named).expanduser()] if named else []), cache_folder()]
    parts = _read(name, entry, folders)
    if parts is None:
        if entry.supply:
            _refuse_unsupplied(name, entry, folders)
        parts = _download(name, entry, folders, offline)
    return Dataset(name, entry.kind, *parts, entry.classes)


def _read(name: str, entry: Entry, folders: list[Path]) -> Parts | None:
    """The first layout that one of the folders holds; layouts come fastest first, so a
    cached copy wins."""
    for layout in entry.layouts:
        for folder in folders:
            paths = layout.paths_in(folder / name)
            if paths is not None and (
                layout.slow
                or not entry.supply
                or _is_current(name, entry, folders, paths)
            ):
                return _read_checked(name, entry, layout, paths)
    return None


def _read_checked(name: str, entry: Entry, layout: Layout, paths: list[Path]) -> Parts:
    try:
        parts = layout.read(paths)
    except BROKEN as error:
        raise DataError(
            f"Data set '{name}' cannot be read from {paths[0]}: the file is damaged or"
            f" not what its name says ({type(error).__name__}). Delete it and load"
            " again."
        ) from None
    if layout.exact and (checksum := content_checksum(parts)) != entry.checksum:
        raise DataError(
            f"Data set '{name}' in {paths[0].parent} is not the published one: its"
            f" content has SHA-256 {checksum[:12]}... and {entry.checksum[:12]}... was"
            " expected. Delete the files and load again."
        )
    if layout.slow:
        # The cache only saves time: a full or read-only disk is no reason to fail.
        with contextlib.suppress(OSError):
            arrays = [
                values
                for rows in parts
                if rows is not None
                for values in (rows.array(), rows.y)
            ]
            for file, values in zip(DECODED, arrays, strict=True):
                save_array(cache_folder() / name / file, values)
            if entry.supply:
                with written_whole(cache_folder() / name / MADE_OF) as stream:
                    stream.write(_digest_of(paths).encode())
    return parts


def _is_current(name: str, entry: Entry, folders: list[Path], kept: list[Path]) -> bool:
    """Whether kept arrays were made of the files that the user supplies now, or there
    are none; no checksum tells."""
    candidates = (
        layout.paths_in(folder / name)
        for layout in entry.layouts
        if layout.slow
        for folder in folders
    )
    supplied = next((paths for paths in candidates if paths is not None), None)
    note = kept[0].parent / MADE_OF
    return supplied is None or (
        note.is_file() and note.read_text() == _digest_of(supplied)
    )


def _digest_of(paths: list[Path]) -> str:
    """A digest of paths, sizes and times, two levels deep: a folder's time changes when
    a file in it comes or goes."""
    inside = [
        inner
        for path in paths
        if path.is_dir()
        for depth in ("*", "*/*")
        for inner in sorted(path.glob(depth))
    ]
    stats = [(str(path.resolve()), path.stat()) for path in (*paths, *inside)]
    lines = [
        f"{place} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
        for place, stat in stats
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _refuse_unsupplied(name: str, entry: Entry, folders: list[Path]) -> NoReturn:
    """Raise, and say what the user has to supply, and which files are missing where
    some are there."""
    layout = next(layout for layout in entry.layouts if layout.slow)
    partly = [
        (folder / name, absent)
        for folder in folders
        if (absent := layout.missing(folder / name))
    ]
    missing = [
        f" In {folder} is missing: {', '.join(absent)}."
        for folder, absent in partly
        if len(absent) < len(layout.files)
    ]
    raise DataError(
        f"Data set '{name}' cannot be downloaded freely: its owner gives it out at"
        f" {entry.home}; put {entry.supply} into {FOLDER_VARIABLE}/{name}/"
        f" ({FOLDER_VARIABLE} is the environment variable that names your data folder)."
        " Looked in"
        f" {' and '.join(str(folder / name) for folder in folders)}.{''.join(missing)}"
        " What you supply is compared with no checksum, since none is recorded."
    )


def _download(name: str, entry: Entry, folders: list[Path], offline: bool) -> Parts:
    # The first file of each layout is enough to recognise it: `mnist/mnist.npz`, and so
    # on.
    files = " or ".join(
        f"{layout.shared or name}/{layout.files[0]}" for layout in entry.layouts
    )
    cure = f"set {FOLDER_VARIABLE} to a folder that holds {files}"
    if offline:
        places = " or ".join(str(folder / name) for folder in folders)
        raise DataError(
            f"Data set '{name}' is not in {places}, and offline=True forbids the"
            f" download from {entry.home}: {cure}."
        )
    store = (
        next((folder for folder in folders if _writable(folder)), folders[-1]) / name
    )
    missing = [file for file in entry.downloads if not (store / file.name).exists()]
    try:
        for file in missing:
            fetch(file.url, store / file.name, md5=file.md5)
        parts = _read(name, entry, [store.parent])
    except DataError as error:
        for file in missing:
            (store / file.name).unlink(missing_ok=True)
        raise DataError(
            f"Data set '{name}' was not found, and the download failed:"
            f" {str(error).rstrip('.')}; {cure}."
        ) from None
    if parts is None:
        raise DataError(
            f"Data set '{name}' was fetched from {entry.home} and not found in {store};"
            f" {cure}."
        )
    return parts


def _writable(folder: Path) -> bool:
    """Whether a file could be made there: decided at the nearest part of the path that
    exists."""
    present = next(
        part for part in (folder, *folder.absolute().parents) if part.exists()
    )
    return present.is_dir() and os.access(present, os.W_OK)
