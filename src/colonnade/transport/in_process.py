"""All parties in one process: calls by reference, or through real frames, one after the
other or in threads.

Torch frees the interpreter lock while it computes, and a plain model's steps need the
interpreter only to begin (`optim.written_out`), so parties can be asked in parallel
threads. Whether that pays depends on how long an answer takes; the first calls of each
kind are timed and decide. Either way the answers come in party order, and every party
computes with one torch thread, so that the choice cannot change a single bit. What was
held back for a party (`holding`) is done ahead of its next call, and its thread goes
from one to the other without waiting for anybody.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from colonnade.core import wire
from colonnade.core.message import Message, Request, Transcript, batch_of
from colonnade.core.party import Party, all_undisturbed, cores, one_torch_thread
from colonnade.core.release import TASKS, Task
from colonnade.core.roles import Transport, by_row
from colonnade.core.wire import Envelope
from colonnade.errors import PartyError
from colonnade.transport.backlog import Backlog

R = TypeVar("R", bound=Message)
T = TypeVar("T")
Kinds = tuple[type[Message], ...]
WORTH_A_THREAD = 300e-6
"""Seconds an answer must take before a thread is faster than waiting (a hand-over costs
about 60 microseconds)."""
LOOKS = 3
NO_WARM_UP = 0.1
"""So many calls of a kind are timed and the fastest counts, since a first call also
warms up; one that takes longer than this many seconds needs no second look."""


class InProcess:
    """Carries calls between parties that live here."""

    def __init__(
        self,
        parties: Mapping[str, Party],
        *,
        through_bytes: bool = False,
        parallel: Literal["auto", "always", "never"] = "auto",
    ) -> None:
        self.parties = dict(parties)
        self.through_bytes = through_bytes
        self.parallel = parallel
        self.workers = min(len(self.parties), cores())
        # of answers, and of what they left, which never wait for it
        self._pools: dict[bool, ThreadPoolExecutor] = {}
        self._seconds: dict[Kinds, list[float]] = {}
        # requests that parties answer before their work is done
        self._leave: set[type[Message]] = set()

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        with TASKS.gathered(None):
            for held in envelope.ahead:
                self._answer(to, held)
            return self._answer(
                to, replace(envelope, ahead=()) if envelope.ahead else envelope
            )

    def _answer(self, to: str, envelope: Envelope[Request[R]]) -> R:
        party = self.parties.get(to)
        before = TASKS.count
        if party is None:
            cause = f"no such party here; there are {sorted(self.parties)}"
            raise PartyError(
                to, envelope.message.kind, batch_of(envelope.message), cause
            )
        # between two roles of one organisation nothing travels
        if not self.through_bytes or to == envelope.sender:
            # what waited may learn, also where the next call only predicts and wants no
            # gradients
            with torch.inference_mode(False) if envelope.held else nullcontext():
                reply = party.handle(envelope)
            # bytes are of what is there
            if TASKS.count > before and not self.through_bytes:
                self._leave.add(type(envelope.message))
            return reply
        frame = wire.encode(envelope)
        most = wire.MAX_FRAME  # all are here: what is unpacked was here before
        reply = party.handle(wire.decode(frame, device=party.device, most=most))
        frame = wire.encode(Envelope(to, envelope.number, reply))
        return wire.decode(  # type: ignore[no-any-return]
            frame, device=_device(envelope, party.device), most=most
        ).message

    def exchange_each(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R]:
        with one_torch_thread(len(envelopes) > 1):
            if self._in_threads(envelopes):
                leaves = not self._leave.isdisjoint(_kinds(envelopes))
                pool = self._pools.get(leaves) or self._pools.setdefault(
                    leaves, ThreadPoolExecutor(self.workers, "party")
                )
                return (self._tasks_in_threads if leaves else self._each_in_a_thread)(
                    envelopes, Backlog(pool)
                )
            start = time.perf_counter()
            replies = [
                (to, self.exchange(to, envelope))
                for to, envelope in _in_turns(envelopes)
            ]
            self._time(envelopes, time.perf_counter() - start)
            return dict(replies)

    def _each_in_a_thread(
        self, envelopes: Mapping[str, Envelope[Request[R]]], backlog: Backlog
    ) -> dict[str, R]:
        """Every party in a thread."""
        replies: dict[str, R] = {}

        def ask(to: str, envelope: Envelope[Request[R]]) -> None:
            replies[to] = self.exchange(to, envelope)

        try:
            for to, envelope in envelopes.items():
                backlog.add(to, None, [partial(ask, to, envelope)])
        finally:
            backlog.finish()
        return {to: replies[to] for to in envelopes}

    def _tasks_in_threads(
        self, envelopes: Mapping[str, Envelope[Request[R]]], backlog: Backlog
    ) -> dict[str, R]:
        """One party after the other, while threads do what each left to be done.
        Whatever else Python does is done by one thread: fourteen that wait for the
        interpreter's lock lose more time than that. First all are asked what was held
        back, and while that is under way, what comes after it. Until all is done, no
        party is asked anything else."""
        replies: dict[str, R] = {}
        pieces = self.workers // math.gcd(len(envelopes), self.workers)
        with all_undisturbed(
            self.parties[to] for to in sorted(envelopes.keys() & self.parties.keys())
        ):
            try:
                for to, envelope in _in_turns(envelopes):
                    tasks: list[Task] = []
                    with TASKS.gathered(tasks, partial(backlog.catch_up, to), pieces):
                        if to in self.parties and not self.parties[to].overlaps(
                            type(envelope.message)
                        ):
                            TASKS.catch_up()
                        replies[to] = self._answer(to, envelope)
                    backlog.add(to, envelope.message, tasks)
            # of what failed, the first: what came after it may have failed for want of
            # it
            finally:
                backlog.finish()
        return replies

    def _in_threads(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> bool:
        on_gpu = any(party.device.type == "cuda" for party in self.parties.values())
        if self.parallel == "never" or self.workers < 2 or len(envelopes) < 2 or on_gpu:
            # a GPU computes behind Python's back anyway, and no two threads may capture
            # a graph at once
            return False
        seconds = self._seconds.get(_kinds(envelopes), [])
        sure = len(seconds) >= LOOKS or min(seconds, default=0.0) > NO_WARM_UP
        return self.parallel == "always" or (sure and min(seconds) > WORTH_A_THREAD)

    def _time(
        self, envelopes: Mapping[str, Envelope[Request[R]]], seconds: float
    ) -> None:
        if (
            envelopes
            and len(taken := self._seconds.setdefault(_kinds(envelopes), [])) < LOOKS
        ):
            taken.append(seconds / len(envelopes))


def _in_turns(
    envelopes: Mapping[str, Envelope[Request[Any]]],
) -> Iterator[tuple[str, Envelope[Request[Any]]]]:
    """Each call alone: of all first what was held back, and then what comes after it.
    Whoever fails at that leaves nobody without the step before."""
    if not any(envelope.ahead for envelope in envelopes.values()):
        yield from envelopes.items()
        return
    for turn in zip_longest(
        *([(to, one) for one in e.in_order] for to, e in envelopes.items())
    ):
        yield from filter(None, turn)


def _kinds(envelopes: Mapping[str, Envelope[Request[Any]]]) -> Kinds:
    """What is asked, in its order: of all the same."""
    envelope = next(iter(envelopes.values()))
    return (*(type(held.message) for held in envelope.ahead), type(envelope.message))


def _device(envelope: Envelope[Request[R]], fallback: torch.device) -> torch.device:
    """Where the asker works: where its own tensors are."""
    sent = envelope.message.released()
    return sent[0].tensor.device if sent else fallback


A_STEP = 3
"""Forward passes that a step is worth: its own, and twice that for the gradients."""


def at_once(
    tasks: Sequence[Callable[[], T]], device: torch.device, streams: Sequence[Any] = ()
) -> list[T]:
    """On a GPU each task on a stream of its own, between what came before and what
    comes after; else in turn."""
    if device.type != "cuda" or len(tasks) < 2:
        return [task() for task in tasks]
    here = torch.cuda.current_stream(device)
    streams = streams or [torch.cuda.Stream(device) for _ in tasks]  # type: ignore[no-untyped-call]
    done = []
    for stream, task in zip(streams, tasks, strict=False):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            done.append(task())
    for stream in streams[: len(tasks)]:
        here.wait_stream(stream)
    return done


def work(model: nn.Module, row: Tensor, rows: int) -> int:
    """Floating-point operations of one forward pass over so many rows: counted, not
    timed, so that what follows from it is the same in every run."""
    if type(model) is nn.Sequential and all(
        by_row(layer) or type(layer) is nn.Flatten for layer in model
    ):
        return rows * _products(model, row)
    # which imports torch's compiler, as long as torch itself
    from torch.utils.flop_counter import FlopCounterMode

    training = model.training
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(row)
    model.train(training)
    return rows * int(counter.get_total_flops())


def _products(layers: nn.Sequential, row: Tensor) -> int:
    """The operations of a plain chain's products: the same number."""
    operations = 0
    x = row.new_empty(row.shape, device="meta")
    for layer in layers:
        if isinstance(layer, nn.Linear):
            operations += 2 * x.numel() * layer.out_features
            x = x.new_empty((*x.shape[:-1], layer.out_features))
        elif isinstance(layer, nn.Flatten):
            x = layer(x)
    return operations


class Recording:
    """Passes every call on, and writes one transcript per receiver: for tests, audits
    and pictures."""

    def __init__(self, inner: Transport, beside: Recording | None = None) -> None:
        """`beside` another that writes into the same transcripts, where several drive."""
        self.inner = inner
        self.transcripts: dict[str, Transcript] = (
            {} if beside is None else beside.transcripts
        )

    def of(self, party: str) -> Transcript:
        """What one party received."""
        return self.transcripts.setdefault(party, Transcript(party))

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        return self.exchange_each({to: envelope})[to]

    def exchange_each(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R]:
        for to, envelope in envelopes.items():
            self.of(to).add(envelope.sender, envelope.message)
        replies = self.inner.exchange_each(envelopes)
        for to, reply in replies.items():
            self.of(envelopes[to].sender).add(to, reply)
        return replies
