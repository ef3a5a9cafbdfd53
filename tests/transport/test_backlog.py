"""What parties left to be done: each party's tasks in their order, all of them, and
none after one that failed."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from tests.conformance.echo import Sleep

from colonnade.errors import PartyError
from colonnade.transport import backlog
from colonnade.transport.backlog import Backlog


@pytest.fixture
def threads_that_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_that_change_often")
@pytest.mark.parametrize("turn", [0.0, 1e-4])
def test_nothing_is_left_out_or_done_out_of_order(
    turn: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However tasks come, whoever waits for a party meanwhile, and whatever fails."""
    monkeypatch.setattr(backlog, "TURN", turn)
    for seed in range(80):
        chance = random.Random(seed)
        names = "abcdefg"[: chance.randint(1, 7)]
        asked = dict.fromkeys(names, 0)
        done = {name: list[int]() for name in names}
        fails = {
            name: chance.randint(0, 30) if chance.random() < 0.2 else 10**6
            for name in names
        }

        def task(
            name: str,
            number: int,
            work: int,
            done: dict[str, list[int]],
            fails: dict[str, int],
        ) -> None:
            sum(range(work))
            if number == fails[name]:
                raise ArithmeticError(name)
            done[name].append(number)

        with ThreadPoolExecutor(chance.randint(1, 4)) as pool:
            left = Backlog(pool)
            for _ in range(chance.randint(1, 40)):
                name = chance.choice(names)
                count = chance.randint(0, 4)
                numbers = range(asked[name], asked[name] + count)
                tasks = [
                    partial(task, name, n, chance.choice([0, 100, 3000]), done, fails)
                    for n in numbers
                ]
                left.add(name, Sleep(0.0), tasks)
                asked[name] += count
                if chance.random() < 0.3 and fails[name] >= asked[name]:
                    left.catch_up(name)
                    assert len(done[name]) == asked[name]
            if any(fails[name] < asked[name] for name in names):
                with pytest.raises(PartyError, match="ArithmeticError"):
                    left.finish()
            else:
                left.finish()
            assert done == {
                name: list(range(min(fails[name], asked[name]))) for name in names
            }


def test_where_threads_are_gone_nobody_waits_for_them() -> None:
    """As where the interpreter ends, or no thread can be started any more."""
    pool = ThreadPoolExecutor(1)
    done = list[str]()
    left = Backlog(pool)
    left.add(
        "ada", Sleep(0.0), [partial(time.sleep, 0.02), partial(done.append, "ada")]
    )
    pool.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="after shutdown"):
        left.add("bob", Sleep(0.0), [partial(done.append, "bob")])
    left.finish()
    assert done == ["ada"]
