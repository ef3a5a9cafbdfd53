"""Drivers that answer as one do what they do alone: the same numbers, releases, ledgers
and refusals."""

from __future__ import annotations

import copy
import signal
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.algorithms.several import Reference, Several, made
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from colonnade.algorithms import multi_vfl
from colonnade.algorithms.multi_vfl import TrainRound
from colonnade.algorithms.multi_vfl_data_owner import Copy
from colonnade.compression import Quantize
from colonnade.core import Done, Organisation, Peers, Rule, Transport
from colonnade.core.party import same as equal
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, BudgetExhausted, PartyError
from colonnade.models import build, build_head
from colonnade.privacy import Account, Budget
from colonnade.privacy.gaussian import Gaussian
from colonnade.transport import Drivers, Fault, Faulty, Recording
from colonnade.transport.cohort import Stacked, share_memory
from colonnade.transport.drivers import Turns

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
    ),
]
ALIKE = {"abel": 43, "bea": 43, "carl": 43, "dora": 24}
"""Three of one size, whose last batch is shorter, and one of another."""
THREE = ("abel", "bea", "carl")


def carrier(toy: Several) -> Drivers:
    transport = toy.server.peers.transport
    assert isinstance(transport, Drivers)
    return transport


def stacked(toy: Several) -> list[tuple[str, ...]]:
    return list(carrier(toy).cohorts)


def close(one: Any, other: Any, rtol: float) -> None:
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            close(one[key], other[key], rtol)
    else:
        assert one == other


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("dtype", "rtol"),
    [(torch.float64, 1e-9), (torch.float32, 1e-5)],
    ids=["float64", "float32"],
)
def test_stacked_is_one_by_one(
    device: str, optimizer: str, dtype: torch.dtype, rtol: float
) -> None:
    config = multi_vfl.Config(optimizer=optimizer, learning_rate=0.02, local_epochs=2)
    given: dict[str, Any] = {
        "config": config,
        "rows": ALIKE,
        "dtype": dtype,
        "device": device,
    }
    alone = made(stack="off", **given)
    together = made(stack="on", **given)
    assert together.run() == pytest.approx(alone.run(), rel=10 * rtol)
    assert stacked(alone) == []
    assert stacked(together) == [("abel", "bea", "carl")]
    for name, state in alone.states().items():
        close(state, together.states()[name], 10 * rtol)
    close(
        alone.predict("bea", model="own"),
        together.predict("bea", model="own"),
        10 * rtol,
    )


def test_ledgers_and_receipts_are_the_same() -> None:
    alone = made(rows=ALIKE)
    together = made(rows=ALIKE, stack="on")
    for toy in (alone, together):
        toy.run(2)
    for name, party in alone.everyone().items():
        other = together.everyone()[name]
        assert party.ledger.total("in") == other.ledger.total("in")
        assert party.outbox.released == other.outbox.released

        def told(ledger: Any) -> list[Any]:
            """The order of label owners differs; what passed between two parties does
            not."""
            return sorted(
                (e.peer, e.batch or "", e.name, e.direction, e.bytes, e.shape, e.event)
                for e in ledger.entries
            )

        assert told(party.ledger) == told(other.ledger)
    numbers = [
        (e.peer, e.number)
        for e in together.data_owners["heart"].ledger.entries
        if e.direction == "out"
    ]
    assert len({number for _, number in numbers}) == len(numbers)


class Dropping(nn.Module):
    """Drops half of what a model gives, as its owner's generator draws."""

    def __init__(self, model: nn.Module, generator: torch.Generator) -> None:
        super().__init__()
        self.model = model
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.model(x)
        return (
            h * torch.randint(2, h.shape, generator=self.generator)
            if self.training
            else h
        )


