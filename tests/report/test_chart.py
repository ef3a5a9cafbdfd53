"""A line's points are where its values are on the axes."""

from __future__ import annotations

import json
import re

import pytest
from tests.report.made import HOSTILE, Page

from colonnade.report.chart import Series, clipped, lines, width_of


def places(svg: str) -> list[tuple[float, float]]:
    path = re.findall(r'class="series[^"]*"[^>]*><path d="([^"]*)"', svg)[0]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.e]+) ([-\d.e]+)", path)]


def test_points_are_linear_in_the_values() -> None:
    figure = lines("one", "Title", [Series("a", [1, 2, 4], [0.5, 0.1, 0.3])], x="epoch", y="loss")
    about = json.loads(next(value for value in Page(figure.svg).values("data-chart")))
    left, top, width, height = about["box"]
    (x0, x1), (y0, y1) = about["x"], about["y"]
    for (x, y), place in zip([(1, 0.5), (2, 0.1), (4, 0.3)], places(figure.svg), strict=True):
        assert place[0] == pytest.approx(left + width * (x - x0) / (x1 - x0), abs=0.02)
        assert place[1] == pytest.approx(top + height - height * (y - y0) / (y1 - y0), abs=0.02)
    assert figure.headings == ("epoch", "a")
    assert figure.rows == [(1, 0.5), (2, 0.1), (4, 0.3)]


def test_gaps_and_numbers_that_are_none() -> None:
    figure = lines("one", "T", [Series("a", [1, 2, 3, 4], [1.0, None, float("nan"), 2.0])], x="x", y="y")
    path = re.findall(r'<path d="([^"]*)"', figure.svg)[-1]
    assert path.count("M") == 2
    assert json.loads(Page(figure.svg).values("data-chart")[0])["series"][0]["y"] == [1.0, None, None, 2.0]


def test_one_point_and_nothing_can_be_drawn() -> None:
    assert len(places(lines("a", "t", [Series("s", [1], [0.5])], x="x", y="y").svg)) == 1
    empty = lines("a", "t", [Series("s", [1], [None])], x="x", y="y")
    assert empty.rows == []
    assert "series" not in re.findall(r'class="(\w+)', empty.svg)


def test_names_are_escaped_everywhere() -> None:
    series = [Series(HOSTILE, [1, 2], [1.0, 2.0]), Series("b", [1, 2], [1.0, 2.0])]
    svg = lines("a", HOSTILE, series, x=HOSTILE, y=HOSTILE).svg
    assert "<img" not in svg
    assert json.loads(Page(svg).values("data-chart")[0])["series"][0]["name"] == HOSTILE


def test_a_legend_only_where_there_are_several_lines() -> None:
    def legend(count: int) -> int:
        made = lines("a", "t", [Series(f"s{n}", [1, 2], [1.0, 2.0]) for n in range(count)], x="x", y="y").svg
        return made[made.index('class="legend"') : made.index("clip-path=")].count("data-series")

    assert (legend(1), legend(2), legend(9)) == (0, 2, 9)


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    names = [f"laboratory_north_of_the_river_with_a_long_{end}" for end in ("name", "nome")]
    shown = [clipped(name, 120) for name in names]
    assert all(one.startswith("lab") and "…" in one and width_of(one) <= 120 for one in shown)
    assert [one[-4:] for one in shown] == ["name", "nome"]
    assert clipped("short", 120) == "short"
    assert width_of("W" * 8) > width_of("i" * 20)


def test_a_legend_says_a_name_that_was_cut() -> None:
    name = "a_run_" * 20
    svg = lines("a", "t", [Series(name, [1, 2], [1.0, 2.0]), Series("b", [1, 2], [2.0, 1.0])], x="x", y="y").svg
    assert f"<title>{name}</title>" in svg
