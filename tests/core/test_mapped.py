"""Mapped arrays hold what others hold, lie where nobody finds them, and say when there
is no room."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from colonnade.core import Batches
from colonnade.core.batches import shuffled
from colonnade.core.files import (
    MAP_FROM,
    let_go,
    mapped_array,
    mapped_folder,
    mapped_from,
    mapped_stack,
    mapped_zeros,
)
from colonnade.errors import ConfigError, InputError


@pytest.mark.parametrize(
    ("megabytes", "expected"), [("0", True), ("0.0001", True), ("1", False)]
)
def test_the_size_decides(
    monkeypatch: pytest.MonkeyPatch, megabytes: str, expected: bool
) -> None:
    monkeypatch.setenv(MAP_FROM, megabytes)
    # 1,200 bytes
    assert isinstance(mapped_array((100, 3), np.float32), np.memmap) is expected
    assert not isinstance(mapped_array((0, 3)), np.memmap)


@pytest.mark.parametrize("wrong", ["much", "-1", "nan", ""])
def test_a_size_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv(MAP_FROM, wrong)
    with pytest.raises(
        ConfigError, match="COLONNADE_MAP_FROM is the size in megabytes"
    ):
        mapped_from()


@pytest.mark.parametrize("megabytes", ["0", "64"])
def test_what_is_written_is_read_even_after_letting_go(
    monkeypatch: pytest.MonkeyPatch, megabytes: str
) -> None:
    monkeypatch.setenv(MAP_FROM, megabytes)
    values = torch.randn(50, 7)
    rows = torch.tensor([3, 999, 41])
    found = mapped_zeros((1000, 7))
    found[rows] = values[:3]
    let_go(found.numpy())
    assert torch.equal(found[rows], values[:3])
    assert found.count_nonzero() == 21
    parts = [torch.randn(5, 2, 3) for _ in range(4)]
    assert torch.equal(mapped_stack(parts), torch.stack(parts))
    flags = [torch.ones(4, dtype=torch.bool)] * 2
    assert torch.equal(mapped_stack(flags), torch.stack(flags))


def test_letting_go_takes_an_array_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("this system does not tell a process its memory so")

    def resident() -> int:
        lines = status.read_text().splitlines()
        return sum(
            int(line.split()[1])
            for line in lines
            if line.startswith(("RssFile", "RssShmem"))
        )

    monkeypatch.setenv(MAP_FROM, "0")
    values = mapped_array((4_000_000,))  # 32 MB
    values[:] = 1.0
    before = resident()
    let_go(values)
    assert before - resident() > 25_000
    assert values.sum() == 4_000_000


def test_the_file_has_no_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(MAP_FROM, "0")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert mapped_folder() == str(tmp_path)
    held = mapped_array((1000,))
    held[:] = 2.0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(
    not hasattr(os, "posix_fallocate"), reason="this system does not reserve room"
)
def test_a_disk_without_room_is_told_before_anything_is_written() -> None:
    with pytest.raises(
        InputError, match=r"GB are needed in .* Make room there, or set TMPDIR"
    ):
        mapped_array((1 << 55,), np.float64)


def test_a_permutation_is_torchs_own_and_batches_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = torch.arange(100, 400, 3)

    def orders() -> list[torch.Tensor]:
        batches = Batches({"train": rows}, batch_size=7, epochs=5, seed=3)
        return [batches.epoch_rows(epoch) for epoch in (0, 1, 2, 3, 0)]

    plain = orders()
    monkeypatch.setenv(MAP_FROM, "0")
    stored = orders()
    assert all(map(torch.equal, plain, stored))
    drawn = torch.randperm(100, generator=torch.Generator().manual_seed(1))
    assert torch.equal(shuffled(rows, torch.Generator().manual_seed(1)), rows[drawn])
