"""Parties of one process, and the folder an alignment is written to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from colonnade.alignment import Aligned, AlignmentSettings, Ids, align_here
from colonnade.errors import ConfigError, InputError

LEFT = ["a", "b", "b", "c"]
RIGHT = ["d", "c", "b"]
FIRST = AlignmentSettings(duplicates="first")


def aligned(
    settings: AlignmentSettings = FIRST,
    driver: str | None = None,
    *,
    through_bytes: bool = False,
) -> Aligned:
    ids = {
        "left": Ids.of("left", [LEFT], settings),
        "right": Ids.of("right", [RIGHT], settings),
    }
    return align_here(ids, settings, driver=driver, through_bytes=through_bytes)


@pytest.mark.parametrize("through_bytes", [False, True])
@pytest.mark.parametrize("driver", [None, "left", "right"])
def test_anybody_may_drive(driver: str | None, through_bytes: bool) -> None:
    done = aligned(driver=driver, through_bytes=through_bytes)
    assert done.found.driver == (driver or "left")
    assert [LEFT[row] for row in done.rows["left"]] == [
        RIGHT[row] for row in done.rows["right"]
    ]
    # rows of the table, of which one was left out
    assert sorted(done.rows["left"].tolist()) == [1, 3]
    assert done.tables == {"left": 4, "right": 3}
    assert done.found.sizes == {"left": 3, "right": 3}


def test_what_is_written_is_whole_and_each_partys_own(tmp_path: Path) -> None:
    done = aligned(AlignmentSettings(duplicates="first", learners=("right",)))
    folder = tmp_path / "deep" / "aligned"
    done.write(folder)
    files = sorted(
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.is_file()
    )
    assert files == [
        "deep/aligned/alignment.json",
        "deep/aligned/parties/right/rows.npy",
    ]
    rows = np.load(folder / "parties" / "right" / "rows.npy", allow_pickle=False)
    assert rows.tolist() == done.rows["right"].tolist()
    said = json.loads((folder / "alignment.json").read_text())
    assert said == done.to_json()
    assert (said["common"], said["reveal"], said["learners"], said["driver"]) == (
        2,
        "rows",
        ["right"],
        "left",
    )
    assert said["parties"]["left"]["rows"] == 4
    assert said["parties"]["left"]["ids"] == 3
    assert (
        said["parties"]["left"]["bytes"]["out"]
        == said["parties"]["right"]["bytes"]["in"]
        > 0
    )


def test_a_count_leaves_no_rows(tmp_path: Path) -> None:
    aligned(AlignmentSettings(duplicates="first", reveal="count")).write(
        tmp_path / "count"
    )
    assert [
        path.name for path in (tmp_path / "count").rglob("*") if path.is_file()
    ] == ["alignment.json"]


def test_an_alignment_replaces_an_alignment_and_nothing_else(tmp_path: Path) -> None:
    done = aligned()
    folder = tmp_path / "aligned"
    folder.mkdir()
    done.write(folder)
    aligned(AlignmentSettings(duplicates="first", reveal="count")).write(folder)
    assert not (folder / "parties" / "left" / "rows.npy").exists()
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.tex").write_text("x")
    with pytest.raises(
        ConfigError, match="exists and holds no alignment; it is left alone"
    ):
        done.write(other)
    assert (other / "chapter.tex").exists()


def test_a_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(
        InputError, match=r"cannot be written to .*: No space left on device"
    ):
        aligned().write(tmp_path / "aligned")
    assert list(tmp_path.iterdir()) == []
