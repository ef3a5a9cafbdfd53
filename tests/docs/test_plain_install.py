"""What the README, the tutorial and `--help` show works from a plain install of the
wheel, in a new environment and an empty folder, and names the command for the rest."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.consoles import follow, missing, programs
from tests.docs.plain_install import link, plain_install, required
from tests.docs.shell import Shell

from colonnade.algorithms import ALGORITHMS
from colonnade.cli import COMMANDS
from colonnade.settings.algorithms import with_several_label_owners

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
WORKING = (
    "doctor",
    "demo",
    "init demo-run/clinic.csv demo-run/lab_north.csv --yes",
    "align federation.toml",
    "select federation.toml --keep 1 --out selection",
    "plan federation.toml",
    "tune federation.toml --runs 2",
    "run federation.toml --set train.epochs=2",
    "predict runs/federation --rows demo-run/shared.csv",
    "export runs/federation",
    "explain runs/federation",
    "audit runs/federation",
    "privacy runs/federation",
    "report runs/federation",
    "compare runs/federation demo-run/run",
    "ledger runs",
    "algorithms",
    "datasets",
)
"""Commands in an order in which each finds what it needs. The tutorial has `serve`."""
NAMING_WHAT_IS_MISSING = {
    "provision federation.toml --out kits": "This engine needs NVIDIA FLARE",
    "reproduce": "not part of the installed package: clone https://",
    "bench": "not part of the installed package: clone https://",
    "party check": "party.toml cannot be read",
    "site status": "party.toml cannot be read",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_install(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def shell(python: Path, tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path, python)
    yield made
    made.close()


def works(shell: Shell, line: str) -> str:
    """What a command prints; it must end with exit code 0."""
    code, output = shell.run(line)
    assert code == 0, f"$ {line}\n{output}"
    return output


def test_the_packages_of_extras_are_not_there(shell: Shell) -> None:
    for package in ("matplotlib", "PIL", "nvflare", "tensorboard", "mlflow"):
        code, output = shell.run(f"python -c 'import {package}'")
        assert code == 1
        assert "ModuleNotFoundError" in output
    where = works(shell, "python -c 'import colonnade; print(colonnade.__file__)'")
    assert Path(where.strip()).is_relative_to(shell.python.parents[1])


def test_the_readme_runs(shell: Shell) -> None:
    page = ROOT / "README.md"
    follow(page, shell)
    for number, program in enumerate(programs(page)):
        (shell.folder / f"{number}.py").write_text(program.text, encoding="utf-8")
        output = works(shell, f"python {number}.py")
        assert missing(program.shown, output) is None, output


def test_the_tutorial_runs_without_its_pictures(shell: Shell) -> None:
    shutil.copytree(ROOT / "examples", shell.folder / "examples")
    follow(ROOT / "docs" / "tutorial.md", shell, lambda line: ".png" not in line)


def test_every_command_works_or_names_what_is_missing(shell: Shell) -> None:
    tried = {line.split()[0] for line in (*WORKING, *NAMING_WHAT_IS_MISSING)}
    assert tried | {"serve"} == set(COMMANDS)
    help_text = works(shell, "colonnade --help")
    for name in COMMANDS:
        assert f" {name} " in help_text
        works(shell, f"colonnade {name} --help")
    printed = {line: works(shell, f"colonnade {line}") for line in WORKING}
    for line, message in NAMING_WHAT_IS_MISSING.items():
        code, output = shell.run(f"colonnade {line}")
        assert (code, message in output) == (2, True), output
    for line in ("explain runs/federation", WORKING[4]):
        assert "The pictures are left out" in printed[line]


def test_every_algorithm_runs_with_its_defaults(shell: Shell) -> None:
    shutil.copytree(ROOT / "examples", shell.folder / "examples")
    works(shell, "colonnade demo")
    tables = [f"demo-run/{name}.csv" for name in ("clinic", "lab_north", "lab_south")]
    works(shell, f"colonnade init {' '.join(tables)} --yes")
    text = (shell.folder / "federation.toml").read_text(encoding="utf-8")
    several = with_several_label_owners()
    for name in ALGORITHMS:
        if name not in several:
            chosen = f'[algorithm]\nname = "{name}"\n'
            changed = re.sub(r"\[algorithm\]\n.*?(?=\n\[)", chosen, text, flags=re.S)
            (shell.folder / f"{name}.toml").write_text(changed, encoding="utf-8")
            works(shell, f"colonnade run {name}.toml --set train.epochs=1")
    example = "examples/two_hospitals_two_centres/make_tables.py"
    works(shell, f"python {example} hospitals")
    works(shell, "colonnade run hospitals/federation.toml --set train.epochs=1")


def test_the_command_of_a_hint_works(tmp_path: Path) -> None:
    """In an environment that has what the extra needs, since nothing is downloaded
    here: pip takes the command, finds the wheel and what it requires."""
    python = plain_install(tmp_path)
    shell = Shell(tmp_path, python)
    try:
        hint = "from colonnade.installation import hint; print(hint('plots'))"
        command = works(shell, f'python -c "{hint}"').strip()
        assert str(tmp_path / "wheel") in command
        shell.environment["PIP_NO_INDEX"] = "1"
        code, output = shell.run(command)
        assert code == 1
        assert "matplotlib" in output
        (packages,) = python.parents[1].glob("lib/python*/site-packages")
        (wheel,) = (tmp_path / "wheel").iterdir()
        for distribution in required(wheel, "plots"):
            link(distribution, packages)
        works(shell, command)
    finally:
        shell.close()


def test_the_wheel_has_the_package_alone(python: Path) -> None:
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    folders = {path.name for path in (packages / "colonnade").iterdir()}
    assert not folders & {"_benchmarks", "_reproductions", "benchmarks"}
    listed = subprocess.run(
        [python, "-m", "pip", "show", "-v", "colonnade"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for words in ("Programming Language :: Python :: 3.13", "Source, https://"):
        assert words in listed
