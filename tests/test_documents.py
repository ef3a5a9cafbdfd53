"""The documents say what is true: the README's example runs, and every command it names
exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from colonnade.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
)


def python_blocks(path: Path) -> list[str]:
    return re.findall(
        r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL
    )


@pytest.mark.parametrize(
    "whole",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["two epochs", "whole"],
)
def test_the_readme_example_runs_and_is_short(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = python_blocks(ROOT / "README.md")
    assert len([line for line in example.splitlines() if line.strip()]) <= 25
    if not whole:
        shorter = example.replace(
            'label="target")', 'label="target", settings={"train": {"epochs": 2}})'
        )
        assert shorter != example
        example = shorter
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert (tmp_path / "my-run" / "summary.json").exists()
    metrics = names["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["accuracy"] > (0.9 if whole else 0.5)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_in_the_documents_exists(path: Path) -> None:
    known = {
        command.name or (command.callback.__name__ if command.callback else "")
        for command in app.registered_commands
    }
    for word in re.findall(
        r"(?:^|`)colonnade ([a-z]+)",
        path.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    ):
        assert word in known, f"{path.name} speaks of 'colonnade {word}'"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_and_link_in_the_documents_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    targets = set(
        re.findall(
            r"^([a-z]+):",
            (ROOT / "Makefile").read_text(encoding="utf-8"),
            flags=re.MULTILINE,
        )
    )
    for word in re.findall(r"(?:^|`)make ([a-z]+)", text, flags=re.MULTILINE):
        assert word in targets, f"{path.name} speaks of 'make {word}'"
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (path.parent / link).exists(), f"{path.name} links to {link}"
