"""The files of a run that a statement covers, each with its size and SHA-256.

    models    each party's folder of the last checkpoint that all parties saved
    ledgers   what crossed in training, and what crossed since
    records   settings, measurements, columns, the audit, and the report

Files are read as they are, without following links, so that nobody can have another
file signed in the place of the run's own.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from colonnade.errors import CheckpointError
from colonnade.runs.layout import (
    AFTER,
    AUDIT,
    COLUMNS,
    IDENTITY,
    LEDGER,
    MARK,
    METRICS,
    PARTIES,
    QUALITY,
    SETTINGS,
    SUMMARY,
)
from colonnade.runs.run_directory import RunDirectory

AUDIT_FILE = f"{AUDIT}/audit.json"
REPORT = "report.html"
RECORDS = (IDENTITY, SETTINGS, MARK, METRICS, SUMMARY, AUDIT_FILE, REPORT)
PARTY_RECORDS = (COLUMNS, QUALITY)
LEDGERS = (LEDGER, AFTER)


@dataclass(frozen=True)
class FileDigest:
    sha256: str
    bytes: int


Digests = Mapping[str, FileDigest]
"""By a file's path inside the run, with / between folders."""


@dataclass(frozen=True)
class Inventory:
    models: Digests
    ledgers: Digests
    records: Digests


def take_inventory(run: Path) -> Inventory:
    """Hash every file of a run that a statement covers."""
    parties = sorted(path for path in _listed(run / PARTIES) if _is_folder(path))
    number = int(RunDirectory(run).mark()["number"])
    models = [
        file
        for party in parties
        for file in _files_below(party / f"checkpoint-{number:06d}")
    ]
    ledgers = [party / name for party in parties for name in LEDGERS]
    records = [run / name for name in RECORDS]
    records += [party / name for party in parties for name in PARTY_RECORDS]
    return Inventory(
        _digests(run, models), _digests(run, ledgers), _digests(run, records)
    )


def digest_of(path: Path, first_bytes: int | None = None) -> FileDigest:
    """The digest of a file, or of its beginning."""
    with _opened(path) as number:
        digest = hashlib.sha256()
        size = 0
        left = first_bytes
        while left is None or left > 0:
            block = os.read(number, BLOCK if left is None else min(BLOCK, left))
            if not block:
                break
            digest.update(block)
            size += len(block)
            left = None if left is None else left - len(block)
    return FileDigest(digest.hexdigest(), size)


BLOCK = 1 << 20


class _opened:  # noqa: N801 - reads as a function
    """Open a plain file, and nothing that stands for one."""

    def __init__(self, path: Path) -> None:
        try:
            self.number = os.open(path, os.O_RDONLY | NO_LINKS | NO_WAITING)
        except OSError as error:
            if path.is_symlink():
                raise _not_plain(path, "a link") from None
            raise CheckpointError(
                f"{path} cannot be read: {error.strerror}. Make it readable."
            ) from None
        if not stat.S_ISREG(os.fstat(self.number).st_mode):
            os.close(self.number)
            raise _not_plain(path, "no plain file")

    def __enter__(self) -> int:
        return self.number

    def __exit__(self, *_: object) -> None:
        os.close(self.number)


NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
NO_WAITING = getattr(os, "O_NONBLOCK", 0)
"""A named pipe would wait for its writer."""


def _not_plain(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is {what}, and a statement covers the run's own files alone. Put the"
        " file itself there."
    )


def _digests(run: Path, files: Iterable[Path]) -> dict[str, FileDigest]:
    return {
        file.relative_to(run).as_posix(): digest_of(file)
        for file in files
        if file.is_symlink() or file.exists()
    }


def _files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder, in the order of their names."""
    for path in sorted(_listed(folder)):
        if _is_folder(path):
            yield from _files_below(path)
        else:
            yield path


def _listed(folder: Path) -> list[Path]:
    if folder.is_symlink():
        raise _not_plain(folder, "a link")
    return list(folder.iterdir()) if folder.is_dir() else []


def _is_folder(path: Path) -> bool:
    if path.is_symlink():
        raise _not_plain(path, "a link")
    return path.is_dir()
