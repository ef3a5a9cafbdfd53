"""Every command of the tutorial runs, in its order, and says what the page shows."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.consoles import agrees, commands, missing
from tests.docs.shell import Shell

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
PORT = "8080"
"""Which the page serves at; here a free one takes its place."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    made = Shell(tmp_path)
    yield made
    made.close()


@pytest.fixture
def port() -> str:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])


def until_it_listens(port: str) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("The server of the tutorial did not start within a minute.")


@pytest.mark.long
def test_every_command_of_the_tutorial_runs(shell: Shell, port: str) -> None:
    for extra in ("coincurve", "tenseal", "dp_accounting", "matplotlib", "fastapi"):
        pytest.importorskip(extra)
    typed = commands(PAGE)
    assert len(typed) > 10
    for command in typed:
        line = command.line.replace(PORT, port)
        if line.startswith("curl "):
            if shutil.which("curl") is None:
                continue
            until_it_listens(port)
        code, output = shell.run(line)
        assert code == 0, f"$ {line}\n{output}"
        lost = missing(command.shown, output.replace(port, PORT))
        assert lost is None, (
            f"$ {line}\nshows, and did not print:\n{lost}\n\nIt printed:\n{output}"
        )


def test_a_line_that_did_not_come_out_is_found() -> None:
    output = "478 rows are common\n│ lab │ 0.556 │ ████ │\nit took 3.1 s"
    assert (
        missing(
            ["480 rows are common", "…", "│ lab │ 0.56 │ ██ │", "it took … s"], output
        )
        is None
    )
    assert (
        missing(["it took … s", "478 rows are common"], output) == "478 rows are common"
    )
    assert missing(["700 rows are common"], output) == "700 rows are common"
    assert not agrees("│ lab │ 0.1 │", "│ lab │ 0.556 │")
