"""Where requests wait: those that come together are asked for together, and a row just answered is not asked for again.

    ask(ids) ──▶ memory ──▶ all there: answered at once
                   └──▶ queue ──▶ whatever comes within `window` is one batch ──▶ the parties, once

A row that is answered from memory crosses nothing and costs no budget. One that a party was missing for is not kept, so
that it is whole as soon as the party is back.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from colonnade.errors import BudgetExhausted, ColonnadeError, DataError
from colonnade.serving.metrics import Metrics
from colonnade.serving.source import Asked, Row

MOST_ROWS = 4096
"""Of one batch: so many rows a federation predicts at a time."""
MOST_KEPT = 100_000
"""Rows in memory."""


class Unknown(DataError):  # noqa: N818 - the name of the condition
    """Some ids cannot be predicted. How many, not which: whether somebody is known to a party is information."""

    def __init__(self, unknown: int, asked: int) -> None:
        self.unknown, self.asked = unknown, asked
        super().__init__(f"{unknown} of the {asked} ids asked for cannot be predicted: not all parties hold them.")


class Busy(ColonnadeError):  # noqa: N818 - the name of the condition
    """More requests wait than the desk takes, one waited too long, or it is closing."""


@dataclass(eq=False)
class Waiting:
    """One request."""

    ids: tuple[str, ...]
    until: float  # then nobody waits for it any more
    answer: Future[list[Row]] = field(default_factory=Future)


class Batcher:
    """Asks one source on behalf of many, from many threads. With a `window` of 0 each request is a batch of its own."""

    def __init__(
        self,
        source: Asked,
        *,
        window: float = 0.005,
        cache: float = 60.0,
        waiting: int = 1000,
        patience: float = 30.0,
        metrics: Metrics | None = None,
    ) -> None:
        self.source, self.window, self.cache, self.patience = source, window, cache, patience
        self.metrics = metrics or Metrics()
        self.most_waiting, self.waiting = waiting, 0
        self._kept: dict[str, tuple[float, Row]] = {}
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._closed = False
        self._worker = threading.Thread(target=self._work, daemon=True, name="desk")
        self._worker.start()
        source.watch(self.forget)

    def ask(self, ids: Sequence[str]) -> Future[list[Row]]:
        """The answer when it is there, row by row in the order of `ids`."""
        request = Waiting(tuple(ids), time.monotonic() + self.patience)
        kept = self._from_memory(request.ids)
        if len(kept) == len(set(request.ids)):
            self._resolve(request, kept, kept)
            return request.answer
        with self._lock:
            if self._closed or self.waiting >= self.most_waiting:
                raise Busy("The service is stopping." if self._closed else f"{self.waiting} requests wait already.")
            self.waiting += 1
            self._queue.put(request)
        request.answer.add_done_callback(lambda _: self._left())
        return request.answer

    def forget(self) -> None:
        """What was kept is not true any more."""
        with self._lock:
            self._kept.clear()

    def close(self) -> None:
        """Answer what waits, and take nothing more."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        self._worker.join()
        self.source.close()

    def _left(self) -> None:
        with self._lock:
            self.waiting -= 1

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, rows, until = [first], len(first.ids), time.monotonic() + self.window
            while rows < MOST_ROWS and (left := until - time.monotonic()) > 0:
                try:
                    more = self._queue.get(timeout=left)
                except queue.Empty:
                    break
                if more is None:
                    self._queue.put(None)
                    break
                batch.append(more)
                rows += len(more.ids)
            now = time.monotonic()
            self._answer([one for one in batch if one.until > now and one.answer.set_running_or_notify_cancel()])
            for late in batch:
                if late.until <= now and late.answer.set_running_or_notify_cancel():
                    late.answer.set_exception(Busy(f"It was not answered within {self.patience:g} seconds."))

    def _answer(self, requests: list[Waiting]) -> None:
        """Each request gets its rows or an error, whatever happens: nobody else answers, so the desk must go on."""
        try:
            self._answer_whole(requests)
        except Exception as error:
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)

    def _answer_whole(self, requests: list[Waiting]) -> None:
        kept = self._from_memory(one for request in requests for one in request.ids)
        new = _new(requests, kept)
        lost = self.source.lacking(new) if new else set()
        whole = []
        for request in requests:
            if unknown := sum(one in lost for one in request.ids):
                self.metrics.count("rows_unknown", unknown)
                request.answer.set_exception(Unknown(unknown, len(request.ids)))
            else:
                whole.append(request)
        new = _new(whole, kept)
        try:
            found = self._ask(new) if new else {}
        except BudgetExhausted:
            if len(whole) < 2:
                raise
            for request in whole:  # one row's refusal is not the others'
                self._answer([request])
            return
        for request in whole:
            self._resolve(request, kept | found, kept)

    def _ask(self, ids: list[str]) -> dict[str, Row]:
        self.metrics.count("batches")
        asked = self.source.federation
        found = {row.id: row for row in self.source.ask(ids)}
        for row in found.values():
            for party in row.missing:
                self.metrics.count("party_missing", party=party)
        until = time.monotonic() + self.cache
        with self._lock:
            current = asked is self.source.federation  # else a file has changed meanwhile
            for one, row in found.items():
                if self.cache and current and not row.missing:
                    self._kept.pop(one, None)
                    self._kept[one] = until, row
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return found

    def _from_memory(self, ids: Iterable[str]) -> dict[str, Row]:
        now = time.monotonic()
        with self._lock:
            known = {one: self._kept[one] for one in ids if one in self._kept}
        return {one: row for one, (until, row) in known.items() if until > now}

    def _resolve(self, request: Waiting, rows: dict[str, Row], kept: dict[str, Row]) -> None:
        remembered = sum(one in kept for one in request.ids)
        self.metrics.count("rows", remembered, source="memory")
        self.metrics.count("rows", len(request.ids) - remembered, source="parties")
        request.answer.set_result([rows[one] for one in request.ids])


def _new(requests: Iterable[Waiting], kept: Container[str]) -> list[str]:
    """What is to be asked for, each once."""
    return list(dict.fromkeys(one for request in requests for one in request.ids if one not in kept))
