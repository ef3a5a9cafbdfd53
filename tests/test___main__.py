"""Where the command line begins."""

from __future__ import annotations

import subprocess
import sys

import colonnade

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
