"""A plain install in a new environment outside the repository: the wheel, what it
requires, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def plain_install(folder: Path) -> Path:
    """Build the wheel, and install it in a new environment; gives its Python.

    The packages that the wheel requires are links to those of the environment that runs
    the tests, so that nothing is downloaded for them. pip is called without an index:
    it fails where the wheel requires something that pyproject.toml does not lead to.
    """
    wheel = build_wheel(folder / "wheel")
    call(sys.executable, "-m", "venv", folder / "plain")
    python = folder / "plain" / "bin" / "python"
    (packages,) = (folder / "plain" / "lib").glob("python*/site-packages")
    for distribution in required(wheel):
        link(distribution, packages)
    call(python, "-m", "pip", "install", "--no-index", wheel)
    call(python, "-m", "pip", "check")
    return python


def build_wheel(folder: Path) -> Path:
    """The wheel of this repository."""
    call(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, ROOT)
    (wheel,) = folder.glob("colonnade-*.whl")
    return wheel


def required(wheel: Path, extra: str = "") -> list[metadata.Distribution]:
    """What a wheel requires, with an extra or none; what that requires, and so on."""
    (about,) = metadata.distributions(path=[str(wheel)])
    waiting = [Requirement(line) for line in about.requires or ()]
    environment = {"extra": extra}
    found: dict[str, metadata.Distribution] = {}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if marker is not None and not marker.evaluate(environment):
            continue
        if name not in found:
            found[name] = metadata.distribution(requirement.name)
            waiting += map(Requirement, found[name].requires or ())
    return list(found.values())


def link(distribution: metadata.Distribution, packages: Path) -> None:
    """Link all that a distribution has in its site-packages into another one."""
    for file in distribution.files or ():
        name = file.parts[0]
        place = packages / name
        if name not in ("..", "__pycache__") and not place.exists():
            place.symlink_to(Path(str(distribution.locate_file(name))).resolve())


def call(*words: str | Path) -> None:
    """Run a program; where it fails, the test shows what it printed."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
