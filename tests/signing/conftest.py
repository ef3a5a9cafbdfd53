"""One audited run and certificates of one root for all tests of signing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.signing.signed import audited_run, copied
from tests.transport.certified import kits


@pytest.fixture(scope="package")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return audited_run(tmp_path_factory.mktemp("original"))


@pytest.fixture(scope="package")
def startup_kits() -> dict[str, Path]:
    return {name: kits() / name for name in ("clinic", "lab")}


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return copied(original, tmp_path / "run")
