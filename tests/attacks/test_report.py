"""The report has every score and picture, and no value of anybody's own rows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attacks.runs import few_steps, finished, three, trained

from colonnade.attacks import Audit, Finding, audit_federation, audit_run
from colonnade.attacks.finding import LIMITS, NOT_MEASURED, NotAttacked
from colonnade.attacks.inversion_audit import Rebuilt
from colonnade.attacks.rehearsal import model_files
from colonnade.attacks.report import Verdict, worst_verdict, write
from colonnade.errors import InputError
from colonnade.installation import no_pictures
from colonnade.runs.run_directory import to_json


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
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    notes = list(table.notes)
    write(table, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["audit.json"]
    assert no_pictures() in table.notes
    table.notes[:] = notes


def test_a_place_that_cannot_be_written_is_said(table: Audit, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match=r"cannot be written to .*Choose another --out"
    ):
        write(table, tmp_path / "file" / "audit")


LEAK = Finding(
    attack="labels from residuals",
    attacker="lab",
    victim="clinic",
    moment="first rounds",
    assumes="looks",
    metric="AUC",
    score=0.8,
    baseline=0.5,
    low=0.7,
    high=0.9,
    limit="label_inference",
)
HARMLESS = dataclasses.replace(
    LEAK, attack="labels by gradient length", score=0.5, low=0.45, high=0.55
)
UNMEASURED = dataclasses.replace(
    LEAK,
    attack="class seen in rebuilt rows",
    limit="recognition",
    score=None,
    low=None,
    high=None,
    undecided=((0.0, 1.0),),
)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("run"), "splitnn")


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def left(run: Path, *findings: Finding, **changes: Any) -> Verdict:
    """The worst verdict after an audit with these findings left its report."""
    audit = Audit(
        "run", "splitnn", None, dict.fromkeys(LIMITS), model_files=model_files(run)
    )
    audit = dataclasses.replace(audit, findings=list(findings), **changes)
    (run / "audit").mkdir(exist_ok=True)
    (run / "audit" / "audit.json").write_text(to_json(audit.to_json()))
    worst = worst_verdict(run)
    assert worst is not None
    return worst


def test_without_an_audit_there_is_no_verdict(run: Path) -> None:
    assert worst_verdict(run) is None


def test_the_worst_verdict_is_that_of_what_leaks_most(run: Path) -> None:
    worse = dataclasses.replace(LEAK, low=0.75, moment="trained model")
    found = left(run, HARMLESS, LEAK, worse)
    assert found.text == f"{worse}: can tell many labels (AUC 0.800, 0.750 at least)"
    assert (found.leaks, found.measured, found.passed) == (True, True, False)
    assert found.attack == LEAK.attack
    assert datetime.fromisoformat(found.date).utcoffset() == timedelta(0)
    calm = left(run, HARMLESS)
    assert (calm.leaks, calm.measured) == (False, True)
    assert "no better than guessing" in calm.text
    for limit, passed in ((0.6, False), (0.75, True)):
        limits = {"label_inference": limit}
        found = left(run, LEAK.under(limits), thresholds=limits)
        assert found.passed is passed


def test_the_worst_on_labels_and_on_columns_are_both_said(run: Path) -> None:
    column = dataclasses.replace(
        LEAK,
        attack="columns by model inversion",
        metric="R²",
        limit="inversion_r2",
        score=0.95,
        low=None,
        high=None,
        baseline=0.0,
    )
    found = left(run, HARMLESS, LEAK, column)
    assert found.attack == column.attack
    first, second = found.text.split("; ")
    assert first.startswith(str(column))
    assert second.startswith(str(LEAK))


def test_what_an_audit_could_not_look_at_is_no_verdict(run: Path) -> None:
    found = left(run, HARMLESS, UNMEASURED)
    assert (found.leaks, found.measured, found.passed) == (False, False, False)
    assert found.attack == UNMEASURED.attack
    assert NOT_MEASURED in found.text
    assert "--rows" in found.text
    assert not left(run, HARMLESS, party="lab").measured
    missed = [NotAttacked("slope", "registry", "lab", "no attack here reads it")]
    assert not left(run, HARMLESS, not_attacked=missed).measured
    silent = left(run, HARMLESS, sites={"lab": "not told"})
    assert not silent.measured
    assert silent.text.endswith("not known to have passed: lab")


def test_an_audit_of_other_models_is_no_verdict(run: Path) -> None:
    assert left(run, HARMLESS).measured
    (model, *_) = sorted(run.glob("parties/*/checkpoint-*/*.safetensors"))
    model.write_bytes(model.read_bytes() + b" ")
    found = worst_verdict(run)
    assert found is not None
    assert not found.measured
    assert "audit the run again" in found.text


def test_a_damaged_report_is_no_verdict(run: Path) -> None:
    left(run, LEAK)
    (run / "audit" / "audit.json").write_text('{"findings": []}')
    found = worst_verdict(run)
    assert found is not None
    assert not found.measured
    assert "cannot be read" in found.text


def test_an_audit_names_the_files_it_read_and_when(run: Path) -> None:
    with few_steps():
        audit = audit_run(run, rows=8)
    write(audit, run / "audit")
    told = json.loads((run / "audit" / "audit.json").read_text())
    assert told["date"] == audit.date
    for name, digest in told["model_files"].items():
        assert hashlib.sha256((run / name).read_bytes()).hexdigest() == digest
    assert {name.split("/")[1] for name in told["model_files"]} == {"clinic", "lab"}


def test_what_one_party_is_looked_at_for_is_whole_beside_a_whole_audit(
    run: Path,
) -> None:
    left(run, LEAK)
    alone = Audit(
        "run",
        "splitnn",
        None,
        dict.fromkeys(LIMITS),
        [HARMLESS],
        party="lab",
        model_files=model_files(run),
    )
    write(alone, run / "audit")
    found = worst_verdict(run)
    assert found is not None
    assert (found.leaks, found.measured) == (False, True)
