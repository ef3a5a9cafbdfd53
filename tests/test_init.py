"""The public names are these, and what needs only torch and numpy works where nothing
else is installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import colonnade

NAMES = [
    "ALGORITHMS",
    "ColonnadeError",
    "Federation",
    "Outcome",
    "Predictions",
    "Settings",
    "__version__",
    "load",
]
ABSENT = ("pandas", "sklearn", "scipy", "rich", "typer", "safetensors", "pyarrow")

BARE = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
for name in {modules!r}:
    importlib.import_module(name)
import colonnade
assert sorted(colonnade.ALGORITHMS) == {algorithms!r}, colonnade.ALGORITHMS
assert issubclass(colonnade.ColonnadeError, Exception)
assert not set({absent!r}) & {{name.partition(".")[0] for name in sys.modules}}
print("bare")
"""


def test_the_public_names_are_pinned_and_all_there() -> None:
    assert sorted(colonnade.__all__) == sorted(NAMES)
    for name in NAMES:
        assert getattr(colonnade, name) is not None
    assert sorted({*dir(colonnade), "__version__"}) == sorted(NAMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(
        AttributeError, match="module 'colonnade' has no attribute 'Federatoin'"
    ):
        _ = colonnade.Federatoin  # type: ignore[attr-defined]
    assert not hasattr(colonnade, "nothing")


def test_the_version_is_the_one_that_is_packaged() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())[
        "project"
    ]
    assert colonnade.__version__ == project["version"]


def test_core_transport_and_algorithms_need_torch_and_numpy_alone() -> None:
    modules = [
        "colonnade",
        "colonnade.core",
        "colonnade.transport",
        "colonnade.algorithms",
        "colonnade.models",
    ]
    script = BARE.format(
        absent=ABSENT, modules=modules, algorithms=sorted(colonnade.ALGORITHMS)
    )
    source = str(Path(colonnade.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{script}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "bare\n"), done.stderr


def test_importing_the_package_alone_is_light() -> None:
    script = (
        "import sys, colonnade; print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "False False\n"
