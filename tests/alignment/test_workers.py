"""Processes beside this one compute the same bytes, whatever becomes of them."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from colonnade.alignment import curve, points
from colonnade.alignment.points import BLIND, CHECK, MULTIPLY, NotAPoint

DIGESTS = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(40))
SECRET = (7**80).to_bytes(32, "big")
BLINDED = points.work(BLIND, DIGESTS, SECRET)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lists of a few points are spread, and workers end with the test."""
    monkeypatch.setattr(curve, "SLICE", 7)
    monkeypatch.setattr(curve, "LEAST", 8)
    monkeypatch.setattr(curve, "CORES", 2)
    monkeypatch.setattr(curve, "POOL", curve.Pool())
    yield
    curve.POOL.end()


def test_workers_change_nothing() -> None:
    assert curve.spread(BLIND, DIGESTS, SECRET) == BLINDED
    assert curve.POOL.idle.qsize() >= 1  # it was computed there
    assert curve.spread(MULTIPLY, BLINDED, SECRET) == points.work(MULTIPLY, BLINDED, SECRET)
    assert curve.spread(CHECK, BLINDED, b"") == b""


def test_the_first_that_is_no_point_is_named_by_its_place_in_the_whole_list() -> None:
    wrong = bytearray(BLINDED)
    for at in (16, 30):
        wrong[at * 33 : (at + 1) * 33] = b"\x02" + (5).to_bytes(32, "big")
    for kind in (MULTIPLY, CHECK):
        with pytest.raises(NotAPoint, match="point 16 is not on the curve"):
            curve.spread(kind, bytes(wrong), SECRET)
    assert curve.spread(CHECK, BLINDED, b"") == b""  # workers that refused go on


def test_workers_that_died_are_replaced() -> None:
    curve.spread(BLIND, DIGESTS, SECRET)
    for worker in list(curve.POOL.idle.queue):
        worker.process.kill()
        worker.process.wait()
    assert curve.spread(BLIND, DIGESTS, SECRET) == BLINDED


def test_where_none_can_be_started_it_is_computed_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert curve.spread(BLIND, DIGESTS, SECRET) == BLINDED
    assert curve.POOL.idle.empty()


def test_where_a_new_one_fails_it_is_computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "__file__", os.devnull)  # a program that says nothing
    assert curve.spread(BLIND, DIGESTS, SECRET) == BLINDED


def test_a_secret_stands_on_no_command_line_and_in_no_environment() -> None:
    curve.spread(BLIND, DIGESTS, SECRET)
    for worker in list(curve.POOL.idle.queue):
        told = [str(part).encode() for part in worker.process.args]  # type: ignore[union-attr]
        assert told == [sys.executable.encode(), b"-P", points.__file__.encode()]
        seen = b"".join(Path(f"/proc/{worker.process.pid}/{what}").read_bytes() for what in ("cmdline", "environ"))
        assert SECRET not in seen
        assert SECRET.hex().encode() not in seen


def test_a_worker_ends_with_its_input_and_after_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = curve.Worker()
    assert worker.ask(CHECK, BLINDED, b"") == b""
    worker.end()
    assert worker.process.returncode == 0
    monkeypatch.setattr(points, "PATIENCE", 0.0)
    readable, writable = os.pipe()
    with os.fdopen(readable, "rb") as source, os.fdopen(writable, "wb"):
        points.serve(source, io.BytesIO())  # returns, although the input is open


def test_a_worker_needs_nothing_of_colonnade() -> None:
    """So it starts in a fraction of a second, and holds neither tables nor models."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print(sorted(m for m in sys.modules if 'colonnade' in m))"
    found = subprocess.run([sys.executable, "-c", code, points.__file__], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_lists_of_any_length_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "LEAST", 2)
    for count in (0, 1, 6, 7, 8, 15):
        some = np.frombuffer(DIGESTS, np.uint8).reshape(-1, 32)[:count].tobytes()
        assert curve.spread(BLIND, some, SECRET) == BLINDED[: 33 * count]
