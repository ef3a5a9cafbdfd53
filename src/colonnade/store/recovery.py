"""The way out where a store has lost what it had written: it goes on, and everybody is
charged for what is missing, as if it had been the worst.

What was lost is not known, but how much is: a witness says how far the store had come,
and how often one person can have been released up to there. So everybody is charged
that many releases by the dearest rule, also people who are not known yet. All else that
was lost is taken as the worst, too: every row was used on all sides, today's allowances
are used up, orders up to now were taken, and labels that seem not to be drawn may have
been.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from colonnade.errors import StoreError
from colonnade.store.allowances import time_text
from colonnade.store.chain import START, Entry, make_entry
from colonnade.store.counts import Item
from colonnade.store.database import Database, files_of, open_copy
from colonnade.store.disk import force_folder, new_file, new_folder
from colonnade.store.layout import Layout, first_entry, write_database
from colonnade.store.locking import LockFile
from colonnade.store.log import Log
from colonnade.store.marks import Mark
from colonnade.store.state import RECOVERED, State
from colonnade.store.witness import Signer, Witness

SET_ASIDE = "before-recovery"
"""The folder, in the store's, with the files as they were found."""


@dataclass(frozen=True)
class Recovery:
    """What a recovery found and did.

    Args:
        kept: The last entry that was whole.
        lost: How many entries after it are missing. More may be, where nobody has a
            witness of them.
        charged: How many releases everybody was charged for them.
        set_aside: Where the files are that were found.
    """

    kept: int
    lost: int
    charged: int
    set_aside: Path


@dataclass(frozen=True)
class Found:
    """What is left of a store.

    Args:
        entries: The whole ones, up to the first that is not.
        state: What follows from them.
        serial: Of the last one; 0 where there is none.
        chain: Of the last one.
    """

    entries: list[Entry]
    state: State
    serial: int
    chain: bytes


@dataclass(frozen=True)
class Loss:
    """What is missing.

    Args:
        after: The last entry that is known to be right.
        to: The last entry that there was.
        charges: How often the person who was released most often can have been, in
            between.
    """

    after: int
    to: int
    charges: int

    @property
    def is_loss(self) -> bool:
        """Whether anything is missing."""
        return self.to > self.after or self.charges > 0


def recover(
    folder: Path,
    owner: str,
    dearest: Item,
    *,
    anchor: Path | None = None,
    backup: Path | None = None,
    witnesses: Sequence[Witness] = (),
    missing: int | None = None,
    new_key: bool = False,
    trust_unsigned: bool = False,
) -> Recovery:
    """Make a store usable again that refuses to open.

    Args:
        folder: Where the store lies, or what is left of it.
        owner: The organisation's name.
        dearest: The item that costs a person most, of all that the owner's rules ever
            released. Missing releases are counted as this one.
        anchor: Where its key and its newest witness lie, or lay.
        backup: A file that `SiteStore.backup` wrote, to go on from. By default the
            store goes on from what is whole of its own database.
        witnesses: What other parties kept of this store.
        missing: How many releases of one person may be missing, by the owner's word,
            where no witness says so.
        new_key: Whether to make another key, where the old one is lost.
        trust_unsigned: The owner's word that witnesses which no known key signed are
            its own: the key that did is lost. They can only charge more.
    """
    layout = Layout.at(folder, anchor)
    _make_folders(layout)
    signer, is_new_key = _signer(layout, new_key)
    lock = LockFile(layout.lock, owner)
    try:
        with lock.held():
            found = _what_is_left(layout, backup or layout.database, owner, signer)
            keys = _known_keys(layout, found, signer)
            if not trust_unsigned:
                _check_are_ours(witnesses, owner, found, keys)
            own, is_certain = _own_witness(layout, owner, found, keys)
            if not is_certain and not witnesses and missing is None:
                raise _nobody_knows(layout, owner)
            known = [*witnesses] if own is None else [*witnesses, own]
            loss = _loss(found, known, missing or 0)
            base = found if found.serial else _from_nothing(owner, known, signer)
            entry = _recovered(base, found, loss, dearest, keys)
            set_aside = _set_aside(layout)
            _replace_database(layout, owner, [*base.entries, entry])
            charges = base.state.charges + loss.charges
            _replace(layout.retired_keys, "\n".join(keys).encode())
            if is_new_key:
                _replace(layout.key, signer.to_pem())
            witness = signer.witness(
                base.state.store, entry.serial, charges, entry.chain
            )
            _replace_mark(layout, owner, witness)
    finally:
        lock.close()
    return Recovery(found.serial, loss.to - loss.after, loss.charges, set_aside)


def _make_folders(layout: Layout) -> None:
    """Make what is gone: the one place besides `create` where this is done."""
    for folder in (layout.folder, layout.anchor, layout.witnesses):
        if not folder.exists():
            new_folder(folder)
    if not layout.lock.exists():
        new_file(layout.lock)


def _signer(layout: Layout, new_key: bool) -> tuple[Signer, bool]:
    """The owner's key, and whether it was made here."""
    try:
        return Signer.read(layout.key), False
    except StoreError:
        if not new_key:
            raise
        return Signer.new(), True


def _what_is_left(layout: Layout, path: Path, owner: str, signer: Signer) -> Found:
    """Read the entries of a database, up to the first one that is not whole.

    A copy is read, so that nothing happens to the file itself.
    """
    with tempfile.TemporaryDirectory(dir=layout.folder) as temporary:
        try:
            database = open_copy(path, Path(temporary), owner)
        except (StoreError, sqlite3.Error):
            return Found([], State(), 0, START)
        entries = database.readable_entries()
        database.close()
    return _whole_part(entries, owner, signer)


