"""Processes beside this one compute the same bytes, whatever becomes of them."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.alignment import curve, points
from colonnade.alignment.points import BLIND, CHECK, MULTIPLY
from colonnade.core import worker, workers
from colonnade.encryption import points as many

DIGESTS = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(40))
SECRET = (7**80).to_bytes(32, "big")


def answer(kind: bytes, data: bytes, secret: bytes = b"") -> bytes:
    """What one process answers that is asked all of it."""
    found = points.work(kind, data, secret)
    assert not isinstance(found, int)
    return b"".join(found)


BLINDED = answer(BLIND, DIGESTS, SECRET)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A little work is worth two processes, which end with the test."""
    monkeypatch.setattr(workers, "START", 0.0)
    monkeypatch.setattr(workers, "GRAIN", 7 * curve.SECONDS)
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(workers, "POOL", workers.Pool())
    yield
    workers.POOL.end()


def waiting() -> list[workers.Worker]:
    return [one for idle in workers.POOL.idle.values() for one in list(idle.queue)]


def test_processes_change_nothing() -> None:
    assert curve.spread(BLIND, DIGESTS, SECRET) == BLINDED
    assert waiting()  # it was computed there
    assert curve.spread(MULTIPLY, BLINDED, SECRET) == answer(MULTIPLY, BLINDED, SECRET)
    assert curve.spread(CHECK, BLINDED, b"") == b""


def test_the_first_that_is_no_point_is_named_by_its_place_in_the_whole_list() -> None:
    wrong = bytearray(BLINDED)
    for at in (16, 30):
        wrong[at * 33 : (at + 1) * 33] = b"\x02" + (5).to_bytes(32, "big")
    for kind in (MULTIPLY, CHECK):
        with pytest.raises(curve.NotAPoint, match="point 16 is not on the curve"):
            curve.spread(kind, bytes(wrong), SECRET)
    assert curve.spread(CHECK, BLINDED, b"") == b""  # processes that refused go on


def test_little_work_starts_none_until_it_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "START", 100 * curve.SECONDS)
    for _ in range(2):
        assert curve.spread(BLIND, DIGESTS, SECRET) == BLINDED
    assert not waiting()
    assert curve.spread(BLIND, DIGESTS, SECRET) == BLINDED
    assert waiting()


def test_one_process_alone_is_this_one() -> None:
    with workers.limited(1):
        assert curve.spread(BLIND, DIGESTS, SECRET) == BLINDED
    assert not waiting()


@pytest.mark.parametrize("count", [0, 1, 5, 100, 12_345])
@pytest.mark.parametrize("cores", [1, 2, 7])
def test_pieces_have_all_items_once_and_cores_equally_many(
    count: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "cores", lambda: cores)
    pieces = workers.pieces(points.work, count, curve.SECONDS)
    assert [at for piece in pieces for at in range(piece.start, piece.stop)] == list(range(count))
    assert len(pieces) <= workers.PIECES * cores
    assert len(pieces) <= cores or len(pieces) % cores == 0
    assert all((piece.stop - piece.start) * curve.SECONDS >= workers.GRAIN for piece in pieces) or len(pieces) == 1


def test_processes_that_died_are_replaced() -> None:
    curve.spread(BLIND, DIGESTS, SECRET)
    for one in waiting():
        one.process.kill()
        one.process.wait()
    assert curve.spread(BLIND, DIGESTS, SECRET) == BLINDED


def test_where_none_can_be_started_it_is_computed_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert curve.spread(BLIND, DIGESTS, SECRET) == BLINDED
    assert not waiting()


def test_where_a_new_one_fails_it_is_computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "__file__", os.devnull)  # a program that says nothing
    assert curve.spread(BLIND, DIGESTS, SECRET) == BLINDED


def test_a_secret_stands_on_no_command_line_and_in_no_environment() -> None:
    curve.spread(BLIND, DIGESTS, SECRET)
    for one in waiting():
        told = [str(part) for part in one.process.args]  # type: ignore[union-attr]
        assert told == [sys.executable, "-P", worker.__file__, points.__file__]
        seen = b"".join(Path(f"/proc/{one.process.pid}/{what}").read_bytes() for what in ("cmdline", "environ"))
        assert SECRET not in seen
        assert SECRET.hex().encode() not in seen


def test_a_process_ends_with_its_input_and_after_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    one = workers.Worker(points.__file__)
    assert one.ask(CHECK, [BLINDED, b""]) == [b""]
    one.end()
    assert one.process.returncode == 0
    monkeypatch.setattr(worker, "PATIENCE", 0.0)
    readable, writable = os.pipe()
    with os.fdopen(readable, "rb") as source, os.fdopen(writable, "wb"):
        worker.serve(points.work, source, io.BytesIO())  # returns, although the input is open


@pytest.mark.parametrize("program", [points, many])
def test_a_process_needs_nothing_of_colonnade(program: Any) -> None:
    """So it starts in a fraction of a second, and holds neither tables nor models."""
    code = (
        "import runpy, sys; worker = runpy.run_path(sys.argv[1]); worker['program'](sys.argv[2]);"
        "print(sorted(m for m in sys.modules if 'colonnade' in m or 'torch' in m))"
    )
    command = [sys.executable, "-c", code, worker.__file__, program.__file__]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_lists_of_any_length_fit() -> None:
    for count in (0, 1, 6, 7, 8, 15):
        some = np.frombuffer(DIGESTS, np.uint8).reshape(-1, 32)[:count].tobytes()
        assert curve.spread(BLIND, some, SECRET) == BLINDED[: 33 * count]
