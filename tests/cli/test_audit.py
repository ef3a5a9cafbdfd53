"""`colonnade audit`."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from tests.attacks.runs import few_steps, fingerprints, finished, settings, three
from tests.cli.called import Caller
from tests.federation.small import frames, write

from colonnade.attacks.audit import Audit, audit_run
from colonnade.attacks.finding import LIMITS, Finding
from colonnade.cli.audit import tables_of
from colonnade.cli.console import metrics_table
from colonnade.cli.select import show
from colonnade.federation import Federation, Settings
from colonnade.report.facts import read
from colonnade.selection.comparing import Comparison
from colonnade.selection.result import Cost, Selection


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with few_steps():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("run"), "vimadmm")


def with_thresholds(run: Path, place: Path, text: str) -> Path:
    """A copy of the run whose federation file was given thresholds afterwards."""
    shutil.copytree(run, place)
    file = place / "federation.toml"
    file.write_text(file.read_text().partition("\n")[2] + f"\n[audit]\n{text}\n")
    return place


def test_it_tells_who_could_learn_what_and_exits_with_0(
    call: Caller, run: Path
) -> None:
    before = fingerprints(run)
    called = call("audit", run, "--rows", 16)
    assert called.code == 0
    for part in (
        "labels from residuals, assuming an attacker that",
        "can tell nearly every label",
        "white box",
        "trained model",
        "No threshold is set",
        "first line",
        "    label_inference = 0.",
    ):
        assert part in called.out
    assert fingerprints(run) == before
    assert (run / "audit" / "audit.json").exists()
    assert (run / "audit" / "labels.png").exists()
    # and once more, into the same place
    assert call("audit", run, "--rows", 16).code == 0


def test_a_crossed_threshold_is_code_5_and_the_report_is_there(
    call: Caller, run: Path, tmp_path: Path
) -> None:
    strict = with_thresholds(run, tmp_path / "strict", "label_inference = 0.6")
    called = call("audit", strict, "--rows", 8, "--quiet")
    assert called.code == 5
    assert called.out == ""
    assert re.match(
        r"AuditFailed: [23] of 8 findings are above their threshold in \[audit\]:\n",
        called.err,
    )
    assert "is above label_inference = 0.6" in called.err
    told = json.loads((strict / "audit" / "audit.json").read_text())
    assert told["passed"] is False
    shown = call("audit", strict, "--rows", 8, "--out", tmp_path / "shown")
    assert shown.code == 5
    assert "above label_inference = 0.6" in shown.out
    lenient = with_thresholds(
        run, tmp_path / "lenient", "label_inference = 1.0\ninversion_ssim = 0.0"
    )
    # there is no picture to look at
    assert call("audit", lenient, "--rows", 8, "--quiet").code == 0


def test_each_attack_has_one_table(tmp_path: Path) -> None:
    Federation.from_toml(
        write(tmp_path, frames(120, "binary"), settings("splitnn"))
    ).fit(tmp_path / "run")
    found = audit_run(tmp_path / "run", rows=8)
    titles = [str(table.title).split(",")[0] for table in tables_of(found)]
    assert len(titles) == len({one.attack for one in found.findings}) > 3
    assert sum(table.row_count for table in tables_of(found)) == len(found.findings)


def test_json_is_the_report(call: Caller, run: Path, tmp_path: Path) -> None:
    called = call("audit", run, "--rows", 8, "--json", "--out", tmp_path / "out")
    assert (called.code, called.err) == (0, "")
    assert json.loads(called.out) == json.loads(
        (tmp_path / "out" / "audit.json").read_text()
    )


def test_quiet_is_silent_and_a_party_narrows(
    call: Caller, run: Path, tmp_path: Path
) -> None:
    called = call(
        "audit",
        run,
        "--rows",
        8,
        "--party",
        "lab",
        "--quiet",
        "--out",
        tmp_path / "out",
    )
    assert (called.code, called.out, called.err) == (0, "", "")
    told = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert all("lab" in (one["attacker"], one["victim"]) for one in told["findings"])


@pytest.mark.long
def test_a_party_alone_leaves_what_was_found_among_the_others(
    call: Caller, tmp_path: Path
) -> None:
    Federation.from_toml(write(tmp_path, three(120), settings("vimadmm"))).fit(
        tmp_path / "run"
    )
    run = tmp_path / "run"
    out = tmp_path / "run" / "audit"

    def pairs() -> dict[tuple[str, str], int]:
        told = json.loads((out / "audit.json").read_text())["findings"]
        kept = [one for one in told if not one["attack"].endswith("known rows")]
        return {
            (one["attacker"], one["victim"]): one["details"].get("rows", 0)
            for one in kept
        }

    call("audit", run, "--rows", 16, "--quiet")
    before = pairs()
    pictures = sorted(path.name for path in out.iterdir())
    clinic = (out / "inversion-clinic.png").stat().st_mtime_ns
    assert {pair for pair in before if "lab" not in pair}
    call("audit", run, "--rows", 8, "--party", "lab", "--quiet")
    after = pairs()
    assert set(after) == set(before)
    assert after["registry", "lab"] == 8  # made anew
    assert after["registry", "clinic"] == 16  # as it was
    assert sorted(path.name for path in out.iterdir()) == pictures
    assert (out / "inversion-clinic.png").stat().st_mtime_ns == clinic
    # as a report reads it
    assert read(run).audit == json.loads((out / "audit.json").read_text())
    assert set(read(run).pictures) == {"inversion-clinic", "inversion-lab"}
    longer = write(tmp_path, three(120), settings("vimadmm", train={"epochs": 7}))
    Federation.from_toml(longer).fit(run, resume=True)
    call("audit", run, "--rows", 8, "--party", "lab", "--quiet")
    # of another checkpoint nothing is kept
    assert all("lab" in pair for pair in pairs())
    assert not (out / "inversion-clinic.png").exists()


def test_what_cannot_be_audited_is_one_message_and_code_2(
    call: Caller, run: Path, tmp_path: Path
) -> None:
    assert "is not a run directory" in call.fails(2, "audit", tmp_path)
    assert "which is no party of this run" in call.fails(
        2, "audit", run, "--party", "nobody", "--quiet"
    )
    bad = with_thresholds(run, tmp_path / "bad", "label_inference = 2")
    assert "[audit] label_inference must be a number, at most 1; found 2" in call.fails(
        2, "audit", bad
    )
    unknown = with_thresholds(run, tmp_path / "unknown", "labels = 0.5")
    assert "[audit] has no setting 'labels'" in call.fails(2, "audit", unknown)
    assert call("audit", run, "--rows", 2).code == 2
    assert "one alone, use --party" in call.fails(2, "audit", run, "--as", "clinic")
    assert "are planted for --dp" in call.fails(2, "audit", run, "--canaries", 300)


def test_where_it_cannot_be_written_nothing_is_attacked(
    call: Caller, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attack(*_: object, **__: object) -> None:
        raise AssertionError("an attack was made")

    monkeypatch.setattr(sys.modules["colonnade.cli.audit"], "audit_run", attack)
    (tmp_path / "file").write_text("")
    assert "The audit cannot be written to" in call.fails(
        2, "audit", run, "--out", tmp_path / "file"
    )


def test_no_word_of_others_is_obeyed_by_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    evil = "x\x1b[8A\x1b[0J\x1b]0;owned\x1b\\[/nothing][link=file:///x]"
    found = Audit("run", "splitnn", None, dict.fromkeys(LIMITS))
    found.findings = [
        Finding(
            attack=evil,
            attacker=evil,
            victim=evil,
            moment=evil,
            assumes=evil,
            metric=metric,
            score=0.5,
            baseline=0.1,
            limit="inversion_r2",
            remark=evil,
            details={"release": evil},
        )
        for metric in (evil, "AUC")
    ]
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=400)
    for table in (
        *tables_of(found),
        metrics_table({"task": "classification", "metrics": {"test": {evil: 1.0}}}),
    ):
        console.print(table)
    monkeypatch.setattr("colonnade.cli.select.console", console)
    other = f"other {evil}"
    chosen = Selection(
        "vf_ps",
        (evil,),
        (evil, other),
        {evil: 0.1, other: 0.1},
        {},
        Cost(),
        {evil: evil},
        comparisons=(Comparison(evil, other, 0.0, 0.1),),
    )
    assert chosen.level == (other,)
    show(
        dataclasses.replace(chosen, each={evil: chosen}),
        Settings.from_toml(write(tmp_path)),
    )
    told = out.getvalue()
    assert "[/nothing]" in told
    assert not [sign for sign in ("\x1b[8A", "\x1b[0J", "\x1b]") if sign in told]
