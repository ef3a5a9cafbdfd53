"""Bars begin at zero and are as long as their values; points lie on the axis."""

from __future__ import annotations

import re

import pytest
from tests.report.made import HOSTILE, Page

from colonnade.report.chart import Row, bars, width_of


def boxes(svg: str) -> list[tuple[float, float]]:
    """x and width of each bar, in whatever order the attributes stand."""
    drawn = re.findall(r'<rect ([^>]*class="bar[^>]*)/>', svg[svg.index('class="rows"') :])
    return [
        (float(re.findall(r' ?\bx="([\d.]+)"', one)[0]), float(re.findall(r'width="([\d.]+)"', one)[0]))
        for one in drawn
    ]


def test_lengths_are_in_proportion_and_begin_at_zero() -> None:
    figure = bars("b", "T", [Row("a", 100.0, "100"), Row("b", 25.0, "25"), Row("c", -50.0, "-50")], x="bytes")
    (a, wide), (b, small), (c, negative) = boxes(figure.svg)
    assert a == b == pytest.approx(c + negative, abs=0.05)
    assert [wide / small, wide / negative] == pytest.approx([4, 2], rel=0.01)


def test_intervals_marks_and_thresholds_lie_in_order() -> None:
    row = Row("a", 0.5, "0.5", low=0.4, high=0.6, mark=0.3, limit=0.8)
    svg = bars("p", "T", [row], x="score", bar=False).svg
    low, high = (float(one) for one in re.findall(r'd="M([\d.]+) [\d.]+H([\d.]+)', svg)[0])
    middle = float(re.findall(r'cx="([\d.]+)"', svg)[0])
    mark = float(re.findall(r'd="M([\d.]+) [^"]*" class="mark"', svg)[0])
    limit = float(re.findall(r'd="M([\d.]+) [^"]*" class="limit"', svg)[0])
    assert mark < low < middle < high < limit
    assert middle == pytest.approx((low + high) / 2, abs=0.02)


def test_a_label_that_repeats_is_shown_once_unless_labels_stand_above() -> None:
    rows = [Row("a", 1.0, "1"), Row("a", 2.0, "2")]
    assert bars("b", "T", rows, x="x").svg.count('class="label"') == 1
    assert bars("b", "T", rows, x="x", above=True).svg.count('class="label"') == 2


def test_long_labels_stand_above_and_those_that_fit_beside() -> None:
    """Nothing is drawn left of the chart, and names that begin alike can be told apart."""
    beside = bars("b", "T", [Row("a_name_of_20_letters", 1.0, "1"), Row("b", 2.0, "2")], x="x").svg
    (start, _), _ = boxes(beside)
    assert start > width_of("a_name_of_20_letters")
    names = [f"laboratory_north_of_the_river_{end}" for end in ("one", "two")]
    above = bars("b", "T", [Row(name, value, "1") for name in names for value in (1.0, 2.0)], x="x").svg
    assert [above.count(f">{name}<title>") for name in names] == [1, 1]  # once for both of its bars
    assert min(x for x, _ in boxes(above)) < 10


def test_names_are_escaped() -> None:
    svg = bars("b", HOSTILE, [Row(HOSTILE, 1.0, HOSTILE)], x=HOSTILE, legend=[("s1", HOSTILE)]).svg
    assert "<img" not in svg
    assert HOSTILE in Page(svg).text
