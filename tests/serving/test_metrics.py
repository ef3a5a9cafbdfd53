"""Prometheus' text format: counters by label, and a histogram whose buckets add up."""

from __future__ import annotations

import re

import numpy as np

from colonnade.serving.limits import BOUNDS, Metrics

LINE = re.compile(
    r'colonnade_[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\.)*"(,[a-z]+="(?:[^"\\\n]|\\.)*")*\})?'
    r" [0-9.e+-]+"
)


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_counters_add_up_by_label_and_every_line_is_of_the_format() -> None:
    metrics = Metrics()
    for status, times in (("200", 3), ("404", 2)):
        for _ in range(times):
            metrics.count("requests", route="/predict", status=status)
    metrics.count("rows", 123_456_789, source="parties")
    metrics.count("party_missing", party='a "quoted\\ one\n')
    text = metrics.text({"party_up": [({"party": "lab"}, 1.0)], "waiting": [({}, 0.0)]})
    assert 'colonnade_requests_total{route="/predict",status="200"} 3' in text
    assert 'colonnade_rows_total{source="parties"} 123456789\n' in text
    assert metrics.total("requests") == 5
    for line in lines(text):
        assert LINE.fullmatch(line), line
    for line in text.splitlines():
        assert re.match(r"# (HELP|TYPE) colonnade_|colonnade_", line)
    assert text.endswith("\n")


def test_the_histogram_counts_what_is_at_most_each_bound() -> None:
    metrics = Metrics()
    seconds = np.concatenate(
        [np.random.default_rng(0).exponential(0.1, 500), BOUNDS, [99.0]]
    )
    for one in seconds:
        metrics.add_answer(float(one))
    found = dict(
        re.findall(r'predict_seconds_bucket\{le="(.+)"\} (\d+)', metrics.text())
    )
    assert {bound: int(n) for bound, n in found.items()} == {
        **{str(bound): int((seconds <= bound).sum()) for bound in BOUNDS},
        "+Inf": len(seconds),
    }
    assert f"colonnade_predict_seconds_count {len(seconds)}\n" in metrics.text()
    assert float(re.findall(r"seconds_sum (.+)", metrics.text())[0]) == float(
        f"{seconds.sum():.9g}"
    )
