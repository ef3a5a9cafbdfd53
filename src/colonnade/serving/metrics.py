"""What a service counts, in Prometheus' text format: numbers, statuses and party names; no id, no label, no score."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds, upper bounds of the histogram's buckets."""

COUNTERS = {
    "requests": "Requests by route and status",
    "rows": "Rows answered, by where from: the parties, or memory",
    "rows_unknown": "Rows asked for that cannot be predicted: somebody probing shows here",
    "batches": "Times that the parties were asked",
    "party_missing": "Rows that were answered without a party",
}
GAUGES = {
    "party_up": "Whether a party answers",
    "budget_left_epsilon": "What the row that paid most may still pay, by the party that counts it",
    "waiting": "Requests that wait for an answer",
}
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters and one histogram; gauges are asked for when somebody looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Labels], float] = defaultdict(float)
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        with self._lock:
            self._counts[name, tuple(labels.items())] += by

    def took(self, seconds: float) -> None:
        """A prediction was answered."""
        with self._lock:
            self._buckets[bisect_left(BOUNDS, seconds)] += 1
            self._seconds += seconds

    def total(self, name: str) -> float:
        """A counter over all its labels."""
        with self._lock:
            return sum(value for (one, _), value in self._counts.items() if one == name)

    def text(self, gauges: Mapping[str, Sequence[tuple[Mapping[str, str], float]]] | None = None) -> str:
        """All of it."""
        with self._lock:
            counts, buckets, seconds = dict(self._counts), list(self._buckets), self._seconds
        lines = []
        for name, about in COUNTERS.items():
            lines += _heading(f"{name}_total", about, "counter")
            lines += [_line(f"{name}_total", labels, value) for (one, labels), value in counts.items() if one == name]
        for name, values in (gauges or {}).items():
            lines += _heading(name, GAUGES[name], "gauge")
            lines += [_line(name, tuple(labels.items()), value) for labels, value in values]
        lines += _heading("predict_seconds", "From a request to its answer", "histogram")
        below = 0
        for bound, number in zip((*map(str, BOUNDS), "+Inf"), buckets, strict=True):
            below += number
            lines.append(_line("predict_seconds_bucket", (("le", bound),), below))
        lines += [_line("predict_seconds_sum", (), seconds), _line("predict_seconds_count", (), below)]
        return "\n".join(lines) + "\n"


def _heading(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP colonnade_{name} {about}.", f"# TYPE colonnade_{name} {kind}"]


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    number = f"{value:.0f}" if value == int(value) else f"{value:.9g}"
    return f"colonnade_{name}{{{inside}}} {number}" if inside else f"colonnade_{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
