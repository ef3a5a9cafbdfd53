"""A run that starts from another takes over its models and how columns became numbers,
and nothing of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation.small import federation, frames, quick, write
from typer.testing import CliRunner

from colonnade import Federation, load
from colonnade.cli import app
from colonnade.errors import CheckpointError, ConfigError

LONG = {"epochs": 12, "early_stop": False}
NAMES = (
    "splitnn",
    "fdml",
    "vafl",
    "vimsgd",
    "vimadmm",
    "vimadmm_joint",
    "compressed_vfl",
)


def run_cli(*words: str) -> int:
    return CliRunner().invoke(app, list(words)).exit_code


def started(given: Any, settings: Any, run: Path) -> Federation:
    return Federation.from_frames(
        given, id="patient", label="diagnosis", settings=settings, start_from=run
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_it_begins_as_good_as_the_run_ended_and_trains_on(
    name: str, tmp_path: Path
) -> None:
    settings = {**quick(train=LONG), "algorithm": {"name": name}}
    older = federation(frames(160), settings)
    older.fit(tmp_path / "run")
    # the first 160 rows are others, too: seeds are the same, draws are not
    newer = frames(240)
    one = started(
        newer, {**settings, "train": {"epochs": 2, "batch_size": 16}}, tmp_path / "run"
    )
    fresh = federation(newer, settings)
    assert one.batches.done == 0
    for party, owner in one.owners.items():
        for now, before in zip(
            owner.model.parameters(),
            older.owners[party].model.parameters(),
            strict=True,
        ):
            torch.testing.assert_close(now, before)
    assert (
        one.holdings.columns["lab"].preprocessor
        == older.holdings.columns["lab"].preprocessor
    )
    assert one.evaluate("test")["loss"] < fresh.evaluate("test")["loss"]
    outcome = one.fit(tmp_path / "next")
    assert len(outcome.history) == 2
    assert outcome.summary["rounds"] == 2 * one.batches.per_epoch


def test_it_is_resumed_bit_by_bit(tmp_path: Path) -> None:
    federation(settings=quick()).fit(tmp_path / "run")
    settings = quick(train={"epochs": 2, "early_stop": False})
    whole = started(frames(100), settings, tmp_path / "run")
    whole.fit(tmp_path / "whole")
    part = started(
        frames(100), quick(train={"epochs": 1, "early_stop": False}), tmp_path / "run"
    )
    part.fit(tmp_path / "part")
    again = started(frames(100), settings, tmp_path / "run")
    again.fit(tmp_path / "part", resume=True)
    for party, owner in whole.owners.items():
        for one, other in zip(
            owner.model.parameters(),
            again.owners[party].model.parameters(),
            strict=True,
        ):
            assert torch.equal(one, other)


def test_what_cannot_start_from_a_run_says_why(tmp_path: Path) -> None:
    federation().fit(tmp_path / "run")
    with pytest.raises(
        ConfigError,
        match="algorithm must be the same: it is 'fdml' now and was 'vimadmm'",
    ):
        started(frames(), {**quick(), "algorithm": {"name": "fdml"}}, tmp_path / "run")
    with pytest.raises(ConfigError, match="model must be the same"):
        started(frames(), quick(model={"width": 5}), tmp_path / "run")
    with pytest.raises(
        ConfigError, match="Training logistic_regression cannot start from a run"
    ):
        started(
            frames(), {"algorithm": {"name": "logistic_regression"}}, tmp_path / "run"
        )
    own = {"lab": {"model": {"name": "mlp", "hidden": [5], "width": 4}}}
    with pytest.raises(
        CheckpointError, match=r"'lab' saved in .* does not fit its model"
    ):
        started(frames(), quick(parties=own), tmp_path / "run")


def test_from_the_command_line_it_is_resumed_and_predicts_with_the_columns_of_the_first_run(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, frames(120), quick())
    assert run_cli("run", str(file), "--out", str(tmp_path / "one"), "--quiet") == 0
    newer = write(tmp_path / "new", frames(160), quick())
    start = ("run", str(newer), "--quiet")
    assert (
        run_cli(*start, "--from", str(tmp_path / "one"), "--out", str(tmp_path / "two"))
        == 0
    )
    more = write(tmp_path / "new", frames(160), quick(train={"epochs": 3}))
    assert (
        run_cli("run", str(more), "--quiet", "--out", str(tmp_path / "two"), "--resume")
        == 0
    )
    first = load(tmp_path / "one")
    second = load(tmp_path / "two")
    assert second.batches.done == 3 * second.batches.per_epoch
    columns = [one.holdings.columns["lab"].preprocessor for one in (first, second)]
    assert columns[0] == columns[1]
    assert run_cli(*start, "--from", str(tmp_path / "one"), "--resume") != 0
