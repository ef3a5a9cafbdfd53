"""What a statement says, of which runs there is one, and how it is read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.signing.signed import mark_as

from colonnade.core.files import hold
from colonnade.errors import CheckpointError, ConfigError, NotAsSigned
from colonnade.signing.statement import canonical, parse, state


@pytest.fixture(scope="module")
def said(original: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(state(original, "lab").text)
    return told


def test_it_says_which_run_when_and_by_which_version(
    said: dict[str, Any], original: Path
) -> None:
    identity = json.loads((original / "run.json").read_text())
    assert said["run"]["id"] == identity["id"]
    assert said["run"]["begun"] == identity["begun"]
    assert said["made"].endswith("+00:00")
    assert said["party"] == "lab"
    assert said["version"]


def test_it_covers_every_model_ledger_and_record(
    said: dict[str, Any], original: Path
) -> None:
    covered = {**said["models"], **said["ledgers"], **said["records"]}
    for path, about in covered.items():
        content = (original / path).read_bytes()
        assert about["sha256"] == hashlib.sha256(content).hexdigest()
        assert about["bytes"] == len(content)
    names = {Path(path).name for path in covered}
    assert names >= {
        "tensors.safetensors",
        "state.json",
        "ledger.jsonl",
        "federation.toml",
        "audit.json",
        "report.html",
        "run.json",
    }
    assert {Path(path).parts[1] for path in said["models"]} == {"clinic", "lab"}


def test_it_says_who_received_what_by_which_rule(
    said: dict[str, Any], original: Path
) -> None:
    lines = (original / "parties" / "lab" / "ledger.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    left = [entry for entry in entries if entry["name"] == "embedding"]
    (line,) = [line for line in said["sent"] if line["release"] == "embedding"]
    assert line["receiver"] == "clinic"
    assert line["times"] == len(left)
    assert line["bytes"] == sum(entry["bytes"] for entry in left)
    assert "gaussian, clip 1, sigma 4" in line["rule"]
    assert {line["sender"] for line in said["received"]} == {"clinic"}


def test_it_says_each_epsilon_with_its_adversary(said: dict[str, Any]) -> None:
    (lab,) = [one for one in said["privacy"] if one["party"] == "lab"]
    promised = [line for line in lab["statements"] if line["epsilon"] is not None]
    assert promised
    assert all(line["adversary"] for line in promised)


def test_it_has_the_audits_worst_verdict(said: dict[str, Any]) -> None:
    assert said["audit"]["text"]
    assert isinstance(said["audit"]["leaks"], bool)


def test_nobodys_copy_names_anothers_columns(original: Path) -> None:
    lab = state(original, "lab").text
    clinic = state(original, "clinic").text
    columns = {
        name: json.loads(text)["columns"]
        for name, text in (("lab", lab), ("clinic", clinic))
    }
    assert columns["lab"]["label"] is None
    assert columns["clinic"]["label"] is not None
    for own, other in (("lab", clinic), ("clinic", lab)):
        assert columns[own]["features"]
        for column in [*columns[own]["features"], columns[own]["label"]]:
            assert column is None or json.dumps(column) not in other


def test_a_run_without_an_audit_is_not_signed(run: Path) -> None:
    (run / "audit" / "audit.json").unlink()
    with pytest.raises(ConfigError, match=f"colonnade audit {run}") as told:
        state(run, "lab")
    assert told.value.exit_code == 2


def test_an_audit_of_other_models_is_refused(run: Path) -> None:
    file = next((run / "parties" / "lab").glob("checkpoint-*/tensors.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="of other models"):
        state(run, "lab")


def test_an_audit_of_one_party_alone_is_that_partys(run: Path) -> None:
    file = run / "audit" / "audit.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"party": "lab"}))
    state(run, "lab")
    with pytest.raises(ConfigError, match="attacks by or on 'lab' alone"):
        state(run, "clinic")


def test_a_run_that_has_not_finished_is_not_signed(run: Path) -> None:
    mark_as(run, finished=False)
    with pytest.raises(CheckpointError, match="not finished"):
        state(run, "lab")


def test_a_run_that_is_trained_now_is_not_signed(run: Path) -> None:
    with (
        hold(run / ".lock", "held"),
        pytest.raises(ConfigError, match="trained by another process now"),
    ):
        state(run, "lab")


def test_a_run_without_an_id_is_not_signed(run: Path) -> None:
    (run / "run.json").unlink()
    with pytest.raises(CheckpointError, match="no id"):
        state(run, "lab")


def test_only_a_party_of_the_run_signs(run: Path) -> None:
    with pytest.raises(ConfigError, match="has the part of clinic and lab alone"):
        state(run, "bank")


@pytest.mark.parametrize("where", ["ledger", "model", "folder"])
def test_links_are_not_signed(run: Path, tmp_path: Path, where: str) -> None:
    """What they lead to may change, or be another run's."""
    lab = run / "parties" / "lab"
    model = next(lab.glob("checkpoint-*"))
    path = {
        "ledger": lab / "ledger.jsonl",
        "model": model / "tensors.safetensors",
        "folder": model,
    }[where]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="link"):
        state(run, "lab")


def test_a_statement_is_read_as_it_was_written(original: Path) -> None:
    statement = state(original, "lab")
    assert parse(statement.text.encode(), "it") == statement
    assert canonical(json.loads(statement.text)) == statement.text


def test_another_way_to_write_it_is_refused(original: Path) -> None:
    """A key that is there twice shows one reader this and another that."""
    text = state(original, "lab").text
    twice = text.replace('"party": "lab"', '"party": "clinic",\n  "party": "lab"', 1)
    for changed in (
        twice,
        text + " ",
        json.dumps(json.loads(text)),
        text.replace('"made"', '"Made"'),
        text.replace("statement 1", "statement 2"),
        text.replace('"party": "lab"', '"party": "../lab"', 1),
        text.replace('"delta": 0.0', '"delta": "none"'),
        text.replace('"statements"', '"said"'),
        "[]",
        "{",
        "null",
        '{"a": NaN}',
        "[" * 100_000,
        "\ud800",
        "",
    ):
        with pytest.raises(NotAsSigned):
            parse(changed.encode(errors="surrogatepass"), "it")
