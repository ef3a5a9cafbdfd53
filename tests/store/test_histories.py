"""Whatever happens, in whatever order: an independent count of what really left never
exceeds what the store says, nor the limit, and every refusal names its cure."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.playing import World
from tests.store.small import OWNER

from colonnade.store import SiteStore

IN_MEMORY = Path("/dev/shm")
"""What is forced onto a disk here costs nothing. Power cuts are not played."""

LENGTH = 12


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """A store that was just made."""
    place = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        SiteStore.create(Path(folder) / "store", OWNER).close()
        yield Path(folder)


def play(template: Path, seeds: range) -> None:
    for seed in seeds:
        folder = template / f"world-{seed}"
        folder.mkdir()
        world = World(folder, template, seed)
        try:
            world.play(LENGTH)
        except BaseException as error:
            error.add_note(f"seed {seed}: {', '.join(world.played)}")
            raise
        finally:
            shutil.rmtree(folder)


@pytest.mark.parametrize("block", range(10))
def test_no_history_loses_a_count(template: Path, block: int) -> None:
    play(template, range(20 * block, 20 * block + 20))


@pytest.mark.long
@pytest.mark.parametrize("block", range(100))
def test_no_history_of_many_loses_a_count(template: Path, block: int) -> None:
    play(template, range(1000 + 100 * block, 1100 + 100 * block))
