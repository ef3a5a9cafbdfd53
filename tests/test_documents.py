"""The documents say what is true: the README's example runs, and every command it names
exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tests.docs.consoles import missing, programs

from colonnade.cli import app

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = sorted([README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]


@pytest.mark.parametrize(
    "whole",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["two epochs", "whole"],
)
def test_the_readme_example_runs_and_is_short(
    whole: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = programs(README)
    program = example.text
    assert len([line for line in program.splitlines() if line.strip()]) <= 20
    if not whole:
        program = program.replace(
            'label="target")', 'label="target", settings={"train": {"epochs": 2}})'
        )
        assert program != example.text
    exec(compile(program, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert (tmp_path / "my-run" / "summary.json").exists()
    if whole:
        assert example.shown
        assert missing(example.shown, printed) is None, printed


def test_the_readme_is_read_in_three_minutes() -> None:
    text = README.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```|^\[\w+\]: .*?$", "", text, flags=re.S | re.M)
    assert len(re.findall(r"[\w'-]+", prose)) <= 450


def test_the_readmes_links_work_outside_the_repository() -> None:
    """They begin with the address that pyproject.toml names, and what follows is a file
    of the repository."""
    text = README.read_text(encoding="utf-8")
    assert not re.findall(r"\]\([^)]*\)", text)
    names = {*re.findall(r"\]\[(\w+)\]", text)}
    links = dict(re.findall(r"^\[(\w+)\]: (\S+)$", text, flags=re.M))
    assert names == {*links}
    base = f"{PROJECT['urls']['Source']}/blob/main/"
    for link in (*links.values(), *PROJECT["urls"].values()):
        if link != PROJECT["urls"]["Source"]:
            assert link.startswith(base)
            assert (ROOT / link.removeprefix(base)).is_file(), link


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
def test_every_make_target_link_and_extra_in_the_documents_exists(path: Path) -> None:
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
    for extras in re.findall(r"(?:colonnade|\"\.)\[([a-z,]+)\]", text):
        assert {*extras.split(",")} <= {*PROJECT["optional-dependencies"]}, path.name
