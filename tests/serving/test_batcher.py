"""Coalescing and memory: the parties are asked once for what comes together, and not
again while it is remembered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.federation.small import frames

from colonnade.errors import BudgetExhausted, NoAnswer
from colonnade.serving.batcher import MOST_FAILURES, Batcher, Busy, Unknown
from colonnade.serving.source import Row, Source

IDS = sorted(frames()["lab"]["patient"])


class Watched(Source):
    """A real source that notes what it was asked for, waits at a door, and refuses
    spent rows."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: list[list[str]] = []
        self.door = threading.Event()
        self.door.set()
        self.spent: set[str] = set()
        self.silent = False
        self.away: tuple[str, ...] = ()

    def ask(self, ids: object) -> list[Row]:
        assert isinstance(ids, list)
        self.asked.append(ids)
        self.door.wait()
        if self.silent:
            raise NoAnswer("lab", "Embed", None, "it does not answer")
        if self.spent & set(ids):
            raise BudgetExhausted("'lab' will not release \"embedding\" again")
        rows = super().ask(ids)
        return [
            Row(r.id, r.prediction, r.scores, r.answered[len(self.away) :], self.away)
            for r in rows
        ]


@pytest.fixture
def source(finished: Path) -> Iterator[Watched]:
    one = Watched(finished / "run")
    yield one
    one.door.set()


def ids_of(answer: Future[list[Row]]) -> list[str]:
    return [row.id for row in answer.result(timeout=10)]


def test_what_comes_together_is_asked_for_once(source: Watched) -> None:
    batcher = Batcher(source, window=0.2, cache=0)
    wanted = [IDS[number : number + 3] for number in range(20)]
    answers = [batcher.ask(ids) for ids in wanted]
    assert [ids_of(answer) for answer in answers] == wanted
    # each row once, though most were asked for three times
    assert source.asked == [IDS[:22]]
    assert batcher.metrics.total("batches") == 1
    batcher.close()


def test_without_a_window_each_is_asked_for_alone(source: Watched) -> None:
    batcher = Batcher(source, window=0, cache=0)
    source.door.clear()
    answers = [batcher.ask([one]) for one in IDS[:5]]
    source.door.set()
    assert [ids_of(answer) for answer in answers] == [[one] for one in IDS[:5]]
    assert source.asked == [[one] for one in IDS[:5]]
    batcher.close()


def test_a_row_is_remembered_for_its_time(source: Watched) -> None:
    batcher = Batcher(source, window=0, cache=0.5)
    first = batcher.ask(IDS[:3]).result()
    again = batcher.ask([IDS[1], IDS[0], IDS[1]])
    assert again.done()  # at once
    assert again.result() == [first[1], first[0], first[1]]
    assert ids_of(batcher.ask(IDS[2:5])) == IDS[2:5]
    assert source.asked == [IDS[:3], IDS[3:5]]
    time.sleep(0.6)
    batcher.ask(IDS[:1]).result()
    assert source.asked[2:] == [IDS[:1]]
    batcher.forget()
    batcher.ask(IDS[:1]).result()
    assert source.asked[3:] == [IDS[:1]]
    batcher.close()


def test_a_row_that_a_party_was_missing_for_is_asked_for_again(source: Watched) -> None:
    batcher = Batcher(source, window=0, cache=60)
    source.away = ("lab",)
    assert batcher.ask(IDS[:1]).result()[0].missing == ("lab",)
    assert 'party_missing_total{party="lab"} 1' in batcher.metrics.text()
    source.away = ()
    assert batcher.ask(IDS[:1]).result()[0].missing == ()
    batcher.close()


def test_unknown_ids_fail_their_own_request_and_say_how_many(source: Watched) -> None:
    batcher = Batcher(source, window=0.2)
    bad = batcher.ask(["nobody", IDS[0], "none"])
    good = batcher.ask(IDS[:2])
    with pytest.raises(
        Unknown, match=r"^2 of the 3 ids asked for cannot be predicted"
    ) as told:
        bad.result()
    assert "nobody" not in str(told.value)
    assert ids_of(good) == IDS[:2]
    assert batcher.metrics.total("rows_unknown") == 2
    batcher.close()


def test_where_callers_may_know_unknown_ids_they_get_the_other_rows(
    source: Watched,
) -> None:
    batcher = Batcher(source, window=0.2, name_missing=True)
    some = batcher.ask(["nobody", IDS[0], "none", IDS[0]])
    good = batcher.ask(IDS[:2])
    none = batcher.ask(["nobody"])
    assert ids_of(some) == ["nobody", IDS[0], "none", IDS[0]]
    assert [row.is_unknown for row in some.result()] == [True, False, True, False]
    assert some.result()[0].prediction is None
    assert some.result()[0].missing == (), "not which party lacks it"
    assert some.result()[1] == good.result()[0]
    with pytest.raises(Unknown, match=r"^1 of the 1 ids"):
        none.result()
    assert batcher.metrics.total("rows_unknown") == 3
    assert batcher.metrics.total("rows") == 4
    assert source.asked == [IDS[:2]]
    batcher.close()


