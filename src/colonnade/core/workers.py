"""Processes that compute beside this one, one for each core.

Threads gain little where a call takes microseconds: after each the interpreter's lock changes hands. So work on many
items is cut into pieces, and each goes through a pipe to a process of its own (`core.worker`). What comes back is in
order and has the same bits. Processes start once there was work enough to be worth it, are shared by all parties of
this one, and end with it, or after a minute without work.
"""

from __future__ import annotations

import atexit
import inspect
import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import Any

from colonnade.core import worker
from colonnade.core.party import cores
from colonnade.core.worker import Work

START = 0.2
"""Seconds of work for a program, in all, after which it is worth processes: each takes half as long to start."""
GRAIN = 5e-3
"""Seconds of work that are worth a journey to a process that waits; a piece has them at least."""
PIECES = 4
"""Of what is much, so many pieces for each core, so that none waits long for the last."""


class Wrong(ValueError):  # noqa: N818 - whoever catches it says what is wrong
    """An item that cannot be computed with: of which piece, and its number there."""

    def __init__(self, piece: int, at: int) -> None:
        super().__init__(f"item {at} of piece {piece}")
        self.piece, self.at = piece, at


class Worker:
    """One process, which answers one question at a time."""

    def __init__(self, program: str) -> None:
        command = [sys.executable, "-P", worker.__file__, program]
        self.process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)

    def ask(self, kind: bytes, buffers: Sequence[Any]) -> Sequence[Any] | int:
        """Let the process compute; raises EOFError or OSError where it has ended."""
        into, out = self.process.stdin, self.process.stdout
        assert into is not None
        assert out is not None
        worker.send(into, kind, buffers)
        outcome, answer = worker.receive(out)
        return int.from_bytes(answer[0]) if outcome == worker.WRONG else answer

    def end(self) -> None:
        """Close the process's input, at which it ends; kill it if it does not."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # unwritten bytes to a process that has ended
                pipe.close()
        try:
            self.process.wait(1.0)
        except TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Pool:
    """Workers that wait for questions, by the program they run."""

    def __init__(self) -> None:
        self.idle: defaultdict[str, queue.LifoQueue[Worker]] = defaultdict(queue.LifoQueue)
        self.room = threading.Semaphore(cores())  # parties of one process share the cores
        self.done: defaultdict[str, float] = defaultdict(float)  # seconds of a program's work so far, as counted

    def ask(self, work: Work, kind: bytes, buffers: Sequence[Any]) -> Sequence[Any] | int:
        """Let a waiting worker compute, or a new one. One that ended meanwhile is replaced; where none can be started,
        this process computes."""
        path = inspect.getfile(work)
        with self.room:
            for one in self._workers(path):
                try:
                    answer = one.ask(kind, buffers)
                except (EOFError, OSError):
                    one.end()
                except BaseException:  # interrupted in the middle of an answer
                    one.end()
                    raise
                else:
                    self.idle[path].put(one)
                    return answer
            return work(kind, *buffers)

    def _workers(self, path: str) -> Iterator[Worker]:
        """Give those that wait, and then a new one: if that fails, another would, too."""
        yield from self._waiting(path)
        with suppress(OSError):
            yield Worker(path)

    def _waiting(self, path: str) -> Iterator[Worker]:
        with suppress(queue.Empty):
            while True:
                yield self.idle[path].get_nowait()

    def end(self) -> None:
        """End all workers that wait."""
        for path in list(self.idle):
            for one in self._waiting(path):
                one.end()


POOL = Pool()
atexit.register(lambda: POOL.end())
_limits: list[int] = []


@contextmanager
def limited(processes: int) -> Iterator[None]:
    """Use at most so many processes inside; with one, this one alone."""
    _limits.append(processes)
    try:
        yield
    finally:
        _limits.pop()


def pieces(work: Work, count: int, seconds: float) -> list[slice]:
    """So many items, each so much work, in pieces that are worth a journey."""
    usable = _usable(work, count * seconds)
    number = min(int(count * seconds / GRAIN), PIECES * usable) if usable > 1 else 1
    number = max(1, number - number % usable if number > usable else number)  # all cores have equally many
    bounds = [count * at // number for at in range(number + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def spread(work: Work, kind: bytes, questions: Sequence[Sequence[Any]], seconds: float) -> list[Sequence[Any]]:
    """What `work` of a file that imports nothing of Colonnade answers to these questions, which are so much work: each
    by a process of its own, or all here where that is not worth it. `Wrong` names the first item that is."""
    threads = min(_usable(work, seconds), len(questions))
    POOL.done[inspect.getfile(work)] += seconds
    if threads < 2:
        answers = [work(kind, *question) for question in questions]
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="workers") as pool:
            answers = list(pool.map(lambda question: POOL.ask(work, kind, question), questions))
    for piece, answer in enumerate(answers):
        if isinstance(answer, int):
            raise Wrong(piece, answer)
    return [answer for answer in answers if not isinstance(answer, int)]


def _usable(work: Work, seconds: float) -> int:
    """How many processes may be used for so much work."""
    worth = seconds > 2 * GRAIN and POOL.done[inspect.getfile(work)] + seconds > START
    return min([cores(), *_limits]) if worth else 1
