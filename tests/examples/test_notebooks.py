"""The notebooks run from top to bottom, as they are, and are kept with outputs that
name no machine."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["privacy", "quickstart"]


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        book, timeout=240, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    kinds = [
        set(output.get("data", ()))
        for cell in book.cells
        for output in cell.get("outputs", ())
    ]
    assert any("image/png" in kind for kind in kinds), "a notebook draws a picture"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_outputs_and_without_paths(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    coded = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in coded] == list(range(1, len(coded) + 1))
    shown = [str(output) for cell in coded for output in cell.outputs]
    assert not any(
        word in text
        for text in shown
        for word in ("/home/", "/root/", "/tmp/", "Traceback", "stderr")
    )
