"""The site builds strictly, works from disk, and does not build where something is
missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx")
pytest.importorskip("furo")
pytest.importorskip("myst_parser")

ROOT = Path(__file__).parents[2]


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-E",
            "-W",
            "-n",
            "--keep-going",
            "-q",
            str(source),
            str(out),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.long  # `make docs` builds it too
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    done = build(ROOT / "docs", tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {
        path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")
    }
    assert len(pages) > 30
    for path, text in pages.items():
        loaded = re.findall(
            r'<(?:script|img|iframe|link)[^>]*(?:src|href)="(https?:)?//', text
        )
        assert not loaded, f"{path.name} loads something from the network"
        assert "MathJax" not in text
    assert "<math" in pages[tmp_path / "explanation-algorithms" / "vimadmm.html"]
    assert (
        'href="how-to-add-an-algorithm.html"' in pages[tmp_path / "architecture.html"]
    ), "a link to CONTRIBUTING.md"
    assert list(tmp_path.glob("_downloads/*/privacy.ipynb")), (
        "files that pages link to are copied"
    )
    assert not any(str(ROOT) in text for text in pages.values()), (
        "a page names the machine it was built on"
    )


@pytest.mark.long
def test_names_without_a_page_and_a_dead_link_fail_it(tmp_path: Path) -> None:
    settings = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    source = tmp_path / "docs"
    source.mkdir()
    place = f"sys.path.insert(0, {str(ROOT)!r})"
    (source / "conf.py").write_text(
        re.sub(r"sys\.path\.insert.*", lambda _: place, settings).replace(
            'html_theme = "furo"', 'html_theme = "basic"'
        ),
        encoding="utf-8",
    )
    (source / "_static").mkdir()
    (source / "index.md").write_text(
        "# Small\n\n[nowhere](nowhere.md)\n\n```{public} colonnade\nFederation\n```\n",
        encoding="utf-8",
    )
    done = build(source, tmp_path / "out")
    assert done.returncode != 0
    assert "no page for name colonnade.load" in done.stderr
    assert "no page for command run" in done.stderr
    assert "no page for section train" in done.stderr
    assert "no page for error WireError" in done.stderr
    assert "name colonnade.Federation" not in done.stderr
    assert "nowhere.md" in done.stderr
