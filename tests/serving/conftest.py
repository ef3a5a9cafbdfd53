"""A finished run that a service can be put in front of."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.federation.small import write

from colonnade.federation import Federation


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables and a finished run; tests copy it or leave it as it is."""
    folder = tmp_path_factory.mktemp("served")
    Federation.from_toml(write(folder)).fit(folder / "run")
    return folder
