"""A shell for pages' commands in which Colonnade is imported already: `colonnade ...`
is a fork of one process, so that a page of twenty commands does not import torch twenty
times. All else runs in bash.

    python -m tests.docs.shell          reads one JSON list [folder, arguments] per line, answers [exit code, output]
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.forking import fork

ROOT = Path(__file__).parents[2]
IMPORTED = (
    *(
        "pandas",
        "torch._dynamo",
        "scipy.stats",
        "sklearn.manifold",
        "sklearn.linear_model",
    ),
    *(
        "matplotlib.backends.backend_agg",
        "tenseal",
        "dp_accounting.pld.privacy_loss_distribution",
    ),
)
"""What commands import when they need it; a fork has it already."""


class Shell:
    """Where one stands, and what runs in the background.

    Args:
        folder: where the first command runs.
        python: of another environment, with its installed Colonnade; None for this
            environment and the sources of the repository.
    """

    def __init__(self, folder: Path, python: Path | None = None) -> None:
        self.folder = folder
        self.python = python or Path(sys.executable)
        sources = [] if python else [str(ROOT / "src")]
        self.environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sources]) if sources else "",
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.server = subprocess.Popen(
            [self.python, "-m", "tests.docs.shell"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment
            | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sources])},
            cwd=folder,
            text=True,
        )
        self.background: list[subprocess.Popen[Any]] = []

    def run(self, line: str) -> tuple[int, str]:
        """Run one command; gives its exit code and output."""
        words = shlex.split(line) if "\n" not in line else []
        if words[:1] == ["cd"]:
            self.folder /= words[1]
            return 0, ""
        if words[-1:] == ["&"]:
            self.background.append(
                subprocess.Popen(
                    words[:-1],
                    cwd=self.folder,
                    env=self.environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            return 0, ""
        if words == ["kill", "%1"]:
            self.background[0].send_signal(signal.SIGTERM)
            return max(self.background[0].wait(timeout=20), 0), ""
        if words[:1] == ["colonnade"] and not {"|", ">", ">>", "||", "&&", ";"} & set(
            words
        ):
            assert self.server.stdin is not None
            assert self.server.stdout is not None
            self.server.stdin.write(json.dumps([str(self.folder), words]) + "\n")
            self.server.stdin.flush()
            code, output = json.loads(self.server.stdout.readline())
            return code, output
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    @cached_property
    def port(self) -> str:
        """A port that nothing listens on."""
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            return str(held.getsockname()[1])

    def wait_for_port(self) -> None:
        """Wait until something listens on the port, a minute at most."""
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", int(self.port)), 1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise AssertionError("Nothing listened on the port within a minute.")

    def close(self) -> None:
        """End what this shell started."""
        for one in [*self.background, self.server]:
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
                one.wait(timeout=20)
        for pipe in (self.server.stdin, self.server.stdout):
            if pipe is not None:
                pipe.close()


def _serve() -> None:
    from colonnade.cli import main

    for name in IMPORTED:
        with suppress(ImportError):
            import_module(name)
    for line in sys.stdin:
        folder, words = json.loads(line)
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            child = fork()
            if child == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.close(0)
                os.chdir(folder)
                sys.argv = words
                code: Any = 1
                try:
                    main()
                except SystemExit as end:
                    code = end.code
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code if isinstance(code, int) else 1)
            _, status = os.waitpid(child, 0)
            output.seek(0)
            print(
                json.dumps([os.waitstatus_to_exitcode(status), output.read()]),
                flush=True,
            )


if __name__ == "__main__":
    _serve()
