"""An organisation's line to the relay: every byte arrives so many seconds later, each
way, and nothing else changes.

    python -m tests.flare.uplink RELAY_ADDRESS SECONDS PORT...

It stands for a wide-area network where the kernel has no `netem` to delay packets.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from contextlib import suppress

Chunks = queue.Queue[tuple[float, bytes]]


def carry(into: socket.socket, out: socket.socket, seconds: float) -> None:
    """Bytes of one direction, in order, until it ends."""
    chunks = Chunks()

    def read() -> None:
        data = b"-"
        while data:
            try:
                data = into.recv(1 << 16)
            except OSError:
                data = b""
            chunks.put((time.monotonic() + seconds, data))

    threading.Thread(target=read, daemon=True).start()
    while True:
        due, data = chunks.get()
        time.sleep(max(due - time.monotonic(), 0.0))
        with suppress(OSError):
            if not data:
                out.shutdown(socket.SHUT_WR)
                return
            out.sendall(data)


def serve(listening: socket.socket, relay: tuple[str, int], seconds: float) -> None:
    while True:
        here, _ = listening.accept()
        try:
            there = socket.create_connection(relay, 10)
        except OSError:  # as where the relay is down: whoever called tries again
            here.close()
            continue
        there.settimeout(None)
        for one in (here, there):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((here, there), (there, here)):
            threading.Thread(target=carry, args=(*pair, seconds), daemon=True).start()


if __name__ == "__main__":
    address, delay, *ports = sys.argv[1:]
    for port in map(int, ports):
        door = socket.create_server(("127.0.0.1", port))
        threading.Thread(
            target=serve, args=(door, (address, port), float(delay)), daemon=True
        ).start()
    threading.Event().wait()
