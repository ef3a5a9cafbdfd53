"""A small file with the newest witness of a store, forced onto the disk in a second
place.

    page 0    slot A: a witness, and a digest of the entry that it is about
    page 1    slot B: the same
    from 64 kB on    the entry itself, for slot A
    from 256 kB on   the entry itself, for slot B

The two slots are written in turns, so that a crash while one is written leaves the
other. A slot is shorter than a sector of a disk and is written in one piece: it is
there or not. A slot that cannot be read was therefore damaged later, and what it said
must be made up for by the database (`Mark.check`).

The entry is written here *beside* the database's COMMIT and not after it, so that both
reach the disk in the time of one. After a crash between the two, the database lacks the
entry that the mark has, and takes it from here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from colonnade.errors import StoreError
from colonnade.store.chain import Entry
from colonnade.store.disk import (
    BINARY,
    force,
    inode_of,
    new_file,
    read_at,
    write_at,
)
from colonnade.store.witness import Witness

SLOT_BYTES = 512
SLOT_STARTS = (0, 4096)
ENTRY_STARTS = (1 << 16, 1 << 18)
LARGEST_ENTRY = 1 << 16
"""Bytes of an entry that is written beside a witness. A larger one is in the database
before its witness is written."""

DIGEST_BYTES = 16


@dataclass(frozen=True)
class Slot:
    """One of the two places for a witness.

    Args:
        number: 0 or 1.
        witness: How far the store had come.
        entry: The witness's entry, where it is kept here and whole.
    """

    number: int
    witness: Witness
    entry: Entry | None


class Mark:
    """The file of one store's newest witness.

    Args:
        path: The file. It must not lie in the store's folder, or both are lost
            together.
        owner: The organisation's name, for errors.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self.owner = owner
        self._verified: set[Witness] = set()

    @classmethod
    def create(
        cls, path: Path, owner: str, witness: Witness, *, has_entries: bool = True
    ) -> Mark:
        """Make the file, with its first witness in both slots.

        The file has its full size from the beginning, so that forcing it onto the disk
        later is quick.

        Args:
            path: The file, which must not be there.
            owner: The organisation's name, for errors.
            witness: The first one.
            has_entries: Whether entries are to be kept beside witnesses.
        """
        slot = _packed_slot(witness, b"")
        first_page = slot.ljust(SLOT_STARTS[1], b"\0")
        full_size = ENTRY_STARTS[-1] + LARGEST_ENTRY if has_entries else 0
        new_file(path, (first_page + slot).ljust(full_size, b"\0"))
        return cls(path, owner)

    def exists(self) -> bool:
        """Whether the file is there."""
        return inode_of(self.path) is not None

    def write(self, witness: Witness, entry: Entry | None, after: Slot) -> int:
        """Write a witness into the slot that is not `after`, without forcing it.

        The entry is written before its witness, so that a process that is killed in
        between leaves no witness of an entry that is not there.

        Returns:
            An open descriptor, for `force_and_close`.
        """
        number = 1 - after.number
        packed_entry = b"" if entry is None else _packed_entry(entry)
        descriptor = self._open(os.O_RDWR)
        try:
            write_at(descriptor, packed_entry, ENTRY_STARTS[number])
            slot = _packed_slot(witness, packed_entry)
            write_at(descriptor, slot, SLOT_STARTS[number])
            self._verified = {witness, after.witness}
        except OSError as error:
            os.close(descriptor)
            raise self._cannot_write(error) from None
        return descriptor

    def force_and_close(self, descriptor: int) -> None:
        """Force what `write` wrote onto the disk."""
        try:
            force(descriptor)
        except OSError as error:
            raise self._cannot_write(error) from None
        finally:
            os.close(descriptor)

    def read(self, store: str, public_keys: Collection[str]) -> tuple[Slot, bool]:
        """The newest witness, and whether the other slot is damaged.

        Raises:
            StoreError: Neither slot has a witness of this store.
        """
        slots = self._slots()
        whole = [
            slot
            for slot in slots
            if slot.witness.store == store
            and self._is_signed(slot.witness, public_keys)
        ]
        if not whole:
            raise self._damaged()
        return max(whole, key=_serial_of), len(whole) < len(SLOT_STARTS)

    def what_is_left(self) -> tuple[Witness | None, bool]:
        """The newest witness, by whatever key it is signed, and whether a slot is
        damaged: it is all that is known of a store whose database and key are lost."""
        slots = self._slots()
        newest = max(slots, key=_serial_of).witness if slots else None
        return newest, len(slots) < len(SLOT_STARTS)

    def _is_signed(self, witness: Witness, public_keys: Collection[str]) -> bool:
        """Whether the store's owner signed a witness; each is verified once."""
        if witness in self._verified:
            return True
        if not witness.is_signed_by(public_keys):
            return False
        self._verified.add(witness)
        return True

    def _slots(self) -> list[Slot]:
        """The slots that are not damaged."""
        descriptor = self._open(os.O_RDONLY)
        try:
            slots = [_read_slot(descriptor, number) for number in range(2)]
        finally:
            os.close(descriptor)
        return [slot for slot in slots if slot is not None]

    def _open(self, flags: int) -> int:
        try:
            return os.open(self.path, flags | BINARY)
        except FileNotFoundError:
            raise StoreError(
                f"{self.path} is gone: it says how far the store of '{self.owner}' has"
                " come, and shows when an older copy was put back. Put the file back;"
                " where that cannot be done, recover the store."
            ) from None
        except OSError as error:
            raise self._cannot_write(error) from None

    def _damaged(self) -> StoreError:
        return StoreError(
            f"{self.path} is damaged, or is of another store: it says how far the"
            f" store of '{self.owner}' has come, and shows when an older copy was put"
            " back. Put the file back; where that cannot be done, recover the store."
        )

    def _cannot_write(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self.path} cannot be used: {error.strerror}. Nothing leaves"
            f" '{self.owner}' that is not written down there. Make room for it, and"
            " make it writable."
        )


