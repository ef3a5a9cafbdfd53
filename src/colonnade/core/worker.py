"""A process that computes beside Colonnade's own (`core.workers`).

It is run with the path of a program, a file of Colonnade's with a function `work(kind,
*buffers)`, and with the places where packages are looked for. The function gets what
comes through standard input, and gives buffers for standard output, or the number of
the first item that is wrong. The process ends with its input, or when nothing came for
a minute. Neither this file nor a program imports anything of Colonnade, so that a
process starts in a tenth of a second and holds neither tables nor models. Secrets come
through the pipe alone, and never stand on a command line.
"""

import runpy
import select
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

HEAD = struct.Struct(">cH")
NUMBER = struct.Struct(">Q")
DONE = b"d"
WRONG = b"w"
PATIENCE = 60.0
"""Seconds without work after which a process ends."""

Work = Callable[..., Sequence[Any] | int]
"""(kind, *buffers) -> buffers, or the number of the first item that is wrong."""


def send(pipe: IO[bytes], kind: bytes, buffers: Sequence[Any]) -> None:
    sizes = [memoryview(buffer).nbytes for buffer in buffers]
    pipe.write(HEAD.pack(kind, len(sizes)) + b"".join(map(NUMBER.pack, sizes)))
    for buffer in buffers:
        pipe.write(buffer)
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[bytes, list[bytes]]:
    """What the other side sent; EOFError where it has ended."""
    kind, count = HEAD.unpack(_exactly(pipe, HEAD.size))
    sizes = [NUMBER.unpack(_exactly(pipe, NUMBER.size))[0] for _ in range(count)]
    return kind, [_exactly(pipe, size) for size in sizes]


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def serve(work: Work, source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer until the input ends, or is silent for long. One question is on its way at
    a time, so that none waits in the buffer where `select` does not see it."""
    while select.select([source], [], [], PATIENCE)[0]:
        try:
            kind, buffers = receive(source)
        except EOFError:
            return
        answer = work(kind, *buffers)
        if isinstance(answer, int):
            send(sink, WRONG, [NUMBER.pack(answer)])
        else:
            send(sink, DONE, answer)


def program(path: str) -> Work:
    """What a program's file does with a question."""
    work: Work = runpy.run_path(path)["work"]
    return work


if __name__ == "__main__":
    # from a keyboard it reaches the asker, too, who decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path += sys.argv[2:]
    serve(program(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
