"""The report has every score and picture, and no value of anybody's own rows."""

from __future__ import annotations

import builtins
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attacks.runs import few_steps, three, trained

from colonnade.attacks import Audit, Finding, audit_federation
from colonnade.attacks.inversion_audit import Rebuilt
from colonnade.attacks.report import write
from colonnade.errors import InputError


@pytest.fixture(scope="module")
def table() -> Audit:
    with few_steps():
        return audit_federation(
            trained("vimadmm", audit={"inversion_r2": 0.5}), "run", rows=16
        )


def picture(dataset: str | None, **changes: Any) -> Audit:
    """An audit of pictures, as if made."""
    x = torch.rand(9, 6, 8, generator=torch.Generator().manual_seed(0))
    one = Rebuilt(
        "client_01",
        "label_owner",
        "prediction",
        torch.arange(9),
        x,
        x,
        x * 0.9,
        x.mean(0),
        "unprotected",
        (),
    )
    return Audit("run", "splitnn", dataset, {"inversion_r2": None}, rebuilt=[one])


def test_a_dollar_in_a_name_is_no_formula(tmp_path: Path) -> None:
    found = Finding(
        attack="$\\nope$",
        attacker="$\\nope$",
        victim="clinic",
        moment="m",
        assumes="",
        metric="AUC",
        score=0.5,
        baseline=0.5,
        limit="label_inference",
    )
    x = torch.rand(9, 2, generator=torch.Generator().manual_seed(0))
    columns = {"$\\nope$": 0.5, "b": 0.1}
    one = Rebuilt(
        "lab",
        "clinic",
        "prediction",
        torch.arange(9),
        x,
        x,
        x,
        x.mean(0),
        "plain",
        (),
        columns=columns,
    )
    audit = Audit(
        "run", "splitnn", None, {"inversion_r2": None}, [found], rebuilt=[one]
    )
    assert len(write(audit, tmp_path)) == 5


def test_a_table_gets_scores_by_column(table: Audit, tmp_path: Path) -> None:
    files = write(table, tmp_path / "audit")
    names = {path.name for path in (tmp_path / "audit").iterdir()}
    stems = ("labels", "inversion-clinic", "inversion-lab")
    assert names == {
        "audit.json",
        *(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")),
    }
    assert set(files) == {tmp_path / "audit" / name for name in names}
    told = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert told["algorithm"] == "vimadmm"
    assert len(told["findings"]) == len(table.findings)
    assert (tmp_path / "audit" / "labels.png").read_bytes().startswith(b"\x89PNG")


def test_no_value_and_no_label_of_a_table_is_written(
    table: Audit, tmp_path: Path
) -> None:
    write(table, tmp_path)
    text = (tmp_path / "audit.json").read_text() + "".join(
        path.read_text() for path in tmp_path.glob("*.svg")
    )
    for frame in three().values():
        for value in frame.select_dtypes("number").to_numpy().ravel().tolist():
            assert not re.search(
                rf"(?<![\d.]){re.escape(str(value))}(?!\d)",
                json.dumps(_strings(json.loads((tmp_path / "audit.json").read_text()))),
            ), value
        assert not any(f'"{patient}"' in text for patient in frame["patient"])
    assert '"high"' not in _without_intervals(text)
    assert '"mid"' not in text


def _strings(value: Any) -> list[str]:
    """Every text in nested JSON, keys too: where a value of a row would have to be."""
    if isinstance(value, dict):
        return [
            text for key, inner in value.items() for text in (key, *_strings(inner))
        ]
    if isinstance(value, list):
        return [text for inner in value for text in _strings(inner)]
    return [value] if isinstance(value, str) else []


def _without_intervals(text: str) -> str:
    return text.replace('"high":', "")


def test_pictures_of_rows_are_for_public_data_sets_alone(tmp_path: Path) -> None:
    write(picture("mnist"), tmp_path / "public")
    assert (tmp_path / "public" / "inversion-client_01.png").exists()
    write(picture(None), tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["audit.json"]


@pytest.mark.long
def test_a_second_audit_replaces_the_first_and_leaves_other_files(
    table: Audit, tmp_path: Path
) -> None:
    write(picture("mnist"), tmp_path)
    for mine in ("notes.txt", "holiday.png"):
        (tmp_path / mine).write_text("mine")
    write(table, tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "inversion-client_01.png" not in first
    assert first["notes.txt"] == first["holiday.png"] == b"mine"
    write(table, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


def test_without_matplotlib_the_scores_are_written(
    table: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    notes = list(table.notes)
    write(table, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["audit.json"]
    assert any('pip install "colonnade[plots]"' in note for note in table.notes)
    table.notes[:] = notes


def test_a_place_that_cannot_be_written_is_said(table: Audit, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match=r"cannot be written to .*Choose another --out"
    ):
        write(table, tmp_path / "file" / "audit")
