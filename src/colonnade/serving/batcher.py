"""Where requests wait: those that come together are asked together, and a row just
answered is not asked for again.

    ask(ids) ──▶ memory ──▶ has all rows: answered at once
                   └──▶ queue ──▶ all that come within `window` are one batch ──▶ the parties, once

A row that is answered from memory crosses nothing and costs no budget. A row is not
kept in memory if a party was missing for it, so that its answer is complete as soon as
the party is back.

One caller's error is no other's: a batch that fails is asked for in halves, and each
half again, until the requests that cannot be answered are alone. An id whose budget is
spent is found the same way; for a while it is then refused before it joins a batch.

Where parties count the ids that are compared with theirs (`align = "private"`), made-up
ids would use up the day's allowance for everybody. Whether anybody holds an id is known
only once it was asked for. So a caller may have at most `unknown` ids under way or
found unknown in a day, and all callers together a few times that; ids that were found
once are free.
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
from colonnade.serving.source import PredictionSource, Row

MOST_ROWS = 4096
"""Rows of one batch: a federation predicts so many at a time."""
MOST_KEPT = 100_000
"""Rows in memory."""
REFUSED = 60.0
"""Seconds for which an id whose budget is spent is refused without asking: its owner
may raise the budget."""
MOST_FAILURES = 64
"""Questions of one batch that may fail before the remaining requests are refused: each
question takes time."""


class Unknown(DataError):  # noqa: N818 - the name of the condition
    """Some ids cannot be predicted. It says how many, not which: whether a party knows
    somebody is information."""

    def __init__(self, unknown: int, asked: int) -> None:
        self.unknown = unknown
        self.asked = asked
        super().__init__(
            f"{unknown} of the {asked} ids asked for cannot be predicted: not all"
            " parties hold them."
        )


class Busy(ColonnadeError):  # noqa: N818 - the name of the condition
    """More requests wait than the batcher takes, one waited too long, or it is closing."""


@dataclass(eq=False)
class PendingRequest:
    """One request."""

    ids: tuple[str, ...]
    until: float  # when its caller stops waiting
    caller: str = ""
    # ids that count against its caller until they are found
    unseen: frozenset[str] = frozenset()
    # ids that cannot be predicted, where a caller may know which these are
    lost: frozenset[str] = frozenset()
    answer: Future[list[Row]] = field(default_factory=Future)


class Batcher:
    """Asks one source for many callers, in many threads. With a `window` of 0 each
    request is a batch of its own. Where callers may know which ids cannot be predicted
    (`name_missing`), a request with some of these gets the other rows."""

    def __init__(
        self,
        source: PredictionSource,
        *,
        window: float = 0.005,
        cache: float = 60.0,
        waiting: int = 1000,
        patience: float = 30.0,
        metrics: Metrics | None = None,
        unknown: int = 0,
        name_missing: bool = False,
    ) -> None:
        self.source = source
        self.name_missing = name_missing
        self.window = window
        self.cache = cache
        self.patience = patience
        self.metrics = metrics or Metrics()
        self.most_waiting = waiting
        self.waiting = 0
        self._memory: dict[str, tuple[float, Row]] = {}
        self._spent: dict[str, tuple[float, BudgetExhausted]] = {}
        self.quota = Quota(unknown if source.comparing_is_counted else 0)
        self._failures = 0  # of the batch that is being answered
        self._refused: list[tuple[PendingRequest, BudgetExhausted]] = []  # in it
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[PendingRequest | None] = queue.SimpleQueue()
        self._closed = False
        self._worker = threading.Thread(target=self._work, daemon=True, name="batcher")
        self._worker.start()
        source.watch(self.forget)

    def ask(self, ids: Sequence[str], caller: str = "") -> Future[list[Row]]:
        """A future of the rows, in the order of `ids`."""
        request = PendingRequest(tuple(ids), time.monotonic() + self.patience, caller)
        if (refusal := self._refusal(request.ids)) is not None:
            request.answer.set_exception(refusal)
            return request.answer
        kept = self._from_memory(request.ids)
        if len(kept) == len(set(request.ids)):
            self._resolve(request, kept, kept)
            return request.answer
        with self._lock:
            if self._closed or self.waiting >= self.most_waiting:
                raise Busy(
                    "The service is stopping."
                    if self._closed
                    else f"{self.waiting} requests wait already."
                )
            request.unseen = self.quota.take(caller, request.ids)
            self.waiting += 1
            self._queue.put(request)
        request.answer.add_done_callback(lambda _: self._done(request))
        return request.answer

    def forget(self) -> None:
        """Clear the memory: its rows and refusals may not be true any more."""
        with self._lock:
            self._memory.clear()
            self._spent.clear()

    def close(self) -> None:
        """Take no more requests, and answer those that wait."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        self._worker.join()
        self.source.close()

    def _done(self, request: PendingRequest) -> None:
        with self._lock:
            self.waiting -= 1
        self._settle(request, None)  # unless it was settled before

    def _settle(self, request: PendingRequest, lost: Collection[str] | None) -> None:
        self.quota.settle(request.caller, request.unseen, lost)
        request.unseen = frozenset()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            rows = len(first.ids)
            until = time.monotonic() + self.window
            while rows < MOST_ROWS and (seconds := until - time.monotonic()) > 0:
                try:
                    request = self._queue.get(timeout=seconds)
                except queue.Empty:
                    break
                if request is None:
                    self._queue.put(None)
                    break
                batch.append(request)
                rows += len(request.ids)
            now = time.monotonic()
            wanted = [
                request
                for request in batch
                if request.answer.set_running_or_notify_cancel()
            ]
            self._answer([request for request in wanted if request.until > now])
            for request in wanted:
                if request.until <= now:
                    request.answer.set_exception(
                        Busy(f"It was not answered within {self.patience:g} seconds.")
                    )

    def _answer(self, requests: list[PendingRequest]) -> None:
        """Give each request its rows or an error, whatever happens: the only worker
        must go on."""
        self._failures = 0
        self._refused.clear()
        self._isolate_failures(self._refuse_unknown, requests)
        for request, error in self._refused:  # when everybody has an answer
            self._remember_spent(request, error)

    def _isolate_failures(
        self,
        step: Callable[[list[PendingRequest]], None],
        requests: list[PendingRequest],
    ) -> None:
        """Do a step for all requests at once; if it fails, for each half, until only
        the failing requests get an error. Where a party does not answer there are no
        halves: they would only wait again."""
        try:
            step(requests)
        except Exception as error:
            unanswered = [request for request in requests if not request.answer.done()]
            self._failures += 1
            if (
                len(unanswered) > 1
                and self._failures < MOST_FAILURES
                and not isinstance(error, NoAnswer)
            ):
                half = len(unanswered) // 2
                self._isolate_failures(step, unanswered[:half])
                self._isolate_failures(step, unanswered[half:])
                return
            # it may be any request's row
            unclear = len(unanswered) > 1 and isinstance(error, BudgetExhausted)
            for request in unanswered:
                request.answer.set_exception(
                    Busy("Too much of its batch failed.") if unclear else error
                )
            if len(unanswered) == 1 and isinstance(error, BudgetExhausted):
                self._refused.append((unanswered[0], error))

    def _refuse_unknown(self, requests: list[PendingRequest]) -> None:
        """Refuse requests with ids that cannot be predicted, and predict for the others.
        Where callers may know which ids these are, only a request is refused of which
        nothing can be predicted."""
        new = _ids_to_ask(
            requests,
            self._from_memory(id_ for request in requests for id_ in request.ids),
        )
        lost = self.source.lacking(new) if new else set()
        answerable = []
        for request in requests:
            self._settle(request, lost)
            unknown = sum(id_ in lost for id_ in request.ids)
            if unknown:
                self.metrics.count("rows_unknown", unknown)
            is_refused = not self.name_missing or unknown == len(request.ids)
            if unknown and is_refused:
                request.answer.set_exception(Unknown(unknown, len(request.ids)))
            else:
                request.lost = frozenset(lost.intersection(request.ids))
                answerable.append(request)
        self._isolate_failures(self._predict, answerable)

    def _predict(self, requests: list[PendingRequest]) -> None:
        kept = self._from_memory(id_ for request in requests for id_ in request.ids)
        new = _ids_to_ask(requests, kept)
        answered = self._ask(new) if new else {}
        for request in requests:
            self._resolve(request, kept | answered, kept)

    def _remember_spent(self, request: PendingRequest, error: BudgetExhausted) -> None:
        """Find by bisection an id of a refused request whose budget is spent, and
        refuse it for a while."""
        ids = (
            []
            if self._refusal(request.ids)
            else _ids_to_ask([request], self._from_memory(request.ids))
        )
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
            self._spent = {
                id_: refusal for id_, refusal in self._spent.items() if refusal[0] > now
            }
            self._spent |= dict.fromkeys(ids, (now + REFUSED, error))

    def _refusal(self, ids: Iterable[str]) -> BudgetExhausted | None:
        """The error for ids of which one is known to have spent its budget; None where
        none has."""
        now = time.monotonic()
        with self._lock:
            refusals = (
                [self._spent[id_] for id_ in ids if id_ in self._spent]
                if self._spent
                else []
            )
        return next((error for until, error in refusals if until > now), None)

    def _ask(self, ids: list[str]) -> dict[str, Row]:
        self.metrics.count("batches")
        federation = self.source.federation
        rows = {row.id: row for row in self.source.ask(ids)}
        for row in rows.values():
            for party in row.missing:
                self.metrics.count("party_missing", party=party)
        until = time.monotonic() + self.cache
        with self._lock:
            # else a file has changed meanwhile
            current = federation is self.source.federation
            for id_, row in rows.items():
                if self.cache and current and not row.missing:
                    self._memory.pop(id_, None)
                    self._memory[id_] = until, row
            while len(self._memory) > MOST_KEPT:
                del self._memory[next(iter(self._memory))]
        return rows

    def _from_memory(self, ids: Iterable[str]) -> dict[str, Row]:
        now = time.monotonic()
        with self._lock:
            remembered = {id_: self._memory[id_] for id_ in ids if id_ in self._memory}
        return {id_: row for id_, (until, row) in remembered.items() if until > now}

    def _resolve(
        self, request: PendingRequest, rows: dict[str, Row], kept: dict[str, Row]
    ) -> None:
        remembered = sum(id_ in kept for id_ in request.ids)
        unknown = sum(id_ in request.lost for id_ in request.ids)
        asked = len(request.ids) - remembered - unknown
        self.metrics.count("rows", remembered, source="memory")
        self.metrics.count("rows", asked, source="parties")
        request.answer.set_result(
            [
                Row.unknown(id_) if id_ in request.lost else rows[id_]
                for id_ in request.ids
            ]
        )


def _ids_to_ask(requests: Iterable[PendingRequest], kept: Container[str]) -> list[str]:
    """The ids of these requests that can be predicted and are not kept, each once."""
    ids: dict[str, None] = {}
    for request in requests:
        for id_ in request.ids:
            if id_ not in kept and id_ not in request.lost:
                ids[id_] = None
    return list(ids)
