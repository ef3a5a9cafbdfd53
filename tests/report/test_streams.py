"""Bands are as wide as the bytes they stand for."""

from __future__ import annotations

import re

import pytest
from tests.report.made import HOSTILE, Page

from colonnade.report.figures import MOST, streams


def widths(svg: str) -> list[float]:
    bands = re.findall(r'd="M\d+ ([\d.]+)C[^V]*V[\d.]+C[^"]* ([\d.]+)Z" class="band', svg)
    return [float(end) - float(start) for start, end in bands]


def test_bands_are_in_proportion() -> None:
    figure = streams("s", "T", {("a", "b"): 300_000, ("b", "a"): 100_000, ("c", "a"): 0}, ["a", "b", "c"])
    assert figure is not None
    first, second = widths(figure.svg)
    assert first / second == pytest.approx(3, rel=0.02)
    assert figure.rows == [("a", "b", "300.0 kB"), ("b", "a", "100.0 kB")]


def test_nothing_and_too_many_parties_are_not_drawn() -> None:
    assert streams("s", "T", {}, ["a"]) is None
    assert streams("s", "T", {("a", "b"): 0}, ["a", "b"]) is None
    many = [f"p{n}" for n in range(MOST + 1)]
    assert streams("s", "T", {(many[0], many[1]): 5}, many) is None


def test_names_are_escaped() -> None:
    figure = streams("s", HOSTILE, {(HOSTILE, "b"): 5}, [HOSTILE, "b"])
    assert figure is not None
    assert "<img" not in figure.svg
    assert f"{HOSTILE} to b: 5 B" in Page(figure.svg).values("data-tip")
