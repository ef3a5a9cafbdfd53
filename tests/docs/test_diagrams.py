"""Pictures are what the messages make them, every algorithm has its page, and a page
names every setting as it is."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from colonnade.algorithms import ALGORITHMS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = DOCS / "explanation-algorithms"
MINE = sorted(
    [*PAGES.glob("*.md"), *DOCS.glob("how-to-*.md"), *DOCS.glob("explanation-*.md")]
)


@pytest.fixture(scope="module")
def diagrams() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_diagrams", DOCS / "diagrams.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names(module: ModuleType) -> list[str]:
    return list(module.pictures())


def test_every_picture_is_what_the_messages_make_it(diagrams: ModuleType) -> None:
    for name in names(diagrams):
        drawn = diagrams.draw(name)
        assert (diagrams.IMAGES / f"crosses-{name}.svg").read_text(
            encoding="utf-8"
        ) == drawn, (
            f"crosses-{name}.svg is not what is sent. Run: python docs/diagrams.py"
        )
        ET.fromstring(drawn)
    kept = {
        path.stem.removeprefix("crosses-")
        for path in diagrams.IMAGES.glob("crosses-*.svg")
    }
    assert kept == set(names(diagrams))


def test_every_algorithm_has_a_picture_and_a_page_that_shows_it(
    diagrams: ModuleType,
) -> None:
    assert {picture.algorithm for picture in diagrams.pictures().values()} == set(
        ALGORITHMS
    )
    assert {path.stem for path in PAGES.glob("*.md")} == {*ALGORITHMS, "index"}
    for name, picture in diagrams.pictures().items():
        assert f"../images/crosses-{name}.svg" in (
            PAGES / f"{picture.algorithm}.md"
        ).read_text(encoding="utf-8")


def test_every_release_that_a_picture_draws_is_said_what_it_tells(
    diagrams: ModuleType,
) -> None:
    """What crosses by default is explained under its arrow, in the words of its record."""
    for name in ("vimadmm", "vfedcce"):
        lines = [line for line in diagrams.script(name) if line.kind == "arrow"]
        told = " ".join(words for line in lines for words in line.words[1:])
        for release in {
            "embedding",
            "residual",
            "head",
            "log_odds",
            "coefficients",
        } & set(ALGORITHMS[name].reveals):
            assert ALGORITHMS[name].reveals[release] in told


def test_a_note_for_a_message_that_does_not_come_is_refused(
    diagrams: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = dataclasses.replace(
        diagrams.PICTURES["fdml"], notes={(diagrams.BATCH, "Improve"): "τ steps"}
    )
    monkeypatch.setitem(diagrams.PICTURES, "fdml", stale)
    with pytest.raises(ValueError, match="notes for messages that do not come"):
        diagrams.script("fdml")


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_page_names_every_setting_with_its_default(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    fields = ALGORITHMS[name].config.model_fields
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, flags=re.MULTILINE)
    assert dict(rows) == {key: _toml(field.default) for key, field in fields.items()}


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


@pytest.mark.parametrize("path", MINE, ids=lambda path: path.stem)
def test_every_formula_can_be_drawn(path: Path) -> None:
    converter = pytest.importorskip("latex2mathml.converter")
    text = re.sub(
        r"```.*?```|`[^`\n]+`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    blocks = re.findall(r"\$\$(.*?)\$\$", text, flags=re.DOTALL)
    inline = re.findall(
        r"\$([^$]+)\$", re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    )
    assert blocks or path.parent != PAGES or path.stem == "index"
    for formula in [*blocks, *inline]:
        made = converter.convert(formula.strip())
        assert "\\" not in made, f"{path.name}: {formula}"
        assert "&</" not in made, (
            f"{path.name}: one formula a block, without &: {formula}"
        )


@pytest.mark.parametrize("path", MINE, ids=lambda path: path.stem)
def test_every_link_leads_somewhere(path: Path) -> None:
    for link, anchor in re.findall(
        r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")
    ):
        target = path.parent / link if link else path
        assert target.exists(), f"{path.name} links to {link}"
        if anchor:
            headings = re.findall(
                r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE
            )
            assert anchor in {
                re.sub(r"[^\w\- ]", "", one).lower().replace(" ", "-")
                for one in headings
            }, link + anchor
