"""The container files say what is true of this repository: there is no Docker here to
try them with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from colonnade.cli import COMMANDS, commands

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose.yaml"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="no YAML reader is installed")
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def test_the_image_copies_what_is_there_and_installs_extras_that_are_there() -> None:
    import tomllib

    text = DOCKERFILE.read_text()
    copied = [
        word
        for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE)
        for word in line.split()[:-1]
    ]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', text)
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])
    assert {"src", project["project"]["readme"], "LICENSE"} <= set(copied)
    assert text.index(" torch ") < text.index('".[')  # torch first, pinned
    assert "USER colonnade" in text


def test_each_organisation_reaches_the_relay_alone_and_has_its_own_kit_and_table(
    compose: dict[str, Any],
) -> None:
    services = compose["services"]
    sites = {
        name: one for name, one in services.items() if name not in ("relay", "lead")
    }
    assert set(sites) == {"clinic", "lab", "bank"}
    for name, one in sites.items():
        assert one["networks"] == [name]
        assert [
            mount.split(":")[-1 if mount.endswith("kit") else -2]
            for mount in one["volumes"]
        ] == ["/kit", "/data"]
        assert all(f"/{name}:" in mount for mount in one["volumes"])
        assert one["volumes"][1].endswith(":ro")
        assert one["read_only"]
        assert one["cap_drop"] == ["ALL"]
    assert sorted(services["relay"]["networks"]) == sorted(sites)
    assert set(compose["networks"]) == set(sites)


def said_in(text: str) -> list[list[str]]:
    """The words of every command that stands on a line of its own, or over several."""
    whole = re.sub(r"\\\n#?\s*", "", text)
    lines = re.findall(
        r"^(?:#.*)?\bcolonnade ((?:" + "|".join(COMMANDS) + r") [^\n`]*)$",
        whole,
        re.MULTILINE,
    )
    return [shlex.split(line, comments=True) for line in lines]


def test_commands_that_operators_copy_are_commands_with_options_that_they_take(
    compose: dict[str, Any],
) -> None:
    checked = compose["services"]["lab"]["healthcheck"]["test"]
    assert checked[:2] == ["CMD", "colonnade"]
    page = (ROOT / "docs" / "how-to-deploy.md").read_text()
    blocks = "".join(
        text
        for _, text in re.findall(
            r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
        )
    )
    every = [checked[2:], *said_in(COMPOSE.read_text()), *said_in(blocks)]
    assert len(every) > 20
    known: Any = typer.main.get_command(commands({words[0] for words in every}))
    for name, *words in every:
        # a word that it does not take is an error
        known.commands[name].make_context(name, words)