@pytest.fixture
def much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever drivers do is much, so that they take turns."""
    monkeypatch.setattr("colonnade.transport.drivers.STACKING_PAYS", 0)


@pytest.mark.usefixtures("much_work")
@pytest.mark.parametrize("drawn", ["nothing", "noise", "rounding", "dropout"])
def test_at_the_same_time_or_one_at_a_time_not_a_bit_differs(drawn: str) -> None:
    """Nor does what is released, to whom and in which order, nor where somebody writes
    a transcript of it."""
    rule = {
        "noise": Rule(Gaussian(sigma=0.1, clip=1.0)),
        "rounding": Rule(codec=Quantize(levels=8)),
    }.get(drawn, Rule())
    runs = []
    told = []
    for way in ("always", "always", "never", "recorded"):
        found: dict[str, Recording] = {}

        def lower(
            k: str,
            inner: Transport,
            found: dict[str, Recording] = found,
            way: str = way,
        ) -> Transport:
            return found.setdefault(k, Recording(inner)) if way == "recorded" else inner

        toy = made(
            rows=ALIKE,
            parallel="always" if way == "recorded" else way,
            lower=lower,
            rules={name: {"embedding": rule} for name in ("heart", "lung")},
            wrap_model=lambda model, place: (
                Dropping(model, place.generator) if drawn == "dropout" else model
            ),
        )
        losses = toy.run()
        everyone = toy.everyone()
        runs.append(
            [losses, {name: party.ledger.entries for name, party in everyone.items()}]
        )
        told.append(toy.states())
    assert runs == 4 * [runs[0]]
    assert all(equal(states, told[0]) for states in told)


@pytest.mark.usefixtures("much_work")
@pytest.mark.parametrize("parallel", ["always", "never"])
def test_all_compute_at_the_same_time_or_never_two(
    parallel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = made(rows=ALIKE, parallel=parallel, rounds=1)
    computing = list[str]()
    most = list[int]()
    together = threading.Barrier(len(ALIKE) if parallel == "always" else 1, timeout=10)
    for name, owner in toy.label_owners.items():

        def learn(*given: Any, name: str = name, before: Any = owner.copy.learn) -> Any:
            computing.append(name)
            if len(most) < len(ALIKE):
                together.wait()
            most.append(len(computing))
            time.sleep(0.0005)
            computing.remove(name)
            return before(*given)

        monkeypatch.setattr(owner.copy, "learn", learn)
    toy.run()
    assert (max(most) == 1) is (parallel == "never")


@pytest.mark.usefixtures("much_work")
def test_who_fails_leaves_the_others_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toy = made(rows=ALIKE)
    toy.run(1)

    def fail(*given: Any) -> Any:
        raise ArithmeticError(given)

    monkeypatch.setattr(toy.label_owners["bea"].copy, "learn", fail)
    found = carrier(toy).attempt_each(
        {k: Envelope("server", 10**19, TrainRound(1)) for k in toy.label_owners}
    )
    assert isinstance(found.pop("bea"), PartyError)
    assert not any(isinstance(answer, PartyError) for answer in found.values())
    assert carrier(toy).turns._order == deque()


@pytest.mark.usefixtures("much_work")
def test_a_budget_that_is_spent_ends_all_rounds_where_they_are() -> None:
    rules = {"heart": {"embedding": Rule(Gaussian(sigma=4.0, clip=1.0))}}
    found = []
    for parallel in ("always", "never"):
        toy = made(rows=ALIKE, rules=rules, rounds=100, parallel=parallel)
        heart = toy.data_owners["heart"]
        heart.outbox.meter = Account(
            "heart", heart.agreed, map(str, range(200)), Budget(epsilon=4.0)
        )
        with pytest.raises(BudgetExhausted, match="'heart' will not release"):
            toy.run()
        assert carrier(toy).turns._order == deque()
        found.append(
            (
                toy.server.round,
                [party.ledger.entries for party in toy.everyone().values()],
                toy.states(),
            )
        )
    assert found[0][:2] == found[1][:2]
    assert equal(found[0][2], found[1][2])


@pytest.mark.skipif(
    sys.platform == "win32", reason="no signal reaches a thread that waits there"
)
@pytest.mark.usefixtures("much_work")
@pytest.mark.parametrize("parallel", ["always", "never"])
def test_whoever_interrupts_finds_nobody_computing_and_soon(
    parallel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = made(rows=ALIKE, parallel=parallel, config=multi_vfl.Config(local_epochs=12))
    here = threading.get_ident()
    steps = list[int]()
    for owner in toy.label_owners.values():

        def learn(*given: Any, before: Any = owner.copy.learn) -> Any:
            steps.append(1)
            if len(steps) == 8:
                signal.pthread_kill(here, signal.SIGINT)
                time.sleep(0.02)
            return before(*given)

        monkeypatch.setattr(owner.copy, "learn", learn)
    with pytest.raises(KeyboardInterrupt):
        toy.run()
    assert 8 <= len(steps) < 40
    for name in toy.label_owners:
        toy.predict(name)
    toy.run(1)
    assert len(steps) > 12 * 6 * 3


def test_who_has_no_turn_does_not_wait_and_nobody_waits_for_it() -> None:
    """As a live view that has rows predicted while models train, in the name of
    somebody whose round is over."""
    turns = Turns(["abel", "bea"])
    viewed = threading.Event()

    def view() -> None:
        with turns.of("bea"):
            viewed.set()

    with turns.of("eve"), turns.round("abel"), ThreadPoolExecutor() as pool:
        with turns.round("bea"):
            pool.submit(view)
            assert not viewed.wait(0.02)
        assert viewed.wait(5)
    assert made(rounds=1).label_owners["abel"].peers.ask_each({}) == {}


def test_an_owner_s_rule_applies_in_a_stack_too() -> None:
    rules = {"heart": {"embedding": Rule(Gaussian(sigma=0.0, clip=0.3))}}
    alone = made(rows=ALIKE, rules=rules)
    together = made(rows=ALIKE, rules=rules, stack="on")
    plain = made(rows=ALIKE, stack="on")
    losses = alone.run()
    assert together.run() == pytest.approx(losses, rel=1e-9)
    assert plain.run() != pytest.approx(losses, rel=1e-6)
    assert stacked(together)


def test_a_budget_that_is_spent_ends_the_round() -> None:
    rules = {"heart": {"embedding": Rule(Gaussian(sigma=4.0, clip=1.0))}}
    toy = made(rows=ALIKE, rules=rules, stack="on", rounds=100)
    heart = toy.data_owners["heart"]
    heart.outbox.meter = Account(
        "heart", heart.agreed, map(str, range(200)), Budget(epsilon=4.0)
    )
    with pytest.raises(BudgetExhausted, match="'heart' will not release"):
        toy.run()
    assert 0 < toy.server.round < 100


def test_a_stack_is_made_anew_when_others_take_part() -> None:
    toy = made(rows=ALIKE, stack="on", rounds=4)
    reference = Reference(toy)
    everybody = list(ALIKE)
    for number, present in enumerate(
        (everybody, ["abel", "carl", "dora"], ["bea", "dora"], everybody)
    ):
        reference.round(number, present)
        peers = Peers("server", present, carrier(toy), toy.server.ledger)
        next(multi_vfl.train(toy.server, peers, toy.rounds))
        reference.assert_equal(toy)
        assert stacked(toy) in (
            [],
            [tuple(k for k in present if k != "dora")],
            [("abel", "carl")],
        )


def test_a_data_owner_that_fails_fails_all_and_is_named() -> None:
    toy = made(rows=ALIKE, stack="on")
    toy.run(1)
    toy.data_owners["lung"].features = toy.data_owners["lung"].features[:, :2]
    with pytest.raises(
        PartyError,
        match=(
            r"'lung' failed while answering multi_vfl_data_owner.Embed at batch abel,"
            r" bea, carl:"
        ),
    ):
        toy.run()
    assert toy.server.round == 1


def test_who_is_listened_to_or_goes_through_bytes_is_not_stacked() -> None:
    plain = made(rows=ALIKE)
    listened = made(rows=ALIKE, stack="on", lower=lambda _, inner: Faulty(inner, []))
    assert listened.run() == plain.run()
    assert stacked(listened) == []


def test_auto_stacks_while_a_batch_is_little_work_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = made(rows=ALIKE, stack="auto")
    small.run(1)
    assert stacked(small)
    monkeypatch.setattr("colonnade.transport.drivers.STACKING_PAYS", 10)
    large = made(rows=ALIKE, stack="auto")
    large.run(1)
    assert not stacked(large)


@pytest.mark.usefixtures("much_work")
def test_one_organisation_may_hold_labels_and_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What stays inside is written down once, as `own`, whichever way it is computed;
    and since it may be asked while it computes, nobody takes turns."""
    found = []
    for stack in ("off", "on"):
        toy = made(columns={"abel": 4, "lung": 3}, rows=ALIKE, stack=stack, rounds=1)
        monkeypatch.setattr(carrier(toy), "_in_turns", None)
        shared = Organisation.at("abel", toy.label_owners["abel"].batches)
        for party in (toy.label_owners["abel"], toy.data_owners["abel"]):
            party.organisation = shared
            party.outbox = shared.outbox
            party.ledger = shared.ledger
        toy.label_owners["abel"].peers.ledger = shared.ledger
        toy.run()
        entries = [e for e in shared.ledger.entries if e.peer == "abel"]
        assert {e.direction for e in entries} == {"own"}
        found.append(sorted((e.name, str(e.batch), e.bytes) for e in entries))
    assert found[0] == found[1]
    assert len(found[0]) == 2 * 6


