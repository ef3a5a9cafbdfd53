"""Benchmarks: found by file name, run side by side in turns."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from colonnade import benchmark
from colonnade.benchmark import Result, race
from colonnade.errors import ConfigError

FILE = """\
from colonnade.benchmark import Result
def run(quick):
    return [Result({name!r}, "quick" if quick else "slow")]
"""


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
    assert benchmark.run(say=said.append) == [Result("first", "slow"), Result("second", "slow")]
    assert said == ["first", "second"]


def test_an_unknown_name_is_refused_with_the_likely_one(two: None) -> None:
    with pytest.raises(
        ConfigError, match=r"There is no benchmark 'frist' \(did you mean 'first'\?\); there are first, se"
    ):
        benchmark.run("frist")


def test_runners_take_turns_after_one_warm_up_and_the_best_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = [0.0], []
    costs = {"a": iter([9.0, 3.0, 1.0]), "b": iter([9.0, 2.0, 4.0])}

    def runner(name: str) -> None:
        order.append(name)
        clock[0] += next(costs[name])

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert race({name: lambda name=name: runner(name) for name in costs}, turns=2) == {"a": 1.0, "b": 2.0}  # type: ignore[misc]
    assert order == ["a", "b"] * 3


def test_what_the_plumbing_costs_can_be_measured_again_and_again() -> None:
    for _ in range(2):
        results = benchmark.run("core", quick=True)
        assert len(results) == 3
        assert all(result.holds is not None and result.target for result in results)
        assert all(value > 0 for result in results for key, value in result.numbers.items() if key == "milliseconds")


def test_a_result_is_json() -> None:
    told = Result("what", "1", "2", "3", True, {"x": 1.0}).to_json()
    assert told == {
        "what": "what",
        "measured": "1",
        "against": "2",
        "target": "3",
        "holds": True,
        "numbers": {"x": 1.0},
    }
