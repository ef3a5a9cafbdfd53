"""Runs that the report's tests look at, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.made import multi_run, noisy_run, plain_run

from colonnade.report.facts import Facts, read


@pytest.fixture(scope="package")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_run(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="package")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The laboratory has noise and a budget; the run also has baselines, and everything
    that other commands leave."""
    return noisy_run(tmp_path_factory.mktemp("noisy") / "run")


@pytest.fixture(scope="package")
def multi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return multi_run(tmp_path_factory.mktemp("multi") / "run")


@pytest.fixture(scope="package")
def noisy_facts(noisy: Path) -> Facts:
    return read(noisy)