def test_failures_of_single_label_owners_are_answers() -> None:
    toy = made(rows=ALIKE, stack="on")
    transport = carrier(toy)
    wrong = multi_vfl.TrainRound(3)
    found = transport.attempt_each(
        {k: Envelope("server", 10**6, wrong) for k in ("abel", "bea")}
    )
    assert all(isinstance(answer, PartyError) for answer in found.values())
    with pytest.raises(PartyError, match="round 3 begins, and 0 are adopted here"):
        transport.exchange_each({"abel": Envelope("server", 10**6, wrong)})
    with pytest.raises(PartyError, match="no such party"):
        transport.exchange("eve", Envelope("server", 1, wrong))


def test_faults_are_still_possible_above() -> None:
    toy = made(
        rows=ALIKE,
        stack="on",
        upper=lambda inner: Faulty(inner, [Fault("drop", "bea", at=3)]),
    )
    reference = Reference(toy)
    toy.run(1)
    reference.round(0, ["abel", "carl", "dora"])
    reference.assert_equal(toy)
    assert toy.said[0].left_out.keys() == {"bea"}


# Their calls pass the checks that single ones pass


def test_a_repeated_round_is_answered_from_memory_and_an_old_one_refused() -> None:
    """A second training would release every embedding again."""
    toy = made(rows=ALIKE, stack="on")
    toy.run(1)
    calls: list[Any] = [
        dict.fromkeys(THREE, Envelope("server", 2**63 + n, multi_vfl.TrainRound(1)))
        for n in (0, 1)
    ]
    carrier(toy).attempt_each(calls[0])
    replies = carrier(toy).attempt_each(calls[1])
    released = [party.outbox.released for party in toy.everyone().values()]
    again = carrier(toy).attempt_each(calls[1])
    assert all(reply is again[k] for k, reply in replies.items())
    with pytest.raises(
        BoundaryError, match="'abel' refuses a call of 'server' that is older"
    ):
        carrier(toy).attempt_each(calls[0])
    assert [party.outbox.released for party in toy.everyone().values()] == released


