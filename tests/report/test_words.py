"""Numbers for people."""

from __future__ import annotations

import pytest

from colonnade.report import words


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (23040, "23.0 kB"),
        (5e6, "5.0 MB"),
        (2e12, "2000.0 GB"),
    ],
)
def test_sizes(count: float, shown: str) -> None:
    assert words.size(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0301, "30 ms"),
        (0.9996, "1.0 s"),
        (61.25, "61.2 s"),
        (200, "3 min 20 s"),
        (9000, "2 h 30 min"),
    ],
)
def test_seconds(value: float, shown: str) -> None:
    assert words.seconds(value) == shown


def test_scores_and_epsilons() -> None:
    assert words.score(0.98901) == "0.9890"
    assert words.score(-0.00004) == "0.0000"  # a loss of nothing is not a gain
    assert words.score(None) == words.score(float("nan")) == "–"
    assert [words.epsilon(value) for value in (None, 6.0411, 441.42)] == [
        "no guarantee",
        "6.041",
        "441.4",
    ]
    assert [words.count(n, "round") for n in (0, 1, 2, 1250)] == [
        "no rounds",
        "one round",
        "two rounds",
        "1,250 rounds",
    ]
    assert words.sentence("  it\n   stopped. ") == "It stopped."
    assert words.metric("auc") == "AUC"
