"""Saved state with flipped bits: every command ends with the same numbers, or with an
error that names the file."""

from __future__ import annotations

import io
import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation.small import federation, frames, quick

from colonnade import load
from colonnade.core import files
from colonnade.errors import CheckpointError, ColonnadeError
from colonnade.runs.layout import COLUMNS, MARK, METRICS, PARTIES, SETTINGS, SUMMARY
from colonnade.runs.run_directory import RunDirectory

FLIPS = 8
"""Of each file; what a bit of every kind does is in `tests/core/test_checkpoint.py`."""
FILES = (
    SETTINGS,
    MARK,
    SUMMARY,
    METRICS,
    f"{PARTIES}/lab/{COLUMNS}",
    "tensors.safetensors",
    "state.json",
)
EARLY = quick(train={"epochs": 3, "early_stop": True}, data={"validation": 0.2})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("damage") / "run"
    federation(settings=EARLY).fit(run)
    return run


def place_of(run: Path, name: str) -> Path:
    inner = {"tensors.safetensors", "state.json"}
    return (
        next((run / PARTIES / "lab").glob(f"checkpoint-*/{name}"))
        if name in inner
        else run / name
    )


def results_of(run: Path) -> tuple[Any, ...]:
    """All that the files decide: what was measured, what is predicted, and where a
    resumed run stands."""
    kept = RunDirectory(run)
    history = [
        {key: value for key, value in one.items() if key != "seconds"}
        for one in kept.metrics()
    ]
    found = load(run, frames=frames()).predict(["P001", "P002", "P003"])
    summary = kept.summary()
    return (
        summary,
        kept.settings().to_mapping(),
        history,
        np.asarray(found.scores).tobytes(),
        kept.mark(),
    )


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_an_error_that_names_the_file_or_nothing(
    trained: Path, tmp_path: Path, name: str
) -> None:
    honest = results_of(trained)
    rng = random.Random(f"flips of {name}")
    refused = 0
    whole = place_of(trained, name).read_bytes()
    for number in range(FLIPS):
        run = tmp_path / str(number)
        shutil.copytree(trained, run)
        cut = bytearray(whole)
        bit = rng.randrange(8 * len(whole))
        cut[bit // 8] ^= 1 << bit % 8
        place_of(run, name).write_bytes(cut)
        try:
            assert results_of(run) == honest, f"bit {bit} of {name}"
        except ColonnadeError as error:
            assert name in str(error), error  # noqa: PT017 - an error is one of two good ends
            refused += 1
        shutil.rmtree(run)
    assert refused >= FLIPS // 2, "most bits matter"


def test_no_flip_in_the_line_of_a_digest_switches_its_check_off() -> None:
    """Not even by itself, and least of all with a setting changed beside it."""
    honest = files.text_with_digest("seed = 1\n").encode()
    line = honest.index(b"\n") + 1

    def read(data: bytes) -> str:
        """As a file is read, in which a flipped bit may make a line end."""
        return files.check_text(
            Path(SETTINGS), io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
        )

    for whole in (honest, honest.replace(b"seed = 1", b"seed = 3")):
        for place, bit in itertools.product(range(line), range(7)):
            with pytest.raises(CheckpointError, match=r"federation\.toml is damaged"):
                read(
                    whole[:place]
                    + bytes([whole[place] ^ (1 << bit)])
                    + whole[place + 1 :]
                )
    assert read(honest[line:]) == "seed = 1\n", "removed, it is not asked for"


def test_what_its_owner_edits_is_taken_once_the_digest_is_removed(
    trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    text = (run / SETTINGS).read_text().replace("epochs = 3", "epochs = 5")
    (run / SETTINGS).write_text(text)
    with pytest.raises(
        CheckpointError,
        match=r"federation\.toml is damaged: .*if you meant to edit it, remove its",
    ):
        RunDirectory(run).settings()
    (run / SETTINGS).write_text("\n".join(text.split("\n")[1:]))
    assert RunDirectory(run).settings().train.epochs == 5


def test_a_run_whose_summary_is_damaged_writes_it_again(
    trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / SUMMARY).write_text(
        (run / SUMMARY).read_text().replace('"rounds": ', '"rounds": 1')
    )
    with pytest.raises(
        CheckpointError, match=r"summary\.json is damaged: .*or remove it and resume"
    ):
        RunDirectory(run).summary()
    (run / SUMMARY).unlink()
    federation(settings=EARLY).fit(run, resume=True)
    before = RunDirectory(trained).summary()
    after = RunDirectory(run).summary()
    assert before is not None
    assert after is not None
    assert before["metrics"] == after["metrics"]
