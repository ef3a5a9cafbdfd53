"""A network rehearsed in one process takes as long as its links say, and as a plan
says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.planning.three import tables, write

from colonnade.core import Envelope, Message
from colonnade.core.peers import Answer
from colonnade.errors import ConfigError
from colonnade.federation import Federation
from colonnade.planning.plan import plan
from colonnade.transport.faulty import HEADER, Distant, Network


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("20ms,100Mbit", Network(100e6, 0.02)),
        ("1gbit/s 0.5s", Network(1e9, 0.5)),
        ("56kbit", Network(56e3, 0.0)),
        ("50ms", Network(float("inf"), 0.05)),
    ],
)
def test_words(words: str, found: Network) -> None:
    assert Network.parse(words) == found


@pytest.mark.parametrize(
    "words",
    ["fast", "100", "100MB", "-1Mbit", "0Mbit", "1Mbit,20", "1mbit,2mbit", "", ","],
)
def test_other_words_are_refused_with_an_example(words: str) -> None:
    with pytest.raises(ConfigError, match="as in 50ms,100mbit"):
        Network.parse(words)


def test_the_busiest_link_and_every_question() -> None:
    traffic = {"clinic": {"out": 1000, "in": 5000}, "lab": {"out": 4000, "in": 1000}}
    network = Network(8e3, 0.1)  # a kilobyte a second
    assert network.seconds(traffic, 10) == pytest.approx(
        6.0 + 10 * 2 * HEADER / 1000 + 1.0
    )
    assert Network(1e9).seconds({}, 0) == 0


class Sized(Message):
    """Nothing but a size."""

    def crossing(self, *fields: str) -> list[Any]:
        return []


class Slow:
    """Answers everybody after so many seconds."""

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        time.sleep(0.05)
        return [Sized() for _ in calls]


def test_questions_share_a_link_and_an_own_role_needs_none() -> None:
    clinic, lab, scan = (
        Envelope("clinic", 1, Sized(), to) for to in ("clinic", "lab", "scan")
    )
    network = Network(HEADER * 8 / 0.02, 0.1)  # a header takes 20 ms
    distant = Distant("clinic", Slow(), network)
    begun = time.perf_counter()
    distant.exchange([clinic])
    assert time.perf_counter() - begun < 0.1
    begun = time.perf_counter()
    distant.exchange([clinic, lab, scan])
    # the first answer comes while the second question goes
    assert time.perf_counter() - begun >= 0.1 + 0.05 + 3 * 0.02


@pytest.mark.parametrize("words", ["50ms,100mbit", "20ms,1mbit", "200kbit"])
def test_a_plan_over_a_network_is_what_a_run_over_it_waits(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a fifth; the run meets everybody first, which the plan does not count."""
    path = write(tmp_path, tables(train={"epochs": 4}))
    network = Network.parse(words)
    waited = list[float]()
    settings = Federation.from_toml(path).settings
    monkeypatch.setattr("colonnade.transport.faulty.time.sleep", waited.append)
    Federation.from_settings(
        settings, between=lambda owner, inner: Distant(owner, inner, network)
    ).fit()
    assert sum(waited) == pytest.approx(
        plan(settings, batches=3, network=network).network, rel=0.2
    )
