"""One process at a time: a file that is locked while it is held open, by the system, so that a crash frees it."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from colonnade.errors import ConfigError


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
