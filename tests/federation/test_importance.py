"""How much a party's model makes of each of its columns: the owner alone knows, and
nothing leaves for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.federation.small import federation, frames, quick
from tests.federation.small_sites import ALONE, folders, sites

from colonnade.errors import ConfigError
from colonnade.federation.coefficients import importance_of
from colonnade.sites.driving import drive


def test_of_a_linear_model_a_share_is_what_a_column_adds_to_the_variance() -> None:
    given = frames(4000)
    given["lab"]["word"] = [("a", "b")[at % 2] for at in range(4000)]
    one = federation(given, quick() | {"model": {"name": "linear", "width": 3}})
    owner = one.owners["lab"]
    weight = torch.tensor(
        [[3.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    )
    with torch.no_grad():
        layer = next(
            part for part in owner.model.modules() if isinstance(part, torch.nn.Linear)
        )
        layer.weight.copy_(weight[:, : layer.weight.shape[1]])
    shares = importance_of(one, "lab")
    assert list(shares) == ["iron", "zinc", "word"], "the largest first"
    assert shares["iron"] == pytest.approx(0.9, abs=0.06)
    assert shares["zinc"] == pytest.approx(0.1, abs=0.06)
    assert shares["word"] == 0.0


def test_a_run_has_it_in_each_owners_folder_and_nowhere_else(tmp_path: Path) -> None:
    one = federation()
    one.fit(tmp_path / "run")
    for name, columns in (("clinic", {"age", "weight"}), ("lab", {"iron", "zinc"})):
        told = json.loads(
            (tmp_path / "run" / "parties" / name / "importance.json").read_text()
        )
        assert set(told) == columns
        assert told == importance_of(one, name)
        elsewhere = [
            path
            for path in (tmp_path / "run").rglob("*.json")
            if path.parent.name != name
            and path.name != "federation.toml"
            and sorted(columns)[0] in path.read_text()
        ]
        assert elsewhere == []
    assert one.ledgers["lab"].total("out") == one.ledgers["clinic"].total("in")
    with pytest.raises(ConfigError, match="no importance of the columns of 'nobody'"):
        importance_of(one, "nobody")


def test_between_sites_each_writes_its_own(tmp_path: Path) -> None:
    folders(tmp_path, frames(), quick(**ALONE))
    drive(sites(tmp_path)["clinic"], "run")
    for name, columns in (("clinic", {"age", "weight"}), ("lab", {"iron", "zinc"})):
        found = list((tmp_path / name).rglob("importance.json"))
        assert [set(json.loads(path.read_text())) for path in found] == [columns]
