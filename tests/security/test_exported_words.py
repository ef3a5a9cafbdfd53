"""Whoever is given an exported piece reads it for cells of single people."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.federation.small import frames, quick, write
from tests.federation.small_sites import ALONE

from colonnade.export import export
from colonnade.federation import Federation
from colonnade.runs.run_directory import RunDirectory

ROWS = 120


@pytest.mark.parametrize(
    "singles", [12, 70], ids=["as words of their own", "as rare words together"]
)
def test_no_word_of_few_people_is_in_an_exported_piece(
    tmp_path: Path, singles: int
) -> None:
    given = frames(rows=ROWS)
    random = np.random.default_rng(0)
    common = random.choice(["ward A", "ward B"], ROWS)
    words = np.array(
        [f"case {row} alone" if row < singles else common[row] for row in range(ROWS)],
        dtype=object,
    )
    given["lab"]["remark"] = words
    file = write(
        tmp_path / "all",
        given,
        quick(train={"epochs": 1, "early_stop": False}, **ALONE),
    )
    Federation.from_toml(file).fit(tmp_path / "run")
    (folder,) = export(tmp_path / "run", tmp_path / "out", "lab")
    kept = RunDirectory(tmp_path / "run").fitted("lab")["columns"]["columns"]
    assert any(
        "alone" in word
        for one in kept
        if one["name"] == "remark"
        for word in one["frequent"] + one["rare"]
    )
    written = b"".join(
        path.read_bytes() for path in folder.rglob("*") if path.is_file()
    )
    few = [word for word, count in Counter(words.tolist()).items() if count < 10]
    assert len(few) == singles
    assert not [word for word in few if word.encode() in written]
    assert b"ward A" in written
    assert b"are not named in a piece" in written
