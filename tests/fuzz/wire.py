"""Mutated frames against the decoder: each gives a message or a WireError, soon, in
little memory, and runs nothing.

    python -m tests.fuzz.wire --frames 200000 --seed 0

A finding is printed with its frame, so that it can be tried again: `--frame HEX`.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tests.fuzz.corpus import corpus
from tests.fuzz.mutate import mutated

from colonnade.core import Message, Released, wire
from colonnade.errors import WireError

HANG = 20
SLOW = 1.0
"""Seconds after which a frame is given up, and of processor time that none may take."""
TRACED = 20
"""One frame in so many has its allocations counted, which takes several times as long.
"""
GROWTH = 300_000_000
"""Bytes that the process may grow by over a whole run."""
RUNS_CODE = (
    "exec",
    "compile",
    "import",
    "open",
    "os.",
    "subprocess.",
    "socket.",
    "pickle.",
    "ctypes.",
    "marshal.",
    "shutil.",
)


@dataclass
class Found:
    """What a run saw: how frames ended, and what must not happen."""

    ends: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    slowest: float = 0.0
    largest: float = 0.0  # bytes that decoding allocated, per byte of frame


class _Watch:
    """Sees, through the interpreter's audit events, what is opened, imported or run
    while frames are decoded."""

    def __init__(self) -> None:
        self.on = False
        self.seen = list[str]()
        sys.addaudithook(self._event)

    def _event(self, event: str, args: tuple[Any, ...]) -> None:
        if self.on and event.startswith(RUNS_CODE):
            self.seen.append(f"{event} {str(args)[:200]}")


_watch: list[_Watch] = []


def fuzz(
    frames: Sequence[bytes], count: int, seed: int, *, every: int = TRACED
) -> Found:
    """Decode so many mutated frames."""
    rng = random.Random(seed)
    found = Found()
    watch = _watch[0] if _watch else _Watch()
    _watch[:] = [watch]  # a hook cannot be taken off again
    for frame in frames:
        wire.decode(frame)  # whatever is imported on first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        frame = mutated(rng, frames)
        try:
            with _limited():
                _one(frame, found, watch, traced=number % every == 0)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            found.problems.append(
                f"{type(error).__name__}: {str(error)[:200]}: {frame.hex()}"
            )
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (
        1 if sys.platform == "darwin" else 1024
    )
    if growth > GROWTH:
        found.problems.append(f"the process grew by {growth / 1e6:.0f} MB")
    return found


def _one(frame: bytes, found: Found, watch: _Watch, *, traced: bool) -> None:
    # as a connection hands it over, or as bytes
    given = memoryview(bytearray(frame)) if len(frame) % 2 else frame
    if traced:
        tracemalloc.start()
    watch.on = True
    start = time.process_time()
    messages: list[Message] = []
    try:
        messages = [call.unpack().message for call in wire.calls(given)]
        found.ends["decoded"] += 1
    except WireError as error:
        found.ends["refused"] += 1
        if "MemoryError" in str(error) or len(str(error)) > 2000:
            found.problems.append(
                f"refused, but with {str(error)[:200]}: {frame.hex()}"
            )
    finally:
        watch.on = False
        seconds = time.process_time() - start
        peak = tracemalloc.get_traced_memory()[1] if traced else 0
        if traced:
            tracemalloc.stop()
    crossing = [one for message in messages for one in message.crossing()]
    held = sum(one.tensor.nbytes for one in crossing if isinstance(one, Released))
    found.slowest = max(found.slowest, seconds)
    found.largest = max(found.largest, max(peak, held) / (len(frame) + 10_000))
    for bad, what in (
        (seconds > SLOW, f"took {seconds:.1f} s"),
        (
            peak > 5_000_000 + 100 * len(frame),
            f"allocated {peak} bytes for {len(frame)}",
        ),
        (held > 1024 * len(frame), f"decoded to {held} bytes from {len(frame)}"),
        (bool(watch.seen), f"did {watch.seen[:3]}"),
    ):
        if bad:
            found.problems.append(f"{what}: {frame[:100_000].hex()}")
    watch.seen.clear()
    for message in messages:
        back = wire.decode(wire.encode(wire.Envelope("ada", 1, message))).message
        assert type(back) is type(message)


@contextmanager
def _limited() -> Iterator[None]:
    """Give up after a while: a hang is a finding, not a hanging test."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"a frame was not decoded in {HANG} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--frame", help="decode this one, as hex, and show what becomes of it"
    )
    chosen = parser.parse_args()
    frames = corpus()
    if chosen.frame:
        print([call.unpack() for call in wire.calls(bytes.fromhex(chosen.frame))])
        return 0
    start = time.perf_counter()
    found = fuzz(frames, chosen.frames, chosen.seed)
    print(
        f"{chosen.frames} frames of {len(frames)} real ones in"
        f" {time.perf_counter() - start:.0f} s: {dict(found.ends)}"
    )
    print(
        f"slowest {1000 * found.slowest:.1f} ms; at most {found.largest:.1f} bytes"
        " allocated per byte (plus 10 kB)"
    )
    for problem in found.problems[:20]:
        print(problem[:2000])
    print(f"{len(found.problems)} findings")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
