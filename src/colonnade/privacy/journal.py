"""Releases written down before they are made, so that a run that is killed cannot forget what it spent.

A checkpoint holds the whole account; the journal holds what came after it. One record is a line of JSON and the row
keys and counts as bytes. A record cut short by a crash was not released, and is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colonnade.core.release import DpEvent


@dataclass(frozen=True, eq=False)
class Record:
    """One release: its name, what the mechanism did, whether it trained, and how often each row was in it."""

    name: str
    event: DpEvent
    training: bool
    keys: NDArray[np.int64]
    times: NDArray[np.int64]


class Journal:
    """A file in the owner's own folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

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
        return (record for record, _ in self._read())

    def repair(self) -> None:
        """Cut off what a crash left of the last record, so that the next one can be read."""
        end = max((end for _, end in self._read()), default=0)
        if self.path.exists() and self.path.stat().st_size > end:
            with self.path.open("rb+") as file:
                file.truncate(end)

    def _read(self) -> Iterator[tuple[Record, int]]:
        """Each record and where it ends."""
        data = self.path.read_bytes() if self.path.exists() else b""
        start = 0
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
        self.path.unlink(missing_ok=True)
