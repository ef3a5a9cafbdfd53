"""Ticks are few, round, evenly spaced and within the axis."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from colonnade.report.chart import around, ticks, written

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
    assert [written(one) for one in (0, 0.95, 1500, 2e7, 3e9, -2000)] == ["0", "0.95", "1.5k", "20M", "3G", "-2k"]
