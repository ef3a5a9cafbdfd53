"""`colonnade export`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.called import Caller


def test_pieces_are_written_and_named(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    told = call("export", finished / "run", "--out", tmp_path / "out")
    assert told.code == 0
    for name in ("clinic", "lab"):
        assert f"{tmp_path / 'out' / name}: for '{name}' alone" in told.out
        assert (tmp_path / "out" / name / "README.md").exists()
    assert "is there already" in call.fails(
        2, "export", finished / "run", "--out", tmp_path / "out"
    )
    assert "is not a run directory" in call.fails(2, "export", tmp_path)
