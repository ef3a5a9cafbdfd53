"""What a README's tables say with a deviation is what `expected.json` has, seed by
seed."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

from colonnade import reproduction

FOLDER = reproduction.plan("vim-mnist").folder.parent
CELL = re.compile(r"\**([\d.]+)\** ± ([\d.]+)\b")
WIDEST = 0.6
"""Of a last digit: half of it, and what seeds lost when they were rounded."""


def measured(paper: Path) -> list[tuple[float, float]]:
    """Mean and deviation of everything that was measured with more than one seed."""
    told = json.loads((paper / "expected.json").read_text(encoding="utf-8"))
    seeds = [
        [one for one in values if one is not None]
        for entry in told.values()
        for run in entry.get("measured", ())
        for values in run["values"].values()
    ]
    return [
        (statistics.mean(values), statistics.stdev(values))
        for values in seeds
        if len(values) > 1
    ]


def follows(mean: str, deviation: str, found: list[tuple[float, float]]) -> bool:
    """Whether something measured rounds to that, as it is or in percent."""
    near = WIDEST * 10.0 ** -len(mean.partition(".")[2])
    return any(
        abs(scale * one - float(mean)) <= near
        and abs(scale * spread - float(deviation)) <= near
        for one, spread in found
        for scale in (1, 100)
    )


@pytest.mark.parametrize(
    "paper", ["multi_vfl", "noisy_cvfl", "vf_ps", "vfedcce", "vim"]
)
def test_deviations_in_tables_are_those_of_the_seeds_that_are_kept(paper: str) -> None:
    found = measured(FOLDER / paper)
    lines = (FOLDER / paper / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [
        cell.strip()
        for line in lines
        if line.startswith("|")
        for cell in line.split("|")
    ]
    told = [one.groups() for one in map(CELL.match, cells) if one]
    assert len(told) > 10
    assert [pair for pair in told if not follows(pair[0], pair[1], found)] == []


def test_a_deviation_that_no_seeds_have_is_noticed() -> None:
    found = [(0.9633, 0.0007)]
    assert follows("96.33", "0.07", found)
    assert not follows("96.33", "0.27", found)
    assert not follows("96.43", "0.07", found)
