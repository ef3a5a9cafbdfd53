"""The SQLite file with the log, whose transactions are on the disk when they end."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from colonnade.errors import StoreError
from colonnade.store.chain import Entry
from colonnade.store.disk import force, inode_of, new_file

APPLICATION_ID = 0x436F6C6E
"""Marks an SQLite file as a store: "Coln"."""

FORMAT = 1
IN_MEMORY = ":memory:"
LONGEST_WAIT = 60.0
"""Seconds to wait for somebody who reads or writes the file past the store's lock."""

SCHEMA = """
CREATE TABLE entry (
    serial INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    digest BLOB NOT NULL,
    chain BLOB NOT NULL,
    text TEXT NOT NULL,
    body BLOB
) STRICT;
"""
COLUMNS = "serial, kind, text, body, digest, chain"


class Database:
    """The SQLite file of one organisation's store.

    Args:
        path: The file. None keeps the log in this process's memory.
        owner: The organisation's name, for errors.
        is_forced: Whether a transaction is forced onto the disk before it ends.
    """

    def __init__(
        self, path: Path | None, owner: str, *, is_forced: bool = True
    ) -> None:
        self.path = path
        self.owner = owner
        self._connection = self._connect()
        with self._as_store_errors():
            if path is None:
                self._create_schema()
            else:
                self._check_kind()
                self.force_writes(is_forced)
                # The -wal and -shm files are there from the first transaction on.
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.execute("ROLLBACK")
        self._inodes = self._current_inodes()

    @classmethod
    def create(cls, path: Path) -> None:
        """Make an empty log as a new file."""
        new_file(path)
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.executescript(f"BEGIN; {SCHEMA} COMMIT;")
        connection.close()
        _force_file(path)

    def force_writes(self, is_forced: bool) -> None:
        """Say whether a transaction ends only when it is on the disk, so that it
        outlives a power failure."""
        level = "FULL" if is_forced else "NORMAL"
        with self._as_store_errors():
            self._connection.execute(f"PRAGMA synchronous={level}")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do all that is inside, or nothing of it; nobody else writes meanwhile."""
        with self._as_store_errors():
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._roll_back()
            raise
        try:
            with self._as_store_errors():
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def abandon(self) -> None:
        """End a transaction in which nothing is to be written."""
        self._roll_back()

    def is_same_file(self) -> bool:
        """Whether the names of the file and its companions still mean the files that
        this connection has open.

        A folder that is renamed or put back while it is in use, or a deleted -wal file,
        would let two processes write two histories.
        """
        return self._current_inodes() == self._inodes

    def append(self, entry: Entry) -> None:
        """Write an entry."""
        statement = f"INSERT INTO entry ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
        values = (
            entry.serial,
            entry.kind,
            entry.text,
            entry.body,
            entry.digest,
            entry.chain,
        )
        with self._as_store_errors():
            self._connection.execute(statement, values)

    def entries(self, after: int = 0, kind: str | None = None) -> Iterator[Entry]:
        """The entries with a serial above `after`, in their order.

        All entries are read, whatever the kind: an index could lose some unnoticed.
        """
        query = f"SELECT {COLUMNS} FROM entry WHERE serial > ? ORDER BY serial"
        with self._as_store_errors():
            for row in self._connection.execute(query, (after,)):
                entry = Entry(*row)
                if kind is None or entry.kind == kind:
                    yield entry

    def readable_entries(self) -> list[Entry]:
        """The entries of a damaged file that can be read: from its beginning up to the
        damage, and from its end down to it."""
        found: dict[int, Entry] = {}
        for order in ("ASC", "DESC"):
            query = f"SELECT {COLUMNS} FROM entry ORDER BY serial {order}"
            with suppress(sqlite3.Error, ValueError, TypeError):
                for row in self._connection.execute(query):
                    entry = Entry(*row)
                    found.setdefault(int(entry.serial), entry)
        return [found[serial] for serial in sorted(found)]

    def entry(self, serial: int) -> Entry | None:
        """The entry with this serial."""
        query = f"SELECT {COLUMNS} FROM entry WHERE serial = ?"
        found = self._rows(query, serial)
        return Entry(*found[0]) if found else None

    def last_of_kind(self, kind: str) -> int:
        """The serial of the newest entry of a kind; 0 where there is none."""
        query = "SELECT serial FROM entry WHERE kind = ? ORDER BY serial DESC LIMIT 1"
        found = self._rows(query, kind)
        return int(found[0][0]) if found else 0

    def last_serial(self) -> int:
        """The serial of the newest entry; 0 where there is none."""
        found = self._rows("SELECT max(serial) FROM entry")
        return int(found[0][0] or 0)

    def chain_at(self, serial: int) -> bytes | None:
        """The chain value of the entry with this serial."""
        found = self._rows("SELECT chain FROM entry WHERE serial = ?", serial)
        return bytes(found[0][0]) if found else None

    def drop_bodies(self, below: int, kinds: tuple[str, ...]) -> None:
        """Forget the bodies of old entries of these kinds, which a checkpoint has."""
        marks = ", ".join("?" for _ in kinds)
        statement = (
            "UPDATE entry SET body = NULL"
            f" WHERE serial < ? AND body IS NOT NULL AND kind IN ({marks})"
        )
        with self._as_store_errors():
            self._connection.execute(statement, (below, *kinds))

    def drop_texts(self, kind: str, newest_kept: int) -> None:
        """Forget the texts of old entries of a kind."""
        statement = (
            "UPDATE entry SET text = '' WHERE kind = ? AND text != '' AND serial <= ("
            "SELECT serial FROM entry WHERE kind = ? ORDER BY serial DESC"
            " LIMIT 1 OFFSET ?)"
        )
        with self._as_store_errors():
            self._connection.execute(statement, (kind, kind, newest_kept))

    def copy_to(self, path: Path) -> None:
        """Write a copy as a new file, which needs no -wal file."""
        new_file(path)
        with self._as_store_errors():
            self._connection.execute("VACUUM INTO ?", (str(path),))
        _force_file(path)

    def damaged(self, how: str) -> StoreError:
        """The error for a file that is not as it was written."""
        return StoreError(
            f"The store of '{self.owner}' is damaged: {how}. What people were released"
            f" with is not known without it, so nothing is released. {CURE}"
        )

    def _connect(self) -> sqlite3.Connection:
        target = IN_MEMORY
        if self.path is not None:
            # A URI with mode=rw opens a file that is there, and makes none.
            target = f"{self.path.resolve().as_uri()}?mode=rw"
        with self._as_store_errors():
            return sqlite3.connect(
                target,
                uri=True,
                isolation_level=None,
                timeout=LONGEST_WAIT,
                check_same_thread=False,
            )

    def _create_schema(self) -> None:
        self._connection.executescript(f"BEGIN; {SCHEMA} COMMIT;")

    def _check_kind(self) -> None:
        """Refuse a file that is no store, or one of another format."""
        if self._pragma("application_id") != APPLICATION_ID:
            raise self.damaged(f"{self.path} does not begin as a store does")
        found_format = self._pragma("user_version")
        if found_format != FORMAT:
            raise StoreError(
                f"The store of '{self.owner}' has format {found_format}, and this"
                f" version of Colonnade reads format {FORMAT}. Use the version that"
                f" wrote it. If no version did, the file is damaged. {CURE}"
            )
        if self._pragma("journal_mode") != "wal":
            raise self.damaged(f"{self.path} has lost its journal mode")

    def _pragma(self, name: str) -> Any:
        return self._rows(f"PRAGMA {name}")[0][0]

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._as_store_errors():
            return self._connection.execute(query, values).fetchall()

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _current_inodes(self) -> list[tuple[int, int] | None]:
        if self.path is None:
            return []
        return [inode_of(path) for path in files_of(self.path)]

    @contextmanager
    def _as_store_errors(self) -> Iterator[None]:
        """Say what an error of SQLite means for the organisation."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if not _is_about_access(error):
                raise self.damaged(str(error)) from error
            raise StoreError(
                f"The store of '{self.owner}', {self.path}, cannot be used: {error}."
                " What is not written down there is not released. Make room on the"
                " disk, make the folder writable, or end the process that blocks it."
            ) from error
        except sqlite3.DatabaseError as error:
            raise self.damaged(str(error)) from error
        except (UnicodeDecodeError, TypeError, ValueError) as error:
            raise self.damaged(f"an entry cannot be read ({error})") from error


