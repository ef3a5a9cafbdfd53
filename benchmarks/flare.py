"""A round between organisations: in FLARE's simulator, where every site is a process,
against FLARE's own bare call.

Four parties: each is asked for a 1024 x 60 embedding and is sent two 1024 x 10
matrices. FLARE's bare call makes two journeys of that, one for each; Colonnade's second
request waits for the next round's first and travels with it, as in a run, and "each
request alone" is the same without. Calls are sealed from site to site, as between
machines; "in the clear" is the same without. Between machines, TLS and the network come
on top. Then the same with more parties, with more rows, and with one party asked after
the other: calls of a round overlap. CPU time is that of the driver and of all parties,
without FLARE's relay.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from colonnade.benchmark import Result, race
from colonnade.core import (
    Batches,
    Done,
    Ledger,
    Message,
    Organisation,
    Outbox,
    Party,
    Peers,
    Released,
    Request,
    serves,
)
from colonnade.settings.sections import EngineSettings
from colonnade.transport import InProcess
from colonnade.transport.kept_up import with_retries
from colonnade.transport.remote import Endpoint, Remote, Route

FOUND = "COLONNADE_BENCH_FLARE"
QUICK = "COLONNADE_BENCH_QUICK"
DRIVER = "driver"
KITS = "COLONNADE_BENCH_KITS"
FEW = 4
MANY = (4, 8, 16)
ROWS = 1024
WIDTH = 60
OUTPUTS = 10
SIZES = (1, 4, 16)  # times so many rows
TARGET = 1.2
GIB = 1 << 30


class Embedding(Message):
    values: Released


class Embed(Request[Embedding]):
    rows: int


class Improve(Request[Done]):
    residual: Released
    head: Released


class Peak(Message):
    bytes: int


class Tell(Request[Peak]):
    """The largest memory that the process ever had."""


class Spent(Message):
    seconds: float


class TellSpent(Request[Spent]):
    """CPU time of the process so far."""


class Answerer(Party):
    """Does next to nothing, so that what is measured is the way there and back."""

    values = torch.zeros(ROWS, WIDTH)

    @serves
    def embed(self, request: Embed) -> Embedding:
        if request.rows != len(self.values):
            self.values = torch.ones(request.rows, WIDTH)
        return Embedding(self.outbox.release(self.values, "embedding"))

    @serves
    def improve(self, request: Improve) -> Done:  # noqa: ARG002
        return Done()

    @serves
    def tell(self, request: Tell) -> Peak:  # noqa: ARG002
        return Peak(peak())

    @serves
    def tell_spent(self, request: TellSpent) -> Spent:  # noqa: ARG002
        return Spent(time.process_time())


def sites(quick: bool) -> tuple[str, ...]:
    return tuple(f"site_{number + 1}" for number in range(FEW if quick else MANY[-1]))


def run(quick: bool) -> list[Result]:
    if importlib.util.find_spec("nvflare") is None:
        return [
            Result(
                "a round over FLARE",
                "not measured",
                'FLARE is not installed: pip install "colonnade[flare]"',
            )
        ]
    from colonnade.flare.job import ALLOWED, Job, issue, write_job
    from colonnade.flare.simulator import runs, simulator, starts

    with tempfile.TemporaryDirectory(prefix="colonnade-flare-") as folder:
        everybody = (DRIVER, *sites(quick))
        work = Path(folder)
        member = f"{Path(__file__).stem}.Measuring"
        path = os.pathsep.join(
            [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        )
        issue(
            {name: work / "kits" / name for name in everybody}, ("lead", work / "lead")
        )
        job = write_job(
            work / "job", Job(DRIVER, everybody, "bench"), work / "lead", member
        )
        environment = {
            FOUND: str(work / "found.json"),
            QUICK: "1" if quick else "",
            "PYTHONPATH": path,
        }
        environment |= {KITS: str(work / "kits")}
        for _ in starts(work / "flare.log"):
            started = time.perf_counter()
            with simulator(
                job, work, everybody, environment, allowed=[*ALLOWED, member]
            ) as process:
                while runs(process, work / "flare.log"):
                    time.sleep(0.2)
        whole = time.perf_counter() - started
        if not (work / "found.json").exists():
            raise RuntimeError((work / "flare.log").read_text()[-2000:])
        found = json.loads((work / "found.json").read_text())
    if "error" in found:
        raise RuntimeError(found["error"])
    few = {way: seconds * 1e3 for way, seconds in found["parties"][str(FEW)].items()}
    ratio = few["colonnade"] / few["bare"]
    overlap = few["one by one"] / few["colonnade"]
    against = (
        f"each request alone: {few['each alone']:.1f} ms; in the clear:"
        f" {few['in the clear']:.1f} ms; FLARE's bare call: {few['bare']:.1f} ms,"
        f" {few['bare, once']:.1f} ms in one journey; in process:"
        f" {few['in process']:.2f} ms"
    )
    spent = {way: seconds * 1e3 for way, seconds in found["cpu"].items()}
    results = [
        Result(
            f"a round, {FEW} parties, FLARE's simulator",
            f"{few['colonnade']:.1f} ms = {ratio:.2f} x FLARE's bare call",
            against,
            f"≤ {TARGET} x",
            ratio <= TARGET,
            few | {"ratio": ratio, "start and end, seconds": whole - found["took"]},
        ),
        Result(
            f"the calls of a round at once, {FEW} parties",
            f"{overlap:.2f} times as fast",
            f"one party after the other: {few['one by one']:.1f} ms",
            numbers={"ratio": overlap},
        ),
        Result(
            f"CPU time of a round, {FEW} parties",
            f"{spent['colonnade']:.1f} ms = {spent['colonnade'] / spent['bare']:.2f} x"
            " FLARE's bare call",
            f"each request alone: {spent['each alone']:.1f} ms; in the clear:"
            f" {spent['in the clear']:.1f} ms; FLARE's bare call: {spent['bare']:.1f}"
            f" ms, {spent['bare, once']:.1f} ms in one journey",
            numbers=spent,
        ),
        _growth("parties", found["parties"]),
        _growth("times as many rows", found["rows"]),
    ]
    if "large" in found:
        large = found["large"]
        sides = {side: large[side] / large["size"] for side in ("asker", "party")}
        results.append(
            Result(
                "an answer of 1 GiB, memory it takes",
                f"asker {sides['asker']:.2f}, party {sides['party']:.2f} of its size",
                f"{large['seconds']:.0f} s; the party also holds what it released from",
                "asker < 1.5",
                sides["asker"] < 1.5,
                {**sides, "seconds": large["seconds"]},
            )
        )
    return results


def _growth(of: str, found: dict[str, dict[str, float]]) -> Result:
    """A round by what grows, and how many times FLARE's bare call it takes."""
    times = {count: one["colonnade"] / one["bare"] for count, one in found.items()}
    return Result(
        (
            f"a round by the number of {of}"
            if of == "parties"
            else f"a round by how many {of}"
        ),
        ", ".join(
            f"{count}: {one['colonnade'] * 1e3:.0f} ms" for count, one in found.items()
        ),
        ", ".join(f"{count}: {ratio:.2f} x" for count, ratio in times.items())
        + " FLARE's bare call",
        f"≤ {TARGET} x each",
        all(ratio <= TARGET for ratio in times.values()),
        times,
    )


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def answerer(name: str) -> Answerer:
    return Answerer(Organisation.at(name, Batches({}, batch_size=1, epochs=1, seed=0)))


