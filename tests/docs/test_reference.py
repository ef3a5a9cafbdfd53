"""The reference covers what a user can touch, and says so loudly where it does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import click
import pytest
from docs._ext import docstrings, pages, surface
from pydantic import Field

from colonnade.settings.federation_file import FederationFile
from colonnade.settings.party_file import PartyFile
from colonnade.settings.schema import Table, Whole

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def on_pages(directive: str) -> dict[str, list[str]]:
    """Argument -> the words in the body of every ```{directive} argument block."""
    found: dict[str, list[str]] = {}
    for path in REFERENCE.rglob("*.md"):
        blocks = re.findall(
            rf"^```{{{directive}}} ?(.*)\n((?:.*\n)*?)```",
            path.read_text("utf-8"),
            flags=re.MULTILINE,
        )
        for argument, body in blocks:
            found.setdefault(argument, []).extend(body.split())
    return found


def test_every_public_name_has_its_page_and_a_missing_one_is_named() -> None:
    written = {
        f"{package}.{name}"
        for package, names in on_pages("public").items()
        for name in names
    }
    assert pages.uncovered(surface.public_names(), written) == []
    assert written <= surface.public_names()
    assert pages.uncovered(
        surface.public_names(), written - {"colonnade.Federation"}
    ) == ["colonnade.Federation"]


def test_every_command_is_explained() -> None:
    assert set(on_pages("command")) == set(surface.commands())
    assert pages.unexplained_commands() == []
    text = pages.command("run")
    assert "colonnade run FEDERATION.toml [OPTIONS]" in text
    for option in ("--out", "--resume", "--seed", "--engine"):
        assert f"`{option}" in text
    assert "`in-process`" in text


def test_a_command_or_an_option_without_help_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = click.Command("silent", params=[click.Option(["--often"])])
    monkeypatch.setattr(surface, "commands", lambda: {"silent": silent})
    assert pages.unexplained_commands() == [
        "`colonnade silent`",
        "`often` of `colonnade silent`",
    ]


def test_every_setting_has_a_line() -> None:
    assert {
        one for said in on_pages("settings") for one in surface.sections(said)
    } == set(surface.settings())
    assert "**`vimadmm`**\n\n| key |" in pages.settings("algorithm.*")
    assert pages.unexplained_settings() == []
    assert "| `epochs` |" in pages.settings("train")
    assert "`10`" in pages.settings("train")


def test_every_section_that_a_file_may_have_is_covered() -> None:
    heads = {section.partition(".")[0] for section in surface.settings()}
    assert set(FederationFile.model_fields) - heads == {"data_owners"}, (
        "which have the keys of [parties.NAME]"
    )
    tables = {"serve", "alignments", "selections", "store"}
    assert tables <= set(PartyFile.model_fields) & heads


class Fresh(Table):
    """Settings that somebody has just added."""

    told: Whole = Field(default=3, description="the line beside it")
    untold: Literal["a", "b"] = "a"


def test_a_setting_without_a_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = surface._of_table("fresh", Fresh)
    assert [(one.key, one.line, one.default) for one in made] == [
        ("told", "the line beside it", "3"),
        ("untold", "", '"a"'),
    ]
    assert made[1].value == 'one of "a", "b"'
    monkeypatch.setattr(surface, "settings", lambda: {"fresh": made})
    assert pages.unexplained_settings() == ["`untold` of `[fresh]`"]


def test_every_error_stands_in_the_tree_with_its_exit_code() -> None:
    tree = pages.errors()
    assert pages.unexplained_errors() == []
    for name, kind in surface.errors().items():
        assert re.search(rf"`{name}` \| {getattr(kind, 'exit_code', 1)} \|", tree)
    assert "| 4 | a privacy budget is spent |" in pages.exit_codes()


def test_docstrings_keep_their_words_code_and_listings() -> None:
    made = "\n".join(
        docstrings.to_rst(
            [
                "Takes `x_` and *args, a|b, name_.",
                "",
                "    a = b * c_",
                "",
                "Then more.",
            ]
        )
    )
    assert "``x_``" in made
    assert r"\*args" in made
    assert r"name\_." in made
    assert "::\n\n        a = b * c_" in made
    assert docstrings.to_rst(["", " "]) == []
