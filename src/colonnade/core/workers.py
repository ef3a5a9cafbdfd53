"""Processes that compute beside this one, one for each core.

Threads gain little where a call takes microseconds: after each the interpreter's lock
changes hands. So work on many items is cut into pieces, and each goes through a pipe to
a process of its own (`core.worker`). What comes back is in order and has the same bits.
Processes start as work adds up that is worth them, are shared by all parties of this
one, and end with it, or after a minute without work. Whatever becomes of them, this
process can compute the same alone.
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import pairwise
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from colonnade.core import worker
from colonnade.core.party import cores
from colonnade.core.worker import Work

START = 0.1
"""Seconds of a program's work, in all, for each process that runs it; one takes about
as long to start."""
GRAIN = 5e-3
"""Seconds of work that are worth a journey to a process that waits; a piece has them at
least."""
PIECES = 2
"""Of what is much, so many pieces for each core, so that none waits long for the last.
"""
LIMIT = 60.0
"""Seconds, and ten times those of the work, after which processes without an answer are
taken to hang."""
LIBRARIES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
"""What a process gets of the environment, in which secrets may stand."""


class Wrong(ValueError):  # noqa: N818 - whoever catches it says what is wrong
    """An item that cannot be computed with, by its number."""

    def __init__(self, at: int) -> None:
        super().__init__(f"item {at}")
        self.at = at


class Worker:
    """One process, which answers one question at a time."""

    def __init__(self, program: str) -> None:
        files = worker.__file__, program
        # packed into a program that is no Python
        if not sys.executable or not all(map(os.path.isfile, files)):
            raise FileNotFoundError(program)
        environment = {
            name: os.environ[name] for name in LIBRARIES if name in os.environ
        } | {"OMP_NUM_THREADS": "1"}
        # as isolated as a Python can be, but with the packages of this one
        command = [sys.executable, "-I", "-S", *files, *filter(None, sys.path)]
        self.process = Popen(
            command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment
        )

    def ask(self, kind: bytes, buffers: Sequence[Any]) -> Sequence[Any] | int:
        """Let the process compute; raises EOFError or OSError where it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        worker.send(self.process.stdin, kind, buffers)
        outcome, answer = worker.receive(self.process.stdout)
        return int.from_bytes(answer[0]) if outcome == worker.WRONG else answer

    def end(self) -> None:
        # closes pipes, in which there may be bytes for a process that has ended
        with suppress(OSError), self.process:
            self.process.kill()


class Pool:
    """Workers that wait for questions, by the program they run."""

    def __init__(self) -> None:
        # a process forked from it has the same pipes, and must not use them
        self.owner = os.getpid()
        self.idle: defaultdict[str, list[Worker]] = defaultdict(list)
        self.busy: list[Worker] = []
        # seconds of a program's work so far, as counted
        self.done: defaultdict[str, float] = defaultdict(float)
        # programs of which no worker could be started, or failed at once
        self.failed: set[str] = set()
        # parties of one process share the cores
        self.room = threading.Semaphore(cores())

    def usable(self, program: str) -> int:
        """How many workers may be used."""
        alone = program in self.failed or self.owner != os.getpid()
        return (
            1
            if alone
            else max(1, min([cores(), *_limits, int(self.done[program] / START)]))
        )

    def ask(
        self, work: Work, kind: bytes, buffers: Sequence[Any]
    ) -> Sequence[Any] | int:
        """Let a waiting worker compute, or a new one, or else this process."""
        program = inspect.getfile(work)
        with self.room:
            for one in self._workers(program):
                self.busy.append(one)
                try:
                    answer = one.ask(kind, buffers)
                # whatever is wrong with the question itself shows below
                except Exception:
                    one.end()
                else:
                    self.idle[program].append(one)
                    return answer
                finally:
                    self.busy.remove(one)
            return work(kind, *buffers)

    def _workers(self, program: str) -> Iterator[Worker]:
        """Give those that wait, of which some may have ended, and then a new one."""
        with suppress(IndexError):
            while True:
                yield self.idle[program].pop()
        if program not in self.failed:
            with suppress(OSError):
                yield Worker(program)
            self.failed.add(program)  # reached where it did not answer

    def end(self) -> None:
        """End all workers that wait."""
        for idle in self.idle.values():
            while idle:
                idle.pop().end()


POOL = Pool()
atexit.register(lambda: POOL.end())
_limits: list[int] = []


@contextmanager
def limited(processes: int) -> Iterator[None]:
    """Use at most so many processes inside, in all threads; with one, this one alone."""
    _limits.append(processes)
    try:
        yield
    finally:
        _limits.remove(processes)  # not the last: another thread's may have come since


def pieces(count: int, seconds: float, processes: int) -> list[slice]:
    """So many items, each so much work, in pieces that are worth a journey."""
    number = (
        min(int(count * seconds / GRAIN), PIECES * processes) if processes > 1 else 1
    )
    # all cores have equally many
    number = max(1, number - number % processes if number > processes else number)
    return [
        slice(start, stop)
        for start, stop in pairwise(count * at // number for at in range(number + 1))
    ]


def spread(
    work: Work,
    kind: bytes,
    count: int,
    seconds: float,
    question: Callable[[slice], Sequence[Any]],
) -> list[Sequence[Any]]:
    """What `work`, of a file that imports nothing of Colonnade, answers to the
    questions about each piece of so many items, each so much work. `Wrong` names the
    first item that is."""
    program = inspect.getfile(work)
    POOL.done[program] += count * seconds
    processes = POOL.usable(program)
    cut = pieces(count, seconds, processes)
    answers: list[Sequence[Any] | int] = []
    if len(cut) > 1:
        threads = ThreadPoolExecutor(
            min(processes, len(cut)), thread_name_prefix="workers"
        )
        # there can be no more threads; also, while the interpreter ends
        with suppress(RuntimeError):
            try:
                asked = [
                    threads.submit(
                        lambda piece: POOL.ask(work, kind, question(piece)), piece
                    )
                    for piece in cut
                ]
                while wait(asked, LIMIT + 10 * count * seconds).not_done:
                    for one in list(POOL.busy):
                        one.process.kill()
                answers = [future.result() for future in asked]
            finally:
                threads.shutdown(cancel_futures=True)
    answers = answers or [work(kind, *question(piece)) for piece in cut]
    for piece, answer in zip(cut, answers, strict=True):
        if isinstance(answer, int):
            raise Wrong(piece.start + answer)
    return [answer for answer in answers if not isinstance(answer, int)]