CURE = (
    "Put back the newest backup and recover the store (`recover`): that charges"
    " everybody for what may be missing. Nothing else has to be done first."
)

ACCESS_CODES = frozenset(
    {
        "SQLITE_BUSY",
        "SQLITE_LOCKED",
        "SQLITE_PERM",
        "SQLITE_READONLY",
        "SQLITE_IOERR",
        "SQLITE_FULL",
        "SQLITE_CANTOPEN",
    }
)


def open_copy(path: Path, folder: Path, owner: str) -> Database:
    """Copy a database, or a backup of one, into a folder, and open the copy."""
    if not path.exists():
        raise StoreError(f"There is no database of '{owner}' at {path}. Put it back.")
    copy = folder / path.name
    for source, target in zip(files_of(path)[:2], files_of(copy)[:2], strict=True):
        if source.exists():
            shutil.copy(source, target)
    # A backup has no companion files, and its header says so. What else a damaged
    # header says is no reason to give entries up: each is checked by itself.
    connection = sqlite3.connect(copy)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={FORMAT}")
    connection.close()
    return Database(copy, owner, is_forced=False)


def files_of(path: Path) -> list[Path]:
    """The SQLite file and its two companions."""
    return [
        path,
        path.with_name(path.name + "-wal"),
        path.with_name(path.name + "-shm"),
    ]


def _force_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        force(descriptor)
    finally:
        os.close(descriptor)


def _is_about_access(error: sqlite3.OperationalError) -> bool:
    """Whether the file could not be reached or written, rather than being damaged."""
    name = str(getattr(error, "sqlite_errorname", ""))
    is_access = any(
        name == code or name.startswith(f"{code}_") for code in ACCESS_CODES
    )
    return is_access and name != "SQLITE_IOERR_SHORT_READ"