def test_a_spent_budget_refuses_those_who_ask_for_its_rows_alone(
    source: Watched,
) -> None:
    batcher = Batcher(source, window=0.2)
    source.spent = {IDS[0]}
    bad = batcher.ask(IDS[:2])
    good = batcher.ask(IDS[2:4])
    with pytest.raises(BudgetExhausted):
        bad.result()
    assert ids_of(good) == IDS[2:4]
    batcher.close()
    assert source.asked == [
        IDS[:4],
        IDS[:2],
        IDS[2:4],
        IDS[:1],
    ], "the last finds out which of the two it was"


def test_a_spent_row_costs_its_neighbours_a_few_questions_once(source: Watched) -> None:
    """Whoever kept asking for one row whose budget was spent had every batch asked for
    one by one."""
    batcher = Batcher(source, window=0.2, cache=0)
    source.spent = {IDS[5]}
    for turn in range(3):
        source.asked.clear()
        bad = [batcher.ask([IDS[5]]), batcher.ask(IDS[5:8])]
        good = [batcher.ask([one]) for one in IDS[8:40]]
        assert [ids_of(answer) for answer in good] == [[one] for one in IDS[8:40]]
        for answer in bad:
            with pytest.raises(BudgetExhausted):
                answer.result(timeout=10)
        assert len(source.asked) <= (1 if turn else 14), (
            "then it is known, and asked for no more"
        )
    batcher.close()


def test_whatever_one_request_fails_with_its_neighbours_are_answered(
    source: Watched,
) -> None:
    batcher = Batcher(source, window=0.2, cache=0)
    bad = batcher.ask([IDS[0] + "\0"])
    good = [batcher.ask([one]) for one in IDS[:4]]
    with pytest.raises(KeyError):
        bad.result(timeout=10)
    assert [ids_of(answer) for answer in good] == [[one] for one in IDS[:4]]
    batcher.close()


def test_a_party_that_is_silent_is_not_asked_again_for_each_half(
    source: Watched,
) -> None:
    batcher = Batcher(source, window=0.2, cache=0)
    source.silent = True
    for answer in [batcher.ask([one]) for one in IDS[:8]]:
        with pytest.raises(NoAnswer):
            answer.result(timeout=10)
    batcher.close()
    assert len(source.asked) == 1


def test_so_many_failures_end_a_batch(source: Watched) -> None:
    batcher = Batcher(source, window=0.3, cache=0, waiting=200)
    source.spent = set(IDS)
    for answer in [batcher.ask([one]) for one in IDS[:100]]:
        with pytest.raises((BudgetExhausted, Busy)):
            answer.result(timeout=10)
    batcher.close()
    assert len(source.asked) <= 2 * MOST_FAILURES


def test_what_cannot_be_answered_is_an_error_and_the_next_is_answered(
    source: Watched,
) -> None:
    batcher = Batcher(source, window=0, cache=0)
    # numpy drops a NUL at the end: it finds the row, under another name
    with pytest.raises(KeyError):
        batcher.ask([IDS[0] + "\0"]).result(timeout=10)
    assert ids_of(batcher.ask(IDS[:1])) == IDS[:1]
    batcher.close()


def test_more_than_may_wait_are_refused_and_the_late_are_not_asked_for(
    source: Watched,
) -> None:
    batcher = Batcher(source, window=0, cache=0, waiting=3, patience=0.3)
    source.door.clear()
    answers = [batcher.ask([one]) for one in IDS[:3]]
    with pytest.raises(Busy, match="3 requests wait already"):
        batcher.ask(IDS[:1])
    assert answers[2].cancel()  # whoever asked has gone
    time.sleep(0.4)
    source.door.set()
    assert ids_of(answers[0]) == IDS[:1]  # it was under way
    with pytest.raises(Busy, match="not answered within"):
        answers[1].result(timeout=5)
    batcher.close()
    assert source.asked == [IDS[:1]]
    assert batcher.waiting == 0


def test_closing_answers_what_waits_and_takes_nothing_more(source: Watched) -> None:
    batcher = Batcher(source, window=0.05, cache=0)
    source.door.clear()
    answers = [batcher.ask([one]) for one in IDS[:4]]
    closing = threading.Thread(target=batcher.close)
    closing.start()
    source.door.set()
    closing.join(timeout=10)
    assert [ids_of(answer) for answer in answers] == [[one] for one in IDS[:4]]
    with pytest.raises(Busy, match="stopping"):
        batcher.ask(IDS[:1])


def test_what_an_old_table_answered_is_not_kept_when_the_table_changed(
    source: Watched,
) -> None:
    batcher = Batcher(source, window=0, cache=60)
    source.door.clear()
    answer = batcher.ask(IDS[:1])
    while not source.asked:
        time.sleep(0.01)
    source._use(source._load())  # as the watch does
    batcher.forget()
    source.door.set()
    answer.result()
    batcher.ask(IDS[:1]).result()
    assert len(source.asked) == 2
    batcher.close()
