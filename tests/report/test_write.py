"""Files are whole, and each figure stands alone."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.report.test_figures import EVERY

from colonnade.errors import InputError
from colonnade.report.facts import read
from colonnade.report.page import render, write


def test_the_page_and_every_figure(noisy: Path, tmp_path: Path) -> None:
    path = write(noisy, tmp_path / "pages" / "mine.html")
    assert path == tmp_path / "pages" / "mine.html"
    assert path.read_text() == render(read(noisy))
    drawn = {one.stem: one for one in (tmp_path / "pages" / "figures").iterdir()}
    assert set(drawn) == EVERY
    for one in drawn.values():
        root = ElementTree.fromstring(one.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
        style = root.find("{http://www.w3.org/2000/svg}style")
        assert style is not None
        assert "--s1" in str(style.text)
    assert not list(tmp_path.rglob("*.tmp"))


def test_by_default_it_lies_in_the_run(plain: Path) -> None:
    assert write(plain) == plain / "report.html"
    assert (plain / "figures" / "loss.svg").exists()


def test_a_place_that_cannot_be_written(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="Choose another --out"):
        write(plain, tmp_path / "file" / "report.html")
