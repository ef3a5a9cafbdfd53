"""Small finished runs to audit."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import Frames, federation, frames, quick, write

from colonnade.attacks.finding import Finding
from colonnade.attacks.inversion import TABLE
from colonnade.federation import Federation

LONGER = {"epochs": 6, "batch_size": 32, "early_stop": False}
MODEL = {"name": "mlp", "hidden": [16], "width": 8}
BUDGETED = {
    "outbox": {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 4.0}}
    },
    "budget": {"epsilon": 4.0, "delta": 1e-5},
}
GAUSSIAN = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 2.0}}


def settings(
    algorithm: str = "splitnn", **changes: Mapping[str, Any]
) -> dict[str, Any]:
    chosen = {"name": algorithm, **changes.pop("config", {})}
    fixed = {
        "train": {**LONGER, **changes.pop("train", {})},
        "model": {**MODEL, **changes.pop("model", {})},
    }
    return {**quick(**fixed, **changes), "algorithm": chosen}


def three(rows: int = 200) -> Frames:
    """Three classes; the label owner holds no columns, so everybody is a victim."""
    given = frames(rows, "classes")
    label = given["clinic"][["patient", "diagnosis"]]
    return {
        "clinic": given["clinic"].drop(columns="diagnosis"),
        "lab": given["lab"],
        "registry": label,
    }


def trained(
    algorithm: str = "splitnn",
    given: Frames | None = None,
    **changes: Mapping[str, Any],
) -> Federation:
    """A recorded federation that has trained, and whose recording is empty again."""
    found = federation(given or three(), settings(algorithm, **changes), record=True)
    found.fit()
    assert found.recording is not None
    found.recording.transcripts.clear()
    return found


def finished(
    folder: Path, algorithm: str = "splitnn", **changes: Mapping[str, Any]
) -> Path:
    """A run directory."""
    Federation.from_toml(
        write(folder, frames(120, "classes"), settings(algorithm, **changes))
    ).fit(folder / "run")
    return folder / "run"


def score_of(finding: Finding) -> float:
    """The score of a finding that is measured."""
    assert finding.score is not None
    return finding.score


@contextmanager
def few_steps() -> Iterator[None]:
    """Inversion of tables takes no time, and rebuilds little: for tests of what is done
    with what attacks found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "colonnade.attacks.inversion_audit.TABLE",
            dataclasses.replace(TABLE, steps=20),
        )
        yield


def fingerprints(folder: Path, *, without: str = "audit") -> dict[str, tuple[str, int]]:
    """Every file with the hash of its bytes and the time it was last written."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] != without
    }
