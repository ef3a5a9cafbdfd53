"""The comparison behind "how to choose": quick it runs, and its tables are those of the
page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from colonnade import benchmark
from colonnade.algorithms import ALGORITHMS

PAGE = Path(__file__).parents[2] / "docs" / "how-to-choose-an-algorithm.md"


@pytest.fixture(scope="module")
def choose() -> Any:
    return benchmark._load("choose")


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return [one.to_json() for one in benchmark.run("choose", quick=True)]


def test_every_algorithm_is_compared(choose: Any) -> None:
    assert {one.algorithm for one in choose.choices().values()} == set(ALGORITHMS)


@pytest.mark.long
def test_bytes_are_those_of_the_formulas(results: list[dict[str, Any]]) -> None:
    """398 training rows, 3 epochs of 7 batches, 8 numbers an embedding, one output,
    float32."""
    numbers = {one["what"]: one["numbers"] for one in results}
    assert numbers["scores: vimadmm"]["up"] == 398 * 3 * 8 * 4
    # residuals, and heads
    assert numbers["scores: vimadmm"]["down"] == 398 * 3 * 4 + (1 + 3 * 7) * 8 * 4
    assert numbers["scores: knn"]["up"] == numbers["scores: knn"]["down"] == 0
    assert numbers["scores: vimadmm"]["row"] == 32


@pytest.mark.long
def test_labels_leak_where_they_are_said_to(results: list[dict[str, Any]]) -> None:
    found = {one["what"]: one for one in results if one["what"].startswith("leaks")}
    assert found["leaks: vimadmm"]["numbers"]["label_inference"] > 0.95
    assert found["leaks: knn"]["numbers"] == {}


@pytest.mark.long
def test_the_pages_tables_have_the_benchmarks_lines(
    choose: Any, results: list[dict[str, Any]]
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for heading in choose.HEADINGS.values():
        assert "\n".join(heading) in text
    drawn = choose.pages(results)
    for line in drawn.splitlines():
        assert re.match(r"\| .+ \|$|\|---|$", line)
    for name in choose.CHOICES:
        word, comma, rest = name.partition(",")
        assert f"| `{word}`{comma}{rest} | " in text
