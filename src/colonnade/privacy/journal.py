"""Releases written down before they are made, so that a run that is killed cannot forget what it spent.

A checkpoint holds the whole account; the journal holds what came after it. One record is a line of JSON and the row
keys and counts as bytes. A record cut short by a crash was not released, and is left out.

One process at a time releases what is counted here: two would each spend what is left. Readers need not wait.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from colonnade.core.lock import hold
from colonnade.core.release import DpEvent
from colonnade.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Record:
    """One release: its name, what the mechanism did, whether it trained, and how often each row was in it."""

    name: str
    event: DpEvent
    training: bool
    keys: NDArray[np.int64]
    times: NDArray[np.int64]


class Claim:
    """This process's right to release what a journal counts; it ends with the last account that holds it."""

    def __init__(self, path: Path) -> None:
        rule = f"The budget in {path} is counted by one process at a time"
        try:
            self.file = hold(
                _lock_of(path),
                f"{rule}, and another one releases under it now: a training run, a prediction or a service. Wait for "
                "its end, or stop it.",
            )
        except OSError as error:
            raise ConfigError(f"{rule}, and its folder takes no lock: {error.strerror}. Make it so.") from None

    def __del__(self) -> None:
        if hasattr(self, "file"):
            self.file.close()


def _lock_of(path: Path) -> Path:
    """Locked while a process releases; it says how often the journal was cleared."""
    return path.with_name(f".{path.name}.lock")


CLAIMS: WeakValueDictionary[Path, Claim] = WeakValueDictionary()
"""Of this process: accounts with the same journal share one."""


class Journal:
    """A file in the owner's own folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self) -> Claim:
        """For as long as what is returned is held; ConfigError where another process has it."""
        path = self.path.resolve()
        claim = CLAIMS.get(path)
        if claim is None:
            claim = CLAIMS[path] = Claim(path)
        return claim

    @property
    def size(self) -> int:
        """In bytes: whether others have written to it."""
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def cleared(self) -> int:
        """How often: whether it still says all that came after the checkpoint somebody was loaded from."""
        lock = _lock_of(self.path)
        return lock.stat().st_size if lock.exists() else 0

    def append(self, record: Record) -> None:
        about = {
            "name": record.name,
            "event": record.event.kind,
            "parameters": dict(record.event.parameters),
            "training": record.training,
            "rows": len(record.keys),
        }
        keys, times = (values.astype("<i8").tobytes() for values in (record.keys, record.times))
        with self.path.open("ab") as file:
            file.write(json.dumps(about).encode() + b"\n" + keys + times)

    def read(self) -> Iterator[Record]:
        """All whole records."""
        return (record for record, _ in self.read_on(0))

    def repair(self) -> None:
        """Cut off what a crash left of the last record, so that the next one can be read."""
        end = max((end for _, end in self.read_on(0)), default=0)
        if self.path.exists() and self.path.stat().st_size > end:
            with self.path.open("rb+") as file:
                file.truncate(end)

    def read_on(self, start: int) -> Iterator[tuple[Record, int]]:
        """Each whole record from where one begins, and where it ends."""
        data = self.path.read_bytes() if self.path.exists() else b""
        while (end := data.find(b"\n", start)) >= 0:
            about = json.loads(data[start:end])
            start, length = end + 1, 8 * about["rows"]
            if start + 2 * length > len(data):
                return
            keys, times = (
                np.frombuffer(data[at : at + length], dtype="<i8").astype(np.int64) for at in (start, start + length)
            )
            start += 2 * length
            event = DpEvent(about["event"], about["parameters"])
            yield Record(about["name"], event, about["training"], keys, times), start

    def clear(self) -> None:
        with _lock_of(self.path).open("ab") as file:
            file.write(b".")
        self.path.unlink(missing_ok=True)
