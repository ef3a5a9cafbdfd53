"""An alignment is found once, as long as ids and settings are the same; what was kept
is checked before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade import alignment
from colonnade.alignment import kept
from colonnade.datasets.download import cache_folder
from colonnade.datasets.table import Table, table_from_frame
from colonnade.federation import Federation, Settings
from colonnade.rows.matching import in_common

SETTINGS = Settings.from_mapping(
    {
        "data": {"id": "id", "align": "private"},
        "parties": {"a": {"label": "y"}, "b": {}},
    }
)


def tables(first: int = 10) -> dict[str, Table]:
    one = pd.DataFrame({"id": [f"p{n}" for n in range(60)], "y": [0, 1] * 30})
    other = pd.DataFrame(
        {"id": [f"p{n}" for n in range(first, first + 60)][::-1], "x": np.arange(60.0)}
    )
    return {
        "a": table_from_frame(one, owner="a", id="id", label="y"),
        "b": table_from_frame(other, owner="b", id="id"),
    }


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often parties really compared ids."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept, "LEAST", 0)
    times: list[int] = []
    real = alignment.align_here

    def align_here(*given: Any, **named: Any) -> Any:
        times.append(1)
        return real(*given, **named)

    monkeypatch.setattr(alignment, "align_here", align_here)
    return times


def test_the_same_ids_are_compared_once_and_ledgers_say_the_same(
    counted: list[int],
) -> None:
    first, crossed = in_common(SETTINGS, tables(), "a")
    again, told = in_common(SETTINGS, tables(), "a")
    assert len(counted) == 1
    assert {name: table.ids.tolist() for name, table in first.items()} == {
        name: table.ids.tolist() for name, table in again.items()
    }
    assert len(first["a"]) == 50
    assert told == crossed
    assert list(again["b"].features["x"]) == list(first["b"].features["x"])


def test_other_ids_or_settings_are_compared_anew(counted: list[int]) -> None:
    in_common(SETTINGS, tables(), "a")
    assert len(in_common(SETTINGS, tables(first=20), "a")[0]["a"]) == 40
    in_common(SETTINGS, tables(), "b")
    assert len(counted) == 3


def test_what_was_tampered_with_or_is_damaged_is_not_used(counted: list[int]) -> None:
    in_common(SETTINGS, tables(), "a")
    (path,) = cache_folder(kept.FOLDER).glob("*.npz")
    with np.load(path) as held:
        arrays = dict(held)
    arrays["rows:b"] = arrays["rows:b"][::-1]  # other people's columns
    np.savez(path, **arrays)
    assert (
        in_common(SETTINGS, tables(), "a")[0]["b"].ids.tolist()
        == in_common(SETTINGS, tables(), "a")[0]["a"].ids.tolist()
    )
    path.write_bytes(b"no archive")
    in_common(SETTINGS, tables(), "a")
    assert len(counted) == 3


def test_old_ones_make_way(counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST", 2)
    for first in (5, 10, 15):
        in_common(SETTINGS, tables(first), "a")
    assert len(list(cache_folder(kept.FOLDER).glob("*.npz"))) == 2
    assert len(counted) == 3


def test_ids_that_a_rule_makes_alike_are_compared_once_too(counted: list[int]) -> None:
    """They are kept by what was compared, however a table writes them."""
    one = pd.DataFrame({"id": range(60), "x": range(60), "y": [0, 1] * 30})
    other = pd.DataFrame(
        {"id": [f"{number:05d}" for number in range(10, 70)], "z": range(60)}
    )
    settings = {"data": {"align": "private"}, "alignment": {"rules": {"id": "digits"}}}
    for _ in range(2):
        made = Federation.from_frames(
            {"a": one, "b": other}, id=["id"], label="y", settings=settings
        )
        assert len(made.holdings.ids) == 50
    assert len(counted) == 1
