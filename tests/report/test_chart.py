"""Charts: round axes, lines, bars and streams as they are drawn, and the plate around
each."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.made import HOSTILE, Page

from colonnade.report.chart import (
    Figure,
    Row,
    Series,
    around,
    bars,
    clipped,
    lines,
    plate,
    plates,
    ticks,
    width_of,
    written,
)
from colonnade.report.figures import MOST, streams
from colonnade.report.html import h

numbers = st.floats(-1e9, 1e9)


@given(numbers, st.floats(1e-3, 1e9), st.integers(3, 9))
def test_ticks(low: float, span: float, most: int) -> None:
    found = ticks(low, low + span, most)
    room = 1e-6 * max(abs(low), span)
    assert 1 <= len(found) <= most + 1
    assert all(low - room <= one <= low + span + room for one in found)
    steps = [b - a for a, b in pairwise(found)]
    assert all(abs(one - steps[0]) <= room for one in steps)


def test_whole_numbers_have_whole_ticks() -> None:
    assert ticks(1, 3, 7, whole=True) == [1, 2, 3]
    assert all(one == round(one) for one in ticks(1, 40, 7, whole=True))
    assert ticks(5, 5) == [5]


@given(st.lists(numbers, min_size=1, max_size=9))
def test_an_axis_holds_all_its_values(values: list[float]) -> None:
    low, high = around(values)
    assert low < high
    assert all(low <= one <= high for one in values)
    zero = around(values, zero=True)
    assert zero[0] <= 0 <= zero[1]
    assert zero[0] < zero[1]


def test_written() -> None:
    assert [written(one) for one in (0, 0.95, 1500, 2e7, 3e9, -2000)] == [
        "0",
        "0.95",
        "1.5k",
        "20M",
        "3G",
        "-2k",
    ]


def places(svg: str) -> list[tuple[float, float]]:
    path = re.findall(r'class="series[^"]*"[^>]*><path d="([^"]*)"', svg)[0]
    return [
        (float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.e]+) ([-\d.e]+)", path)
    ]


def test_points_are_linear_in_the_values() -> None:
    figure = lines(
        "one", "Title", [Series("a", [1, 2, 4], [0.5, 0.1, 0.3])], x="epoch", y="loss"
    )
    about = json.loads(next(value for value in Page(figure.svg).values("data-chart")))
    left, top, width, height = about["box"]
    (x0, x1), (y0, y1) = about["x"], about["y"]
    for (x, y), place in zip(
        [(1, 0.5), (2, 0.1), (4, 0.3)], places(figure.svg), strict=True
    ):
        assert place[0] == pytest.approx(left + width * (x - x0) / (x1 - x0), abs=0.02)
        assert place[1] == pytest.approx(
            top + height - height * (y - y0) / (y1 - y0), abs=0.02
        )
    assert figure.headings == ("epoch", "a")
    assert figure.rows == [(1, 0.5), (2, 0.1), (4, 0.3)]


def test_gaps_and_numbers_that_are_none() -> None:
    figure = lines(
        "one",
        "T",
        [Series("a", [1, 2, 3, 4], [1.0, None, float("nan"), 2.0])],
        x="x",
        y="y",
    )
    path = re.findall(r'<path d="([^"]*)"', figure.svg)[-1]
    assert path.count("M") == 2
    assert json.loads(Page(figure.svg).values("data-chart")[0])["series"][0]["y"] == [
        1.0,
        None,
        None,
        2.0,
    ]


def test_one_point_and_nothing_can_be_drawn() -> None:
    assert (
        len(places(lines("a", "t", [Series("s", [1], [0.5])], x="x", y="y").svg)) == 1
    )
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
        made = lines(
            "a",
            "t",
            [Series(f"s{n}", [1, 2], [1.0, 2.0]) for n in range(count)],
            x="x",
            y="y",
        ).svg
        return made[made.index('class="legend"') : made.index("clip-path=")].count(
            "data-series"
        )

    assert (legend(1), legend(2), legend(9)) == (0, 2, 9)


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    names = [
        f"laboratory_north_of_the_river_with_a_long_{end}" for end in ("name", "nome")
    ]
    shown = [clipped(name, 120) for name in names]
    assert all(
        one.startswith("lab") and "…" in one and width_of(one) <= 120 for one in shown
    )
    assert [one[-4:] for one in shown] == ["name", "nome"]
    assert clipped("short", 120) == "short"
    assert width_of("W" * 8) > width_of("i" * 20)


def test_a_legend_says_a_name_that_was_cut() -> None:
    name = "a_run_" * 20
    svg = lines(
        "a",
        "t",
        [Series(name, [1, 2], [1.0, 2.0]), Series("b", [1, 2], [2.0, 1.0])],
        x="x",
        y="y",
    ).svg
    assert f"<title>{name}</title>" in svg


def boxes(svg: str) -> list[tuple[float, float]]:
    """x and width of each bar, in whatever order the attributes stand."""
    drawn = re.findall(
        r'<rect ([^>]*class="bar[^>]*)/>', svg[svg.index('class="rows"') :]
    )
    return [
        (
            float(re.findall(r' ?\bx="([\d.]+)"', one)[0]),
            float(re.findall(r'width="([\d.]+)"', one)[0]),
        )
        for one in drawn
    ]


def test_lengths_are_in_proportion_and_begin_at_zero() -> None:
    figure = bars(
        "b",
        "T",
        [Row("a", 100.0, "100"), Row("b", 25.0, "25"), Row("c", -50.0, "-50")],
        x="bytes",
    )
    (a, wide), (b, small), (c, negative) = boxes(figure.svg)
    assert a == b == pytest.approx(c + negative, abs=0.05)
    assert [wide / small, wide / negative] == pytest.approx([4, 2], rel=0.01)


def test_intervals_marks_and_thresholds_lie_in_order() -> None:
    row = Row("a", 0.5, "0.5", low=0.4, high=0.6, mark=0.3, limit=0.8)
    svg = bars("p", "T", [row], x="score", bar=False).svg
    low, high = (
        float(one) for one in re.findall(r'd="M([\d.]+) [\d.]+H([\d.]+)', svg)[0]
    )
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
    beside = bars(
        "b", "T", [Row("a_name_of_20_letters", 1.0, "1"), Row("b", 2.0, "2")], x="x"
    ).svg
    (start, _), _ = boxes(beside)
    assert start > width_of("a_name_of_20_letters")
    names = [f"laboratory_north_of_the_river_{end}" for end in ("one", "two")]
    above = bars(
        "b",
        "T",
        [Row(name, value, "1") for name in names for value in (1.0, 2.0)],
        x="x",
    ).svg
    # once for both of its bars
    assert [above.count(f">{name}<title>") for name in names] == [1, 1]
    assert min(x for x, _ in boxes(above)) < 10


def test_names_are_escaped() -> None:
    svg = bars(
        "b", HOSTILE, [Row(HOSTILE, 1.0, HOSTILE)], x=HOSTILE, legend=[("s1", HOSTILE)]
    ).svg
    assert "<img" not in svg
    assert HOSTILE in Page(svg).text


def test_a_plate_has_its_numbers_and_names_its_buttons() -> None:
    figure = Figure(
        "one",
        HOSTILE,
        h("svg", class_="chart"),
        ("epoch", "loss"),
        [(1, 0.123456789), (2, None)],
        "A note.",
    )
    page = Page(plate(figure))
    assert page.tables[HOSTILE][1:] == [["1", "0.123457"], ["2", "–"]]
    assert page.values("aria-label") == [
        f"Save {HOSTILE} as SVG",
        f"Save {HOSTILE} as PNG",
    ]
    assert page.values("id") == ["figure-one", "one-numbers"]
    assert "A note." in page.text


def test_only_figures_that_there_are() -> None:
    figure = Figure("one", "T", h("svg", class_="chart"))
    assert plates({"one": figure}, "two") is None
    shown = plates({"one": figure}, "two", "one")
    assert shown is not None
    assert shown.count("<figure") == 1


def widths(svg: str) -> list[float]:
    bands = re.findall(
        r'd="M\d+ ([\d.]+)C[^V]*V[\d.]+C[^"]* ([\d.]+)Z" class="band', svg
    )
    return [float(end) - float(start) for start, end in bands]


def test_bands_are_in_proportion() -> None:
    figure = streams(
        "s",
        "T",
        {("a", "b"): 300_000, ("b", "a"): 100_000, ("c", "a"): 0},
        ["a", "b", "c"],
    )
    assert figure is not None
    first, second = widths(figure.svg)
    assert first / second == pytest.approx(3, rel=0.02)
    assert figure.rows == [("a", "b", "300.0 kB"), ("b", "a", "100.0 kB")]


def test_nothing_and_too_many_parties_are_not_drawn() -> None:
    assert streams("s", "T", {}, ["a"]) is None
    assert streams("s", "T", {("a", "b"): 0}, ["a", "b"]) is None
    many = [f"p{n}" for n in range(MOST + 1)]
    assert streams("s", "T", {(many[0], many[1]): 5}, many) is None


def test_names_in_streams_are_escaped() -> None:
    figure = streams("s", HOSTILE, {(HOSTILE, "b"): 5}, [HOSTILE, "b"])
    assert figure is not None
    assert "<img" not in figure.svg
    assert f"{HOSTILE} to b: 5 B" in Page(figure.svg).values("data-tip")
