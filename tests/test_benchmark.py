"""Benchmarks: found by file name, run side by side in turns."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colonnade import benchmark, datasets
from colonnade.benchmark import Result, Share, race
from colonnade.datasets.preprocess import Labels
from colonnade.errors import ConfigError
from colonnade.models import build
from colonnade.optim.losses import CrossEntropy, z_update
from colonnade.rows.holdings import Columns, Holdings

FILE = """\
from colonnade.benchmark import Result
def run(quick):
    return [Result({name!r}, "quick" if quick else "slow")]
"""


IN_CELLS = """\
from colonnade.benchmark import Cells, Result
def run(quick):
    def results(measured):
        return [Result("sum", str(sum(one["found"] for one in measured.values())))]
    return Cells(["a, 1", "a, 2", "b, 1"], lambda cell: {"found": 0 if quick else int(cell[-1])}, results)
"""


@pytest.fixture
def in_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cells.py").write_text(IN_CELLS)
    monkeypatch.setattr(benchmark, "folder", lambda: tmp_path)


def test_cells_run_apart_and_are_put_together_from_their_folder(
    in_cells: None, tmp_path: Path
) -> None:
    """In one process each, as on two machines that share a folder; what it holds is not
    run again."""
    from concurrent.futures import ThreadPoolExecutor

    # a process would not know of the fixture's folder
    def here(jobs: int, *_: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(jobs)

    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(benchmark, "ProcessPoolExecutor", here)
        assert benchmark.run("cells", share=Share(2, out, "a, *")) == [
            Result("sum", "3")
        ]
        assert benchmark.run("cells", share=Share(0, out)) == [Result("sum", "3")]
        (out / "cells, a, 1.json").write_text('{"found": 40}')
        assert benchmark.run("cells", share=Share(1, out)) == [Result("sum", "43")]
        # of cells of its own
        assert benchmark.run("cells", quick=True, share=Share(1, out)) == [
            Result("sum", "0")
        ]
        assert benchmark.run("cells", share=Share(0, out)) == [Result("sum", "43")]
        with pytest.raises(
            ConfigError,
            match=r"No cell of cells is named 'c\*'; they are named 'a, 1', 'a, 2'",
        ):
            benchmark.run("cells", share=Share(only="c*"))


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(FILE.format(name=name))
    monkeypatch.setattr(benchmark, "folder", lambda: tmp_path)


def test_the_repositorys_benchmarks_are_found() -> None:
    assert {"core", "vimadmm"} <= set(benchmark.names())


def test_one_or_all_are_run(two: None) -> None:
    said: list[str] = []
    assert benchmark.run("second", quick=True) == [Result("second", "quick")]
    assert benchmark.run(say=said.append) == [
        Result("first", "slow"),
        Result("second", "slow"),
    ]
    assert said == ["first", "second"]


def test_a_result_says_whose_it_is_and_on_what_it_was_measured(two: None) -> None:
    (result,) = benchmark.run("second")
    assert result.benchmark == "second"
    assert f"torch {torch.__version__.partition('+')[0]}" in result.on
    assert " core" in result.on


def test_an_unknown_name_is_refused_with_the_likely_one(two: None) -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"There is no benchmark 'frist' \(did you mean 'first'\?\); there are"
            r" first, se"
        ),
    ):
        benchmark.run("frist")


def test_runners_take_turns_after_one_warm_up_and_the_best_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    order = []
    costs = {"a": iter([9.0, 3.0, 1.0]), "b": iter([9.0, 2.0, 4.0])}

    def runner(name: str) -> None:
        order.append(name)
        clock[0] += next(costs[name])

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert race({name: lambda name=name: runner(name) for name in costs}, turns=2) == {  # type: ignore[misc]
        "a": 1.0,
        "b": 2.0,
    }
    assert order == ["a", "b"] * 3


def test_another_clock_can_be_raced_against() -> None:
    ticks = iter([0.0, 5.0, 7.0, 10.0])
    assert race({"a": lambda: None}, turns=2, clock=lambda: next(ticks)) == {"a": 3.0}


# VIMADMM's rivals must compute what they claim to, or beating them means nothing


@pytest.fixture(scope="module")
def vimadmm() -> Any:
    return benchmark._load("vimadmm")


def test_the_authors_z_is_the_minimum(vimadmm: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    o, dual = (torch.randn(8, 10, generator=generator) for _ in range(2))
    y = torch.randint(10, (8,), generator=generator)
    found = torch.stack(
        [
            vimadmm._z(torch.zeros(10), *row, 2.0)
            for row in zip(o, 0.1 * dual, y, strict=True)
        ]
    )
    assert torch.allclose(
        found, z_update(CrossEntropy(10), o, 0.1 * dual, y, 2.0), atol=1e-4
    )


def test_the_floor_takes_the_same_steps(vimadmm: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    net = build({"name": "mlp"}, (56,), seed=0, owner="ada")
    x, target, W = (
        torch.randn(*size, generator=generator) / 8
        for size in ((30, 56), (30, 10), (60, 10))
    )
    floor = vimadmm.Floor(net, x, target, W)
    floor.steps(20)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    optimizer = torch.optim.SGD(
        net.parameters(), 0.05, momentum=0.9, weight_decay=0.001
    )
    for _ in range(20):
        optimizer.zero_grad()
        torch.autograd.backward(2.0 / 2 * (net(x) @ W - target).square().sum() / 30)
        optimizer.step()
    for mine, theirs, start in zip(floor.p, net.parameters(), before, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(mine, start, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_the_authors_rules_and_ours_learn_alike(vimadmm: Any) -> None:
    """Random pictures, 64 of them in one batch: the same losses, from other starts."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 28, 28, generator=generator)
    y = torch.randint(10, (64,), generator=generator)
    parties = {
        name: Columns(part) for name, part in datasets.image_strips(x, 14).items()
    }
    encoder = Labels("server", "classification", tuple(range(10)))
    ids = np.arange(64).astype(np.str_)
    holdings = Holdings.of_one(
        parties, y, ids, {"train": torch.arange(64)}, "server", encoder
    )
    ours = (step.loss for step in vimadmm._federation(holdings, device="cpu").train())
    authors = vimadmm._authors_loop(holdings)
    plain = vimadmm._plain_loop(holdings, torch.device("cpu"))
    losses = [[next(run) for _ in range(4)] for run in (ours, authors, plain)]
    assert all(abs(run[0] - np.log(10)) < 0.5 for run in losses)
    assert all(run[-1] < 0.5 * run[0] for run in losses)


def test_what_the_plumbing_costs_can_be_measured_again_and_again() -> None:
    for _ in range(2):
        results = benchmark.run("core", quick=True)
        assert len(results) == 3
        assert all(result.holds is not None and result.target for result in results)
        assert all(
            value > 0
            for result in results
            for key, value in result.numbers.items()
            if key == "milliseconds"
        )


def test_a_result_is_json() -> None:
    told = Result(
        "what", "1", "2", "3", True, {"x": 1.0}, benchmark="core", on="a machine"
    ).to_json()
    assert told == {
        "what": "what",
        "measured": "1",
        "against": "2",
        "target": "3",
        "holds": True,
        "numbers": {"x": 1.0},
        "benchmark": "core",
        "on": "a machine",
    }
