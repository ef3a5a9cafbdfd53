"""Runs of Multi-VFL stacked into one arithmetic arrive where its parties arrive."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from reproductions.multi_vfl import study, together

from colonnade import reproduction
from colonnade.federation import Federation
from colonnade.reproduction.cells import KeptCells

PLAN = dataclasses.replace(reproduction.plan("multi-vfl"), epochs=(1, 2))
SMALL: study.Changes = {
    "model": {"channels": 4},
    "label_model": {"channels": 6, "hidden": 8},
    "train": {"batch_size": 16},
}


@pytest.fixture(autouse=True)
def _data(data_folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLONNADE_DATA", str(data_folder))
        yield


def federation(
    line: str, rate: float | None = None, channels: int | None = None
) -> Federation:
    changes = SMALL if rate is None else SMALL | {"algorithm": {"learning_rate": rate}}
    if channels is not None:
        changes = changes | {
            "model": {"channels": channels},
            "label_model": {"channels": channels, "hidden": 8},
        }
    return study.federation(
        PLAN, study.Cell("mnist", *line.split(", ")), 0, changes, rows=40
    )


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            ["1niid, FedAvg", "4niid, FedAdam@0.03", "4niid, FedDemonAdam"],
            marks=pytest.mark.long,
        ),
        ["4niid, FedAvg/adam"],
        pytest.param(
            [
                "4niid, FedYogi@0.003/0.03",
                "4niid, FedDemonAdam-literal",
                "4niid, FedAvg/0.1",
            ],
            marks=pytest.mark.long,
        ),
    ],
)
def test_stacked_runs_arrive_where_parties_arrive(lines: list[str]) -> None:
    """The last batch of 40 rows is half as long as the others; two rounds, so that the
    order changes once."""
    # Adam's first steps are signs, near enough
    rate, apart = (None, 1e-4) if "/" in lines[0] else (0.1, 1e-5)
    stack = together.Stack(
        [federation(line, rate) for line in lines], torch.device("cpu")
    )
    begun = {name: value.clone() for name, value in stack.W.items()}
    parties = [federation(line, rate) for line in lines]
    steps = [run.train() for run in parties]
    for _ in range(2):
        losses = stack.train_round()
        for loss, step in zip(losses, [next(one) for one in steps], strict=True):
            assert loss == pytest.approx(step.loss, rel=1e-4)
    for at, run in enumerate(parties):
        owners, aggregated = stack.parties(at)
        for ours, theirs in zip(owners, run.owners.values(), strict=True):
            torch.testing.assert_close(
                ours, _vector(theirs.model), rtol=1e-4, atol=apart
            )
        model = run.label_owners["label_owner_1"].model
        torch.testing.assert_close(aggregated, _vector(model), rtol=1e-4, atol=apart)
        places = together.test_rows(run) + stack.offsets[at]
        assert stack.right(at, stack.x[places], stack.y[places]) == pytest.approx(
            run.evaluate("test")["accuracy"], abs=2e-4
        )
    assert all(
        (begun[name] - value).abs().max() > 1e-4 for name, value in stack.W.items()
    )


KERNELS = """
import torch
from tests.reproduction.test_together import federation, together

stack = together.Stack([federation("4niid, FedAvg", 0.1, 16)], torch.device("cpu"))
stack.short = torch.float32
rows, share = stack._batches()
stack.rows, stack.share = rows[2, :1], share[2, :1]  # of one label owner; half of it is empty
stack.loss, stack.rate = stack.loss[:1], stack.rate[:1]
torch.manual_seed(0)
stack.w = {name: value[:1] + 0.05 * torch.randn_like(value[:1]) for name, value in stack.w.items()}
wanted, loss = stack._by_autograd(), stack.loss.clone()
before = stack.w["w3"].clone()
found = stack._by_kernels()
found["w3"] = (before - stack.w["w3"]) / stack.rate[:, None, None]
torch.testing.assert_close(stack.loss, loss)
for name, value in wanted.items():
    assert value.abs().max() > 1e-4, name
    torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=name)
print("equal")
"""


@pytest.mark.long
def test_the_kernels_of_a_gpu_have_autograds_gradients() -> None:
    """In Triton's interpreter, which must be asked for before it is imported: in a
    process of its own."""
    pytest.importorskip(
        "triton", reason="the kernels need Triton, which is not installed here"
    )
    about = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KERNELS],
        env=about,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr


def test_rates_are_chosen_by_rows_that_nobody_trains_or_tests_on() -> None:
    run = federation("4niid, FedAvg")
    x, y = together.validation_rows(run, "mnist", 0)
    assert x.shape == (together.VALIDATION, 28, 28)
    assert len(y) == together.VALIDATION
    seen = torch.cat(
        [one.features for one in run.holdings.columns.values()], 1
    ).flatten(1)
    assert torch.cdist(x[:50].flatten(1), seen).min() > 0.1
    assert abs(float(x.mean())) < 0.1


def test_a_run_that_was_finished_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def stop(runs: list[Federation], device: torch.device) -> None:
        begun.append(len(runs))
        raise KeyboardInterrupt

    monkeypatch.setattr(together, "Stack", stop)
    lines = ["4niid, FedAvg", "4niid, FedAdam"]
    kept = KeptCells(PLAN, tmp_path / "cells")
    kept.write("mnist, 4niid, FedAvg, seed 0", reproduction.Study(PLAN), True)
    with pytest.raises(KeyboardInterrupt):
        together.follow(PLAN, "mnist", 0, lines, tmp_path, 1, torch.device("cpu"))
    assert begun == [1]
    kept.write("mnist, 4niid, FedAdam, seed 0", reproduction.Study(PLAN), True)
    together.follow(PLAN, "mnist", 0, lines, tmp_path, 1, torch.device("cpu"))
    assert begun == [1]


def test_every_line_of_the_study_is_in_one_stack_or_another() -> None:
    full = reproduction.plan("multi-vfl")
    listed = [
        f"{data}, {line}"
        for data in study.DATA
        for lines in together.LINES.values()
        for line in lines
    ]
    assert sorted(listed) == sorted(
        {cell.rpartition(", seed ")[0] for cell in study.cells(full)}
    )


def test_what_is_measured_is_kept_as_finished_cells(tmp_path: Path) -> None:
    """Of the quick version, one round, in which a run at a mad rate has no score, also
    of the rows that choose."""
    plan = dataclasses.replace(reproduction.plan("multi-vfl").shortened(), epochs=(1,))
    lines = ["4niid, FedDemonAdam@0.01/0.03", "4niid, FedAvg/0.1", "4niid, FedAvg/1e30"]
    with pytest.MonkeyPatch.context() as patch:
        # rates as they are named
        patch.setattr(together.STUDY, "QUICK", {**study.QUICK, "algorithm": {}})
        together.follow(plan, "mnist", 0, lines, tmp_path, 1, torch.device("cpu"))
    names = [f"mnist, {line}, seed 0" for line in lines]
    found = KeptCells(plan, tmp_path / "cells").read(names, partly=False)
    assert set(found) == set(names)
    for name, (told, _) in found.items():
        scores = {
            one["what"].partition(", round ")[2]: one["by_seed"]
            for one in told["measured"]
        }
        assert set(scores) == {"1", "1, validation rows"}
        assert all(
            (score is None) == ("1e30" in name)
            for seeds in scores.values()
            for score in seeds
        )


def _vector(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in model.parameters()])
