"""Parties in one process: calls by reference or through real frames, in turn or in
threads.

Torch frees the interpreter's lock while it computes, so parties that have much to
compute are asked in parallel threads. Whether that pays depends on how long an answer
takes; the first rounds of each kind are timed and decide. Every party computes with one
torch thread and has random numbers of its own, so the choice cannot change a bit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Literal

from colonnade.core import wire
from colonnade.core.message import Message, batch_of
from colonnade.core.party import Party, cores, one_torch_thread
from colonnade.core.peers import Answer, Transport, by_receiver
from colonnade.core.transcript import Transcript
from colonnade.core.wire import Envelope
from colonnade.errors import PartyError

Call = Envelope[Any]
Parallel = Literal["auto", "always", "never"]
RoundKind = tuple[type[Message], ...]

WORTH_A_THREAD = 300e-6
"""Seconds that an answer must take before threads are faster than asking in turn. To
hand a call over to a thread costs about 60 microseconds."""

TIMED_ROUNDS = 3
"""Rounds of a kind that are timed. The fastest counts, since a first one warms up."""

NO_WARM_UP = 0.1
"""Seconds of an answer from which one timed round is enough."""


class InProcess:
    """Carries calls to parties that live in this process.

    Args:
        parties: The parties, by name.
        through_bytes: Whether calls and replies are encoded and decoded on their way, as
            between machines.
        parallel: Whether parties are asked in threads: where it pays ("auto"), wherever
            several are asked ("always"), or not at all ("never").
    """

    def __init__(
        self,
        parties: Mapping[str, Party],
        *,
        through_bytes: bool = False,
        parallel: Parallel = "auto",
    ) -> None:
        self.parties = dict(parties)
        self.through_bytes = through_bytes
        self.parallel = parallel
        self._workers = min(len(self.parties), cores())
        self._pool: ThreadPoolExecutor | None = None
        self._seconds: dict[RoundKind, list[float]] = {}

    def exchange(self, calls: Sequence[Call]) -> list[Answer]:
        """Answer calls, those to one party in their order.

        Everybody is asked, also after somebody failed, so that the parties' states do
        not depend on whether threads are used.
        """
        groups = by_receiver(calls)
        with one_torch_thread(len(groups) > 1):
            if self._pays_in_threads(groups):
                outcomes = self._in_threads(groups)
            else:
                start = time.perf_counter()
                outcomes = {to: self._in_order(group) for to, group in groups.items()}
                self._note_time(groups, time.perf_counter() - start)
        left = {to: iter(of_party) for to, of_party in outcomes.items()}
        return raise_unless_answers([next(left[call.receiver]) for call in calls])

    def _in_threads(
        self, groups: Mapping[str, Sequence[Call]]
    ) -> dict[str, list[Answer | Exception]]:
        """Ask every party in a thread, and wait for all, also where a user interrupts."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, "party")
        under_way = {
            to: self._pool.submit(self._in_order, group) for to, group in groups.items()
        }
        try:
            wait(under_way.values())
        except KeyboardInterrupt:
            wait(under_way.values())
            raise
        return {to: answered.result() for to, answered in under_way.items()}

    def _in_order(self, calls: Sequence[Call]) -> list[Answer | Exception]:
        """Answer the calls to one party. After one that failed, no other is done."""
        outcomes: list[Answer | Exception] = []
        for call in calls:
            try:
                outcomes.append(self._answer(call))
            except Exception as error:
                not_done = len(calls) - len(outcomes)
                return [*outcomes, *[error] * not_done]
        return outcomes

    def _answer(self, call: Call) -> Message:
        party = self.parties.get(call.receiver)
        if party is None:
            raise PartyError(
                call.receiver,
                call.message.kind,
                batch_of(call.message),
                f"no such party here; there are {sorted(self.parties)}",
            )
        crosses = call.receiver != call.sender  # else between two roles of one party
        if not (self.through_bytes and crosses):
            return party.handle(call)  # type: ignore[no-any-return]
        # Both ends are in this process, so what is unpacked was in its memory before.
        most = wire.MAX_FRAME
        frame = wire.encode(call)
        reply = party.handle(wire.decode(frame, device=party.device, most=most))
        answer = Envelope(call.receiver, call.number, reply, receiver=call.sender)
        sent = call.message.released()
        asker_device = sent[0].tensor.device if sent else party.device
        decoded = wire.decode(wire.encode(answer), device=asker_device, most=most)
        return decoded.message  # type: ignore[no-any-return]

    def _pays_in_threads(self, groups: Mapping[str, Sequence[Call]]) -> bool:
        if self.parallel == "never" or self._workers < 2 or len(groups) < 2:
            return False
        # A GPU computes while Python goes on anyway, and no two threads may capture a
        # graph at once.
        if any(party.device.type == "cuda" for party in self.parties.values()):
            return False
        if self.parallel == "always":
            return True
        seconds = self._seconds.get(_kind(groups), [])
        if not seconds:
            return False
        is_known = len(seconds) >= TIMED_ROUNDS or min(seconds) > NO_WARM_UP
        return is_known and min(seconds) > WORTH_A_THREAD

    def _note_time(self, groups: Mapping[str, Sequence[Call]], seconds: float) -> None:
        if not groups:
            return
        known = self._seconds.setdefault(_kind(groups), [])
        if len(known) < TIMED_ROUNDS:
            known.append(seconds / len(groups))


def raise_unless_answers(outcomes: Sequence[Answer | Exception]) -> list[Answer]:
    """Give replies and the failures of parties; raise the first error of another kind."""
    answers: list[Answer] = []
    for outcome in outcomes:
        if isinstance(outcome, Exception) and not isinstance(outcome, PartyError):
            raise outcome
        answers.append(outcome)
    return answers


def _kind(groups: Mapping[str, Sequence[Call]]) -> RoundKind:
    """What is asked in a round: by the first party's calls, as all are asked alike."""
    first_group = next(iter(groups.values()))
    return tuple(type(call.message) for call in first_group)


class Recording:
    """Passes every call on, and writes one transcript per receiver: for tests, audits
    and pictures.

    Args:
        inner: The transport that carries the calls.
        beside: Another recording that writes into the same transcripts, where several
            parties drive.
    """

    def __init__(self, inner: Transport, beside: Recording | None = None) -> None:
        self.inner = inner
        self.transcripts: dict[str, Transcript] = (
            {} if beside is None else beside.transcripts
        )

    def of(self, party: str) -> Transcript:
        """The transcript of what one party received."""
        return self.transcripts.setdefault(party, Transcript(party))

    def exchange(self, calls: Sequence[Call]) -> list[Answer]:
        for call in calls:
            self.of(call.receiver).add(call.sender, call.message)
        answers = self.inner.exchange(calls)
        for call, answer in zip(calls, answers, strict=True):
            if not isinstance(answer, PartyError):
                self.of(call.sender).add(call.receiver, answer)
        return answers
