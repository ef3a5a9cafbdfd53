"""What was refused is counted and kept, a line each, whoever calls at the same time."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from colonnade.sites.host import Refusals


def test_each_refused_call_is_one_whole_line(tmp_path: Path) -> None:
    refusals = Refusals(tmp_path / "runs")
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: refusals(f"caller {n}" + "x" * 100, "not admitted"),
                range(100),
            )
        )
    lines = [
        json.loads(line)
        for line in (tmp_path / "runs" / "refused.jsonl").read_text().splitlines()
    ]
    assert refusals.count == len(lines) == 100
    assert {line["why"] for line in lines} == {"not admitted"}
    # a stranger cannot fill the disk with its name
    assert {len(line["caller"]) for line in lines} == {80}


def test_who_calls_for_ever_does_not_fill_the_disk_and_the_newest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colonnade.sites.host.MOST", 500)
    for _ in range(2):  # a restarted site goes on with the same file
        refusals = Refusals(tmp_path)
        for number in range(50):
            refusals("clinic", f"number {number}")
        assert refusals.count == 50
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["refused.jsonl", "refused.jsonl.1"]
    assert sum(file.stat().st_size for file in files) < 1200
    kept = files[1].read_text() + files[0].read_text()
    assert "number 49" in kept
    assert "number 48" in kept
