"""A figure in the page: caption, chart, its numbers, and buttons that say what they save."""

from __future__ import annotations

from tests.report.made import HOSTILE, Page

from colonnade.report.chart import Figure, plate, plates
from colonnade.report.html import h


def test_a_plate_has_its_numbers_and_names_its_buttons() -> None:
    figure = Figure(
        "one", HOSTILE, h("svg", class_="chart"), ("epoch", "loss"), [(1, 0.123456789), (2, None)], "A note."
    )
    page = Page(plate(figure))
    assert page.tables[HOSTILE][1:] == [["1", "0.123457"], ["2", "–"]]
    assert page.values("aria-label") == [f"Save {HOSTILE} as SVG", f"Save {HOSTILE} as PNG"]
    assert page.values("id") == ["figure-one", "one-numbers"]
    assert "A note." in page.text


def test_only_figures_that_there_are() -> None:
    figure = Figure("one", "T", h("svg", class_="chart"))
    assert plates({"one": figure}, "two") is None
    shown = plates({"one": figure}, "two", "one")
    assert shown is not None
    assert shown.count("<figure") == 1
