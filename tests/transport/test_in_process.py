"""All parties in one process: by reference or through frames, one after the other or in
threads."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
import torch
from tests.conformance.echo import (
    NAMES,
    Break,
    Multiply,
    Remember,
    Sleep,
    asker,
    echoes,
)
from tests.federation import small
from tests.transport.one_by_one import only
from torch import Tensor

from colonnade.algorithms import embedding, splitnn
from colonnade.core import (
    Batches,
    Done,
    Envelope,
    Organisation,
    Request,
)
from colonnade.core.party import same
from colonnade.errors import PartyError
from colonnade.models import build
from colonnade.transport import InProcess, Retrying, in_process

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
    transport._workers = 2
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
    assert transport._pool is None


def test_slow_answers_move_the_next_ones_into_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_process, "WORTH_A_THREAD", 0.005)
    transport = on_two_cores()
    peers, outbox = asker(transport)
    for _ in range(in_process.TIMED_ROUNDS):
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
    transport._workers = 1
    peers, _ = asker(transport)
    peers.ask(Sleep(0.0))
    assert set(idents(transport)) == {HERE}


def test_threads_are_faster_where_the_work_frees_the_interpreter() -> None:
    ways: tuple[Literal["never", "always"], ...] = ("never", "always")
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for parallel in 3 * ways:
        names = ("ada", "bob", "cyd", "dan")
        transport = InProcess(echoes(names), parallel=parallel)
        transport._workers = 2
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
        transport._workers = 2
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


@pytest.mark.parametrize("parallel", ["always", "never"])
def test_all_are_asked_and_the_first_failure_in_order_is_raised(
    parallel: Literal["always", "never"],
) -> None:
    """So parties' states do not depend on whether threads are used."""
    transport = on_two_cores(parallel)
    peers, _ = asker(transport)
    with pytest.raises(PartyError, match="'ada'"):
        peers.ask_each({name: Break(2.5) for name in ("ada", "bob", "cyd")})
    held = [float(party.held[0, 0]) for party in transport.parties.values()]  # type: ignore[attr-defined]
    assert held == [0, 0, 1]


@pytest.mark.parametrize("parallel", ["always", "never"])
def test_calls_to_one_party_are_done_in_order_until_one_fails(
    parallel: Literal["always", "never"],
) -> None:
    transport = on_two_cores(parallel)
    _, outbox = asker(transport)
    add = Remember(outbox.release(torch.tensor(1.0), "value"))
    messages: list[Request[Any]] = [add, Break(9.0), add]
    calls = [
        Envelope("asker", number, message, to)
        for number, message in enumerate(messages, 1)
        for to in ("ada", "bob")
    ]
    answers = transport.exchange(calls)
    assert [type(answer) for answer in answers[:2]] == [Done, Done]
    assert all(isinstance(answer, PartyError) for answer in answers[2:])
    assert answers[4] is answers[2]
    held = [float(party.held[0, 0]) for party in transport.parties.values()]  # type: ignore[attr-defined]
    assert held == [1, 1, 0]


@pytest.mark.skipif(
    sys.platform == "win32", reason="no signal reaches a thread that waits there"
)
def test_whoever_interrupts_finds_nobody_computing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = on_two_cores("always")
    peers, _ = asker(transport)
    sleep = time.sleep
    interrupts = iter([signal.SIGINT])

    def interrupt(seconds: float) -> None:
        sleep(5 * seconds)
        for one in interrupts:
            signal.pthread_kill(HERE, one)
        sleep(5 * seconds)

    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        peers.ask(Sleep(0.02))
    assert len(idents(transport)) == 3  # all have answered


def test_a_federation_in_threads_has_the_bits_of_one_in_turn() -> None:
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


def test_a_party_answers_one_call_at_a_time() -> None:
    transport = InProcess(echoes())
    _, outbox = asker(transport)
    one = Remember(outbox.release(torch.tensor(1.0), "value"))
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: only(transport, Envelope(f"asker {n}", 1, one, "ada")),
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
            "asker", 1, Remember(outbox.release(torch.tensor(1.0), "value")), "ada"
        )
        for _ in range(3):
            only(transport, envelope)
        assert float(transport.parties["ada"].held[0, 0]) == 1  # type: ignore[attr-defined]


def test_through_bytes_nothing_is_shared_not_even_what_was_released() -> None:
    for through_bytes in (False, True):
        transport = InProcess(echoes(), through_bytes=through_bytes)
        _, outbox = asker(transport)
        sent = outbox.release(torch.zeros(6, 4), "value")
        only(transport, Envelope("asker", 1, Remember(sent), "ada"))
        reply = only(transport, Envelope("asker", 2, Sleep(0.0), "ada"))
        kept = transport.parties["ada"]._answered["asker"].reply
        assert (reply is kept) is not through_bytes
        assert reply.released()[0].receipt == kept.released()[0].receipt