def _whole_part(entries: list[Entry], owner: str, signer: Signer) -> Found:
    """The entries that a store could be opened with.

    Damage to one that is older than the newest checkpoint makes history shorter, and
    takes nothing else along.
    """
    database = Database(None, owner)
    readable: list[Entry] = []
    with database.transaction():
        for entry in entries:
            with suppress(StoreError):  # a damaged row may have no values at all
                database.append(entry)
                readable.append(entry)
    read = Log(database, None, None, signer, owner)
    with suppress(StoreError):
        read.load()
    database.close()
    kept = [entry for entry in readable if entry.serial <= read.serial]
    return Found(kept, read.state, read.serial, read.chain)


def _known_keys(layout: Layout, found: Found, signer: Signer) -> list[str]:
    """The public keys that this store's witnesses were ever signed by, the one that
    signs now first."""
    keys = [signer.public_key, *found.state.public_keys]
    if layout.retired_keys.exists():
        keys += layout.retired_keys.read_text(encoding="utf-8").split()
    return list(dict.fromkeys(keys))


def _check_are_ours(
    witnesses: Sequence[Witness], owner: str, found: Found, keys: Sequence[str]
) -> None:
    """Refuse witnesses that this owner did not sign, or of another store."""
    for witness in witnesses:
        is_right_store = found.state.store in ("", witness.store)
        if not is_right_store or not witness.is_signed_by(keys):
            raise StoreError(
                f"A witness that was given is not one of the store of '{owner}', or is"
                " signed by a key that is lost. Leave it out, or say that it is trusted"
                " (trust_unsigned=True): it can only charge more."
            )


def _own_witness(
    layout: Layout, owner: str, found: Found, keys: Sequence[str]
) -> tuple[Witness | None, bool]:
    """The newest witness in the owner's own anchor, and whether it is the newest of
    all: where one of the two slots is damaged, that one may have been newer.

    Where the whole store is gone with its key, the signature is not checked: the
    witness can only charge more.
    """
    if not layout.mark.exists():
        return None, False
    witness, is_one_damaged = Mark(layout.mark, owner).what_is_left()
    if witness is None or found.state.store not in ("", witness.store):
        return None, False
    if found.serial and not witness.is_signed_by(keys):
        return None, False
    return witness, not is_one_damaged


def _loss(found: Found, witnesses: Sequence[Witness], missing: int) -> Loss:
    """What is missing, as far as witnesses and the owner know."""
    to = found.serial
    charges = missing
    after = found.serial
    chains = {entry.serial: entry.chain.hex() for entry in found.entries}
    for witness in witnesses:
        is_known = chains.get(witness.serial) == witness.chain
        if is_known or found.state.is_in_gap(witness.serial):
            continue
        to = max(to, witness.serial)
        if witness.serial > found.serial:
            charges = max(charges, witness.charges - found.state.charges)
        else:
            # The store went on from an older copy. Where the two histories part is
            # not known, so all of the other one is charged.
            after = 0
            charges = max(charges, witness.charges)
    return Loss(after, to, charges)


def _from_nothing(owner: str, witnesses: Sequence[Witness], signer: Signer) -> Found:
    """The beginning of a store of which nothing is left but its witnesses."""
    if not witnesses:
        raise StoreError(
            f"Nothing is left of the store of '{owner}': no database, no backup, and no"
            " witness. Make a new one in another folder (`create`), and exhaust it"
            " (`exhaust`) unless these people were never released."
        )
    entry = first_entry(witnesses[0].store, owner, signer.public_key)
    state = State()
    state.apply(entry)
    return Found([entry], state, entry.serial, entry.chain)


def _recovered(
    base: Found, found: Found, loss: Loss, dearest: Item, keys: Sequence[str]
) -> Entry:
    serial = max(loss.to, base.serial) + 1
    content = {
        "serial": serial,
        "after": min(loss.after, found.serial),
        "to": loss.to,
        "charged": loss.charges,
        "event": dearest.event,
        "is_loss": loss.is_loss,
        "public_keys": list(keys),
        "at": time_text(datetime.now(UTC)),
    }
    return make_entry(base.chain, serial, RECOVERED, content, None)


def _set_aside(layout: Layout) -> Path:
    """Keep copies of the files as they were found, and remove the companions.

    A companion file that is left beside another database would be read into it.
    """
    number = 1
    while (layout.folder / f"{SET_ASIDE}-{number}").exists():
        number += 1
    aside = layout.folder / f"{SET_ASIDE}-{number}"
    new_folder(aside)
    for path in files_of(layout.database):
        if path.exists():
            shutil.copy(path, aside / path.name)
    for path in files_of(layout.database)[1:]:
        path.unlink(missing_ok=True)
    return aside


def _replace_database(layout: Layout, owner: str, entries: list[Entry]) -> None:
    fresh = layout.folder / ".state.new"
    for path in files_of(fresh):
        path.unlink(missing_ok=True)
    write_database(fresh, owner, entries)
    fresh.replace(layout.database)
    force_folder(layout.folder)


def _replace(path: Path, data: bytes) -> None:
    """Write a file of the anchor, in the place of the one that is there."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    new_file(fresh, data)
    fresh.replace(path)
    force_folder(path.parent)


def _replace_mark(layout: Layout, owner: str, witness: Witness) -> None:
    fresh = layout.anchor / ".mark.new"
    fresh.unlink(missing_ok=True)
    Mark.create(fresh, owner, witness)
    fresh.replace(layout.mark)
    force_folder(layout.anchor)


def _nobody_knows(layout: Layout, owner: str) -> StoreError:
    return StoreError(
        f"Nobody says how far the store of '{owner}' had come: {layout.mark} is gone or"
        " damaged, and no witness of other parties was given. Ask them for theirs, or"
        " say how many releases of one person may be missing (missing=0: none)."
    )
