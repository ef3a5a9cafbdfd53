"""Which files a store has, and how they are made: all of them, or none."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from colonnade.errors import StoreError
from colonnade.store.allowances import time_text
from colonnade.store.chain import START, Entry, make_entry
from colonnade.store.database import FORMAT, Database
from colonnade.store.disk import force_folder, new_file, new_folder
from colonnade.store.marks import Mark
from colonnade.store.state import CREATED
from colonnade.store.witness import STORE_ID_BYTES, Signer

DATABASE = "state.db"
LOCK = "lock"
MARK = "mark"
KEY = "key.pem"
RETIRED_KEYS = "retired-keys"
WITNESSES = "witnesses"
ANCHOR_ENDING = ".anchor"


@dataclass(frozen=True)
class Layout:
    """The files of one organisation's store.

    Args:
        folder: Has the database and the lock.
        anchor: A second folder, with the key and the newest witness. It must not lie
            in `folder`: what removes or restores the one must not do it to the other.
    """

    folder: Path
    anchor: Path

    @classmethod
    def at(cls, folder: Path, anchor: Path | None = None) -> Layout:
        """The layout of a folder. By default its anchor lies beside it."""
        folder = folder.absolute()
        if anchor is None:
            anchor = folder.with_name(folder.name + ANCHOR_ENDING)
        anchor = anchor.absolute()
        if anchor == folder or folder in anchor.parents or anchor in folder.parents:
            raise StoreError(
                f"The anchor {anchor} and the store {folder} lie in each other, and"
                " would be lost together. Keep the anchor elsewhere, best on another"
                " disk."
            )
        return cls(folder, anchor)

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.folder / DATABASE

    @property
    def lock(self) -> Path:
        """The file that one process at a time holds."""
        return self.folder / LOCK

    @property
    def witnesses(self) -> Path:
        """The folder with what this organisation keeps of others' stores."""
        return self.folder / WITNESSES

    @property
    def mark(self) -> Path:
        """The file with the newest witness."""
        return self.anchor / MARK

    @property
    def key(self) -> Path:
        """The key that signs witnesses."""
        return self.anchor / KEY

    @property
    def retired_keys(self) -> Path:
        """The public keys of earlier times, by which older witnesses are checked where
        the database is lost."""
        return self.anchor / RETIRED_KEYS

    def create(self, owner: str) -> None:
        """Make all files of a new store, or none.

        The anchor is there first. If the process is killed in between, nothing was
        ever released under it, and `create` replaces it.
        """
        self._check_free(owner)
        signer = Signer.new()
        store = secrets.token_hex(STORE_ID_BYTES)
        first = first_entry(store, owner, signer.public_key)
        witness = signer.witness(store, first.serial, 0, first.chain)
        fresh_anchor = _fresh(self.anchor)
        fresh_folder = _fresh(self.folder)
        try:
            new_folder(fresh_anchor)
            new_file(fresh_anchor / KEY, signer.to_pem())
            Mark.create(fresh_anchor / MARK, owner, witness)
            force_folder(fresh_anchor)
            new_folder(fresh_folder)
            new_file(fresh_folder / LOCK)
            new_folder(fresh_folder / WITNESSES)
            write_database(fresh_folder / DATABASE, owner, [first])
            force_folder(fresh_folder)
            if self.anchor.exists():
                shutil.rmtree(self.anchor)
            fresh_anchor.rename(self.anchor)
            force_folder(self.anchor.parent)
            fresh_folder.rename(self.folder)
            force_folder(self.folder.parent)
        except OSError as error:
            raise StoreError(
                f"No store can be made for '{owner}' in {self.folder}:"
                f" {error.strerror}. Make the folder above it writable."
            ) from None
        finally:
            shutil.rmtree(fresh_anchor, ignore_errors=True)
            shutil.rmtree(fresh_folder, ignore_errors=True)

    def check_there(self, owner: str) -> None:
        """Refuse to go on where there is no store."""
        if self.database.exists():
            return
        if self.anchor.exists():
            raise StoreError(
                f"The store of '{owner}' is gone: there is no {self.database}, and"
                f" {self.anchor} says that there was one. Put it back, or put back a"
                " backup and recover the store (`recover`)."
            )
        raise StoreError(
            f"There is no store of '{owner}' in {self.folder}. Nothing is made by"
            " itself: a store that is missing may have been lost. If there never was"
            " one, make it (`create`)."
        )

    def _check_free(self, owner: str) -> None:
        if self.database.exists():
            raise StoreError(
                f"There is a store in {self.folder} already, and one is made once. Open"
                " it; to begin another one, choose another folder."
            )
        if self.folder.exists() and (
            not self.folder.is_dir() or any(self.folder.iterdir())
        ):
            raise StoreError(
                f"{self.folder} is in use, and a store needs a folder of its own."
                f" Choose another one for '{owner}'."
            )
        if not self.anchor.exists():
            return
        witness = None
        if self.mark.exists():
            witness, _ = Mark(self.mark, owner).what_is_left()
        if witness is None or witness.serial > 1:
            raise StoreError(
                f"{self.anchor} says that there was a store of '{owner}' here. A new"
                " one would begin with nothing spent. Put the old one back, or recover"
                " it (`recover`)."
            )


def first_entry(store: str, owner: str, public_key: str) -> Entry:
    """The entry that every log begins with."""
    content = {
        "store": store,
        "owner": owner,
        "public_key": public_key,
        "format": FORMAT,
        "at": time_text(datetime.now(UTC)),
    }
    return make_entry(START, 1, CREATED, content, None)


def write_database(path: Path, owner: str, entries: list[Entry]) -> None:
    """Write entries as a new SQLite file."""
    Database.create(path)
    database = Database(path, owner)
    with database.transaction():
        for entry in entries:
            database.append(entry)
    database.close()


def _fresh(path: Path) -> Path:
    """Where a folder is made before it gets its name."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
