"""Labels that are rare: 5 % of a bank's customers default.

An attack that finds them is hardly more accurate than saying that nobody defaults. So
accuracy acquits it, and AUC does not. Where the attacked rows have no defaulter at all,
every guess is right and nothing is measured.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.attacks.runs import few_steps, settings
from tests.cli.called import Caller
from tests.federation.small import Frames, write
from tests.report.made import Page

from colonnade.attacks import Audit, audit_run
from colonnade.attacks.finding import NOT_MEASURED, NOT_RULED_OUT, Finding
from colonnade.attacks.report import worst_verdict
from colonnade.federation import Federation
from colonnade.report.facts import read
from colonnade.report.html import text
from colonnade.report.partners import audit_section

pytestmark = pytest.mark.filterwarnings("ignore:vfedcce", "ignore:The encryption")
SOLVED = "labels solved from a batch's gradient"
SEEN = "class seen in rebuilt rows"


def customers(rows: int = 900) -> Frames:
    """The bank knows who defaulted; both parties' columns tell some of it."""
    random = np.random.default_rng(3)
    x = random.normal(size=(rows, 4)).round(3)
    risk = 1 / (1 + np.exp(4 - x @ [0.8, 0.6, 0.9, 0.5]))
    outcome = np.where(random.random(rows) < risk, "default", "paid")
    ids = [f"C{number:04d}" for number in range(rows)]
    bank = {"patient": ids, "income": x[:, 0], "debt": x[:, 1], "diagnosis": outcome}
    bureau = {"patient": ids, "limits": x[:, 2], "delays": x[:, 3]}
    return {"bank": pd.DataFrame(bank), "bureau": pd.DataFrame(bureau)}


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with few_steps():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rare")
    chosen = settings(
        "vfedcce",
        config={"scheme": "plain"},
        model={"hidden": [4], "width": 2},
        train={"epochs": 2, "batch_size": 512},
    )
    Federation.from_toml(write(folder, customers(), chosen)).fit(folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def audit(run: Path) -> Audit:
    return audit_run(run)


def of(audit: Audit, attack: str) -> list[Finding]:
    return [finding for finding in audit.findings if finding.attack == attack]


def limited(run: Path, place: Path, limits: str) -> Path:
    """A copy of the run with thresholds."""
    shutil.copytree(run, place)
    file = place / "federation.toml"
    file.write_text(file.read_text().partition("\n")[2] + f"\n[audit]\n{limits}\n")
    return place


def test_an_attack_that_ranks_defaulters_leaks_though_it_is_no_more_accurate(
    audit: Audit,
) -> None:
    findings = of(audit, SOLVED)
    assert len(findings) == 2
    for finding in findings:
        assert finding.details["accuracy"] == finding.details["accuracy_without"] > 0.95
        assert finding.low is not None
        assert finding.low > 0.55
        assert finding.leaks
        assert finding.verdict != "no better than guessing"
        assert finding.details["recall"] > 2.5 * finding.details["recall_without"]


def test_its_gate_goes_by_the_lower_end_of_auc(
    run: Path, call: Caller, tmp_path: Path
) -> None:
    strict = limited(run, tmp_path / "strict", "label_inference = 0.55")
    called = call("audit", strict, "--rows", 8, "--quiet")
    assert called.code == 5
    assert f"{SOLVED} (first rounds): AUC 0." in called.err
    assert "at least is above label_inference = 0.55" in called.err
    told = json.loads((strict / "audit" / "audit.json").read_text())
    assert told["passed"] is False


def test_rebuilt_rows_of_one_class_are_not_measured_and_pass_no_gate(
    run: Path, call: Caller, tmp_path: Path
) -> None:
    """The first eight test rows have no defaulter: each class is seen, and would be
    seen in an empty page."""
    gated = limited(run, tmp_path / "gated", "recognition = 0.9")
    called = call("audit", gated, "--rows", 8, "--out", tmp_path / "out")
    assert called.code == 5
    assert NOT_MEASURED.split(":")[0] in called.out
    assert "too few rows of one class to say whether they keep" in " ".join(
        called.err.split()
    )
    assert "Audit more rows: --rows." in called.err
    (seen,) = [
        finding
        for finding in json.loads((tmp_path / "out" / "audit.json").read_text())[
            "findings"
        ]
        if finding["attack"] == SEEN
    ]
    assert seen["score"] is None
    assert seen["measured"] is False
    assert seen["unknown"] is True
    assert seen["verdict"] == NOT_MEASURED
    assert seen["details"]["accuracy_without"] == 1.0


def test_two_defaulters_among_the_rebuilt_rows_do_not_acquit(audit: Audit) -> None:
    (seen,) = of(audit, SEEN)
    assert seen.details["class_rows"] < 5
    assert not seen.leaks
    assert seen.verdict.startswith(NOT_RULED_OUT)


def test_console_and_page_say_it_in_words(
    run: Path, call: Caller, tmp_path: Path
) -> None:
    place = tmp_path / "copy"
    shutil.copytree(run, place)
    told = " ".join(call("audit", place).out.split())
    for words in ("AUC", "right", "in top 5%", "0.5 is guessing", "most"):
        assert words in told
    facts = read(place)
    page = Page(text(audit_section(facts, {})))
    (table,) = (
        lines for caption, lines in page.tables.items() if "What that means" in caption
    )
    assert facts.audit is not None
    by_line = {tuple(line[:3]): line[3:] for line in table[1:]}
    for finding in facts.audit["findings"]:
        if finding["attack"] != SOLVED:
            continue
        details = finding["details"]
        assert by_line["bureau on bank", SOLVED, finding["moment"]] == [
            str(details["rows"]),
            str(details["class_rows"]),
            *(
                f"{details[key]:.1%}"
                for key in ("accuracy", "accuracy_without", "recall", "recall_without")
            ),
        ]


def test_the_worst_verdict_of_a_run_is_the_leak(
    run: Path, call: Caller, tmp_path: Path
) -> None:
    place = tmp_path / "copy"
    shutil.copytree(run, place)
    assert worst_verdict(place) is None
    assert call("audit", place, "--quiet").code == 0
    worst = worst_verdict(place)
    assert worst is not None
    assert worst.leaks
    assert worst.date.endswith("+00:00")
    # vfedcce's gradient travels in the open here, which no attack reads
    assert "not attacked: " in worst.text
    assert not worst.measured
    assert not worst.passed
