"""Where the command line begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import colonnade
from colonnade import core

INTERRUPTED = """
import sys

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Slow())
from colonnade.__main__ import main

"""


def outcome(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_package_can_be_run() -> None:
    assert outcome("-m", "colonnade", "--version") == (0, f"{colonnade.__version__}\n", "")


def test_ctrl_c_while_it_imports_ends_it_quietly() -> None:
    assert outcome("-c", f"{INTERRUPTED}main()") == (130, "", "")


def test_the_version_is_told_before_anything_is_imported() -> None:
    told = outcome("-c", f"{INTERRUPTED}sys.argv[1:] = ['--version']\nmain()\nassert 'torch' not in sys.modules")
    assert told == (0, f"{colonnade.__version__}\n", "")


NO_TORCH = """
import sys
from colonnade import cli

sys.argv[1:] = {words!r}
try:
    cli.main()
finally:
    print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("text", "told"), [(None, "cannot be read: No such file or directory."), ("epochs = = 3", "is not TOML: ")]
)
def test_a_file_that_is_no_federation_file_is_refused_before_torch_is_imported(
    text: str | None, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "federation.toml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    code, out, error = outcome("-c", NO_TORCH.format(words=["run", str(file)]))
    assert (code, out) == (2, "False\n")
    assert told in error


def test_the_core_has_all_its_names() -> None:
    assert all(getattr(core, name) is not None for name in core.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        core.Nothing  # type: ignore[attr-defined]  # noqa: B018
