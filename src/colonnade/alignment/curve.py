"""Lists of points on secp256k1 as arrays, one point a row, computed by processes beside this one, one per core.

Threads gain little here: a multiplication takes 35 µs, and after each the interpreter's lock changes hands. So a list
of many points is cut into slices, and each goes through a pipe to a process of its own (`alignment.points`, which has
the arithmetic, run by its path). What comes back is in order and has the same bits. Workers start with the first long
list and are shared by all parties of this process; they end with it, and after a minute without work.
"""

from __future__ import annotations

import atexit
import os
import queue
import secrets
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment import points as arithmetic
from colonnade.alignment.points import DIGEST, POINT, NotAPoint
from colonnade.errors import ConfigError

__all__ = ["ORDER", "POINT", "NotAPoint", "blind", "check", "fresh_secret", "multiply", "public_key"]

CORES = os.cpu_count() or 1
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
LEAST = 2_048
"""Points below which starting a process takes longer than the work."""
SLICE = 1_024
"""Points that a worker takes at a time: about 50 ms of work."""


def fresh_secret() -> bytes:
    """A secret multiplier, uniform from 1 to the group's order - 1."""
    return (secrets.randbelow(ORDER - 1) + 1).to_bytes(32, "big")


def blind(digests: NDArray[np.uint8], secret: bytes) -> NDArray[np.uint8]:
    """secret * H(id) for each id's digest: [n, 32] -> [n, 33]."""
    assert digests.shape[1] == DIGEST
    return _points(spread(arithmetic.BLIND, digests.tobytes(), secret))


def multiply(points: NDArray[np.uint8], secret: bytes) -> NDArray[np.uint8]:
    """secret * P for each point; NotAPoint names the first that is none."""
    return _points(spread(arithmetic.MULTIPLY, points.tobytes(), secret))


def check(points: NDArray[np.uint8]) -> None:
    """Raise NotAPoint unless all are on the curve."""
    spread(arithmetic.CHECK, points.tobytes(), b"")


def public_key() -> Any:
    """coincurve's class of points."""
    try:
        from coincurve import PublicKey
    except ImportError:
        raise ConfigError('Private alignment needs the package coincurve: pip install "colonnade[crypto]".') from None
    return PublicKey


def _points(joined: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(bytearray(joined), dtype=np.uint8).reshape(-1, POINT)


class Worker:
    """One process, which answers one request at a time."""

    def __init__(self) -> None:
        self.process = Popen([sys.executable, "-P", arithmetic.__file__], stdin=PIPE, stdout=PIPE, stderr=DEVNULL)

    def ask(self, kind: bytes, data: bytes, secret: bytes) -> bytes:
        """Let the worker compute; raises EOFError or OSError where it has ended."""
        into, out = self.process.stdin, self.process.stdout
        assert into is not None
        assert out is not None
        into.write(arithmetic.question(kind, data, secret))
        into.flush()
        return arithmetic.read_answer(out)

    def end(self) -> None:
        """Close the worker's input, at which it ends; kill it if it does not."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # unwritten bytes to a worker that has ended
                pipe.close()
        try:
            self.process.wait(1.0)
        except TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Pool:
    """Workers that wait for work; a process has one pool."""

    def __init__(self) -> None:
        self.idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        self.room = threading.Semaphore(CORES)  # parties of one process share the cores

    def ask(self, kind: bytes, data: bytes, secret: bytes) -> bytes:
        """Let a waiting worker compute, or a new one. A worker that ended meanwhile, as it does after a minute, is
        replaced; where none can be started, this process computes."""
        with self.room:
            for worker in self._workers():
                try:
                    answer = worker.ask(kind, data, secret)
                except NotAPoint:
                    self.idle.put(worker)
                    raise
                except (EOFError, OSError):
                    worker.end()
                except BaseException:  # interrupted in the middle of an answer
                    worker.end()
                    raise
                else:
                    self.idle.put(worker)
                    return answer
            return arithmetic.work(kind, data, secret)

    def _workers(self) -> Iterator[Worker]:
        """Give those that wait, and then a new one: if that fails, another would, too."""
        yield from self._waiting()
        with suppress(OSError):
            yield Worker()

    def _waiting(self) -> Iterator[Worker]:
        with suppress(queue.Empty):
            while True:
                yield self.idle.get_nowait()

    def end(self) -> None:
        """End all workers that wait."""
        for worker in self._waiting():
            worker.end()


POOL = Pool()
atexit.register(POOL.end)


def spread(kind: bytes, data: bytes, secret: bytes) -> bytes:
    """The bytes of `arithmetic.work`, computed on all cores. NotAPoint names the first that is none."""
    width = arithmetic.WIDTHS[kind]
    count = len(data) // width
    cores = min(CORES, -(-count // SLICE))
    if cores < 2 or count < LEAST:
        return arithmetic.work(kind, data, secret)

    def work_on_slice(start: int) -> bytes:
        try:
            return POOL.ask(kind, data[start * width : (start + SLICE) * width], secret)
        except NotAPoint as error:
            raise NotAPoint(start + error.at) from None

    with ThreadPoolExecutor(cores, thread_name_prefix="curve") as pool:
        return b"".join(pool.map(work_on_slice, range(0, count, SLICE)))
