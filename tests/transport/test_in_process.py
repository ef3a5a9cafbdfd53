"""All parties in one process: by reference or through frames, one after the other or in
threads."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
import torch
from tests.conformance.echo import (
    NAMES,
    Break,
    Echo,
    Multiply,
    Remember,
    Sleep,
    Value,
    asker,
    echoes,
)
from tests.federation import small
from torch import Tensor

from colonnade.algorithms import embedding, splitnn
from colonnade.core import (
    Batches,
    Done,
    DpEvent,
    Envelope,
    Organisation,
    Request,
    serves,
)
from colonnade.core.chance import Source
from colonnade.core.party import overlapping, same
from colonnade.core.release import TASKS, Plain, Rule
from colonnade.errors import PartyError
from colonnade.models import build
from colonnade.transport import InProcess, Retrying, in_process
from colonnade.transport.holding import Holding

HERE = threading.get_ident()


@pytest.fixture
def two_torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def on_two_cores(parallel: Literal["auto", "always", "never"] = "auto") -> InProcess:
    """A transport with two workers, wherever the test runs."""
    transport = InProcess(echoes(), parallel=parallel)
    transport.workers = 2
    return transport


def idents(transport: InProcess) -> list[int]:
    """The threads that the parties answered in since last asked."""
    found = [
        ident
        for party in transport.parties.values()
        for ident in getattr(party, "threads", [])
    ]
    for party in transport.parties.values():
        party.threads = []  # type: ignore[attr-defined]
    return found


def test_quick_answers_are_given_in_the_calling_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_process, "WORTH_A_THREAD", 0.05)
    transport = on_two_cores()
    peers, _ = asker(transport)
    for _ in range(5):
        peers.ask(Sleep(0.0))
    assert set(idents(transport)) == {HERE}
    assert not transport._pools


def test_slow_answers_move_the_next_ones_into_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_process, "WORTH_A_THREAD", 0.005)
    transport = on_two_cores()
    peers, outbox = asker(transport)
    for _ in range(in_process.LOOKS):
        peers.ask(Sleep(0.01))
    assert set(idents(transport)) == {HERE}
    peers.ask(Sleep(0.01))
    there = idents(transport)
    assert HERE not in there
    assert len(there) == 3
    # each kind of request is timed for itself
    peers.ask(Multiply(outbox.release(torch.tensor(1.0), "by")))
    assert transport._seconds.keys() == {(Sleep,), (Multiply,)}
    peers["ada"].ask(Sleep(0.0))
    assert idents(transport) == [HERE]  # one alone has nobody to be parallel with


def test_one_slow_call_among_quick_ones_is_a_warm_up_but_a_very_slow_one_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_process, "WORTH_A_THREAD", 0.005)
    for first, threads in ((0.02, False), (in_process.NO_WARM_UP * 1.2, True)):
        transport = on_two_cores()
        peers, _ = asker(transport)
        for seconds in (first, 0.0, 0.0, 0.0):
            peers.ask(Sleep(seconds))
        assert (set(idents(transport)) != {HERE}) is threads


@pytest.mark.parametrize(("parallel", "here"), [("always", False), ("never", True)])
def test_threads_can_be_asked_for_or_forbidden(
    parallel: Literal["always", "never"], here: bool
) -> None:
    transport = on_two_cores(parallel)
    peers, _ = asker(transport)
    for _ in range(2):
        peers.ask(Sleep(0.003))
        assert (HERE in idents(transport)) is here


def test_one_core_has_no_use_for_threads() -> None:
    transport = on_two_cores("always")
    transport.workers = 1
    peers, _ = asker(transport)
    peers.ask(Sleep(0.0))
    assert set(idents(transport)) == {HERE}


def test_threads_are_faster_where_the_work_frees_the_interpreter() -> None:
    ways: tuple[Literal["never", "always"], ...] = ("never", "always")
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for parallel in 3 * ways:
        names = ("ada", "bob", "cyd", "dan")
        transport = InProcess(echoes(names), parallel=parallel)
        transport.workers = 2
        peers, _ = asker(transport, names)
        start = time.perf_counter()
        peers.ask(Sleep(0.05))
        seconds[parallel].append(time.perf_counter() - start)
    assert min(seconds["never"]) >= 0.2
    # ideally half; the machine may be busy
    assert min(seconds["always"]) < 0.8 * min(seconds["never"])


def test_the_slowest_first_still_answers_come_in_order() -> None:
    transport = on_two_cores("always")
    for party, delay in zip(transport.parties.values(), (0.05, 0.02, 0.0), strict=True):
        party.delay = delay  # type: ignore[attr-defined]
    peers, _ = asker(transport)
    replies = peers.ask(Sleep(0.0))
    assert list(replies) == list(NAMES)
    assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [
        1.0,
        2.0,
        3.0,
    ]


@pytest.mark.usefixtures("two_torch_threads")
@pytest.mark.parametrize("through_bytes", [False, True])
def test_threads_do_not_change_a_bit_of_large_products(through_bytes: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 600, 300, generator=generator)
    batches = Batches({"train": torch.arange(600)}, batch_size=600, epochs=1, seed=0)
    found = []
    for parallel in ("never", "always"):
        parties = {
            name: embedding.DescendingFeatureOwner(
                Organisation.at(name, batches),
                features[k],
                build("mlp", (300,), seed=k, owner=name),
                splitnn.Config(),
            )
            for k, name in enumerate(NAMES)
        }
        transport = InProcess(parties, parallel=parallel, through_bytes=through_bytes)
        transport.workers = 2
        peers, outbox = asker(transport)
        for _ in range(3):
            replies = peers.ask(embedding.Embed("train/0/0"))
            gradients = {
                k: outbox.release(r.values.tensor.tanh() / 600, "gradient")
                for k, r in replies.items()
            }
            peers.ask_each(
                {k: embedding.Descend("train/0/0", g) for k, g in gradients.items()}
            )
        found.append(
            torch.stack(
                [
                    reply.values.tensor
                    for reply in peers.ask(embedding.Embed("train/0/0")).values()
                ]
            )
        )
    assert torch.equal(found[0], found[1])


@pytest.mark.usefixtures("two_torch_threads")
@pytest.mark.parametrize("parallel", ["always", "never"])
def test_parties_compute_with_one_torch_thread_and_the_caller_gets_its_threads_back(
    parallel: Literal["always", "never"], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = on_two_cores(parallel)
    seen: list[int] = []
    monkeypatch.setattr(
        "tests.conformance.echo.time.sleep",
        lambda seconds: seen.append(torch.get_num_threads()),
    )
    peers, _ = asker(transport)
    peers.ask(Sleep(0.0))
    assert seen == [1, 1, 1]
    assert torch.get_num_threads() == 2
    with pytest.raises(PartyError):
        peers.ask(Break(2.5))
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_torch_threads")
def test_where_it_goes_on_without_who_fails_parties_have_a_torch_thread_each_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        "tests.conformance.echo.time.sleep",
        lambda seconds: seen.append(torch.get_num_threads()),
    )
    transport = on_two_cores("always")
    peers, _ = asker(Retrying(transport, deadline=60.0))
    replies, failures = peers.attempt(dict.fromkeys(NAMES, Sleep(0.0)))
    assert (list(replies), failures) == (list(NAMES), {})
    assert seen == [1, 1, 1]
    assert HERE not in idents(transport)


def test_in_threads_all_are_asked_and_the_first_in_order_is_raised() -> None:
    transport = on_two_cores("always")
    peers, _ = asker(transport)
    with pytest.raises(PartyError, match="'ada'"):
        peers.ask_each({name: Break(2.5) for name in ("ada", "bob", "cyd")})
    assert [float(party.held[0, 0]) for party in transport.parties.values()] == [  # type: ignore[attr-defined]
        0,
        0,
        1,
    ]


class Grow(Request[Done]):
    """A party adds 1 to what it holds, but not before it has answered; one whose first
    number is below fails."""

    below: float = 0.0
    batch: str = "train/0/0"


class Leaving(Echo):
    @serves
    def grow(self, request: Grow) -> Done:
        def task() -> None:
            time.sleep(0.02)
            self.threads.append(threading.get_ident())
            if float(self.features.flatten()[0]) < request.below:
                raise ArithmeticError("too small")
            self.held += 1

        TASKS.leave(task)
        return Done()


@pytest.mark.parametrize("parallel", ["always", "never"])
def test_what_parties_leave_to_be_done_is_done_before_their_replies_are_used(
    parallel: Literal["always", "never"],
) -> None:
    """The first time by whoever answers; then by threads, while one thread asks all
    parties."""
    parties = {
        name: Leaving(one.organisation, one.features, one.model)
        for name, one in echoes().items()
    }
    transport = InProcess(parties, parallel=parallel)
    transport.workers = 2
    peers, _ = asker(transport)
    for asked in range(1, 4):
        peers.ask(Grow())
        assert [float(party.held[0, 0]) for party in parties.values()] == [asked] * 3
        assert (HERE in idents(transport)) is (parallel == "never")
    with pytest.raises(PartyError, match=r"'bob'.*too small"):
        peers.ask_each({"ada": Grow(), "bob": Grow(10.0), "cyd": Grow()})
    assert float(parties["ada"].held[0, 0]) == 4


@pytest.mark.skipif(
    sys.platform == "win32", reason="no signal reaches a thread that waits there"
)
def test_whoever_interrupts_finds_nobody_computing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parties = {
        name: Leaving(one.organisation, one.features, one.model)
        for name, one in echoes().items()
    }
    transport = InProcess(parties, parallel="always")
    transport.workers = 2
    peers, _ = asker(transport)
    peers.ask(Grow())  # from here on threads do what is left
    sleep = time.sleep
    interrupts = iter([signal.SIGINT])

    def interrupt(seconds: float) -> None:
        sleep(5 * seconds)
        for one in interrupts:
            signal.pthread_kill(HERE, one)
        sleep(5 * seconds)

    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        peers.ask(Grow())
    assert [float(party.held[0, 0]) for party in parties.values()] == [2] * 3


class Tell(Request[Value]):
    """What a party holds, read at once (`ReadAtOnce`), or by a task that it leaves
    (`LeaveIt`)."""


class LeaveIt(Leaving):
    @serves
    @overlapping
    def tell(self, request: Tell) -> Value:
        values = torch.zeros(2, 3)
        TASKS.leave(lambda: values.copy_(self.held), fills=values)
        return Value(self.outbox.release(values, "value"))


class ReadAtOnce(Leaving):
    @serves
    def tell(self, request: Tell) -> Value:
        return Value(self.outbox.release(self.held, "value"))


class InItsPlace(LeaveIt):
    """One's own, which knows nothing of tasks."""

    @serves
    def tell(self, request: Tell) -> Value:
        return Value(self.outbox.release(self.held.clone(), "value"))