def test_whom_one_of_them_does_not_serve_none_of_them_answers() -> None:
    toy = made(rows=ALIKE, stack="on")
    toy.run(1)
    toy.label_owners["bea"].serves_for = {"server"}
    with pytest.raises(
        BoundaryError, match=r"'bea' does not answer multi_vfl.TrainRound of 'eve'"
    ):
        carrier(toy).attempt_each(
            dict.fromkeys(THREE, Envelope("eve", 1, multi_vfl.TrainRound(1)))
        )


def test_whom_a_data_owner_does_not_serve_it_does_not_serve_in_a_stack() -> None:
    toy = made(rows=ALIKE, stack="on")
    toy.run(1)
    heart = toy.data_owners["heart"]
    heart.serves_for = {"abel", "carl", "dora"}
    released = heart.outbox.released
    with pytest.raises(
        BoundaryError,
        match=r"'heart' does not answer multi_vfl_data_owner.Open of 'bea'",
    ):
        toy.run(1)
    assert heart.outbox.released == released


def test_a_data_owner_remembers_the_calls_of_each_driver() -> None:
    """The last one of a round again is a repeated delivery: what it asks for is not
    released."""
    toy = made(rows=ALIKE, stack="on")
    toy.run(1)
    heart = toy.data_owners["heart"]
    before = {k: heart._answered[k].newest for k in THREE}
    carrier(toy).attempt_each(
        dict.fromkeys(THREE, Envelope("server", 2**63, multi_vfl.TrainRound(1)))
    )
    for k, number in before.items():
        newest = heart._answered[k].newest
        assert newest > number
        again: Any = heart.handle(
            Envelope(k, newest, multi_vfl.Embed(f"{k}:test[0:5]"))
        )
        assert again == Done()


