"""Files that a crash does no harm to: locked by the system while one process holds them; or files and folders that
appear whole or not at all, after a power cut too, as they are written under a temporary name, forced onto the disk, and
renamed. What else is in the place stays as it was until then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

from colonnade.errors import ConfigError, InputError


@contextmanager
def replaced(path: Path, *vouched: Path) -> Iterator[Path]:
    """Where to write a file that takes the place of `path` when the block ends well; otherwise it is removed. Before it
    has that name, it and what it vouches for are forced onto the disk, all at once."""
    fresh = _fresh(path)
    try:
        yield fresh
        sync(fresh, *vouched)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def replaced_folder(path: Path, *, mode: int = 0o777, forced: bool = True) -> Iterator[Path]:
    """An empty folder that takes the place of `path` when the block ends well; otherwise it is removed. The one that
    it replaces is moved aside until then: after a crash between the two, it is what there is (`aside`).
    Where it is not `forced` onto the disk, who calls does that, for several at once."""
    fresh = _fresh(path)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True, mode=mode)
    try:
        yield fresh
        if forced:
            sync(*fresh.rglob("*"), fresh)
        if path.exists():
            shutil.rmtree(aside(path), ignore_errors=True)
            path.rename(aside(path))
        fresh.rename(path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if forced:
        sync(path.parent)
        shutil.rmtree(aside(path), ignore_errors=True)


def write_text(path: Path, text: str, *vouched: Path) -> None:
    """The whole file or none of it; `vouched` is of `replaced`."""
    with replaced(path, *vouched) as fresh:
        fresh.write_text(text, encoding="utf-8")


def write_bytes(path: Path, pieces: Iterable[bytes]) -> None:
    """The same, of what an organisation must not lose: InputError where it cannot be written."""
    try:
        with replaced(path) as fresh, fresh.open("wb") as file:
            file.writelines(pieces)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}. Put it right, and try again."
        ) from error


def sync(*paths: Path) -> None:
    """What was written is on the disk from here on: bytes of files, and which names folders have. A disk takes many at
    once in little more than the time of one."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(_sync, paths))


def _sync(path: Path) -> None:
    with suppress(OSError) if path.is_dir() else nullcontext():  # not every system can do it to a folder
        number = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def aside(folder: Path) -> Path:
    """Where a folder is while it is replaced."""
    return folder.with_name(f".{folder.name}.old.tmp")


def _fresh(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def hold(path: Path, otherwise: str, *, wait: bool = False) -> IO[str]:
    """The file, until it is closed; ConfigError where another process has it, unless this one is to `wait`. OSError
    where the place has no locks; a system without them (Windows) keeps nobody out."""
    file = path.open("a", encoding="utf-8")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except ImportError:
        return file
    except BlockingIOError:
        file.close()
        raise ConfigError(otherwise) from None
    except OSError:
        file.close()
        raise
    return file