@pytest.mark.parametrize("kind", [LeaveIt, ReadAtOnce, InItsPlace])
@pytest.mark.parametrize("parallel", ["always", "never"])
def test_what_was_held_back_is_done_ahead_of_the_next_call(
    parallel: Literal["always", "never"], kind: type[LeaveIt] | type[ReadAtOnce]
) -> None:
    """Also where the next call reads what the held one's task has yet to write; and a
    failure names the held one."""
    parties = {
        name: kind(one.organisation, one.features, one.model)
        for name, one in echoes().items()
    }
    for party in parties.values():
        party.held = torch.zeros(2, 3)
    transport = InProcess(parties, parallel=parallel)
    transport.workers = 2
    peers, _ = asker(Holding(transport))
    for asked in range(1, 4):
        peers.ask(Grow())
        assert [float(party.held[0, 0]) for party in parties.values()] == [
            asked - 1
        ] * 3
        replies = peers.ask(Tell())
        assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [
            asked
        ] * 3
        assert (HERE in idents(transport)) is (parallel == "never")
    peers.ask(Grow())
    peers.settle()
    assert [float(party.held[0, 0]) for party in parties.values()] == [4] * 3
    peers.ask_each({"ada": Grow(), "bob": Grow(10.0), "cyd": Grow()})
    with pytest.raises(
        PartyError,
        match=r"'bob' failed while answering test_in_process.Grow.*too small",
    ):
        peers.ask(Tell())


