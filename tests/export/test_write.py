"""What lies in a piece's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.export.trained import run
from torch import Tensor, nn

from colonnade.errors import InputError
from colonnade.export import card, export


class Unruly(nn.Module):
    """Whose path depends on its data, which no graph can hold."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.one = nn.Linear(shape[0], 3)
        self.other = nn.Linear(shape[0], 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.one(x) if float(x.sum()) > 0 else self.other(x)
        return out


def test_weights_are_those_of_the_checkpoint_and_the_program_takes_any_number_of_rows(
    tmp_path: Path,
) -> None:
    folder = run(tmp_path / "at", {"name": "splitnn"})
    _, lab = export(folder, tmp_path / "out")
    weights = load_file(lab / "columns" / "model.safetensors")
    number = json.loads((folder / "checkpoint.json").read_text())["number"]
    saved = load_file(
        folder / "parties" / "lab" / f"checkpoint-{number:06d}" / "tensors.safetensors"
    )
    kept = [value for key, value in saved.items() if "model" in key]
    assert all(
        any(torch.equal(one, other) for other in kept) for one in weights.values()
    )
    program = torch.export.load(lab / "columns" / "model.pt2").module()
    about = json.loads((lab / "columns" / "config.json").read_text())
    for rows in (1, 2, 1000):
        assert program(torch.zeros(rows, *about["inputs"]["shape"])).shape == (
            rows,
            *about["outputs"]["shape"],
        )
    assert [
        path.name for path in lab.parent.iterdir() if path.name.startswith(".")
    ] == []


def test_a_model_that_no_graph_can_hold_still_has_its_weights(tmp_path: Path) -> None:
    own = "tests.export.test_write:Unruly"
    there = run(tmp_path / "at", {"name": "splitnn"}, parties={"lab": {"model": own}})
    _, lab = export(there, tmp_path / "out", allow_models=[own])
    about = json.loads((lab / "columns" / "config.json").read_text())
    assert about["program"] is None
    assert about["note"].startswith("torch.export cannot take this model")
    assert {path.name for path in (lab / "columns").iterdir()} == {
        "config.json",
        "model.safetensors",
    }
    assert set(load_file(lab / "columns" / "model.safetensors")) == {
        "one.weight",
        "one.bias",
        "other.weight",
        "other.bias",
    }


def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(tmp_path / "at", {"name": "fdml"})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(card, "page", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        export(folder, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
