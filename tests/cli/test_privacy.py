"""`colonnade privacy`: before a run and after it, and a spent budget on the command
line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import Caller
from tests.federation.small import frames, quick, write

from colonnade.cli.privacy import show_privacy
from colonnade.federation import load

GAUSSIAN = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 3.0}}}
DRAWN = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 3.0}}}


def file(folder: Path, epsilon: float, epochs: int = 4) -> Path:
    """The lab's budget covers 3 epochs when epsilon is 6."""
    parties = {
        "lab": {"outbox": GAUSSIAN, "budget": {"epsilon": epsilon}},
        "clinic": {"outbox": DRAWN},
    }
    return write(
        folder,
        settings=quick(parties=parties, train={"epochs": epochs, "early_stop": False}),
    )


@pytest.fixture(scope="module")
def spent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from colonnade.federation import Federation

    folder = tmp_path_factory.mktemp("spent")
    assert Federation.from_toml(file(folder, 6.0)).fit(folder / "run").exhausted
    return folder


def test_a_spent_budget_is_code_4_and_leaves_a_model(
    call: Caller, tmp_path: Path
) -> None:
    path = file(tmp_path, 6.0)
    called = call("run", path, "--out", tmp_path / "run")
    assert called.code == 4
    message = (
        "'lab' will not release \"embedding\" again: epsilon would be 6.13 and its"
        " budget is 6.0 at delta=1e-5."
    )
    assert f"BudgetExhausted: {message}" in called.err
    assert "vimadmm: 3 epochs, 12 rounds" in called.out
    assert "budget: epsilon 5.175 of 6 is spent (replace-one)" in called.out
    assert (
        "The train rows were not measured: releasing training rows once more would cost"
        " privacy." in called.out
    )
    assert load(tmp_path / "run", frames=frames()).batches.done == 12
    assert call("run", path, "--out", tmp_path / "run", "--resume", "--quiet").code == 4
    told = json.loads(call("privacy", tmp_path / "run", "--json").out)["privacy"]
    (lab,) = [each for each in told if each["party"] == "lab"]
    # resuming released nothing
    assert [release["appearances"] for release in lab["releases"]] == [3]


def test_a_file_is_told_what_it_will_cost_and_that_it_will_stop(
    call: Caller, spent: Path
) -> None:
    called = call("privacy", spent / "federation.toml")
    assert called.code == 0
    for part in (
        "What a whole run will cost",
        "lab: columns",
        "embedding: gaussian, clip 1, sigma 3; a row at most 4 times",
        "a whole run needs epsilon 6.129 of 6, so it will stop early",
        "clinic: labels",
        "randomized response",
        "no guarantee",
        "every row is in one batch of each epoch",
        "the scaling learned from training rows taken as given",
    ):
        assert part in called.out, part


def test_a_run_is_told_what_it_cost(call: Caller, spent: Path) -> None:
    called = call("privacy", spent / "run")
    assert "Spent so far" in called.out
    assert "a row at most 3 times" in called.out
    assert "stop early" not in called.out
    told = json.loads(call("privacy", spent / "run", "--json").out)["privacy"]
    assert told == json.loads((spent / "run" / "summary.json").read_text())["privacy"]


def test_a_prediction_over_the_budget_is_code_4(call: Caller, spent: Path) -> None:
    run = spent / "run"
    rows = spent / "rows.csv"
    trained = load(run, frames=frames())
    rows.write_text(
        f"patient\n{trained.holdings.ids[int(trained.batches.splits['train'][0])]}\n"
    )
    message = call.fails(4, "predict", run, "--rows", rows)
    assert message.startswith(
        "BudgetExhausted: 'lab' will not release \"embedding\" again"
    )


def test_parties_with_the_same_promises_share_a_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def told(party: str, epsilon: float | None) -> dict[str, Any]:
        statement = {
            "adversary": "a",
            "relation": "r",
            "accountant": "c",
            "delta": 1e-5,
            "note": "so",
        }
        about: dict[str, Any] = {"releases": [], "budget": None, "notes": []}
        return {
            "party": party,
            "protects": "columns",
            "statements": [statement | {"epsilon": epsilon}],
            **about,
        }

    show_privacy([told("a", 1.0), told("b", 1.0), told("c", 12345.6)])
    shown = capsys.readouterr().out
    assert "a, b: columns" in shown
    assert "12,345.6" in shown
    assert shown.count("(1) so") == 1
    show_privacy([told("a", None), told("b", None)])
    assert capsys.readouterr().out.startswith("Privacy: every release is plain")
    hidden = {
        "release": "jacobian",
        "mechanism": "encrypted (bfv): readable by the key holder only",
    }
    show_privacy([told("a", None), told("b", None) | {"releases": [hidden]}])
    assert capsys.readouterr().out.startswith(
        "Privacy: jacobian crossed encrypted. No release has noise"
    )
    summed = {
        "release": "logits",
        "mechanism": "masked: only the sum over all parties can be read",
    }
    show_privacy([told("a", None), told("b", None) | {"releases": [summed]}])
    assert capsys.readouterr().out.startswith(
        "Privacy: logits crossed under masks. No release has noise"
    )


def test_a_budget_beside_what_has_no_guarantee_is_exceeded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    budget = {"epsilon": 8.0, "spent": None, "relation": "replace-one"}
    one = {
        "party": "lab",
        "protects": "columns",
        "statements": [],
        "notes": [],
        "releases": [],
        "budget": budget,
    }
    show_privacy([one], everything=True)
    show_privacy([one], everything=True, planned=True)
    out = capsys.readouterr().out
    assert "budget: more than epsilon 8 is spent (replace-one)" in out
    assert "budget: a whole run needs more than epsilon 8, so it will stop early" in out


def test_what_is_no_run_and_no_file_is_refused(call: Caller, tmp_path: Path) -> None:
    assert "is neither a run directory nor a federation file" in call.fails(
        2, "privacy", tmp_path / "none"
    )
    assert "is not a run directory" in call.fails(2, "privacy", tmp_path)


def test_a_run_without_its_parties_promises_nothing(
    call: Caller, spent: Path, tmp_path: Path
) -> None:
    shutil.copytree(spent, tmp_path / "all", ignore=shutil.ignore_patterns("parties"))
    run = next(mark.parent for mark in (tmp_path / "all").rglob("checkpoint.json"))
    assert "has no party's folder" in call.fails(2, "privacy", run)
