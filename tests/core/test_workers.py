"""Processes beside this one compute the same bytes, whatever becomes of them."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forking import fork

from colonnade.alignment import curve, points
from colonnade.alignment.points import BLIND, CHECK, MULTIPLY
from colonnade.core import worker, workers
from colonnade.encryption import points as many

DIGESTS = np.frombuffer(
    b"".join(hashlib.sha256(bytes([n])).digest() for n in range(40)), np.uint8
).reshape(-1, 32)
SECRET = (7**80).to_bytes(32, "big")


def answer(kind: bytes, items: Any, secret: bytes = b"") -> Any:
    """What one process answers that is asked all of it."""
    found = points.work(kind, items, secret)
    assert not isinstance(found, int)
    return np.frombuffer(found[0], np.uint8).reshape(-1, 33)


BLINDED = answer(BLIND, DIGESTS, SECRET)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A little work is worth two processes, which end with the test."""
    monkeypatch.setattr(workers, "START", 1e-9)
    monkeypatch.setattr(workers, "GRAIN", 7e-6)
    monkeypatch.setattr(curve, "SECONDS", dict.fromkeys(points.WIDTHS, 1e-6))
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(workers, "POOL", workers.Pool())
    yield
    workers.POOL.end()


def waiting() -> list[workers.Worker]:
    return [one for idle in workers.POOL.idle.values() for one in idle]


def is_right() -> bool:
    return np.array_equal(curve.blind(DIGESTS, SECRET), BLINDED)


def test_processes_change_nothing() -> None:
    assert is_right()
    assert waiting()  # it was computed there
    assert np.array_equal(
        curve.multiply(BLINDED, SECRET), answer(MULTIPLY, BLINDED, SECRET)
    )
    curve.check(BLINDED)


def test_lists_of_any_length_fit() -> None:
    for count in (0, 1, 6, 7, 8, 13, 14, 15):
        assert np.array_equal(curve.blind(DIGESTS[:count], SECRET), BLINDED[:count])


def test_the_first_that_is_no_point_is_named_by_its_place_in_the_whole_list() -> None:
    wrong = BLINDED.copy()
    wrong[[16, 30]] = np.frombuffer(b"\x02" + (5).to_bytes(32, "big"), np.uint8)
    for refuse in (lambda: curve.multiply(wrong, SECRET), lambda: curve.check(wrong)):
        with pytest.raises(curve.NotAPoint, match="point 16 is not on the curve"):
            refuse()
    curve.check(BLINDED)
    assert len(waiting()) <= 2  # processes that refused go on


@pytest.mark.parametrize(
    "secret",
    [bytes(32), b"\xff" * 32, b"\x01", b""],
    ids=["zero", "large", "short", "none"],
)
def test_what_is_no_secret_is_no_answer(secret: bytes) -> None:
    with pytest.raises(ValueError, match="a secret multiplier is 32 bytes, from 1"):
        curve.blind(DIGESTS, secret)


def test_half_a_point_is_none() -> None:
    assert points.work(CHECK, BLINDED.tobytes()[:-1], b"") == 39


def test_processes_start_as_work_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "START", 50e-6)
    monkeypatch.setattr(workers, "cores", lambda: 8)
    for usable in (1, 1, 2, 3):
        assert is_right()
        assert workers.POOL.usable(points.__file__) == usable
        assert len(waiting()) <= usable * (usable > 1)


def test_one_process_alone_is_this_one() -> None:
    with workers.limited(1):
        assert is_right()
    assert not waiting()


def test_a_limit_ends_with_its_own_block() -> None:
    """Also where another thread's began after it, and ends after it."""
    first = workers.limited(1)
    second = workers.limited(2)
    with first:
        threading.Thread(target=second.__enter__).start()
    assert workers.POOL.usable("") == 1  # without work
    workers.POOL.done[""] = 1.0
    assert workers._limits == [2]
    assert workers.POOL.usable("") == 2
    second.__exit__(None, None, None)
    assert not workers._limits


