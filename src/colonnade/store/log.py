"""The one log of an organisation's store: it is only ever added to, and only as one
process among all sees its newest entry.

What happens when an entry is written, in this order:

    1. the lock file is held, and it and the database are the files that were opened
    2. what other processes wrote since is read and checked (people, counts, all of it)
    3. the newest witness outside the folder is not ahead of the database
    4. BEGIN IMMEDIATE; the newest entry is the one that is known here
    5. the caller says what to write, or refuses
    6. the entry is added, its witness is written in the second place, COMMIT
    7. both are on the disk; only now does the caller hear of it

A process that is killed anywhere in between has either written the entry or not; and
what the caller does with it, such as letting a tensor leave, comes after.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from colonnade.errors import StoreError
from colonnade.store.chain import START, Entry, body_digest, make_entry
from colonnade.store.database import Database
from colonnade.store.locking import LockFile
from colonnade.store.marks import Mark, Slot, fits_beside_a_witness
from colonnade.store.packing import to_json
from colonnade.store.state import CHECKPOINT, RECOVERED, REFUSAL, TAKEN_IN, State
from colonnade.store.witness import Signer, Witness, is_signed

REFUSALS_KEPT = 10_000
"""The newest refusals whose words are kept: whoever calls for ever must not fill the
disk."""


@dataclass(frozen=True)
class Draft:
    """An entry that is to be written.

    Args:
        kind: Of the entry.
        content: Plain values.
        body: Numbers that belong to it.
        charges: How often the person whom it charges most is charged.
    """

    kind: str
    content: dict[str, Any]
    body: bytes | None = None
    charges: int = 0


Prepare = Callable[[], Draft | None]
"""Looks at the state, and says what to write; None: nothing. It may raise, too."""


class Log:
    """A store's log, and the state that follows from it.

    Args:
        database: Has the entries.
        lock: Keeps other processes from writing meanwhile. None in memory.
        mark: Has the newest witness, outside the database. None in memory.
        signer: The owner's key.
        owner: The organisation's name, for errors.
        is_forced: Whether what is written is forced onto the disk before `write` ends.
    """

    def __init__(
        self,
        database: Database,
        lock: LockFile | None,
        mark: Mark | None,
        signer: Signer,
        owner: str,
        *,
        is_forced: bool = True,
    ) -> None:
        self.database = database
        self.signer = signer
        self.owner = owner
        self.state = State()
        self.serial = 0
        self.chain = START
        self.entries_since_checkpoint = 0
        self.bytes_since_checkpoint = 0
        self.is_for_reading = False
        self._newest_witness: Witness | None = None
        self._lock = lock
        self._mark = mark
        self._is_forced = is_forced
        self._threads = threading.RLock()
        self._process = os.getpid()
        self._forcing: ThreadPoolExecutor | None = None

    def load(self) -> None:
        """Read all that the log says, and check it, from the newest checkpoint on.

        The lock is held, since a checkpoint of another process would take away what is
        being read.
        """
        with self._alone():
            self._load()

    def check_standing(self) -> None:
        """Refuse a store that the witness outside its folder shows to be an older
        copy."""
        with self._alone():
            self._synchronise()

    def write(self, prepare: Prepare) -> Entry | None:
        """Write what `prepare` says, on top of all that was written before.

        Raises:
            StoreError: It cannot be written, or the log is open for reading only.

        Returns:
            The entry, which is on the disk. None where nothing was to be written.
        """
        with self._alone():
            slot = self._synchronise()
            return self._write(prepare, slot)

    def read(self, look: Callable[[State], Any]) -> Any:
        """Look at the state as it is after all that was written so far, by whomever."""
        with self._alone():
            self._synchronise()
            return look(self.state)

    def checkpoint(self) -> None:
        """Write the whole state down, so that what led to it need not be read again."""

        def prepare() -> Draft:
            body = self.state.pack()
            after_chain = self.chain.hex()
            statement = self._checkpoint_statement(self.serial + 1, after_chain, body)
            signature = self.signer.sign(statement)
            content = {"after_chain": after_chain, "signature": signature}
            self.database.drop_bodies(self.serial + 1, TAKEN_IN)
            self.database.drop_texts(REFUSAL, REFUSALS_KEPT)
            return Draft(CHECKPOINT, content, body)

        self.write(prepare)
        self.entries_since_checkpoint = 0
        self.bytes_since_checkpoint = 0

    def witness(self) -> Witness:
        """A signed statement of how far this store has come."""
        state = self.state
        newest = self._newest_witness
        if newest is None or newest.serial != self.serial:
            newest = self.signer.witness(
                state.store, self.serial, state.charges, self.chain
            )
            self._newest_witness = newest
        return newest

    def check(self, witness: Witness) -> None:
        """Refuse to go on where a witness of this owner shows that entries are lost."""
        if witness.store != self.state.store:
            raise self.lost("is not the one that the witness is about")
        known_chain = self.database.chain_at(witness.serial)
        if known_chain is not None and known_chain.hex() == witness.chain:
            return
        if self.state.is_in_gap(witness.serial):
            return
        if witness.serial > self.serial:
            raise self.lost(
                f"is an older copy: it has come to entry {self.serial}, and had come"
                f" to {witness.serial}"
            )
        raise self.lost(
            f"is an older copy that went on: its entry {witness.serial} is another one"
        )

    def verify(self) -> int:
        """Check every entry that is there, from the first on.

        Returns:
            How many entries there are.
        """
        chain = START
        serial = 0
        count = 0
        with self._as_damage():
            for entry in self.database.entries():
                self._check_order(entry, serial)
                if entry.text:
                    entry.check_text()
                entry.check_link(chain)
                if entry.body is not None:
                    entry.check_body()
                chain = entry.chain
                serial = entry.serial
                count += 1
        if serial != self.serial or chain != self.chain:
            raise self.database.damaged("its last entry is not the newest one")
        return count

    def force_writes(self) -> None:
        """Force what is written from here on onto the disk before `write` ends."""
        with self._threads:
            self._is_forced = True
            self.database.force_writes(True)

    def close(self) -> None:
        """Let go of all files.

        SQLite may remove its companion files when the last process closes them, so the
        lock is held meanwhile.
        """
        if self._process != os.getpid():
            return
        if self._forcing is not None:
            self._forcing.shutdown()
        if self._lock is None:
            self.database.close()
            return
        with self._lock.held():
            self.database.close()
        self._lock.close()

    def lost(self, how: str) -> StoreError:
        """The error for a store that has lost what it had written."""
        return StoreError(
            f"The store of '{self.owner}' {how}. What people were released with since"
            " then would be spent again. Put the newest copy back; where there is"
            " none, recover the store (`recover`), which charges everybody for what is"
            " missing."
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only one who writes, among threads and among processes."""
        if self._process != os.getpid():
            raise StoreError(
                f"The store of '{self.owner}' was opened by another process, of which"
                " this one is a copy (a fork). Open the store anew in this process."
            )
        with self._threads:
            if self._lock is None:
                yield
                return
            with self._lock.held():
                self._check_files()
                yield

    def _check_files(self) -> None:
        """Refuse files that were moved, removed or put back while they were in use."""
        assert self._lock is not None
        if self._lock.is_same_file() and self.database.is_same_file():
            return
        raise StoreError(
            f"The folder of the store of '{self.owner}' was moved, or files in it were"
            " removed or put back, while it was in use. Nothing is written to files"
            " that nobody will find. Open the store again."
        )

    def _synchronise(self) -> Slot | None:
        """Take in what others wrote, and what a crash left in the mark alone."""
        if self._mark is None:
            return None
        if self.database.last_serial() != self.serial:
            self._catch_up()
        keys = self.state.public_keys
        slot, is_other_damaged = self._mark.read(self.state.store, keys)
        is_one_ahead = slot.witness.serial == self.serial + 1
        if is_one_ahead and slot.entry is not None:
            self._redo(slot.entry)
        # A slot that cannot be read was damaged after it was written whole. It may
        # have been the newer one, and then the database has its entry.
        if is_other_damaged and self.serial <= slot.witness.serial:
            raise self.lost(
                f"may be an older copy: {self._mark.path} is damaged, and what is left"
                f" of it does not show that the store had come to entry {self.serial}"
                " only"
            )
        self.check(slot.witness)
        return slot

    def _catch_up(self) -> None:
        """Take in what other processes wrote."""
        newest = self.database.last_serial()
        if newest < self.serial or self.database.chain_at(self.serial) != self.chain:
            raise self.lost("was put back while it was in use")
        if self.database.last_of_kind(CHECKPOINT) > self.serial:
            self._load()
        else:
            self._read_on()

    def _redo(self, entry: Entry) -> None:
        """Write an entry that reached the mark, and not the database.

        A process ended between the two, so nothing followed from the entry; or the
        database lost it. To count it is right in both cases.
        """
        with self._as_damage():
            entry.check(self.chain)
        with self.database.transaction():
            self.database.append(entry)
        self._take_in(entry)

    def _write(self, prepare: Prepare, slot: Slot | None) -> Entry | None:
        finish: Callable[[], None] | None = None
        try:
            with self.database.transaction():
                self._check_newest()
                draft = prepare()
                if draft is None:
                    self.database.abandon()
                    return None
                self._check_may_write()
                entry = make_entry(
                    self.chain, self.serial + 1, draft.kind, draft.content, draft.body
                )
                self.database.append(entry)
                charges = self.state.charges + draft.charges
                witness = self.signer.witness(
                    self.state.store, entry.serial, charges, entry.chain
                )
                if fits_beside_a_witness(entry):
                    finish = self._mark_down(witness, entry, slot)
        finally:
            if finish is not None:
                finish()
        if finish is None:
            self._mark_down(witness, None, slot)()
        self._take_in(entry)
        return entry

    def _check_may_write(self) -> None:
        if self.is_for_reading:
            raise StoreError(
                f"The store of '{self.owner}' is open for reading only, for a report."
                " Open it to write."
            )

    def _mark_down(
        self, witness: Witness, entry: Entry | None, slot: Slot | None
    ) -> Callable[[], None]:
        """Write a witness into the second place, and begin to force it onto the disk.

        Returns:
            Waits until it is there.
        """
        mark = self._mark
        if mark is None or slot is None:
            return _nothing_to_wait_for
        descriptor = mark.write(witness, entry, after=slot)
        if not self._is_forced:
            os.close(descriptor)
            return _nothing_to_wait_for
        if self._forcing is None:
            self._forcing = ThreadPoolExecutor(1, thread_name_prefix="store-mark")
        forced = self._forcing.submit(mark.force_and_close, descriptor)
        return forced.result

    def _check_newest(self) -> None:
        """Refuse where somebody wrote who does not hold the lock."""
        if self.database.last_serial() != self.serial:
            raise self.database.damaged("somebody wrote to it past its lock")

    def _load(self) -> None:
        self._newest_witness = None
        checkpoint = self.database.last_of_kind(CHECKPOINT)
        self.state = State()
        self.serial = 0
        self.chain = START
        self.entries_since_checkpoint = 0
        self.bytes_since_checkpoint = 0
        if checkpoint:
            self._start_from(checkpoint)
        self._read_on()

    def _start_from(self, serial: int) -> None:
        entry = self.database.entry(serial)
        assert entry is not None
        with self._as_damage():
            entry.check_text()
            after_chain = str(entry.content["after_chain"])
            entry.check(bytes.fromhex(after_chain))
            assert entry.body is not None
            state = State.unpack(entry.body)
        statement = self._checkpoint_statement(serial, after_chain, entry.body)
        signature = str(entry.content["signature"])
        if not is_signed(statement, signature, state.public_keys):
            raise self.database.damaged(f"nobody signed its checkpoint {serial}")
        self.state = state
        self.serial = serial
        self.chain = entry.chain

    def _checkpoint_statement(self, serial: int, after_chain: str, body: bytes) -> str:
        return to_json(["checkpoint", serial, after_chain, body_digest(body)])

    def _read_on(self) -> None:
        """Take in the entries after the newest that is known here."""
        for entry in self.database.entries(after=self.serial):
            with self._as_damage():
                self._check_order(entry, self.serial)
                entry.check(self.chain)
            self._take_in(entry)

    def _check_order(self, entry: Entry, previous: int) -> None:
        """Refuse a log with a hole. After a recovery there is one, which it names."""
        expected = previous + 1
        if entry.kind == RECOVERED:
            entry.check_text()  # before what it says is believed
            expected = int(entry.content["serial"])
        if entry.serial != expected or entry.serial <= previous:
            raise StoreError(f"entry {previous + 1} is gone")

    def _take_in(self, entry: Entry) -> None:
        self.state.apply(entry)
        self.serial = entry.serial
        self.chain = entry.chain
        self.entries_since_checkpoint += 1
        self.bytes_since_checkpoint += entry.size

    @contextmanager
    def _as_damage(self) -> Iterator[None]:
        """Say what an entry that is not as it was written means for the store."""
        try:
            yield
        except StoreError as error:
            raise self.database.damaged(str(error).rstrip(".")) from None
        except (ValueError, KeyError, TypeError) as error:
            how = f"an entry cannot be read ({type(error).__name__})"
            raise self.database.damaged(how) from None


def _nothing_to_wait_for() -> None:
    """Nothing was begun that has to end."""
