"""The journal of an owner's releases, each written down before it leaves: one file that
holds the whole account.

    colonnade-journal 2 exact 5f0c…91 1a2b3c4d     how ids are compared, which version of the file this is, a checksum
    length, checksum, record                       one release, or the sum of many: a line of JSON, row keys and counts
    …

The file alone says what rows have paid, so no order of runs, crashes and restarts can
lose any of it. Where it has grown, it is written anew with one record for each kind of
release, as another version, which replaces the old one at once.

A record is on the disk before its release leaves. So a crash can only cut short a
record whose release did not leave; the rows that can be read of it are counted all the
same. Every other damage is an error: what rows have paid is not known then, and they
are not released.

One process at a time releases what is counted here: two would each spend what is left.
Readers need not wait.
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
LONGEST_HEAD = 128
LONGEST_LINE = 1 << 16


class Claim:
    """This process's right to release what a journal counts; it ends with the last
    account that holds it. Accounts of one process count and write one after the other,
    under `lock`."""

    file: IO[str] | None = None  # None where another process has it

    def __init__(self, path: Path) -> None:
        self.lock = threading.Lock()
        rule = f"The budget in {path} is counted by one process at a time"
        try:
            self.file = hold(
                path.with_name(f".{path.name}.lock"),
                f"{rule}, and another one releases under it now: a training run, a"
                " prediction or a service. Wait for its end, or stop it.",
            )
        except OSError as error:
            raise ConfigError(
                f"{rule}, and its folder takes no lock: {error.strerror}. Make it so."
            ) from None

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


CLAIMS: WeakValueDictionary[Path, Claim] = WeakValueDictionary()
"""The claims of this process: accounts with the same journal share one."""
CLAIMING = threading.Lock()


class Extent(NamedTuple):
    """Which version of a journal is on the disk ("": none), where its records begin and
    where they end."""

    version: str = ""
    first: int = 0
    size: int = 0


class Journal:
    """A file in the owner's own folder. It is forced onto the disk with every record,
    or once in `sync_every` seconds where what is released does not leave the process. A
    process that is killed loses nothing either way."""

    def __init__(
        self, path: Path, *, ids: str = "exact", sync_every: float = 0.0
    ) -> None:
        self.path = path
        self.ids = ids
        self.sync_every = sync_every
        self._synced = -float("inf")

    def claim(self) -> Claim:
        """The right to release, for as long as the result is held; ConfigError where
        another process has it."""
        path = self.path.resolve()
        with CLAIMING:
            claim = CLAIMS.get(path)
            if claim is None:
                claim = CLAIMS[path] = Claim(path)
            return claim

    def extent(self) -> Extent:
        try:
            with self.path.open("rb") as file:
                return self._extent(file)
        except FileNotFoundError:
            return Extent()

    def read(self, start: int = 0) -> Iterator[tuple[Record, int]]:
        """Each record from `start`, which is 0 or the end of one, and where it ends.
        What can be read of a record that was cut short comes last, and ends where it
        began."""
        try:
            with self.path.open("rb") as file:
                start = max(start, self._extent(file).first)
                file.seek(start)
                data = file.read()
        except FileNotFoundError:
            return
        for record, end in self._framed(data):
            yield record, start + end

    def append(self, record: Record) -> None:
        """Write a record, which is on the disk when this returns. The caller has the
        claim, and has mended the end."""
        data = _frame(record)
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                before = os.fstat(file).st_size
                try:
                    while data:
                        data = data[os.write(file, data) :]
                    if time.monotonic() - self._synced >= self.sync_every:
                        getattr(os, "fdatasync", os.fsync)(file)
                        self._synced = time.monotonic()
                except BaseException:
                    # otherwise it is mended before the next record
                    with suppress(OSError):
                        os.ftruncate(file, before)
                    raise
            finally:
                os.close(file)
        except FileNotFoundError:
            raise self.gone() from None
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be written: {error.strerror}. What is not written"
                " down there is not released. Make room for it."
            ) from error

    def replace(self, records: Iterable[Record]) -> None:
        """Write the whole account anew, replacing the old file at once. The caller has
        the claim."""
        head = MAGIC + f"{self.ids} {secrets.token_hex(8)}".encode()
        first = head + f" {zlib.crc32(head):08x}\n".encode()
        write_bytes(self.path, itertools.chain([first], map(_frame, records)))
        self._synced = time.monotonic()

    def mend(self, end: int, torn: Record | None) -> None:
        """Make a whole record of what a crash left after `end`, so that the next one
        can be read. The caller has the claim."""
        os.truncate(self.path, end)
        if torn is not None:
            self.append(torn)

    def sync(self) -> None:
        """Force what was appended onto the disk."""
        if self.sync_every:
            with suppress(FileNotFoundError), self.path.open("rb") as file:
                os.fsync(file.fileno())
            self._synced = time.monotonic()

    def gone(self) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is gone, and it has what rows have paid for their releases."
            " Put it back; nothing is released without it."
        )

    def _extent(self, file: BinaryIO) -> Extent:
        line = file.readline(LONGEST_HEAD)
        size = os.fstat(file.fileno()).st_size
        head, _, check = line.rstrip(b"\n").rpartition(b" ")
        words = head.decode("ascii", "replace").split()
        if (
            len(words) != 4
            or not line.startswith(MAGIC)
            or check != f"{zlib.crc32(head):08x}".encode()
        ):
            raise self._damaged("it does not begin as a journal does")
        if words[2] != self.ids:
            raise ConfigError(
                f"{self.path} counts what rows paid by {words[2]} ids, and [alignment]"
                f" ids is {self.ids!r} now: they "
                f'would begin anew. Agree on ids = "{words[2]}" again; to let them,'
                " keep runs in another folder."
            )
        return Extent(words[3], len(line), size)

    def _framed(self, data: bytes) -> Iterator[tuple[Record, int]]:
        start = 0
        while (body := start + FRAME.size) <= len(data):
            length, check = FRAME.unpack_from(data, start)
            if not length and not data[start:].strip(b"\0"):
                # a file system made the file longer, and crashed before it wrote there
                return
            if body + length > len(data):
                yield from self._torn(data, start, body, length)
                return
            if (
                zlib.crc32(
                    data[body : body + length], zlib.crc32(length.to_bytes(8, "little"))
                )
                != check
            ):
                raise self._damaged(
                    f"a checksum is wrong, {start} bytes after its first line"
                )
            record, end = self._parsed(data, body)
            if end != body + length:
                raise self._damaged("a record has another length than it says")
            start = end
            yield record, start

    def _torn(
        self, data: bytes, start: int, body: int, length: int
    ) -> Iterator[tuple[Record, int]]:
        """The rows that can be read of a record that was cut short, once each. A record
        with another length than its frame says was not cut short: that is damage, and
        hides what follows."""
        if data.find(b"\n", body) < 0:
            if len(data) - body > LONGEST_LINE:
                raise self._damaged("a record cannot be read")
            return
        record, end = self._parsed(data, body)
        if end != body + length:
            raise self._damaged("a record has another length than it says")
        yield (
            Record(
                record.name,
                record.event,
                record.rounds,
                record.keys,
                np.ones_like(record.keys),
            ),
            start,
        )

    def _parsed(self, data: bytes, start: int) -> tuple[Record, int]:
        """The record that begins at `start`, and where it ends; an end beyond the data
        says that it was cut short."""
        try:
            line = data.index(b"\n", start)
            about = json.loads(data[start:line])
            rows = int(about["rows"])
            rounds = int(about["rounds"])
            event = DpEvent(about["event"], about["parameters"])
            count = min(2 * rows, (len(data) - line - 1) // 8)
            words = (
                np.frombuffer(data, dtype="<i8", offset=line + 1, count=count)
                if count
                else np.empty(0)
            )
        except (ValueError, KeyError, TypeError):
            raise self._damaged("a record cannot be read") from None
        values: NDArray[np.int64] = words.astype(np.int64)
        return (
            Record(str(about["name"]), event, rounds, values[:rows], values[rows:]),
            line + 1 + 16 * rows,
        )

    def _damaged(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is damaged: {how}. What rows have paid is not known without"
            " it, so nothing is released. Put back a copy of it."
        )


def _frame(record: Record) -> bytes:
    event = {"event": record.event.kind, "parameters": dict(record.event.parameters)}
    about = {
        "name": record.name,
        **event,
        "rounds": record.rounds,
        "rows": len(record.keys),
    }
    keys, times = (
        values.astype("<i8").tobytes() for values in (record.keys, record.times)
    )
    body = json.dumps(about).encode() + b"\n" + keys + times
    return (
        FRAME.pack(
            len(body), zlib.crc32(body, zlib.crc32(len(body).to_bytes(8, "little")))
        )
        + body
    )
