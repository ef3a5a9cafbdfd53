"""What parties left to be done, done by threads: each party's tasks in their order, and
parties take turns.

    ready     clinic, lab, ...        whoever waits longest comes first
    a thread  takes a party, does its next tasks for some milliseconds, and if others wait, puts it behind them

So fourteen parties keep eight cores busy until all of them are nearly done; with a
thread for each, six would wait until the first eight are done, and two cores for the
last six. What a party computes does not depend on who does it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Any

from colonnade.core.message import Request, batch_of
from colonnade.core.release import Task
from colonnade.errors import PartyError

TURN = 1e-3
"""Seconds after which a thread leaves a party for one that waits."""


class Backlog:
    """Of one exchange. After a party's first failure nothing more is done for it."""

    def __init__(self, threads: Executor) -> None:
        self.threads = threads
        self._tasks: dict[str, deque[tuple[Request[Any] | None, Task]]] = {}
        # as many threads will look here as parties wait
        self._ready: deque[str] = deque()
        self._under_way: set[str] = set()  # parties that wait for a thread, or have one
        self._awaited: str | None = None
        self._failures: dict[str, tuple[Request[Any] | None, BaseException]] = {}
        self._ended = threading.Condition()

    def add(
        self, party: str, request: Request[Any] | None, tasks: Iterable[Task]
    ) -> None:
        """What a party left when it answered a request, to be done after all that it
        left before; None: these answer, and say themselves whose failure it is."""
        with self._ended:
            self._tasks.setdefault(party, deque()).extend(
                (request, task) for task in tasks
            )
            if party in self._under_way or not self._tasks[party]:
                return
            # first: where there are no threads any more, nobody waits for one
            self.threads.submit(self._work)
            self._under_way.add(party)
            self._ready.append(party)

    def catch_up(self, party: str) -> None:
        """Wait until what a party left so far is done."""
        with self._ended:
            self._awaited = party
            self._ended.wait_for(lambda: party not in self._under_way)
            self._awaited = None
        self._raise(party)

    def finish(self) -> None:
        """Wait until all is done, also where somebody interrupts, so that nobody
        computes behind its back. Of what failed, the first party's is raised."""
        with self._ended:
            try:
                self._ended.wait_for(lambda: not self._under_way)
            except KeyboardInterrupt:
                self._ended.wait_for(lambda: not self._under_way)
                raise
        for party in self._tasks:
            self._raise(party)

    def _raise(self, party: str) -> None:
        if party in self._failures:
            request, error = self._failures[party]
            if request is None:
                raise error
            cause = f"{type(error).__name__}: {error}"
            raise PartyError(
                party, request.kind, batch_of(request), cause, private=True
            ) from error

    def _work(self) -> None:
        with self._ended:
            party = self._ready.popleft()
            since = time.perf_counter()
        while self._does_one(party):
            if self._ready and time.perf_counter() - since > TURN:
                self._ready.append(party)
                party = self._ready.popleft()
                since = time.perf_counter()

    def _does_one(self, party: str) -> bool:
        """A party's next task; whether there was one."""
        tasks = self._tasks[party]
        if not tasks:  # or some came just now
            with self._ended:
                if not tasks:
                    self._under_way.discard(party)
                    if not self._under_way or party == self._awaited:
                        self._ended.notify_all()
                    return False
        request, task = tasks.popleft()
        try:
            if party not in self._failures:
                task()
        except BaseException as error:
            self._failures[party] = request, error
        return True