def rounds(
    peers: Peers, rows: int, *, one_by_one: bool = False
) -> Callable[[], object]:
    outbox = Outbox(DRIVER, torch.Generator())
    matrix = torch.zeros(rows, OUTPUTS)

    def one() -> None:
        improve = {
            n: Improve(outbox.release(matrix, "r"), outbox.release(matrix, "head"))
            for n in peers
        }
        if one_by_one:
            for name in peers:
                peers[name].ask(Embed(rows))
            for name, request in improve.items():
                peers[name].ask(request)
        else:
            peers.ask(Embed(rows))
            peers.ask_each(improve)
        peers.ledger.entries.clear()

    return one


class Measuring:
    """At every site; the driver measures."""

    def __init__(self) -> None:
        self.state = b""

    def start(self) -> None:
        from nvflare.collab import collab

        from colonnade.transport.channel import Channel
        from colonnade.transport.identity import Identity

        torch.set_num_threads(1)
        name = str(collab.site_name)
        self.names = sites(bool(os.environ[QUICK]))
        self.channel = Channel(
            Identity.load(Path(os.environ[KITS]) / name, name),
            (DRIVER, *self.names),
            "bench",
        )
        self.party = answerer(name)
        self.endpoint = Endpoint(
            name, self.party.handle, admitted=[DRIVER], allow=self.party.allow
        )
        self.proxies = {p.name: p for p in collab.other_clients}

    def call(self, data: bytes) -> bytes:
        from nvflare.collab import collab

        if str(collab.caller) != "server":
            if data[:1] == b"\0":  # FLARE's bare call: as many bytes as asked for
                return bytes(int.from_bytes(data[1:9], "little"))
            self.party.ledger.entries.clear()
            if data[:1] == b"\1":
                return self.endpoint(str(collab.caller), bytes(data[1:]))
            return self.channel.answer(bytes(data), self.endpoint)
        if not self.state:
            self.state = b"running"
            threading.Thread(target=self._measure, daemon=True).start()
        return self.state

    def _measure(self) -> None:
        started = time.perf_counter()
        found: dict[str, Any] = {}
        try:
            quick = bool(os.environ[QUICK])
            names = self.names
            turns = 20 if quick else 40
            found["parties"] = {
                str(n): self._rounds(names[:n], turns) for n in MANY if n <= len(names)
            }
            found["cpu"] = self._spent(names[:FEW], turns)
            found["rows"] = {
                str(k): self._rounds(names[:FEW], max(5, turns // k), k * ROWS)
                for k in (SIZES[:2] if quick else SIZES)
            }
            if not os.environ[QUICK]:
                found["large"] = self._large(GIB // (4 * WIDTH))
            self.state = b"done"
        except BaseException as error:
            found["error"] = f"{type(error).__name__}: {error}"
            self.state = b"failed"
        found["took"] = time.perf_counter() - started
        Path(os.environ[FOUND]).write_text(json.dumps(found))

    def _carriers(self, names: Sequence[str]) -> dict[str, Route]:
        def line(proxy: Any) -> Route:
            return lambda data, deadline: bytes(proxy(timeout=deadline).call(data))

        return {name: line(self.proxies[name]) for name in names}

    def _lines(self, names: Sequence[str]) -> dict[str, Route]:
        return {
            name: self.channel.line(name, carry)
            for name, carry in self._carriers(names).items()
        }

    def _in_the_clear(self, names: Sequence[str]) -> dict[str, Route]:
        def line(carry: Route) -> Route:
            return lambda data, deadline: carry(b"\1" + data, deadline)

        return {name: line(carry) for name, carry in self._carriers(names).items()}

    def _rounds(
        self, names: Sequence[str], turns: int, rows: int = ROWS
    ) -> dict[str, float]:
        ways, settle = self._ways(names, rows)
        few = len(names) == FEW and rows == ROWS
        found = race(
            (
                ways
                if few
                else {way: ways[way] for way in ("colonnade", "each alone", "bare")}
            ),
            turns=turns,
        )
        settle()
        return found

    def _ways(
        self, names: Sequence[str], rows: int
    ) -> tuple[dict[str, Callable[[], object]], Callable[[], None]]:
        """One round, as it can be made; and what sends the last request that waits,
        before others make their calls."""
        lines = self._carriers(names)
        pool = ThreadPoolExecutor(len(names))
        asked = 200
        told = 2 * rows * OUTPUTS * 4
        answer = rows * WIDTH * 4

        def bare(*journeys: tuple[int, int]) -> None:
            for up, down in journeys:
                data = b"\0" + up.to_bytes(8, "little") + bytes(down)
                list(pool.map(lambda line, data=data: line(data, 60.0), lines.values()))

        def peers(routes: dict[str, Route], *, joins: bool = True) -> Peers:
            return Peers(
                DRIVER,
                names,
                with_retries(Remote(routes, joins=joins), EngineSettings()),
                Ledger(DRIVER),
            )

        away = peers(self._lines(names))
        clear = peers(self._in_the_clear(names))
        here = InProcess({name: answerer(name) for name in names})

        def settle() -> None:
            away.settle()
            clear.settle()

        ways: dict[str, Callable[[], object]] = {
            "colonnade": rounds(away, rows),
            "each alone": rounds(peers(self._lines(names), joins=False), rows),
            "bare": lambda: bare((answer, asked), (asked, told)),
            "bare, once": lambda: bare((answer, asked + told)),
            "in the clear": rounds(clear, rows),
            "in process": rounds(Peers(DRIVER, names, here, Ledger(DRIVER)), rows),
            "one by one": rounds(away, rows, one_by_one=True),
        }
        return ways, settle

    def _spent(self, names: Sequence[str], turns: int) -> dict[str, float]:
        """CPU time of a round, of all processes but FLARE's relay."""
        peers = Peers(DRIVER, names, Remote(self._lines(names)), Ledger(DRIVER))

        def spent() -> float:
            return time.process_time() + sum(
                one.seconds for one in peers.ask(TellSpent()).values()
            )

        found = dict[str, float]()
        ways, settle = self._ways(names, ROWS)
        for way, one in ways.items():
            before = spent()
            for _ in range(turns):
                one()
            settle()
            found[way] = (spent() - before) / turns
        return found

    def _large(self, rows: int) -> dict[str, float]:
        first = self.names[0]
        peers = Peers(DRIVER, [first], Remote(self._lines([first])), Ledger(DRIVER))
        own = peak()
        theirs = peers[first].ask(Tell()).bytes
        start = time.perf_counter()
        answer = peers[first].ask(Embed(rows))
        seconds = time.perf_counter() - start
        size = answer.values.tensor.nbytes
        return {
            "size": size,
            "seconds": seconds,
            "asker": peak() - own,
            # less the tensor that it released from
            "party": peers[first].ask(Tell()).bytes - theirs - size,
        }


if importlib.util.find_spec("nvflare") is not None:
    from nvflare.collab import collab as _collab

    for _name, _mark in (("start", _collab.init), ("call", _collab.publish)):
        setattr(Measuring, _name, _mark(getattr(Measuring, _name)))
