"""Organisations in network namespaces of their own: each has an address, and a slow
line to the relay alone.

Nothing here needs root: a user namespace holds them (`unshare -r`), and goes with the
process that made it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RELAY = "relay"
PORTS = (8002, 8003)
HOST = "relay.test"
DELAY = 0.025
"""Seconds each way between an organisation and the relay: 50 ms there and back."""
MAKE = """
set -e
mount -t tmpfs tmpfs /run
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
number=1
for name in "$@"; do
    ip netns add "$name"
    ip link add "v$number" type veth peer name eth0 netns "$name"
    ip link set "v$number" master br0 up
    ip -n "$name" addr add "10.77.0.$number/24" dev eth0
    ip -n "$name" link set eth0 up
    ip -n "$name" link set lo up
    ip netns exec "$name" tc qdisc add dev eth0 root tbf rate 100mbit burst 64kb latency 200ms || true
    number=$((number + 1))
done
echo ready
cat
"""


def can_be_made() -> str:
    """Why there can be no namespaces here; "" where there can."""
    missing = [
        tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None
    ]
    if missing:
        return f"{', '.join(missing)} is not installed"
    tried = subprocess.run(
        [
            "unshare",
            "-rnm",
            "sh",
            "-c",
            (
                "mount -t tmpfs tmpfs /run && ip netns add one && ip link add br0 type"
                " bridge"
            ),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return tried.stderr.strip() if tried.returncode else ""


class Apart:
    """Namespaces of the relay and of each organisation, and the processes in them; none
    outlives the block."""

    def __init__(self, base: Path, names: Sequence[str]) -> None:
        self.base = base
        self.names = (RELAY, *names)
        self.logs: dict[int, Path] = {}
        self.started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Apart:
        command = ["unshare", "-rnm", "bash", "-c", MAKE, "apart", *self.names]
        self.held = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.held.stdout is not None
        assert self.held.stdout.readline() == "ready\n"
        (self.base / "hosts").mkdir()
        for name in self.names:
            address = "10.77.0.1" if name == RELAY else "127.0.0.1"
            (self.base / "hosts" / name).write_text(
                f"127.0.0.1 localhost\n{address} {HOST}\n"
            )
            if name != RELAY:
                words = ["10.77.0.1", str(DELAY), *map(str, PORTS)]
                self.start(
                    name,
                    [sys.executable, "-m", "tests.flare.uplink", *words],
                    self.base,
                    "uplink",
                )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            end(process)
        assert self.held.stdin is not None
        self.held.stdin.close()
        self.held.wait(10)

    def inside(self, name: str, command: Sequence[str]) -> list[str]:
        """A command as an organisation gives it on its own machine."""
        enter = [
            "nsenter",
            "-t",
            str(self.held.pid),
            "-U",
            "-m",
            "--preserve-credentials",
            "ip",
            "netns",
            "exec",
            name,
        ]
        own = [
            "unshare",
            "-m",
            "sh",
            "-c",
            'mount --bind "$0" /etc/hosts && exec "$@"',
            str(self.base / "hosts" / name),
        ]
        return [*enter, *own, *command]

    def start(
        self, name: str, command: Sequence[str], folder: Path, log: str
    ) -> subprocess.Popen[Any]:
        path = self.base / f"{name}-{log}-{len(self.started)}.log"
        with path.open("wb") as file:
            process = subprocess.Popen(
                self.inside(name, command),
                cwd=folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        self.logs[process.pid] = path
        return process

    def said(self, process: subprocess.Popen[Any]) -> str:
        return self.logs[process.pid].read_text(errors="replace")


def environment() -> dict[str, str]:
    python = Path(sys.executable).parent
    found = {
        key: value for key, value in os.environ.items() if not key.startswith("PYTEST")
    }
    path = f"{python}{os.pathsep}{os.environ.get('PATH', '')}"
    return found | {
        "PATH": path,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "OMP_NUM_THREADS": "1",
    }


def end(process: subprocess.Popen[Any], sign: int = signal.SIGKILL) -> None:
    """With all that it started; whoever does not end by itself within half a minute is
    ended."""
    for last in (sign, signal.SIGKILL):
        try:
            os.killpg(process.pid, last)
            process.wait(30)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def until(holds: Callable[[], Any], seconds: float, what: str) -> Any:
    last = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < last, f"after {seconds:.0f} s: {what}"
        time.sleep(0.3)
    return found


def of_kit(kit: Path) -> list[int]:
    """Processes that work with a startup kit."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            words = (one / "cmdline").read_bytes()
        except OSError:
            continue
        if str(kit).encode() in words and b"python" in words.split(b"\0")[0]:
            found.append(int(one.name))
    return found


def remembers(process: int, wanted: bytes) -> bool:
    """Whether these bytes are anywhere in what a process can write to."""
    try:
        with (
            Path(f"/proc/{process}/maps").open() as maps,
            Path(f"/proc/{process}/mem").open("rb", 0) as memory,
        ):
            for line in maps:
                where, rights = line.split()[:2]
                if not rights.startswith("rw") or "[vvar" in line:
                    continue
                start, stop = (int(part, 16) for part in where.split("-"))
                kept = b""
                while start < stop:
                    memory.seek(start)
                    try:
                        data = memory.read(min(1 << 24, stop - start))
                    except OSError:
                        break
                    if not data:
                        break
                    if wanted in kept + data:
                        return True
                    kept = data[-len(wanted) :]
                    start = start + len(data)
    except OSError:  # it has ended
        return False
    return False
