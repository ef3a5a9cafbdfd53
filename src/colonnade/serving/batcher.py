"""Where requests wait: those that come together are asked for together, and a row just answered is not asked for again.

    ask(ids) ──▶ memory ──▶ all there: answered at once
                   └──▶ queue ──▶ whatever comes within `window` is one batch ──▶ the parties, once

A row that is answered from memory crosses nothing and costs no budget. One that a party was missing for is not kept, so
that it is whole as soon as the party is back.

One caller's error is no other's: a batch that fails is asked for in halves, and each half again, until those who asked
for what cannot be answered are alone. An id whose budget is spent is found the same way, and then refused for a while,
before it joins a batch.

Where parties count what is compared with their ids (`align = "private"`), made-up ids would use up the day's allowance
for everybody. Which ids nobody holds is seen only when they were asked for, so a caller may have so many under way or
found unknown in a day, and all callers together a few times that (`unknown`); ids that were found once are free.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from colonnade.errors import BudgetExhausted, ColonnadeError, DataError, NoAnswer
from colonnade.serving.limits import Metrics, Quota
from colonnade.serving.source import Asked, Row

MOST_ROWS = 4096
"""Of one batch: so many rows a federation predicts at a time."""
MOST_KEPT = 100_000
"""Rows in memory."""
REFUSED = 60.0
"""Seconds for which an id whose budget is spent is refused without asking: its owner may raise the budget."""
MOST_FAILURES = 64
"""Questions of one batch that may fail before those who are left are refused with it: each one's takes time."""


class Unknown(DataError):  # noqa: N818 - the name of the condition
    """Some ids cannot be predicted. How many, not which: whether somebody is known to a party is information."""

    def __init__(self, unknown: int, asked: int) -> None:
        self.unknown, self.asked = unknown, asked
        super().__init__(f"{unknown} of the {asked} ids asked for cannot be predicted: not all parties hold them.")


class Busy(ColonnadeError):  # noqa: N818 - the name of the condition
    """More requests wait than the batcher takes, one waited too long, or it is closing."""


@dataclass(eq=False)
class Waiting:
    """One request."""

    ids: tuple[str, ...]
    until: float  # then nobody waits for it any more
    caller: str = ""
    unseen: frozenset[str] = frozenset()  # that count against its caller until they are found
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
        unknown: int = 0,
    ) -> None:
        self.source, self.window, self.cache, self.patience = source, window, cache, patience
        self.metrics = metrics or Metrics()
        self.most_waiting, self.waiting = waiting, 0
        self._kept: dict[str, tuple[float, Row]] = {}
        self._spent: dict[str, tuple[float, BudgetExhausted]] = {}
        self.quota = Quota(unknown if source.comparing_is_counted else 0)
        self._failures = 0  # of the batch that is being answered
        self._refused: list[tuple[Waiting, BudgetExhausted]] = []  # in it
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._closed = False
        self._worker = threading.Thread(target=self._work, daemon=True, name="batcher")
        self._worker.start()
        source.watch(self.forget)

    def ask(self, ids: Sequence[str], caller: str = "") -> Future[list[Row]]:
        """The answer when it is there, row by row in the order of `ids`. `caller` is whose request it is."""
        request = Waiting(tuple(ids), time.monotonic() + self.patience, caller)
        if (refusal := self._refusal(request.ids)) is not None:
            request.answer.set_exception(refusal)
            return request.answer
        kept = self._from_memory(request.ids)
        if len(kept) == len(set(request.ids)):
            self._resolve(request, kept, kept)
            return request.answer
        with self._lock:
            if self._closed or self.waiting >= self.most_waiting:
                raise Busy("The service is stopping." if self._closed else f"{self.waiting} requests wait already.")
            request.unseen = self.quota.take(caller, request.ids)
            self.waiting += 1
            self._queue.put(request)
        request.answer.add_done_callback(lambda _: self._left(request))
        return request.answer

    def forget(self) -> None:
        """What was kept is not true any more."""
        with self._lock:
            self._kept.clear()
            self._spent.clear()

    def close(self) -> None:
        """Answer what waits, and take nothing more."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        self._worker.join()
        self.source.close()

    def _left(self, request: Waiting) -> None:
        with self._lock:
            self.waiting -= 1
        self._settle(request, None)  # where nobody said whether they are known

    def _settle(self, request: Waiting, lost: Collection[str] | None) -> None:
        self.quota.settle(request.caller, request.unseen, lost)
        request.unseen = frozenset()

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
        """Each request gets its rows or an error, whatever happens: nobody else answers, so the batcher must go on."""
        self._failures = 0
        self._refused.clear()
        self._isolating(self._look, requests)
        for request, error in self._refused:  # when everybody has an answer
            self._remember_spent(request, error)

    def _isolating(self, step: Callable[[list[Waiting]], None], requests: list[Waiting]) -> None:
        """Do a step for all of them at once, and where it fails for each half, so that one's error is its own. Who does
        not answer is silent for all: halves would only wait again."""
        try:
            step(requests)
        except Exception as error:
            left = [one for one in requests if not one.answer.done()]
            self._failures += 1
            if len(left) > 1 and self._failures < MOST_FAILURES and not isinstance(error, NoAnswer):
                half = len(left) // 2
                self._isolating(step, left[:half])
                self._isolating(step, left[half:])
                return
            unclear = len(left) > 1 and isinstance(error, BudgetExhausted)  # whose row it is was not found out
            for request in left:
                request.answer.set_exception(Busy("Too much of its batch failed.") if unclear else error)
            if len(left) == 1 and isinstance(error, BudgetExhausted):
                self._refused.append((left[0], error))

    def _look(self, requests: list[Waiting]) -> None:
        """Refuse those who ask for what nobody can predict, and predict for the others."""
        new = _new(requests, self._from_memory(one for request in requests for one in request.ids))
        lost = self.source.lacking(new) if new else set()
        whole = []
        for request in requests:
            self._settle(request, lost)
            if unknown := sum(one in lost for one in request.ids):
                self.metrics.count("rows_unknown", unknown)
                request.answer.set_exception(Unknown(unknown, len(request.ids)))
            else:
                whole.append(request)
        self._isolating(self._predict, whole)

    def _predict(self, requests: list[Waiting]) -> None:
        kept = self._from_memory(one for request in requests for one in request.ids)
        new = _new(requests, kept)
        found = self._ask(new) if new else {}
        for request in requests:
            self._resolve(request, kept | found, kept)

    def _remember_spent(self, request: Waiting, error: BudgetExhausted) -> None:
        """Find one id of a refused request whose budget is spent, by halves, and refuse it from here on. What is
        answered on the way is in memory, for whoever asks for it next."""
        ids = [] if self._refusal(request.ids) else _new([request], self._from_memory(request.ids))
        while len(ids) > 1:
            half = len(ids) // 2
            try:
                self._ask(ids[:half])
                ids = ids[half:]
            except BudgetExhausted:
                self._failures += 1
                ids = ids[:half]
            except Exception:  # then it is found the next time
                return
            if self._failures >= MOST_FAILURES:
                return
        now = time.monotonic()
        with self._lock:
            self._spent = {one: until for one, until in self._spent.items() if until[0] > now}
            self._spent |= dict.fromkeys(ids, (now + REFUSED, error))

    def _refusal(self, ids: Iterable[str]) -> BudgetExhausted | None:
        """Why these are not asked for, where an id's budget was found to be spent."""
        now = time.monotonic()
        with self._lock:
            found = [self._spent[one] for one in ids if one in self._spent] if self._spent else []
        return next((error for until, error in found if until > now), None)

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
