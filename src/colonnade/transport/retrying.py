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
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from colonnade.core.message import Message, Ping, Request, batch_of
from colonnade.core.roles import NUMBERS, Attempting, Transport
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, NoAnswer, PartyError

R = TypeVar("R", bound=Message)
T = TypeVar("T")
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

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        if isinstance(envelope.message, Ping):
            return self._once(to, envelope, min(self.deadline, HEARTBEAT))
        return self._persist(to, envelope, self.retries + 1)

    def exchange_each(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R]:
        return self._each(envelopes, raising=PartyError)  # type: ignore[return-value]

    def attempt_each(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R | PartyError]:
        return self._each(envelopes, raising=())

    def _each(
        self,
        envelopes: Mapping[str, Envelope[Request[R]]],
        raising: type[PartyError] | tuple[()],
    ) -> dict[str, R | PartyError]:
        """All at once, as the other transport does it best; where that fails, each for
        itself with the same number. Who said that it failed is not asked again, where
        the other transport can tell who did."""
        tries = dict.fromkeys(envelopes, self.retries + 1)
        first: dict[str, NoAnswer] = {}
        found: dict[str, R | BaseException] = {}
        if not self.silent & envelopes.keys() and not any(
            self._unfinished(to, e) for to, e in envelopes.items()
        ):
            try:
                if not raising and isinstance(inner := self.inner, Attempting):
                    told = self._within(
                        self.deadline, envelopes, lambda: inner.attempt_each(envelopes)
                    )
                    first = {
                        to: answer
                        for to, answer in told.items()
                        if isinstance(answer, NoAnswer)
                    }
                    tries |= dict.fromkeys(first, self.retries)
                    found |= {
                        to: answer for to, answer in told.items() if to not in first
                    }
                else:
                    return dict(
                        self._within(
                            self.deadline,
                            envelopes,
                            lambda: self.inner.exchange_each(envelopes),
                        )
                    )
            except TimeoutError:  # nobody knows whose
                pass
            except NoAnswer as error:
                tries[error.party], first[error.party] = self.retries, error
            except raising:
                raise
            except PartyError:
                pass

        def ask(to: str) -> None:
            try:
                found[to] = self._persist(to, envelopes[to], tries[to], first.get(to))
            except BaseException as error:
                found[to] = error

        threads = [
            threading.Thread(target=ask, args=(to,), daemon=True)
            for to in envelopes
            if to not in found
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for to in envelopes:
            answer = found[to]
            if isinstance(answer, BaseException) and (
                not isinstance(answer, PartyError)
                or (raising and isinstance(answer, raising))
            ):
                raise answer
        return {to: found[to] for to in envelopes}  # type: ignore[misc]

    def _persist(
        self,
        to: str,
        envelope: Envelope[Request[R]],
        tries: int,
        last: NoAnswer | None = None,
    ) -> R:
        while True:
            try:
                return self._tried(to, envelope, tries, last)
            except NoAnswer as error:
                self.silent.add(to)
                tries = self.retries + 1
                if not self.wait:
                    raise
                log.warning("%s Waiting for it.", error)
                pause = self.pause
                while not self.alive(to, envelope.sender):
                    time.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)

    def _tried(
        self, to: str, envelope: Envelope[Request[R]], tries: int, last: NoAnswer | None
    ) -> R:
        """At most so many tries; a party that was silent before must show first that it
        is there again."""
        if to in self.silent and not self.alive(to, envelope.sender):
            raise self._no_answer(
                to, envelope, "it did not answer before, and gives no sign of life"
            )
        pause = self.pause
        times = self.retries + 1 - tries  # with all at once, it was asked before
        last = last or self._no_answer(to, envelope, "no answer")
        for number in range(tries):
            try:
                reply = self._once(to, envelope, self.deadline)
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
                return reply
        asked = "once" if times == 1 else f"{times} times"
        sign = (
            "it gives a sign of life"
            if self.alive(to, envelope.sender)
            else "it gives no sign of life"
        )
        raise self._no_answer(
            to, envelope, f"{last.cause}; asked {asked}, and {sign}"
        ) from last

    def alive(self, to: str, sender: str) -> bool:
        """Whether a party answers a heartbeat, whatever it answers."""
        try:
            self._once(
                to,
                Envelope(sender, next(NUMBERS), Ping()),
                min(self.deadline, HEARTBEAT),
            )
        except NoAnswer:
            return False
        except (BoundaryError, PartyError):  # not served there, and said so
            return True
        return True

    def _once(self, to: str, envelope: Envelope[Request[R]], deadline: float) -> R:
        if (
            not isinstance(envelope.message, Ping)
            and (before := self._unfinished(to, envelope)) is not None
        ):
            before.join(deadline)
            if before.is_alive():
                raise self._no_answer(
                    to,
                    envelope,
                    f"a call before this one is still under way after {deadline:g} s",
                )
        try:
            return self._within(
                deadline, {to: envelope}, lambda: self.inner.exchange(to, envelope)
            )
        except Gone as error:
            raise self._no_answer(
                to, envelope, f"no sign of life for {self.gone:g} s"
            ) from error
        except TimeoutError:
            raise self._no_answer(
                to, envelope, f"no answer within {deadline:g} s"
            ) from None

    def _unfinished(self, to: str, envelope: Envelope[Any]) -> threading.Thread | None:
        number, thread = self._given_up.get(to, (envelope.number, None))
        return (
            thread
            if number != envelope.number and thread is not None and thread.is_alive()
            else None
        )

    def _within(
        self,
        deadline: float,
        envelopes: Mapping[str, Envelope[Any]],
        call: Callable[[], T],
    ) -> T:
        found: list[T | BaseException] = []

        def run() -> None:
            try:
                found.append(call())
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=run, daemon=True, name="call")
        thread.start()
        calls = max(
            (1 + len(envelope.ahead) for envelope in envelopes.values()), default=1
        )
        all_there = self._wait(thread, deadline * calls, envelopes)
        if not found:
            for to, envelope in envelopes.items():
                if not isinstance(envelope.message, Ping):
                    self._given_up[to] = envelope.number, thread
            raise TimeoutError if all_there else Gone
        answer = found[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _wait(
        self,
        thread: threading.Thread,
        deadline: float,
        envelopes: Mapping[str, Envelope[Any]],
    ) -> bool:
        """Until it ends or its time is over; or somebody who was asked is gone, and
        then False."""
        until = time.monotonic() + deadline
        last = dict.fromkeys(envelopes, time.monotonic())
        beating = [
            to
            for to, envelope in envelopes.items()
            if not isinstance(envelope.message, Ping)
        ]
        # an answer that arrives does not wait for who says nothing
        pings: dict[str, threading.Thread] = {}
        gone: list[str] = []

        def ping(to: str) -> None:
            if self.alive(to, envelopes[to].sender):
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

    def _no_answer(self, to: str, envelope: Envelope[Any], cause: str) -> NoAnswer:
        return NoAnswer(to, envelope.message.kind, batch_of(envelope.message), cause)
