"""The tables and the rule by which the default algorithm is chosen."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from colonnade import benchmark
from colonnade.datasets.target_scale import is_skewed
from colonnade.settings.algorithms import DEFAULT

PAGE = Path(__file__).parents[2] / "docs" / "how-to-choose-an-algorithm.md"


@pytest.fixture(scope="module")
def defaults() -> Any:
    """The benchmark as it is without a folder of data."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("COLONNADE_DATA", raising=False)
        loaded = benchmark._load("defaults")
        loaded.tables()  # read once and kept
        return loaded


def label_and_columns(task: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    frames = list(task.frames.values())
    values = frames[0][task.label]
    label = values.to_numpy() if task.is_number else (values == "yes").to_numpy()
    columns = [
        frame.drop(columns=[task.id, task.label], errors="ignore").to_numpy()
        for frame in frames
    ]
    return label.astype(float), columns


def test_no_sum_over_parties_tells_what_their_columns_tell_together(
    defaults: Any,
) -> None:
    tasks = list(defaults.interactions())
    assert len(tasks) >= 4
    for task in tasks:
        label, parties = label_and_columns(task)
        together = np.hstack(parties)
        alone = np.hstack([together, together**2, np.abs(together), np.sign(together)])
        first, *others = parties
        signs = [np.sign(one[:, :1]) * first[:, :1] for one in others]
        apart = [np.abs(first[:, :1] - one[:, :1]) for one in others]
        products = [
            a[:, [i]] * b[:, [j]]
            for a, b in pairwise(parties)
            for i in range(2)
            for j in range(2)
        ]
        crossed = np.hstack([alone, *signs, *apart, *products])
        of_sum = LinearRegression().fit(alone, label).score(alone, label)
        of_both = LinearRegression().fit(crossed, label).score(crossed, label)
        assert of_both > of_sum + 0.2, task.name


def test_skewed_tables_are_positive_and_not_all_are_for_logarithms(
    defaults: Any,
) -> None:
    chosen = {}
    for task in defaults.skewed(Path("nowhere")):
        label, _ = label_and_columns(task)
        assert label.min() > 0
        chosen[task.name] = is_skewed(label)
    assert chosen["multiplied"]
    assert chosen["multiplied, product"]
    assert not chosen["added up"]


def test_columns_are_dealt_by_importance_and_every_party_has_one(
    defaults: Any,
) -> None:
    columns = [f"x{number}" for number in range(16)]

    def largest(alpha: float) -> float:
        return float(
            np.mean(
                [
                    max(map(len, defaults.by_importance(columns, alpha, seed)))
                    for seed in range(40)
                ]
            )
        )

    for alpha in defaults.IMPORTANCE:
        parts = defaults.by_importance(columns, alpha, seed=1)
        assert parts == defaults.by_importance(columns, alpha, seed=1)
        assert min(map(len, parts)) >= 1
        assert sorted(column for part in parts for column in part) == sorted(columns)
    assert largest(0.1) > largest(1.0) > largest(100.0)


def test_tables_that_are_not_there_are_named(defaults: Any) -> None:
    (result,) = defaults.missing_tables()
    for name in ("letter", "letter by 0.1", "default_credit", "loans"):
        assert name in result.measured
    assert "COLONNADE_DATA" in result.measured


def measured(validation: dict[str, float], test: dict[str, float]) -> dict[str, Any]:
    """Cells of two seeds on two tables of different groups."""
    cells: dict[str, Any] = {}
    for table in ("wine", "product"):
        for seed in (10, 11):
            for name in validation:
                cells[f"{table}, {seed}, {name}"] = {
                    "validation": validation[name],
                    "score": test[name],
                    "bytes": 1000,
                    "cpu": 1.0,
                    "findings": [],
                }
            cells[f"{table}, {seed}, centralized"] = {"boosting": 0.9, "linear": 0.8}
    return cells


def test_validation_rows_choose_the_default_and_test_rows_do_not(defaults: Any) -> None:
    other = "vimadmm"
    cells = measured({DEFAULT: 0.8, other: 0.7}, test={DEFAULT: 0.6, other: 0.9})
    verdict = defaults.results(cells)[0]
    assert verdict.measured.startswith(DEFAULT)
    assert verdict.holds
    worse = measured({DEFAULT: 0.7, other: 0.8}, test={DEFAULT: 0.9, other: 0.6})
    verdict = defaults.results(worse)[0]
    assert verdict.measured.startswith(other)
    assert not verdict.holds


def test_a_candidate_that_lacks_tables_is_not_chosen(defaults: Any) -> None:
    cells = measured({DEFAULT: 0.8, "vimadmm": 0.7}, {DEFAULT: 0.8, "vimadmm": 0.7})
    cells["wine, 10, boosted_trees"] = {**cells[f"wine, 10, {DEFAULT}"]}
    cells["wine, 10, boosted_trees"]["validation"] = 0.99
    verdict, *lines = defaults.results(cells)
    assert verdict.measured.startswith(DEFAULT)
    assert any("boosted_trees" in line.what for line in lines)


@pytest.mark.long
def test_the_benchmark_runs_quickly_without_any_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLONNADE_DATA", raising=False)
    lines = {one.what: one for one in benchmark.run("defaults", quick=True)}
    assert f"{DEFAULT}, the default" in lines
    assert lines["runs that failed or collapsed"].holds


def test_the_page_says_what_the_default_is_and_what_crosses() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"The default is [`{DEFAULT}`]" in page
