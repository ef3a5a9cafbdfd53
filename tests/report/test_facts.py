"""Facts are what the files say, and nothing optional makes reading fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from colonnade.errors import CheckpointError
from colonnade.federation import load
from colonnade.federation.guarantees import of_run
from colonnade.report.facts import read
from colonnade.runs.run_directory import RunDirectory, to_json


def test_facts_of_a_finished_run_are_those_of_its_files(noisy: Path) -> None:
    facts = read(noisy)
    summary = RunDirectory(noisy).summary()
    assert summary is not None
    lines = [
        json.loads(line) for line in (noisy / "metrics.jsonl").read_text().splitlines()
    ]
    assert facts.finished
    assert facts.summary == summary
    assert facts.metrics == lines
    assert [(one["party"], one["protects"]) for one in facts.privacy] == [
        (one["party"], one["protects"]) for one in summary["privacy"]
    ]
    assert facts.traffic == summary["bytes"]
    assert facts.sent == sum(one["out"] for one in summary["bytes"].values())
    assert (facts.rounds, facts.epochs, facts.seconds) == (
        summary["rounds"],
        3,
        summary["seconds"],
    )
    assert facts.scores == summary["metrics"]
    assert (facts.metric, facts.algorithm, facts.several) == (
        "accuracy",
        "vimadmm",
        False,
    )
    assert facts.parties == {"clinic": ["features", "labels"], "lab": ["features"]}
    assert facts.columns == {"clinic": 2, "lab": 2}
    assert facts.ledgers == ["clinic", "lab"]
    for part in (
        facts.baselines,
        facts.importance,
        facts.audit,
        facts.selection,
        facts.alignment,
    ):
        assert part
    assert all(address.startswith("data:image/") for address in facts.pictures.values())
    assert facts.pictures


def test_what_was_released_since_training_is_counted_as_colonnade_privacy_does(
    noisy: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(noisy, run)
    before = {(one["party"], one["protects"]): one for one in read(run).privacy}
    assert list(before.values()) == json.loads(
        to_json([one.to_json() for one in of_run(RunDirectory(run))])
    )
    load(run).predict(["P000"])
    after = {(one["party"], one["protects"]): one for one in read(run).privacy}
    assert (
        after["lab", "columns"]["budget"]["spent"]
        > before["lab", "columns"]["budget"]["spent"]
    )
    assert after["clinic", "labels"] == before["clinic", "labels"]
    # it keeps its folder to itself: what the summary says of it is all there is
    shutil.rmtree(run / "parties" / "lab")
    told = {(one["party"], one["protects"]): one for one in read(run).privacy}
    assert (
        told["lab", "columns"]
        in json.loads((run / "summary.json").read_text())["privacy"]
    )


def test_what_is_optional_is_empty_where_it_is_missing(plain: Path) -> None:
    facts = read(plain)
    assert [
        facts.baselines,
        facts.importance,
        facts.audit,
        facts.selection,
        facts.alignment,
    ] == [None] * 5
    assert facts.pictures == {}
    assert facts.later == []


def test_a_run_that_goes_on_has_no_summary_and_the_spend_of_its_checkpoint(
    noisy: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(noisy, run)
    RunDirectory(run).keep_mark(RunDirectory(run).mark() | {"finished": False})
    facts = read(run)
    assert not facts.finished
    assert facts.scores == {"validation": facts.metrics[-1]["validation"]}
    assert facts.parties == read(noisy).parties
    assert facts.rounds == facts.metrics[-1]["step"]
    assert facts.seconds == pytest.approx(sum(one["seconds"] for one in facts.metrics))
    exact = next(one for one in read(noisy).privacy if one["party"] == "lab")
    spent = next(one for one in facts.privacy if one["party"] == "lab")
    assert spent["budget"]["spent"] == pytest.approx(exact["budget"]["spent"])
    assert facts.traffic == read(noisy).traffic  # from the ledgers


def test_a_cut_line_and_files_of_another_kind_do_not_matter(
    plain: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(plain, run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "lo')
    with (run / "parties" / "lab" / "ledger.jsonl").open("a") as file:
        file.write('{"direction":"out","pe')
    (run / "explain").mkdir()
    (run / "explain" / "explain.json").write_text("{}")
    (run / "baselines.json").write_text('{"of": 1}')
    (run / "selection.json").write_text('{"of": "something else"}')
    facts = read(run)
    whole = read(plain)
    assert facts.metrics == whole.metrics
    assert facts.flows == whole.flows
    assert facts.importance is None
    assert facts.baselines is None
    assert facts.selection is None


@pytest.mark.parametrize(
    "name",
    [
        "summary.json",
        "checkpoint.json",
        "federation.toml",
        "parties/lab/columns.json",
        "baselines.json",
    ],
)
def test_a_damaged_file_is_named_and_there_is_no_page_of_what_is_left(
    noisy: Path, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(noisy, run)
    text = bytearray((run / name).read_bytes())
    at = next(
        at for at in range(len(text) // 3, len(text)) if chr(text[at]) in "123456"
    )
    text[at] ^= 1  # another digit
    (run / name).write_bytes(text)
    with pytest.raises(
        CheckpointError, match=rf"{name} is damaged: .*digest was made of\. Restore it"
    ):
        read(run)


@pytest.mark.parametrize(
    "wrong",
    [
        {"alone": {"lab": [0.5]}},
        {"alone": []},
        {"joint": 0.5},
        {"together": [{"accuracy": "0.5"}]},
        {"rows": "16"},
        {"splits": None},
        {"metric": 1},
        {"each": {"north": 1}},
        {"notes": [1]},
        {"how": "so"},
    ],
)
def test_baselines_of_wrong_kinds_are_left_out(
    plain: Path, tmp_path: Path, wrong: dict[str, object]
) -> None:
    shutil.copytree(plain, tmp_path / "run")
    scores = [{"accuracy": 0.5, "auc": None}]
    good = {
        "metric": "accuracy",
        "split": "test",
        "rows": 16,
        "splits": 1,
        "alone": {"lab": scores},
        "joint": scores,
        "together": [],
        "notes": ["x"],
    }
    (tmp_path / "run" / "baselines.json").write_text(json.dumps(good))
    assert read(tmp_path / "run", quick=True).baselines == good
    (tmp_path / "run" / "baselines.json").write_text(json.dumps(good | wrong))
    assert read(tmp_path / "run", quick=True).baselines is None


def test_a_run_that_has_only_begun_can_be_read(plain: Path, tmp_path: Path) -> None:
    shutil.copy(plain / "federation.toml", tmp_path / "federation.toml")
    facts = read(tmp_path)
    assert (facts.metrics, facts.flows, facts.privacy, facts.rounds, facts.sent) == (
        [],
        [],
        [],
        0,
        0,
    )
    assert list(facts.parties) == ["clinic", "lab"]


def test_several_label_owners(multi: Path) -> None:
    facts = read(multi)
    assert facts.several
    assert facts.summary is not None
    assert facts.parties == facts.summary["parties"]
    assert {line["name"] for line in facts.flows} == {
        "embedding",
        "gradient",
        "weights",
    }


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"federation\.toml is missing"):
        read(tmp_path)