@pytest.mark.parametrize("count", [0, 1, 5, 100, 12_345])
@pytest.mark.parametrize("cores", [1, 2, 7])
def test_pieces_have_all_items_once_and_cores_equally_many(
    count: int, cores: int
) -> None:
    pieces = workers.pieces(count, 1e-6, cores)
    assert [at for piece in pieces for at in range(piece.start, piece.stop)] == list(
        range(count)
    )
    assert len(pieces) <= workers.PIECES * cores
    assert len(pieces) <= cores or len(pieces) % cores == 0
    assert (
        all((piece.stop - piece.start) * 1e-6 >= workers.GRAIN for piece in pieces)
        or len(pieces) == 1
    )


def test_processes_that_died_are_replaced() -> None:
    assert is_right()
    for one in waiting():
        one.process.kill()
        one.process.wait()
    assert is_right()
    assert all(one.process.poll() is None for one in waiting())


def test_one_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_right()
    stopped = waiting()
    for one in stopped:
        one.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(workers, "LIMIT", 0.2)
    assert is_right()
    assert any(one.process.returncode == -signal.SIGKILL for one in stopped)


@pytest.mark.parametrize("executable", [None, "", "/nothing/here", sys.prefix])
def test_where_none_can_be_started_it_is_computed_here(
    executable: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert is_right()
    assert not waiting()


def test_a_program_that_holds_a_python_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There, files of Colonnade exist by name alone, and what would be run is the
    program itself."""
    monkeypatch.setattr(worker, "__file__", str(tmp_path / "packed.pyc"))
    monkeypatch.setattr(workers, "Popen", None)
    assert is_right()


def test_a_new_one_that_fails_is_the_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty.py").touch()
    monkeypatch.setattr(worker, "__file__", str(tmp_path / "empty.py"))
    assert is_right()
    monkeypatch.setattr(workers, "Worker", None)  # no call of it would be survived
    assert is_right()


def test_where_no_thread_can_be_started_it_is_computed_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert is_right()


def test_a_forked_process_leaves_the_pipes_alone() -> None:
    assert is_right()
    child = fork()
    if not child:
        os._exit(0 if is_right() and workers.POOL.usable(points.__file__) == 1 else 1)
    assert all(is_right() for _ in range(20))
    assert os.waitpid(child, 0)[1] == 0


def test_an_interruption_is_the_askers_business() -> None:
    assert is_right()
    before = waiting()
    for one in before:
        one.process.send_signal(signal.SIGINT)
    assert is_right()
    assert set(waiting()) == set(before)


def test_a_process_has_packages_of_this_one_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither files of the current folder, nor what the environment names, nor secrets
    that stand in it."""
    for name in ("struct", "numpy", "coincurve", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("print('no answer', flush=True)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "sitecustomize.py"))
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setenv("PASSWORD", "swordfish")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    one = workers.Worker(many.__file__)
    assert one.ask(many.DECOMPRESS, [BLINDED])[0] == many.decompress(BLINDED).tobytes()  # type: ignore[index]
    assert b"swordfish" not in Path(f"/proc/{one.process.pid}/environ").read_bytes()
    one.end()


def test_a_secret_stands_on_no_command_line_and_in_no_environment() -> None:
    assert is_right()
    for one in waiting():
        seen = b"".join(
            Path(f"/proc/{one.process.pid}/{what}").read_bytes()
            for what in ("cmdline", "environ")
        )
        assert points.__file__.encode() in seen
        assert SECRET not in seen
        assert SECRET.hex().encode() not in seen


def test_a_process_ends_with_its_input_and_after_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = workers.Worker(points.__file__)
    assert one.ask(CHECK, [BLINDED, b""]) == [b""]
    assert one.process.stdin is not None
    one.process.stdin.close()
    assert one.process.wait(10) == 0
    one.end()
    monkeypatch.setattr(worker, "PATIENCE", 0.0)
    readable, writable = os.pipe()
    with os.fdopen(readable, "rb") as source, os.fdopen(writable, "wb"):
        # returns, although the input is open
        worker.serve(points.work, source, io.BytesIO())


@pytest.mark.parametrize("program", [points, many])
def test_a_process_needs_nothing_of_colonnade(program: Any) -> None:
    """So it starts in a fraction of a second, and holds neither tables nor models."""
    code = (
        "import runpy, sys; worker = runpy.run_path(sys.argv[1]);"
        " worker['program'](sys.argv[2]);print(sorted(m for m in sys.modules if"
        " 'colonnade' in m or 'torch' in m))"
    )
    command = [sys.executable, "-c", code, worker.__file__, program.__file__]
    assert (
        subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
