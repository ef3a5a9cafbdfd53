"""Files that a crash does no harm to: locked by the system while one process holds them, or replaced whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from colonnade.errors import ConfigError, InputError


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file in the place of the one that has its name, whole and on the disk when the block ends; or none of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with fresh.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {error.strerror}. Make room for it.") from error


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
