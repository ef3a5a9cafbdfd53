"""Settings are checked, and algorithms listed, without torch: it takes longer to import
than anybody waits for a word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from colonnade.core import wire
from colonnade.settings import party_file
from colonnade.settings.federation_file import Settings

ROOT = Path(__file__).parents[2]
PARTIES = '[parties.a]\ntable = "a.csv"\nlabel = "y"\n[parties.b]\ntable = "b.csv"\n'
WRONG = '[algorithm]\nname = "vimadmm"\nrho = -1\n[train]\nepoch = 3\n' + PARTIES
HEAVY = "{'torch', 'pandas', 'numpy', 'scipy'} & {*sys.modules}"


def runs(program: str) -> str:
    """What a program of its own writes, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("words", [["algorithms"], ["algorithms", "knn"], ["schema"]])
def test_what_is_known_of_settings_is_listed(words: list[str]) -> None:
    told = runs(
        f"import sys; sys.argv[1:] = {words}\nfrom colonnade.cli import main\ntry:"
        f" main()\nexcept SystemExit as end: assert end.code == 0\nassert not {HEAVY}"
    )
    assert "neighbours" in told


def test_all_mistakes_of_a_file_are_told(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(WRONG)
    told = runs(
        f"import sys; sys.argv[1:] = ['run', {str(file)!r}]\nfrom colonnade.cli import"
        " main\ntry: main()\nexcept SystemExit as end: assert end.code == 2\nassert not"
        f" {HEAVY}"
    )
    for fact in ("rho must be a number above 0; found -1", "did you mean 'epochs'?"):
        assert fact in " ".join(told.split())


def test_both_files_are_read() -> None:
    modules = "federation_file, party_file, json_schema, changes"
    runs(f"import sys\nfrom colonnade.settings import {modules}\nassert not {HEAVY}")


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("**/federation*.toml")), ids=lambda path: path.parent.name
)
def test_no_good_file_is_refused(path: Path) -> None:
    Settings.from_toml(path)


def test_the_bounds_that_the_wire_has_too_are_the_same() -> None:
    """The wire imports torch, so both have them."""
    assert party_file.MEMORY_PER_CALL << 20 == wire.UNPACKED
    assert party_file.MOST_MEMORY_PER_CALL << 20 == wire.MAX_FRAME