def _serial_of(slot: Slot) -> int:
    return slot.witness.serial


def _packed_slot(witness: Witness, packed_entry: bytes) -> bytes:
    """A digest of all that follows, the digest and length of the entry, the witness."""
    rest = _digest(packed_entry) + len(packed_entry).to_bytes(4, "big")
    text = witness.to_text().encode()
    rest += text.ljust(SLOT_BYTES - DIGEST_BYTES - len(rest), b" ")
    return _digest(rest) + rest


def _read_slot(descriptor: int, number: int) -> Slot | None:
    """The slot of this number. None where it is damaged."""
    data = read_at(descriptor, SLOT_BYTES, SLOT_STARTS[number])
    rest = data[DIGEST_BYTES:]
    if len(data) != SLOT_BYTES or _digest(rest) != data[:DIGEST_BYTES]:
        return None
    entry_digest = rest[:DIGEST_BYTES]
    length = int.from_bytes(rest[DIGEST_BYTES : DIGEST_BYTES + 4], "big")
    text = rest[DIGEST_BYTES + 4 :].decode().rstrip()
    entry = None
    if length:
        packed = read_at(descriptor, length, ENTRY_STARTS[number])
        entry = _unpacked_entry(packed) if _digest(packed) == entry_digest else None
    return Slot(number, Witness.from_text(text), entry)


def _packed_entry(entry: Entry) -> bytes:
    about = [
        entry.serial,
        entry.kind,
        entry.text,
        entry.body is not None,
        entry.digest.hex(),
        entry.chain.hex(),
    ]
    return json.dumps(about).encode() + b"\n" + (entry.body or b"")


def _unpacked_entry(packed: bytes) -> Entry:
    line, _, body = packed.partition(b"\n")
    serial, kind, text, has_body, digest, chain = json.loads(line)
    return Entry(
        serial=serial,
        kind=kind,
        text=text,
        body=body if has_body else None,
        digest=bytes.fromhex(digest),
        chain=bytes.fromhex(chain),
    )


def fits_beside_a_witness(entry: Entry) -> bool:
    """Whether an entry is small enough to be written beside its witness."""
    return len(_packed_entry(entry)) <= LARGEST_ENTRY


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
