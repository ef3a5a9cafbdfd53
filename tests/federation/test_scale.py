"""A run whose tables and per-row state are mapped files is the run in memory, bit by
bit, and can be continued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation import small

from colonnade.core import files, ledger
from colonnade.core.files import MAP_FROM
from colonnade.datasets import table as streams
from colonnade.federation import Federation, Settings

RUNS: dict[str, small.Tables] = {
    "vimadmm": small.quick(train={"early_stop": False}),
    "as a cohort": small.quick(
        train={"early_stop": False}, federation={"cohort": "on"}
    ),
    "vafl": {
        **small.quick(train={"early_stop": False}),
        "algorithm": {"name": "vafl", "schedule": "turns"},
    },
}


def trained(
    file: Path, out: Path, *, epochs: int = 2, resume: bool = False
) -> dict[str, Any]:
    """Everything that a run leaves behind: outputs, features, all parties' states and
    ledgers."""
    settings = Settings.from_toml(file)
    one = Federation.from_settings(
        replace(settings, train=settings.train.changed(epochs=epochs))
    )
    one.fit(out, resume=resume)
    found: dict[str, Any] = {
        "outputs": one.outputs("test"),
        "ids": one.holdings.ids.tolist(),
    }
    for name in one.organisations:
        folder = max((out / "parties" / name).glob("checkpoint-*"))
        state = files.read_state(folder)
        found[name] = {key: value for key, value in state.items() if key != "seat"}
        found[f"{name}'s ledger"] = (
            out / "parties" / name / "ledger.jsonl"
        ).read_text()
        found[f"{name}'s columns"] = one.holdings.columns[name].features
    return found


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("kind", RUNS)
def test_mapped_and_in_memory_are_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    file = small.write(tmp_path / "files", settings=RUNS[kind])
    plain = trained(file, tmp_path / "plain")
    monkeypatch.setenv(MAP_FROM, "0")
    monkeypatch.setattr(streams, "PIECE", 7)
    assert same(trained(file, tmp_path / "mapped"), plain)


@pytest.mark.parametrize("kind", RUNS)
def test_a_mapped_run_that_is_resumed_is_the_run_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    file = small.write(tmp_path / "files", settings=RUNS[kind])
    plain = trained(file, tmp_path / "plain")
    monkeypatch.setenv(MAP_FROM, "0")
    trained(file, tmp_path / "mapped", epochs=1)
    again = trained(file, tmp_path / "mapped", resume=True)
    # scoring test rows after the first epoch is in them
    books = [key for key in plain if key.endswith("ledger")]
    assert same({**again, **{key: plain[key] for key in books}}, plain)


def test_a_ledger_does_not_wait_for_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = small.write(tmp_path / "files", settings=RUNS["vimadmm"])
    plain = trained(file, tmp_path / "plain")
    monkeypatch.setattr(ledger, "MOST_WAITING", 3)
    one = Federation.from_toml(file)
    waiting: list[int] = []
    one.fit(
        tmp_path / "few",
        watch=lambda _: waiting.append(
            max(len(book.entries) for book in one.ledgers.values())
        ),
    )
    assert 0 < max(waiting) < 8  # three, and what one message brings
    for name in one.organisations:
        assert (
            tmp_path / "few" / "parties" / name / "ledger.jsonl"
        ).read_text() == plain[f"{name}'s ledger"]
