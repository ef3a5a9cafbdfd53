"""Round numbers for axes, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence

STEPS = (1, 2, 2.5, 5, 10)


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten within [low, high], at most `most` of them."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    steps = (power * step * ten for ten in (1, 10) for step in STEPS)
    step = next(one for one in steps if span / one < most and not (whole and (one < 1 or one != round(one))))
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def around(values: Sequence[float], *, zero: bool = False) -> tuple[float, float]:
    """An axis that holds all values with a little room; with `zero`, also 0, without room beyond it."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return low if zero and low == 0 else low - room, high if zero and high == 0 > low else high + room


def written(value: float) -> str:
    """A tick: 0.95, 1.5k, 20M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.0e}"
