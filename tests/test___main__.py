"""Where the command line begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import colonnade
from colonnade import core

INTERRUPTED = """
import os, signal, sys

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise SystemExit

sys.meta_path.insert(0, Slow())
from colonnade.__main__ import main

"""


def outcome(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_package_can_be_run() -> None:
    assert outcome("-m", "colonnade", "--version") == (
        0,
        f"{colonnade.__version__}\n",
        "",
    )


@pytest.mark.parametrize("name", ["typer", "torch"])
def test_ctrl_c_while_it_imports_ends_it_at_once_also_where_the_import_would_swallow_it(
    name: str,
) -> None:
    swallowed = (
        "try: os.kill(os.getpid(), signal.SIGINT)\n            except"
        " KeyboardInterrupt: print('swallowed')"
    )
    script = INTERRUPTED.replace("raise SystemExit", swallowed).replace("typer", name)
    assert outcome("-c", f"{script}sys.argv[1:] = ['run', 'x']\nmain()") == (
        130,
        "",
        "",
    )


def test_the_version_is_told_before_anything_is_imported() -> None:
    told = outcome(
        "-c",
        f"{INTERRUPTED}sys.argv[1:] = ['--version']\nmain()\nassert 'torch' not in"
        " sys.modules",
    )
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
    ("text", "told"),
    [
        (None, "cannot be read: No such file or directory."),
        ("epochs = = 3", "is not TOML: "),
    ],
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


ONE_RUN = """
import gc, signal, sys
from colonnade.__main__ import main

sys.argv[1:] = ["run", "federation.toml", "--quiet"]
try:
    main()
finally:
    ours = [name.removeprefix("colonnade.") for name in sys.modules if name.startswith("colonnade.")]
    others = [name for name in ours if name.startswith(("alignment.i", "alignment.h", "selection.", "encryption"))]
    from colonnade.algorithms import ALGORITHMS
    print(sorted(name for name in ALGORITHMS if f"algorithms.{name}" in ours))
    print(sorted(others), {"sklearn", "scipy", "nvflare", "matplotlib"} & {*sys.modules})
    print(gc.isenabled(), gc.get_freeze_count() > 100_000, signal.getsignal(signal.SIGINT).__name__)
"""


def test_a_run_imports_its_own_algorithm_and_no_protocol_that_it_does_not_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second of every run's start was for what it does not use; and the garbage
    collector is on when it trains."""
    monkeypatch.chdir(tmp_path)
    for name, column in (("a", "y"), ("b", "x")):
        rows = [f"{number},{number % 2}" for number in range(20)]
        Path(f"{name}.csv").write_text(
            "\n".join([f"id,{column}", *rows]), encoding="utf-8"
        )
    parties = (
        '[parties.a]\ntable = "a.csv"\nlabel = "y"\n[parties.b]\ntable = "b.csv"\n'
    )
    Path("federation.toml").write_text(
        f"[train]\nepochs = 1\n{parties}", encoding="utf-8"
    )
    code, out, error = outcome("-W", "ignore", "-c", ONE_RUN)
    assert code == 0, error
    assert (
        out == "['splitnn']\n['alignment.ids'] set()\nTrue True default_int_handler\n"
    )


def test_the_core_has_all_its_names() -> None:
    assert all(getattr(core, name) is not None for name in core.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        core.Nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(),
    reason="this system has no large pages",
)
@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_large_pages_are_asked_for_unless_the_environment_says_otherwise(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before torch is imported, which reads it once."""
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    if before is not None:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", before)
    told = (
        "import os; print(os.environ['THP_MEM_ALLOC_ENABLE'], 'torch' in sys.modules)"
    )
    ended = INTERRUPTED + f"try: main()\nexcept SystemExit: pass\n{told}"
    assert outcome("-c", ended) == (0, f"{after} False\n", "")