def test_whoever_asks_in_another_thread_does_not_overtake_what_was_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a live view that has rows predicted while a model trains."""
    parties = {
        name: ReadAtOnce(one.organisation, one.features, one.model)
        for name, one in echoes().items()
    }
    transport = InProcess(parties, parallel="never")
    on_its_way = threading.Event()
    exchange_each = transport.exchange_each

    def take_long(envelopes: Mapping[str, Envelope[Request[Any]]]) -> dict[str, Any]:
        if threading.get_ident() != HERE:
            on_its_way.set()
            time.sleep(0.1)
        return exchange_each(envelopes)

    monkeypatch.setattr(transport, "exchange_each", take_long)
    peers, _ = asker(Holding(transport))
    before = [float(reply.value.tensor[0, 0]) for reply in peers.ask(Tell()).values()]
    peers.ask(Grow())
    viewing = threading.Thread(target=peers.ask, args=(Tell(),))
    viewing.start()
    on_its_way.wait()
    found = [float(reply.value.tensor[0, 0]) for reply in peers.ask(Tell()).values()]
    viewing.join()
    assert found == [value + 1 for value in before]


def test_a_federation_in_threads_has_the_bits_of_one_in_turn() -> None:
    """Local steps overlap with the next batch's embeddings; test rows wait for them,
    and so does a checkpoint."""
    found = []
    for threads in ("always", "never"):
        tables = small.quick(
            federation={"threads": threads, "cohort": "off", "noise": "seeded"}
        )
        federation = small.federation(settings=tables)
        training = federation.train()
        outputs = []
        for _ in range(5):
            next(training)
            outputs.append(federation.outputs("test"))
        federation.settle()
        ledgers = [
            entry for ledger in federation.ledgers.values() for entry in ledger.entries
        ]
        found.append((ledgers, outputs, small.models_of(federation)))
    assert found[0][0] == found[1][0]
    assert same(found[0][1:], found[1][1:])


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("threads", ["always", "never"])
def test_what_was_held_back_learns_also_where_the_next_call_wants_no_gradients(
    threads: str, grad_mode: type[torch.no_grad] | type[torch.inference_mode]
) -> None:
    # through autograd
    algorithm = {
        "name": "vimadmm_joint",
        "local_order": "head_first",
        "learning_rate": 0.001,
    }
    federation = small.federation(
        settings=small.quick(
            algorithm=algorithm, federation={"threads": threads, "cohort": "off"}
        )
    )
    training = federation.train()
    for _ in range(3):
        next(training)
        with grad_mode():
            federation.outputs("test")
    next(training)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("threads", ["always", "never"])
def test_a_call_that_fails_leaves_nobody_without_the_step_before(
    threads: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = small.quick(federation={"threads": threads, "cohort": "off"})
    whole = small.federation(settings=tables)
    federation = small.federation(settings=tables)
    undisturbed = whole.train()
    training = federation.train()
    for _ in range(3):
        next(undisturbed), next(training)

    def fail(batch: str) -> Tensor:
        raise error(batch)

    monkeypatch.setattr(next(iter(federation.owners.values())), "x", fail)
    with pytest.raises((KeyboardInterrupt, PartyError)):
        next(training)
    whole.settle()
    federation.settle()
    assert same(small.models_of(federation), small.models_of(whole))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("go_on", ["settle", "train", "outputs"])
def test_what_fails_after_a_loop_was_left_is_told_whoever_goes_on(
    go_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = small.federation(
        settings=small.quick(federation={"threads": "never", "cohort": "off"})
    )

    def fail(batch: str) -> Tensor:
        raise ValueError(batch)

    for step in federation.train():
        monkeypatch.setattr(federation.owners["lab"], "sent", fail)
        if step.batch.number == 0:
            break
    ways = {"settle": federation.settle, "train": lambda: next(federation.train())}
    with pytest.raises(
        PartyError,
        match=r"'lab' failed while answering vimadmm.Improve at batch train/0/0",
    ):
        ways.get(go_on, lambda: federation.outputs("test"))()
    federation.settle()


class Fill(Request[Value]):
    number: float


class PlusOne:
    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        return tensor + 1, DpEvent("plus one")


class Filling(Echo):
    """Releases a tensor that a task fills which it leaves; `cyd` also asks somebody in
    turn and reads the reply."""

    @serves
    def fill(self, request: Fill) -> Value:
        values = torch.zeros(2, 3)

        def task() -> None:
            time.sleep(0.01)
            values.fill_(request.number)

        TASKS.leave(task)
        if self.name == "cyd" and request.number < 7:
            below = {"dan": Filling(self.organisation, self.features, self.model)}
            (reply,) = (
                asker(InProcess(below, parallel="never"))[0]
                .ask_each({"dan": Fill(7.0)})
                .values()
            )
            assert float(reply.value.tensor[0, 0]) >= 7
        return Value(self.outbox.release(values, "value"))


@pytest.mark.parametrize("mechanism", [Plain(), PlusOne()])
@pytest.mark.parametrize("through_bytes", [False, True])
@pytest.mark.parametrize("parallel", ["always", "never"])
def test_what_is_released_before_it_is_computed_is_there_with_the_reply(
    parallel: Literal["always", "never"],
    through_bytes: bool,
    mechanism: Plain | PlusOne,
) -> None:
    parties = {
        name: Filling(one.organisation, one.features, one.model)
        for name, one in echoes().items()
    }
    for party in parties.values():
        party.outbox.rules["value"] = Rule(mechanism)
    transport = InProcess(parties, parallel=parallel, through_bytes=through_bytes)
    transport.workers = 2
    peers, _ = asker(transport)
    more = 0.0 if isinstance(mechanism, Plain) else 1.0
    for number in (1.0, 2.0, 3.0):
        replies = peers.ask(Fill(number))
        assert [reply.value.tensor.tolist() for reply in replies.values()] == [
            [[number + more] * 3] * 2
        ] * 3


def test_one_by_one_nobody_is_asked_after_a_failure() -> None:
    transport = on_two_cores("never")
    peers, _ = asker(transport)
    with pytest.raises(PartyError, match="'ada'"):
        peers.ask_each({name: Break(1.5) for name in NAMES})
    assert [float(party.held[0, 0]) for party in transport.parties.values()] == [  # type: ignore[attr-defined]
        0,
        0,
        0,
    ]


def test_a_party_answers_one_call_at_a_time() -> None:
    transport = InProcess(echoes())
    _, outbox = asker(transport)
    one = Remember(outbox.release(torch.tensor(1.0), "value"))
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: transport.exchange("ada", Envelope(f"asker {n}", 1, one)),
                range(200),
            )
        )
    assert float(transport.parties["ada"].held[0, 0]) == 200  # type: ignore[attr-defined]
    assert len(transport.parties["ada"].ledger.entries) == 200


def test_the_same_call_delivered_twice_is_answered_once() -> None:
    for through_bytes in (False, True):
        transport = InProcess(echoes(), through_bytes=through_bytes)
        _, outbox = asker(transport)
        envelope: Envelope[Any] = Envelope(
            "asker", 1, Remember(outbox.release(torch.tensor(1.0), "value"))
        )
        for _ in range(3):
            transport.exchange("ada", envelope)
        assert float(transport.parties["ada"].held[0, 0]) == 1  # type: ignore[attr-defined]


def test_through_bytes_nothing_is_shared_not_even_what_was_released() -> None:
    for through_bytes in (False, True):
        transport = InProcess(echoes(), through_bytes=through_bytes)
        _, outbox = asker(transport)
        sent = outbox.release(torch.zeros(6, 4), "value")
        transport.exchange("ada", Envelope("asker", 1, Remember(sent)))
        reply = transport.exchange("ada", Envelope("asker", 2, Sleep(0.0)))
        kept = transport.parties["ada"]._answered["asker"].reply
        assert (reply is kept) is not through_bytes
        assert reply.released()[0].receipt == kept.released()[0].receipt
