"""The command that adds an extra works for how this copy was installed, and what was
declared in pyproject.toml is what the installed package says of itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from colonnade.installation import REPOSITORY, hint, project_url

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
METADATA = """Metadata-Version: 2.4
Name: colonnade
Version: 0.1.0
Requires-Dist: torch<3,>=2.8
Requires-Dist: rich>=13
Provides-Extra: plots
Requires-Dist: matplotlib>=3.9; extra == 'plots'
Requires-Dist: pillow>=11; extra == 'plots'
Provides-Extra: all
Requires-Dist: colonnade[plots]; extra == 'all'
"""


def hint_of_a_copy(site: Path, origin: dict[str, Any] | None, extra: str) -> str:
    """What `hint` says in a copy whose direct_url.json says where it came from."""
    source = ROOT / "src" / "colonnade"
    package = site / "colonnade"
    package.mkdir(parents=True)
    shutil.copy(source / "installation.py", package)
    (package / "__init__.py").write_text("")
    about = site / "colonnade-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(METADATA)
    if origin is not None:
        (about / "direct_url.json").write_text(json.dumps(origin))
    program = f"from colonnade.installation import hint; print(hint({extra!r}))"
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(site), "PATH": f"{bin_folder}{os.pathsep}/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout.strip()
    # where this Python has no pip of its own, its whole path is named
    return said.replace(f'"{sys.executable}" -m pip', "pip")


def test_a_copy_from_an_index_is_named_by_its_name(tmp_path: Path) -> None:
    said = hint_of_a_copy(tmp_path / "site", None, "plots")
    assert said == 'pip install "colonnade[plots]"'


def test_a_copy_from_a_wheel_or_a_folder_is_named_by_its_path(tmp_path: Path) -> None:
    wheel = tmp_path / "my wheels" / "colonnade-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    of_wheel: dict[str, Any] = {"url": wheel.as_uri(), "archive_info": {}}
    said = hint_of_a_copy(tmp_path / "one", of_wheel, "plots")
    assert said == f'pip install "{wheel}[plots]"'
    of_folder: dict[str, Any] = {"url": tmp_path.as_uri(), "dir_info": {}}
    said = hint_of_a_copy(tmp_path / "two", of_folder, "")
    assert said == f'pip install "{tmp_path}"'


def test_where_the_wheel_is_gone_the_packages_are_named(tmp_path: Path) -> None:
    gone: dict[str, Any] = {"url": (tmp_path / "gone.whl").as_uri()}
    said = hint_of_a_copy(tmp_path / "one", gone, "plots")
    assert said == 'pip install "matplotlib>=3.9" "pillow>=11"'
    said = hint_of_a_copy(tmp_path / "two", gone, "")
    assert said == 'pip install "torch<3,>=2.8" "rich>=13"'


def test_a_copy_from_elsewhere_is_named_by_its_address(tmp_path: Path) -> None:
    git = {
        "url": "https://example.org/colonnade.git",
        "vcs_info": {"vcs": "git", "commit_id": "abc123"},
    }
    said = hint_of_a_copy(tmp_path / "one", git, "plots")
    address = "git+https://example.org/colonnade.git@abc123"
    assert said == f'pip install "colonnade[plots] @ {address}"'
    address = "https://example.org/colonnade-0.1.0-py3-none-any.whl"
    said = hint_of_a_copy(tmp_path / "two", {"url": address}, "plots")
    assert said == f'pip install "colonnade[plots] @ {address}"'


def test_sources_are_named_by_the_repository() -> None:
    assert REPOSITORY == ROOT
    assert hint("plots").endswith(f' install -e "{ROOT}[plots]"')


def test_no_message_writes_the_command_by_hand() -> None:
    by_hand = [
        path.relative_to(ROOT)
        for path in (ROOT / "src").rglob("*.py")
        if path.name != "installation.py"
        and re.search(
            r"pip\s+install[^.]*colonnade|colonnade\[", path.read_text(encoding="utf-8")
        )
    ]
    assert not by_hand, "use colonnade.installation.hint"


def test_every_hint_names_an_extra_that_there_is() -> None:
    extras = {"", *PROJECT["optional-dependencies"]}
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"\bhint\(['\"](\w+)['\"]\)", text)
        assert {*named} <= extras, path


def test_the_project_has_addresses_and_versions() -> None:
    assert project_url("Source") == PROJECT["urls"]["Source"]
    with pytest.raises(KeyError, match="has no 'Nowhere'"):
        project_url("Nowhere")
    least, above = re.findall(r"3\.(\d+)", PROJECT["requires-python"])
    versions = [
        f"Programming Language :: Python :: 3.{minor}"
        for minor in range(int(least), int(above))
    ]
    assert versions
    assert {*versions} <= {*PROJECT["classifiers"]}
