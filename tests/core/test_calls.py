"""Each call is answered once; an old one never again, however the deliveries are
ordered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.core import Message
from colonnade.core.party import CALL_WINDOW, AnsweredCalls


class Reply(Message):
    to: int


def deliver(numbers: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Which deliveries were executed, answered from memory, and refused."""
    calls: AnsweredCalls | None = None
    executed = []
    remembered = []
    refused = []
    for number in numbers:
        if calls is not None and number == calls.newest:
            assert calls.reply == Reply(number)
            remembered.append(number)
            continue
        if calls is not None and number < calls.newest and not calls.is_late(number):
            refused.append(number)
            continue
        executed.append(number)
        if calls is None:
            calls = AnsweredCalls(number, Reply(number))
        else:
            calls.note(number, Reply(number))
    return executed, remembered, refused


@given(
    st.lists(st.integers(0, 3 * CALL_WINDOW), max_size=60)
    | st.lists(st.integers(0, 12), max_size=60)
)
@settings(max_examples=100)
def test_no_number_is_ever_executed_twice_and_new_ones_in_the_window_always_are(
    numbers: list[int],
) -> None:
    executed, _, _ = deliver(numbers)
    assert len(executed) == len(set(executed))
    newest = -1
    for place, number in enumerate(numbers):
        if number not in numbers[:place] and number > newest - CALL_WINDOW:
            assert number in executed
        newest = max(newest, number)


@given(st.lists(st.integers(0, 2**62), max_size=60, unique=True).map(sorted))
@settings(max_examples=100)
def test_growing_numbers_are_all_executed_and_their_replay_as_a_whole_is_refused(
    numbers: list[int],
) -> None:
    executed, remembered, refused = deliver(numbers + numbers)
    assert executed == numbers
    assert refused == numbers[:-1]
    assert remembered == numbers[-1:]


def test_the_newest_is_answered_from_memory_and_a_late_one_executed_once() -> None:
    assert deliver([10, 12, 12, 11, 11, 12]) == ([10, 12, 11], [12, 12], [11])


def test_the_window_ends_where_it_says() -> None:
    assert deliver([1000, 1001 - CALL_WINDOW, 1000 - CALL_WINDOW])[2] == [
        1000 - CALL_WINDOW
    ]


def test_what_many_late_calls_push_out_of_memory_is_outside_the_window_by_then() -> (
    None
):
    late = [1000, *range(1001 - CALL_WINDOW, 1000), *range(1001, 1000 + CALL_WINDOW)]
    executed, _, refused = deliver([*late, *late])
    assert executed == late
    assert refused == late[:-1]
