"""The ledger: totals follow the entries, a file is cut back exactly, and every line is
JSON."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from colonnade.core import DpEvent, Ledger, Message, Outbox, Released, Request
from colonnade.errors import ConfigError


class Pair(Message):
    first: Released
    second: Released


class Named(Request[Pair]):
    batch: str
    values: dict[str, Released]


WRITE = st.tuples(
    st.sampled_from(["in", "out"]),
    st.sampled_from(["bank", "shop", "zoo"]),
    st.integers(0, 5),
)
Write = tuple[Literal["in", "out"], str, int]


def pair(size: int, outbox: Outbox | None = None) -> Pair:
    box = outbox or Outbox("shop", Generator())
    return Pair(
        box.release(torch.zeros(size), "a"),
        box.release(torch.zeros(size, 2), "b", "train/0/0"),
    )


def filled(writes: list[Write]) -> Ledger:
    ledger = Ledger("bank")
    for direction, peer, size in writes:
        ledger.write(direction, peer, pair(size))
    return ledger


@given(st.lists(WRITE, max_size=12))
@settings(max_examples=50)
def test_totals_are_sums_of_the_entries(writes: list[Write]) -> None:
    ledger = filled(writes)
    for direction in ("in", "out", "own"):
        for peer in ("bank", "shop", "zoo", None):
            found = [
                e.bytes
                for e in ledger.entries
                if e.direction == direction and peer in (None, e.peer)
            ]
            assert ledger.total(direction, peer) == sum(found)
    # with oneself nothing crosses
    assert ledger.total("in", "bank") == ledger.total("out", "bank") == 0
    assert sum(ledger.total(way) for way in ("in", "out", "own")) == sum(
        12 * size for _, _, size in writes
    )


def test_another_word_for_a_direction_is_no_zero() -> None:
    with pytest.raises(
        ConfigError, match="A ledger has the directions out, in, own; found 'sent'"
    ):
        filled([]).total("sent")  # type: ignore[arg-type]


def test_one_line_per_tensor_with_its_receipt() -> None:
    ledger = Ledger("bank")
    box = Outbox("shop", Generator())
    ledger.write(
        "in", "shop", Named("train/0/3", {"x": box.release(torch.zeros(2, 3), "x")})
    )
    (entry,) = ledger.entries
    assert entry._asdict() == {
        "direction": "in",
        "peer": "shop",
        "message": "test_ledger.Named",
        "batch": "train/0/3",
        "name": "x",
        "shape": (2, 3),
        "bytes": 24,
        "codec": "identity",
        "event": "non-private",
        "parameters": {},
        "owner": "shop",
        "number": 1,
        "epsilon": None,
    }


def test_the_batch_of_a_release_wins_over_the_batch_of_its_message() -> None:
    ledger = Ledger("bank")
    box = Outbox("shop", Generator())
    ledger.write(
        "in",
        "shop",
        Named("train/0/3", {"x": box.release(torch.zeros(1), "x", "test[0:1]")}),
    )
    assert ledger.entries[0].batch == "test[0:1]"


class Charging:
    """An account whose rows have always paid 2."""

    def charge(
        self, name: str, batch: str | None, size: int, event: DpEvent
    ) -> float | None:
        return 2.0

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None: ...


def test_what_rows_paid_stands_in_their_owner_s_ledger_alone() -> None:
    """Whoever passes a release on, as Compressed VFL's label owner does, is not told by
    bytes, and not by reference."""
    outbox = Outbox("shop", Generator())
    outbox.meter = Charging()
    message = pair(1, outbox)
    own = Ledger("shop")
    passing = Ledger("bank")
    own.write("out", "bank", message)
    passing.write("in", "shop", message)
    passing.write("out", "zoo", message)
    assert [entry.epsilon for entry in own.entries] == [2.0, 2.0]
    assert [entry.epsilon for entry in passing.entries] == [None] * 4


def test_a_message_without_tensors_leaves_no_trace() -> None:
    ledger = Ledger("bank")
    ledger.write("out", "shop", Named("train/0/3", {}))
    assert ledger.entries == []
    assert ledger.total("out") == 0


@given(st.lists(st.lists(WRITE, max_size=3), max_size=4))
@settings(max_examples=30)
def test_flushing_moves_every_entry_to_the_file_once(
    tmp_path_factory: object, rounds: list[list[Write]]
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"  # type: ignore[attr-defined]
    ledger = Ledger("bank")
    every = []
    for writes in rounds:
        for direction, peer, size in writes:
            ledger.write(direction, peer, pair(size))
        every += ledger.entries
        position = ledger.position
        ledger.flush(path)
        assert ledger.entries == []
        assert ledger.position == position == len(every)
    lines = (
        [json.loads(line) for line in path.read_text().splitlines()] if rounds else []
    )
    assert lines == [json.loads(json.dumps(entry._asdict())) for entry in every]
    assert sum(
        line["bytes"] for line in lines if line["direction"] == "in"
    ) == ledger.total("in")


@pytest.mark.parametrize(
    "name", ["bänk", 'quo"te', "line\nbreak", "\u2028", "a\x0bb\x85c"]
)
def test_a_line_stays_a_line_whatever_the_names(tmp_path: Path, name: str) -> None:
    ledger = Ledger("bank")
    for _ in range(2):
        ledger.write("in", name, pair(1, Outbox(name, Generator())))
    ledger.flush(tmp_path / "ledger.jsonl")
    lines = (tmp_path / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["peer"] for line in lines] == [name] * 4


@given(
    before=st.lists(WRITE, max_size=5),
    after=st.lists(WRITE, max_size=5),
    flush_between=st.booleans(),
)
@settings(max_examples=40)
def test_a_rewound_ledger_is_exactly_as_it_was(
    tmp_path_factory: object,
    before: list[Write],
    after: list[Write],
    flush_between: bool,
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"  # type: ignore[attr-defined]
    ledger = filled(before)
    ledger.flush(path)
    prefix = path.read_text()
    state = json.loads(json.dumps(ledger.state()))  # a checkpoint holds it as JSON
    totals = [ledger.total(way) for way in ("in", "out", "own")]
    for direction, peer, size in after:
        ledger.write(direction, peer, pair(size))
    if flush_between:
        ledger.flush(path)
    for resumed in (ledger, Ledger("bank")):
        resumed.rewind(path, state)
        assert path.read_text() == prefix
        assert resumed.position == len(before) * 2
        assert resumed.entries == []
        assert [resumed.total(way) for way in ("in", "out", "own")] == totals
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_line_half_written_at_a_crash_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = filled([("in", "shop", 1)])
    ledger.flush(path)
    prefix = path.read_text()
    state = ledger.state()
    with path.open("a") as file:
        file.write(prefix[:30])
    Ledger("bank").rewind(path, state)
    assert path.read_text() == prefix


def test_rewinding_without_a_file_starts_one_at_nothing(tmp_path: Path) -> None:
    ledger = Ledger("bank")
    ledger.rewind(tmp_path / "ledger.jsonl", {"position": 0, "bytes": []})
    assert ledger.position == 0


def test_what_crossed_before_a_run_comes_first_and_again_when_it_goes_on(
    tmp_path: Path,
) -> None:
    """Until it is in a file: then it is the file that a checkpoint counts."""
    path = tmp_path / "ledger.jsonl"
    before = filled([("out", "shop", 2), ("in", "shop", 3)])
    totals = (before.total("out"), before.total("in"))
    noted = before.take()
    state: dict[str, Any] = {"position": 0, "bytes": []}
    assert (before.entries, before.total("out"), before.total("in")) == ([], 0, 0)
    for again in (1, 2):
        ledger = Ledger("bank")
        ledger.carry(noted)
        assert (ledger.entries, ledger.total("out"), ledger.total("in")) == (
            noted,
            *totals,
        )
        ledger.rewind(path, state)
        ledger.flush(path)
        state = json.loads(json.dumps(ledger.state()))
        assert (ledger.total("out"), ledger.total("in")) == tuple(
            again * total for total in totals
        )
        ledger.rewind(path, state)
        assert ledger.entries == []
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["bytes"] for line in lines] == again * [
            entry.bytes for entry in noted
        ]
    ledger.carry(noted)
    ledger.follow(tmp_path / "after.jsonl")
    assert len((tmp_path / "after.jsonl").read_text().splitlines()) == len(noted)


def test_what_is_followed_is_in_the_file_as_it_is_written(tmp_path: Path) -> None:
    ledger = filled([("out", "shop", 2)])
    ledger.flush(tmp_path / "ledger.jsonl")
    ledger.follow(tmp_path / "after.jsonl")
    for number in range(1, 4):
        ledger.write("out", "shop", pair(3))
        assert len((tmp_path / "after.jsonl").read_text().splitlines()) == number * len(
            pair(3).crossing()
        )
    assert ledger.entries == []
    kept = (tmp_path / "ledger.jsonl").read_text()
    # training goes on, in its own file
    ledger.rewind(tmp_path / "ledger.jsonl", {"position": 1, "bytes": []})
    ledger.write("out", "shop", pair(3))
    assert len((tmp_path / "after.jsonl").read_text().splitlines()) == 3 * len(
        pair(3).crossing()
    )
    assert kept.startswith((tmp_path / "ledger.jsonl").read_text())


def test_what_is_read_or_flushed_while_others_write_is_there_once(
    tmp_path: Path,
) -> None:
    """A driver that takes answers as they arrive writes in one thread, and in another
    it is looked at or saved."""
    ledger = Ledger("bank")
    path = tmp_path / "ledger.jsonl"
    message = pair(3)
    ways: list[Callable[[], object]] = [lambda: ledger.write("in", "shop", message)] * 2
    ways += [lambda: ledger.flush(path), lambda: ledger.entries, lambda: ledger.entries]
    barrier = threading.Barrier(len(ways))
    before = sys.getswitchinterval()

    def repeat(way: Callable[[], object]) -> None:
        barrier.wait()
        for _ in range(500):
            way()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(ways)) as pool:
            assert list(pool.map(repeat, ways)) == [None] * len(ways)
    finally:
        sys.setswitchinterval(before)
    ledger.flush(path)
    assert (
        len(path.read_text().splitlines())
        == ledger.written
        == ledger.position
        == 2 * 500 * 2
    )
