"""Calls that may be lost, made until they are answered: a deadline, and the same call
again under the same number.

A party does a call once however often it arrives (`core.party`), so a repeated one is
safe: it is answered from memory where it had been done, and done where it had not. Only
what was not answered (`NoAnswer`) is repeated; a party that answered that it failed
would fail again.

    deadline   seconds for each try of each call in a frame; a party may be asked again meanwhile, and then answers both
    gone       seconds without a sign of life after which nobody is waited for, as where a process was killed
    retries    how often after the first try, with pauses that double
    wait       after that: ask for a sign of life (`Ping`) until there is one, and go on; else raise

Who did not answer is first asked for a sign of life the next time, so that a party that
is gone costs each round a moment and not all its retries. And while a call that was
given up may still arrive, nothing newer is sent: a party must not meet the two in the
wrong order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from colonnade.core.message import Ping, batch_of
from colonnade.core.peers import NUMBERS, Answer, Transport, by_receiver
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, NoAnswer, PartyError

T = TypeVar("T")
Call = Envelope[Any]
Groups = Mapping[str, Sequence[Call]]
"""The calls of one exchange, by the party that they go to."""
Outcome = list[Answer] | PartyError
"""What a party answered to its calls, or why it answered none."""
log = logging.getLogger("colonnade.transport")

HEARTBEAT = 5.0
"""Seconds in which a party that is there says so, unless the deadline is shorter."""
LONGEST_PAUSE = 5.0
GONE = 60.0
"""Seconds without a sign of life after which a party that was asked is not waited for;
signs are asked for by then."""


class Gone(TimeoutError):  # noqa: N818 - a condition, not an error of its own
    """Somebody who was asked gives no sign of life."""


class Retrying:
    """Makes the calls of another transport again until they are answered, or it is
    enough."""

    def __init__(
        self,
        inner: Transport,
        *,
        deadline: float = 600.0,
        retries: int = 3,
        wait: bool = False,
        pause: float = 0.1,
        gone: float = GONE,
    ) -> None:
        self.inner = inner
        self.deadline = deadline
        self.retries = retries
        self.wait = wait
        self.pause = pause
        self.gone = gone
        self.silent: set[str] = set()  # who did not answer when last asked
        # a call that may still arrive
        self._given_up: dict[str, tuple[int, threading.Thread]] = {}

    def exchange(self, calls: Sequence[Call]) -> list[Answer]:
        """Make all calls at once; then make those again that were not answered, each
        party's for itself and under the same numbers.

        A party that said that it failed is not asked again.
        """
        groups = by_receiver(calls)
        if all(isinstance(call.message, Ping) for call in calls):
            answers = {
                to: self._or_failure(lambda to=to: self._beat(to, groups[to]))  # type: ignore[misc]
                for to in groups
            }
            return in_order(calls, answers)
        answers, tries, silence = self._all_at_once(calls, groups)
        raised: list[BaseException] = []

        def ask(to: str) -> None:
            try:
                last = silence.get(to)
                answers[to] = self._or_failure(
                    lambda: self._persist(to, groups[to], tries[to], last)
                )
            except BaseException as error:
                raised.append(error)

        threads = [
            threading.Thread(target=ask, args=(to,), daemon=True)
            for to in groups
            if to not in answers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]
        return in_order(calls, answers)

    def _all_at_once(
        self, calls: Sequence[Call], groups: Groups
    ) -> tuple[dict[str, Outcome], dict[str, int], dict[str, NoAnswer]]:
        """The first try. Gives the answers, how many tries are left for every party,
        and why those who did not answer did not."""
        tries = dict.fromkeys(groups, self.retries + 1)
        silence: dict[str, NoAnswer] = {}
        if self.silent & groups.keys():
            return {}, tries, silence
        if any(self._unfinished(to, group) for to, group in groups.items()):
            return {}, tries, silence
        answers: dict[str, Outcome] = {}
        try:
            told = self._within(
                self.deadline, groups, lambda: self.inner.exchange(calls)
            )
        except TimeoutError:  # nobody knows who was silent
            return {}, tries, silence
        by_party: dict[str, list[Answer]] = {}
        for call, answer in zip(calls, told, strict=True):
            by_party.setdefault(call.receiver, []).append(answer)
        for to, of_party in by_party.items():
            if isinstance(of_party[-1], NoAnswer):
                silence[to] = of_party[-1]
                tries[to] = self.retries
            else:
                answers[to] = of_party
        return answers, tries, silence

    def _or_failure(self, ask: Callable[[], list[Answer]]) -> Outcome:
        """What a party answered, or its failure."""
        try:
            return ask()
        except PartyError as error:
            return error

    def _beat(self, to: str, calls: Sequence[Call]) -> list[Answer]:
        return self._once(to, calls, min(self.deadline, HEARTBEAT))

    def _persist(
        self, to: str, calls: Sequence[Call], tries: int, last: NoAnswer | None
    ) -> list[Answer]:
        """Ask a party until it answers, or as often as the settings say."""
        while True:
            try:
                return self._tried(to, calls, tries, last)
            except NoAnswer as error:
                self.silent.add(to)
                tries = self.retries + 1
                if not self.wait:
                    raise
                log.warning("%s Waiting for it.", error)
                pause = self.pause
                while not self.alive(to, calls[-1].sender):
                    time.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)

    def _tried(
        self, to: str, calls: Sequence[Call], tries: int, last: NoAnswer | None
    ) -> list[Answer]:
        """At most so many tries; a party that was silent before must show first that it
        is there again."""
        if to in self.silent and not self.alive(to, calls[-1].sender):
            cause = "it did not answer before, and gives no sign of life"
            raise self._no_answer(to, calls, cause)
        pause = self.pause
        times = self.retries + 1 - tries  # with all at once, it was asked before
        last = last or self._no_answer(to, calls, "no answer")
        for number in range(tries):
            try:
                answers = self._once(to, calls, self.deadline)
            except NoAnswer as error:
                last = error
                times = times + 1
                log.info("%s (try %d of %d)", error, number + 1, tries)
                if isinstance(error.__cause__, Gone):
                    break
                if number + 1 < tries:
                    time.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self.silent.discard(to)
                return answers
        asked = "once" if times == 1 else f"{times} times"
        is_alive = self.alive(to, calls[-1].sender)
        sign = f"it gives {'a' if is_alive else 'no'} sign of life"
        cause = f"{last.cause}; asked {asked}, and {sign}"
        raise self._no_answer(to, calls, cause) from last

    def alive(self, to: str, sender: str) -> bool:
        """Whether a party answers a heartbeat, whatever it answers."""
        ping = Envelope(sender, next(NUMBERS), Ping(), receiver=to)
        try:
            self._beat(to, [ping])
        except NoAnswer:
            return False
        except (BoundaryError, PartyError):  # not served there, and said so
            return True
        return True

    def _once(self, to: str, calls: Sequence[Call], deadline: float) -> list[Answer]:
        """One try. A party that does not answer in time is a NoAnswer."""
        before = None if _is_ping(calls) else self._unfinished(to, calls)
        if before is not None:
            before.join(deadline)
            if before.is_alive():
                cause = (
                    f"a call before this one is still under way after {deadline:g} s"
                )
                raise self._no_answer(to, calls, cause)
        try:
            answers = self._within(
                deadline, {to: calls}, lambda: self.inner.exchange(calls)
            )
        except Gone as error:
            cause = f"no sign of life for {self.gone:g} s"
            raise self._no_answer(to, calls, cause) from error
        except TimeoutError:
            cause = f"no answer within {deadline:g} s"
            raise self._no_answer(to, calls, cause) from None
        if isinstance(answers[-1], PartyError):
            raise answers[-1]
        return answers

    def _unfinished(self, to: str, calls: Sequence[Call]) -> threading.Thread | None:
        """The thread of an earlier call to a party that was given up and may still
        arrive."""
        number, thread = self._given_up.get(to, (calls[-1].number, None))
        if number == calls[-1].number or thread is None or not thread.is_alive():
            return None
        return thread

    def _within(self, deadline: float, groups: Groups, call: Callable[[], T]) -> T:
        """The result of a call, or a TimeoutError after the deadline, which is for each
        call to a party; Gone where somebody gives no sign of life."""
        found: list[T | BaseException] = []

        def run() -> None:
            try:
                found.append(call())
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=run, daemon=True, name="call")
        thread.start()
        most_calls = max((len(calls) for calls in groups.values()), default=1)
        all_there = self._wait(thread, deadline * most_calls, groups)
        if not found:
            for to, calls in groups.items():
                if not _is_ping(calls):
                    self._given_up[to] = calls[-1].number, thread
            raise TimeoutError if all_there else Gone
        answer = found[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _wait(
        self,
        thread: threading.Thread,
        deadline: float,
        groups: Groups,
    ) -> bool:
        """Until it ends or its time is over; or somebody who was asked is gone, and
        then False."""
        until = time.monotonic() + deadline
        last = dict.fromkeys(groups, time.monotonic())
        beating = [to for to, calls in groups.items() if not _is_ping(calls)]
        # an answer that arrives does not wait for who says nothing
        pings: dict[str, threading.Thread] = {}
        gone: list[str] = []

        def ping(to: str) -> None:
            if self.alive(to, groups[to][-1].sender):
                last[to] = time.monotonic()
            elif time.monotonic() - last[to] > self.gone:
                gone.append(to)

        while not gone and thread.is_alive() and (left := until - time.monotonic()) > 0:
            thread.join(min(left, self.gone / 4) if beating else left)
            for to in beating if thread.is_alive() and time.monotonic() < until else ():
                if to not in pings or not pings[to].is_alive():
                    pings[to] = threading.Thread(
                        target=ping, args=(to,), daemon=True, name="ping"
                    )
                    pings[to].start()
        return not gone

    def _no_answer(self, to: str, calls: Sequence[Call], cause: str) -> NoAnswer:
        message = calls[-1].message
        return NoAnswer(to, message.kind, batch_of(message), cause)


def in_order(calls: Sequence[Call], answers: Mapping[str, Outcome]) -> list[Answer]:
    """The answers to calls, in the order of the calls."""
    left = {to: iter(found) for to, found in answers.items() if isinstance(found, list)}
    told: list[Answer] = []
    for call in calls:
        outcome = answers[call.receiver]
        failed = isinstance(outcome, PartyError)
        told.append(outcome if failed else next(left[call.receiver]))  # type: ignore[arg-type]
    return told


def _is_ping(calls: Sequence[Call]) -> bool:
    return isinstance(calls[-1].message, Ping)
