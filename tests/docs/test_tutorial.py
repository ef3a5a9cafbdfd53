"""Every command of the tutorial runs, in its order, and says what the page shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.consoles import agrees, commands, follow, missing
from tests.docs.shell import Shell

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    made = Shell(tmp_path)
    yield made
    made.close()


@pytest.mark.long
def test_every_command_of_the_tutorial_runs(shell: Shell) -> None:
    pytest.importorskip("matplotlib")
    assert len(commands(PAGE)) > 10
    follow(PAGE, shell)


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