# Copies that are trained at once end where they end alone


K = 3
FEW = 5


def copies_of(model: nn.Module, device: str) -> list[Copy]:
    """K copies of a model, each moved a little so that no two are the same."""
    copies = [
        Copy(model.double().to(device), multi_vfl.Config(learning_rate=0.05))
        for _ in range(K)
    ]
    for number, one in enumerate(copies):
        one.restart(model)
        with torch.no_grad():
            for parameter in one.model.parameters():
                parameter.mul_(1 + 0.1 * number)
    return copies


def as_one(copies: list[Copy], abreast: bool) -> Copy:
    modules = [one.model for one in copies]
    whole = copies[0].like(Stacked(modules, abreast=abreast))
    share_memory(whole.model, modules)
    return whole


def same(mine: list[Copy], theirs: list[Copy]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def random(*shape: int, device: str = "cpu") -> Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("abreast", [False, True])
def test_copies_of_data_owners(abreast: bool, device: str) -> None:
    alone = copies_of(build("convolution", (4, 6), seed=0, owner="x"), device)
    members = copy.deepcopy(alone)
    together = as_one(members, abreast)
    x = random(K, FEW, 4, 6, device=device)
    for turn in range(4):
        gradient = random(K, FEW, 32, 4, 6, device=device) * (turn + 1)
        h = torch.stack(
            [one.embed(x[k], "b", torch.tanh) for k, one in enumerate(alone)]
        )
        embedded = together.embed(x, "b", torch.tanh)
        torch.testing.assert_close(embedded if device == "cpu" else embedded.tanh(), h)
        for k, one in enumerate(alone):
            one.descend(gradient[k])
        together.descend(gradient)
    same(members, alone)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("abreast", [False, True])
def test_copies_of_label_owners(abreast: bool, device: str) -> None:
    alone = copies_of(build_head("cnn", (2, 6, 4), 3, seed=0, owner="x"), device)
    members = copy.deepcopy(alone)
    together = as_one(members, abreast)
    h = [random(K, FEW, 2, 2, 4, device=device), random(K, FEW, 2, 4, 4, device=device)]
    y = torch.randint(3, (K, FEW), generator=torch.Generator().manual_seed(1)).to(
        device
    )
    for _ in range(4):
        losses, gradients = together.learn(h, y, torch.vmap(cross_entropy), -2)
        for k, one in enumerate(alone):
            loss, mine = one.learn([part[k] for part in h], y[k], cross_entropy, -2)
            torch.testing.assert_close(losses[k], loss)
            for a, b in zip(gradients, mine, strict=True):
                torch.testing.assert_close(a[k], b)
    same(members, alone)


@pytest.mark.parametrize("abreast", [False, True])
def test_all_begin_a_round_from_the_same_weights(abreast: bool) -> None:
    model = build("mlp", (4,), seed=0, owner="x")
    members = copies_of(model, "cpu")
    as_one(members, abreast).restart(model)
    for one in members:
        assert all(map(torch.equal, one.model.parameters(), model.parameters()))
