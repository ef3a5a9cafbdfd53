"""Files appear whole, names are shortened, and a missing library is named."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.explain.test_pictures import made_up

from colonnade.errors import InputError
from colonnade.evaluate import metric
from colonnade.explain import canvas

pytest.importorskip("matplotlib")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    canvas.can_draw()
    monkeypatch.setattr(canvas, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "colonnade\[plots\]"'):
        canvas.can_draw()


@pytest.mark.parametrize("path", sorted(Path(canvas.__file__).parent.glob("*.py")), ids=lambda path: path.name)
def test_heavy_libraries_are_imported_where_they_are_used(path: Path) -> None:
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
    assert not {name.split(".")[0] for name in names} & {"matplotlib", "sklearn", "scipy", "pandas"}


def test_a_picture_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = canvas.page(2, 2)
    canvas.save(figure, tmp_path / "kept")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(before) == ["kept.png", "kept.svg"]

    def cut_short(path: Path, **settings: object) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", cut_short)
    with pytest.raises(OSError, match="disk full"):
        canvas.save(figure, tmp_path / "kept")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_names_and_scores_in_words() -> None:
    report = made_up(2)
    report.holds = {"a" * 40: {"holds": "1 column"}, "b": {"holds": "x", "region": [0, 0, 1, 1]}}
    assert canvas.row_names(report) == ["a" * 23 + "…  (1 column)", "b"]
    assert canvas.score(report, 0.1234) == "12.3%"
    assert canvas.score(report, None) == canvas.score(report, float("nan")) == "not known"
    report.metric = "r2"
    assert (canvas.score(report, 0.5), metric(report.metric)) == ("0.500", "R²")


def test_many_parties_get_lower_rows() -> None:
    assert canvas.rows_height(64) <= 12
    assert canvas.rows_height(10) == pytest.approx(2.4)
