"""Models rebuilt from a run directory are those that were trained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.export.trained import run

from colonnade.errors import CheckpointError, ConfigError
from colonnade.export.pieces import Trained
from colonnade.federation import load


def test_local_models_are_equal_and_no_table_is_needed(tmp_path: Path) -> None:
    folder = run(tmp_path / "at", {"name": "fdml"}, "classes")
    federation = load(folder)
    for table in (tmp_path / "at").glob("*.csv"):
        table.unlink()
    trained = Trained(folder)
    assert trained.sent == {"clinic": (3,), "lab": (3,)}
    for name, owner in federation.owners.items():
        owner.model.eval()
        with torch.no_grad():
            assert torch.equal(
                trained.local_model(name)(owner.features), owner.model(owner.features)
            )
    roles = {
        name: [piece.role for piece in trained.pieces(name)] for name in trained.parties
    }
    assert roles == {"clinic": ["columns", "labels"], "lab": ["columns"]}


def test_a_state_of_another_model_is_told(tmp_path: Path) -> None:
    folder = run(tmp_path / "at", {"name": "fdml"})
    summary = (folder / "summary.json").read_text()
    (folder / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match="has not finished"):
        Trained(folder)
    (folder / "summary.json").write_text(summary)
    file = folder / "federation.toml"
    changed = re.sub(
        r"hidden = \[\d+\]", "hidden = [77]", re.sub(r"\A#.*\n", "", file.read_text())
    )
    assert changed != file.read_text()
    file.write_text(changed)
    with pytest.raises(
        CheckpointError, match=r"What 'clinic' saved in .*clinic does not fit its model"
    ):
        Trained(folder).pieces("clinic")
    with pytest.raises(
        CheckpointError, match=r"What 'clinic' saved in .*clinic does not fit its model"
    ):
        load(folder)
