"""Every release of an owner's rows, written down before it leaves: one file that holds the whole account.

    colonnade-journal 2 exact 5f0c…91 1a2b3c4d     how ids are compared, which writing of the file this is, a checksum
    length, checksum, record                       one release, or the sum of many: a line of JSON, row keys and counts
    …

Nothing else has to be known to say what rows have paid, so no order of runs, crashes and restarts can lose any of it.
Where the file has grown, it is written anew with one record for each kind of release, under another number, and takes
the old one's place at once.

A record is on the disk before its release leaves. A crash can therefore only cut short a record whose release did not
leave; as far as its rows can be read, they are counted all the same. Every other damage is an error: what rows have
paid is not known then, and they are not released.

One process at a time releases what is counted here: two would each spend what is left. Readers need not wait.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from colonnade.core.files import hold, write_bytes
from colonnade.core.receipt import DpEvent
from colonnade.errors import CheckpointError, ConfigError, InputError
from colonnade.privacy.counts import Record

MAGIC = b"colonnade-journal 2 "
FRAME = struct.Struct("<QI")
"""Before each record: its length, and a CRC-32 of length and record."""
LONGEST_HEAD, LONGEST_LINE = 128, 1 << 16


class Claim:
    """This process's right to release what a journal counts; it ends with the last account that holds it. Accounts of
    one process count and write one after the other, under `lock`."""

    file: IO[str] | None = None  # none where it was not had

    def __init__(self, path: Path) -> None:
        self.lock = threading.Lock()
        rule = f"The budget in {path} is counted by one process at a time"
        try:
            self.file = hold(
                path.with_name(f".{path.name}.lock"),
                f"{rule}, and another one releases under it now: a training run, a prediction or a service. Wait for "
                "its end, or stop it.",
            )
        except OSError as error:
            raise ConfigError(f"{rule}, and its folder takes no lock: {error.strerror}. Make it so.") from None

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


CLAIMS: WeakValueDictionary[Path, Claim] = WeakValueDictionary()
"""Of this process: accounts with the same journal share one."""
CLAIMING = threading.Lock()


class Stand(NamedTuple):
    """Which writing of a journal is there ("": none), where its records begin and where they end."""

    writing: str = ""
    first: int = 0
    size: int = 0


class Journal:
    """A file in the owner's own folder. It is forced onto the disk with every record, or once in `sync_every` seconds
    where what is released does not leave the process. A process that is killed loses nothing either way."""

    def __init__(self, path: Path, *, ids: str = "exact", sync_every: float = 0.0) -> None:
        self.path, self.ids, self.sync_every = path, ids, sync_every
        self._synced = -float("inf")

    def claim(self) -> Claim:
        """For as long as what is returned is held; ConfigError where another process has it."""
        path = self.path.resolve()
        with CLAIMING:
            claim = CLAIMS.get(path)
            if claim is None:
                claim = CLAIMS[path] = Claim(path)
            return claim

    def stands(self) -> Stand:
        try:
            with self.path.open("rb") as file:
                return self._stand(file)
        except FileNotFoundError:
            return Stand()

    def read(self, start: int = 0) -> Iterator[tuple[Record, int]]:
        """Each record from `start`, which is 0 or where one ends, and where it ends itself. What can be read of one
        that was cut short comes last, and ends where it began."""
        try:
            with self.path.open("rb") as file:
                stand = self._stand(file)
                start = max(start, stand.first)
                file.seek(start)
                data = file.read()
        except FileNotFoundError:
            return
        for record, end in self._framed(data):
            yield record, start + end

    def append(self, record: Record) -> None:
        """Under a claim, with nothing cut short at the end: the record is on the disk when this returns."""
        data = _frame(record)
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                before = os.fstat(file).st_size
                try:
                    while data:
                        data = data[os.write(file, data) :]
                    self._sync(file)
                except BaseException:
                    with suppress(OSError):  # else it is found cut short, and repaired, before the next one
                        os.ftruncate(file, before)
                    raise
            finally:
                os.close(file)
        except FileNotFoundError:
            raise self.gone() from None
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be written: {error.strerror}. What is not written down there is not released. "
                "Make room for it."
            ) from error

    def replace(self, records: Iterable[Record]) -> None:
        """Under a claim: the whole account anew, in the old one's place at once."""
        head = MAGIC + f"{self.ids} {secrets.token_hex(8)}".encode()
        first = head + f" {zlib.crc32(head):08x}\n".encode()
        write_bytes(self.path, itertools.chain([first], map(_frame, records)))
        self._synced = time.monotonic()

    def mend(self, end: int, torn: Record | None) -> None:
        """Under a claim: make a whole record of what a crash left after `end`, so that the next one can be read."""
        os.truncate(self.path, end)
        if torn is not None:
            self.append(torn)

    def sync(self) -> None:
        """What was appended is on the disk from here on."""
        if self.sync_every:
            with suppress(FileNotFoundError), self.path.open("rb") as file:
                os.fsync(file.fileno())
            self._synced = time.monotonic()

    def gone(self) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is gone, and it has what rows have paid for their releases. Put it back; nothing is released "
            "without it."
        )

    def _sync(self, file: int) -> None:
        if time.monotonic() - self._synced >= self.sync_every:
            getattr(os, "fdatasync", os.fsync)(file)
            self._synced = time.monotonic()

    def _stand(self, file: BinaryIO) -> Stand:
        line, size = file.readline(LONGEST_HEAD), os.fstat(file.fileno()).st_size
        about, _, check = line.rstrip(b"\n").rpartition(b" ")
        words = about.decode("ascii", "replace").split()
        if len(words) != 4 or not line.startswith(MAGIC) or check != f"{zlib.crc32(about):08x}".encode():
            raise self._damaged("it does not begin as a journal does")
        if words[2] != self.ids:
            raise ConfigError(
                f"{self.path} counts what rows paid by {words[2]} ids, and [alignment] ids is {self.ids!r} now: they "
                f'would begin anew. Agree on ids = "{words[2]}" again; to let them, keep runs in another folder.'
            )
        return Stand(words[3], len(line), size)

    def _framed(self, data: bytes) -> Iterator[tuple[Record, int]]:
        start = 0
        while (body := start + FRAME.size) <= len(data):
            length, check = FRAME.unpack_from(data, start)
            if not length and not data[start:].strip(b"\0"):
                return  # a file system made it longer, and crashed before it wrote there
            if body + length > len(data):
                yield from self._torn(data, start, body, length)
                return
            if zlib.crc32(data[body : body + length], zlib.crc32(length.to_bytes(8, "little"))) != check:
                raise self._damaged(f"a checksum is wrong, {start} bytes after its first line")
            record, end = self._parsed(data, body)
            if end != body + length:
                raise self._damaged("a record has another length than it says")
            start = end
            yield record, start

    def _torn(self, data: bytes, start: int, body: int, length: int) -> Iterator[tuple[Record, int]]:
        """The rows that can be read of a record that was cut short, once each. One that says another length than is
        written before it was not cut short: that is damage, and hides what follows."""
        if data.find(b"\n", body) < 0:
            if len(data) - body > LONGEST_LINE:
                raise self._damaged("a record cannot be read")
            return
        record, end = self._parsed(data, body)
        if end != body + length:
            raise self._damaged("a record has another length than it says")
        yield Record(record.name, record.event, record.rounds, record.keys, np.ones_like(record.keys)), start

    def _parsed(self, data: bytes, start: int) -> tuple[Record, int]:
        """The record that begins there, and where it ends; beyond the data, it is cut short."""
        try:
            line = data.index(b"\n", start)
            about = json.loads(data[start:line])
            rows, rounds = int(about["rows"]), int(about["rounds"])
            event = DpEvent(about["event"], about["parameters"])
            some = min(2 * rows, (len(data) - line - 1) // 8)
            words = np.frombuffer(data, dtype="<i8", offset=line + 1, count=some) if some else np.empty(0)
        except (ValueError, KeyError, TypeError):
            raise self._damaged("a record cannot be read") from None
        values: NDArray[np.int64] = words.astype(np.int64)
        return Record(str(about["name"]), event, rounds, values[:rows], values[rows:]), line + 1 + 16 * rows

    def _damaged(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is damaged: {how}. What rows have paid is not known without it, so nothing is released. Put "
            "back a copy of it."
        )


def _frame(record: Record) -> bytes:
    about = {
        "name": record.name,
        "event": record.event.kind,
        "parameters": dict(record.event.parameters),
        "rounds": record.rounds,
        "rows": len(record.keys),
    }
    keys, times = (values.astype("<i8").tobytes() for values in (record.keys, record.times))
    body = json.dumps(about).encode() + b"\n" + keys + times
    return FRAME.pack(len(body), zlib.crc32(body, zlib.crc32(len(body).to_bytes(8, "little")))) + body
