"""What FLARE starts for the battery over its simulator: sites that host the toy's
parties, and one that drives them.

It is imported by FLARE's processes alone, and needs FLARE. `test_flare_simulator`
starts it and reads what it wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from nvflare.collab import collab
from tests.conformance.battery import EVERY, STEPS
from tests.conformance.toy import NAMES, TASKS, can, federation, flat
from torch import Tensor

from colonnade.core import (
    Batches,
    Done,
    Envelope,
    Ledger,
    Message,
    Organisation,
    Party,
    Peers,
    Released,
    Request,
    serves,
)
from colonnade.core.failure import Failure
from colonnade.core.wire import decode, encode
from colonnade.flare.members import ASK, DONE, FAILED, RUNNING
from colonnade.transport import Retrying
from colonnade.transport.holding import Holding
from colonnade.transport.remote import (
    ANSWER,
    HEAD,
    NONE,
    WHOLE,
    Endpoint,
    Remote,
    Route,
)

RESULTS = "TOY_RESULTS"
DRIVER = "driver"
SITES = (DRIVER, *NAMES[:3])
LARGE = 256 << 20


class Digest(Message):
    state: str


class Build(Request[Done]):
    """Be the party of this name in the toy federation of an algorithm."""

    algorithm: str
    task: str


class Tell(Request[Digest]):
    """What must be remembered, as a digest."""


class Vector(Message):
    values: Released
    peak: int  # the process's largest memory so far, in bytes


class Grow(Request[Vector]):
    """So many bytes, made here."""

    size: int


class Rest(Request[Vector]):
    """Answer only after so many seconds."""

    seconds: float


class Swallow(Request[Vector]):
    values: Released


class Sum(Request[Vector]):
    """Drive the others while you are asked: what `Grow` gives of each, added up."""


def digest(state: Any) -> str:
    """Equal exactly for states that are equal to the bit."""
    found = hashlib.sha256()
    for path, value in sorted(flat(state).items()):
        found.update(path.encode())
        content = (
            value.contiguous().numpy().tobytes()
            if isinstance(value, Tensor)
            else repr(value).encode()
        )
        found.update(content)
    return found.hexdigest()


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Host(Party):
    """A site's own part: what it is besides the toy's party."""

    peers: Peers

    def __init__(self, name: str) -> None:
        super().__init__(
            Organisation.at(name, Batches({}, batch_size=1, epochs=1, seed=0))
        )
        self.party: Party | None = None

    def let(self, sender: str, kind: type[Request[Any]]) -> None:
        role = self if kind in self.served() or self.party is None else self.party
        role.allow(sender, kind)

    def hand(self, envelope: Envelope[Any]) -> Message:
        if type(envelope.message) in self.served():
            answer: Message = self.handle(envelope)
            return answer
        assert self.party is not None
        reply: Message = self.party.handle(envelope)
        return reply

    @serves
    def build(self, request: Build) -> Done:
        task: Any = request.task
        self.party = federation(
            EVERY[request.algorithm], task=task, driver=DRIVER
        ).parties[self.name]
        # what the toy's own driver asked here to meet it, under the same name
        self.party._answered.clear()
        return Done()

    @serves
    def tell(self, request: Tell) -> Digest:
        assert self.party is not None
        return Digest(digest(self.party.state()))

    @serves
    def grow(self, request: Grow) -> Vector:
        values = self.outbox.release(torch.ones(request.size // 4), "values")
        return Vector(values, peak())

    @serves
    def rest(self, request: Rest) -> Vector:
        time.sleep(request.seconds)
        return Vector(self.outbox.release(torch.ones(1), "values"), peak())

    @serves
    def swallow(self, request: Swallow) -> Vector:
        return Vector(
            self.outbox.release(request.values.tensor.sum()[None], "values"), peak()
        )

    @serves
    def sum(self, request: Sum) -> Vector:
        replies = self.peers.ask(Grow(40))
        total = torch.stack([reply.values.tensor for reply in replies.values()]).sum(0)
        return Vector(self.outbox.release(total, "values"), peak())


class ToyMember:
    """At every site; the driver runs all experiments and writes what came out."""

    def __init__(self) -> None:
        self.state = b""

    def start(self) -> None:
        torch.set_num_threads(1)
        self.name = str(collab.site_name)
        self.host = Host(self.name)
        self.refused: list[str] = []
        others = [name for name in SITES if name != self.name]
        self.endpoint = Endpoint(
            self.name,
            self.host.hand,
            admitted=others,
            allow=self.host.let,
            refused=lambda caller, _why: self.refused.append(caller),
        )
        self.routes: dict[str, Route] = {
            p.name: self._line(p) for p in collab.other_clients
        }
        below = {name: line for name, line in self.routes.items() if name != DRIVER}
        self.host.peers = Peers(self.name, below, Remote(below), Ledger(self.name))

    def _line(self, proxy: Any) -> Route:
        return lambda data, deadline: bytes(proxy(timeout=deadline).call(data))

    def call(self, data: bytes) -> bytes:
        if str(collab.caller) != "server":
            return self.endpoint(str(collab.caller), bytes(data))
        if data != ASK:
            self.state = RUNNING
            threading.Thread(target=self._experiment, daemon=True).start()
        return self.state

    def _experiment(self) -> None:
        found: dict[str, Any] = {}
        try:
            for name, experiment in (
                ("algorithms", self._algorithms),
                ("others", self._others),
            ):
                found[name] = experiment()
            self.state = DONE
        except BaseException:
            found["error"] = traceback.format_exc()
            self.state = FAILED
        Path(os.environ[RESULTS]).write_text(json.dumps(found))

    def _algorithms(self) -> dict[str, Any]:
        """Every algorithm and task over the lines: losses, and digests of what every
        site must remember."""
        others = Peers(DRIVER, SITES[1:], Remote(self.routes), Ledger(DRIVER))
        carrier = Holding(Retrying(Remote(self.routes)))  # as in a run
        found = {}
        for name, algorithm in EVERY.items():
            for task in TASKS:
                if not can(algorithm, task):
                    continue
                start = time.perf_counter()
                others.ask(Build(name, task))
                toy = federation(
                    algorithm, lambda _parties: carrier, task=task, driver=DRIVER
                )
                losses = toy.run(STEPS)
                toy.peers.settle()
                states = {
                    site: reply.state for site, reply in others.ask(Tell()).items()
                }
                found[f"{name}/{task}"] = {
                    "losses": losses,
                    "states": states | {DRIVER: digest(toy.driver.state())},
                    "predicted": digest(toy.predict()),
                    "seconds": time.perf_counter() - start,
                }
        return found

    def _others(self) -> dict[str, Any]:
        peers = Peers(DRIVER, SITES[1:], Remote(self.routes), Ledger(DRIVER))
        before = {name: peers[name].ask(Grow(4)).peak for name in ("ada", "bob")}
        own = peak()
        start = time.perf_counter()
        grown = peers["ada"].ask(Grow(LARGE)).values
        seconds = time.perf_counter() - start
        gained = peak() - own
        sent = peers["bob"].ask(Swallow(grown))
        forged = HEAD.pack(WHOLE, NONE, 0, 0) + encode(Envelope("bob", 1, Grow(4)))
        reply = self.routes["ada"](forged, 60.0)
        message = decode(reply[len(ANSWER) :]).message
        assert isinstance(message, Failure)
        return {
            "nested": peers["cyd"].ask(Sum()).values.tensor.tolist(),
            "forged": [message.error, message.cause],
            "large": {
                "size": LARGE,
                "seconds": seconds,
                "asker gained": gained,
                "party gained": peers["ada"].ask(Grow(4)).peak - before["ada"],
                "receiver gained": sent.peak - before["bob"],
                "sum": float(sent.values.tensor[0]),
            },
            "dead": self._dead(),
        }

    def _dead(self) -> str:
        """A line whose deadline is over before the party has answered."""
        slow = Remote(self.routes, deadline=0.5)
        try:
            Peers(DRIVER, ["ada"], slow, Ledger(DRIVER))["ada"].ask(Rest(8.0))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "it answered"


for _name, _mark in (("start", collab.init), ("call", collab.publish)):
    setattr(ToyMember, _name, _mark(getattr(ToyMember, _name)))
