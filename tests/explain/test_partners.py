"""The picture of a selection shows everybody, kept or not, with its score."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from colonnade.explain.pictures import draw_selection
from colonnade.selection import select_here


def test_every_party_stands_in_the_picture_with_its_score(tmp_path: Path) -> None:
    labels = np.arange(120) % 2
    rng = np.random.default_rng(0)
    features = {name: labels[:, None] * shift + rng.normal(size=(120, 2)) for name, shift in (("a", 3.0), ("b", 0.0))}
    found = select_here(features, labels, keep=1, queries=30, scheme="plain")
    made = draw_selection(found, tmp_path)
    assert [path.name for path in made] == ["selection.png", "selection.svg"]
    assert made[0].read_bytes().startswith(b"\x89PNG")
    (tmp_path / "both").mkdir()
    other = draw_selection(select_here(features, labels, keep=2, queries=30, scheme="plain"), tmp_path / "both")
    assert made[1].read_bytes() != other[1].read_bytes()  # who is kept can be seen
