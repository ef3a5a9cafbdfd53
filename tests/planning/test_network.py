"""Bytes over bandwidth and a round trip per question."""

from __future__ import annotations

import pytest

from colonnade.errors import ConfigError
from colonnade.planning.network import HEADER, Network


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("100Mbit", "20ms"), Network(100e6, 0.02)),
        (("1 gbit/s", "0.5s"), Network(1e9, 0.5)),
        (("56kbit",), Network(56e3, 0.0)),
        (("2.5Mbit", "0ms"), Network(2.5e6, 0.0)),
    ],
)
def test_words(words: tuple[str, ...], found: Network) -> None:
    assert Network.parse(*words) == found


@pytest.mark.parametrize(
    "words", [("fast",), ("100",), ("100MB",), ("-1Mbit",), ("0Mbit",), ("1Mbit", "20"), ("1Mbit", "x")]
)
def test_other_words_are_refused_with_an_example(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"--(bandwidth|latency) must be"):
        Network.parse(*words)


def test_the_busiest_link_and_every_question() -> None:
    traffic = {"clinic": {"out": 1000, "in": 5000}, "lab": {"out": 5000, "in": 1000}}
    network = Network(8e3, 0.1)  # a kilobyte a second
    assert network.seconds(traffic, 10) == pytest.approx(5.0 + 10 * HEADER / 1000 + 1.0)
    assert Network(1e9).seconds({}, 0) == 0
