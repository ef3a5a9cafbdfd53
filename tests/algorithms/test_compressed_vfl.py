"""C-VFL is SplitNN when nothing is compressed and Q = 1; else it is Algorithm 1,
written down again in plain torch."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from tests.algorithms.reference import (
    Joined,
    assert_alike,
    batch_name,
    centralized,
    columns,
    mean_loss,
    optimizer_of,
)
from tests.conformance.toy import (
    TASKS,
    TRANSPORTS,
    Task,
    Toy,
    cohorts,
    federation,
    sequential,
)
from tests.federation import small
from torch import Tensor, nn

from colonnade.algorithms import compressed_vfl, embedding, splitnn
from colonnade.compression import Half, Integers, Quantize, TopK, VectorQuantize
from colonnade.core import Batches, Codec, Organisation, Peers, Rule, roles
from colonnade.errors import BoundaryError, PartyError
from colonnade.models import build
from colonnade.optim.losses import CrossEntropy
from colonnade.privacy import Binomial, RandomizedResponse
from colonnade.transport import InProcess, Recording

STEPS = 8
pytestmark = pytest.mark.filterwarnings("ignore:compressed_vfl")
stacked_or_not = pytest.mark.parametrize(
    "wrap", [sequential, cohorts], ids=["one by one", "stacked"]
)


class Concatenated(nn.Module):
    """g([h_1 .. h_M])."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = copy.deepcopy(head)

    def forward(self, h: list[Tensor]) -> Tensor:
        result: Tensor = self.head(torch.cat(h, dim=-1))
        return result


def joined(toy: Toy) -> Joined:
    toy.states()  # a cohort hands its state back
    return Joined(toy, Concatenated(toy.driver.model))


PLAIN: list[dict[str, Any]] = [
    {"learning_rate": 0.1, "momentum": 0.0},
    {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.01, "head_hidden": 6},
    {"optimizer": "adam", "learning_rate": 0.01, "momentum": 0.9},
]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "settings", PLAIN, ids=["sgd", "momentum, decay, deep head", "adam"]
)
@stacked_or_not
def test_with_one_local_step_and_nothing_compressed_it_is_splitnn(
    task: Task, settings: dict[str, Any], wrap: Any
) -> None:
    about: dict[str, Any] = {
        "columns": (4, 4, 3, 4),
        "task": task,
        "dtype": torch.float64,
    }
    config = compressed_vfl.Config(local_steps=1, **settings)
    toy = federation(compressed_vfl.ALGORITHM, wrap, config=config, **about)
    split = federation(splitnn.ALGORITHM, config=splitnn.Config(**settings), **about)
    model = joined(toy)
    assert_alike(joined(split), model, 0.0)
    losses = list(
        centralized(toy, model, [optimizer_of(model.parameters(), config)], STEPS)
    )
    found = toy.run(STEPS)
    assert found == pytest.approx(losses, rel=1e-6)
    assert found == pytest.approx(split.run(STEPS), rel=1e-6)
    assert_alike(joined(toy), model, 1e-6)
    assert_alike(joined(toy), joined(split), 1e-6)
    assert torch.allclose(toy.predict(), split.predict(), rtol=1e-6, atol=1e-9)


def by_hand(
    toy: Toy, config: Any, steps: int, codec: Codec, model_codec: Codec
) -> tuple[Joined, list[float]]:
    """Algorithm 1 with everything in one place: each block descends on its own copy of
    what was sent."""

    def sent(tensor: Tensor, by: Codec) -> Tensor:
        return by.decode(by.encode(tensor.detach(), torch.Generator()))

    whole = joined(toy)
    head = whole.join.head
    assert isinstance(head, nn.Module)
    blocks: list[nn.Module] = [*whole.parts, head]
    optimizers = [optimizer_of(block.parameters(), config) for block in blocks]
    losses = []
    for step in range(steps):
        batch = batch_name(toy, step)
        x = columns(toy, batch)
        phi = [sent(part(x_m), codec) for part, x_m in zip(whole.parts, x, strict=True)]
        stale = copy.deepcopy(head)
        stale.load_state_dict(
            {
                name: sent(tensor, model_codec)
                for name, tensor in head.state_dict().items()
            }
        )
        losses.append(mean_loss(toy, head(torch.cat(phi, -1)), batch).item())
        for m, (block, optimizer) in enumerate(zip(blocks, optimizers, strict=True)):
            for _ in range(config.local_steps):
                h = [block(x[j]) if j == m else phi[j] for j in range(len(phi))]
                loss = mean_loss(
                    toy, (head if block is head else stale)(torch.cat(h, -1)), batch
                )
                optimizer.zero_grad()
                torch.autograd.backward(loss, inputs=list(block.parameters()))
                optimizer.step()
    return whole, losses


@pytest.mark.parametrize(
    ("local_steps", "hidden", "codec", "model_codec"),
    [
        (4, 0, Half("bfloat16"), Half()),
        (3, 6, Quantize(16, -2.0, 6.0), Quantize(256)),
        (3, 0, TopK(0.5), TopK(0.75)),
        (2, 6, VectorQuantize(256, -2.0, 6.0), Quantize(64)),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else str(value),
)
@pytest.mark.parametrize("task", ["classes", "binary", "regression"])
@stacked_or_not
def test_it_is_algorithm_1(
    local_steps: int,
    hidden: int,
    codec: Codec,
    model_codec: Codec,
    task: Task,
    wrap: Any,
) -> None:
    config = compressed_vfl.Config(
        local_steps=local_steps, learning_rate=0.05, momentum=0.5, head_hidden=hidden
    )
    rules = {"embedding": Rule(codec=codec), "model": Rule(codec=model_codec)}
    toy = federation(
        compressed_vfl.ALGORITHM,
        wrap,
        columns=(4, 3, 4),
        task=task,
        dtype=torch.float64,
        config=config,
        rules=rules,
    )
    model, losses = by_hand(toy, config, 6, codec, model_codec)
    assert toy.run(6) == pytest.approx(losses, rel=1e-6)
    assert_alike(joined(toy), model, 1e-6)


def test_parties_of_different_widths_are_stacked_with_their_like() -> None:
    """Ada and cyd are 8 wide, bob 5: whose embedding comes when differs, and each finds
    its own inputs of g."""

    def narrow(model: nn.Module) -> nn.Module:
        return nn.Sequential(*model.children(), nn.Linear(8, 5, dtype=torch.float64))

    config = compressed_vfl.Config(local_steps=3)
    about: dict[str, Any] = {"dtype": torch.float64, "config": config}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        bob = narrow(
            build(
                {"name": "mlp", "hidden": [16], "width": 8}, (4,), seed=1, owner="bob"
            ).double()
        )
    wrapped: dict[str, Any] = {"bob": lambda _: copy.deepcopy(bob)}
    one, other = (
        federation(compressed_vfl.ALGORITHM, wrap, wrap_model=wrapped, **about)
        for wrap in (sequential, cohorts)
    )
    assert [list(cohort.members) for cohort in other.cohorts()] == [["ada", "cyd"]]
    model, losses = by_hand(one, config, 5, Quantize(2**16), Quantize(2**16))
    for toy in (one, other):
        for party in [toy.driver, *toy.parties.values()]:
            party.outbox.default = Rule(codec=Quantize(2**16))
            party.outbox.rules = {"targets": Rule()}
        assert toy.run(5) == pytest.approx(losses, rel=1e-6)
        assert_alike(joined(toy), model, 1e-6)


# What crosses


def test_labels_leave_once_and_embeddings_go_on_as_they_came() -> None:
    rules = {"embedding": Rule(codec=Quantize(16)), "model": Rule(codec=Quantize(256))}
    toy = federation(
        compressed_vfl.ALGORITHM,
        lambda parties: Recording(sequential(parties)),
        rules=rules,
    )
    toy.run(2)
    entries = toy.parties["ada"].ledger.entries
    row = math.ceil(8 * 4 / 8)
    weights = 3 * 24
    biases = 3
    rounds = [
        (way, message, name, batch, owner, size)
        for batch in ("train/0/0", "train/0/1")
        for way, message, name, owner, size in (
            ("out", "embedding.Embedding", "embedding", "ada", 32 * row),
            ("in", "compressed_vfl.Improve", "embedding", "bob", 32 * row),
            ("in", "compressed_vfl.Improve", "embedding", "cyd", 32 * row),
            ("in", "compressed_vfl.Improve", "model", "label owner", weights),
            ("in", "compressed_vfl.Improve", "model", "label owner", biases),
        )
    ]
    start = [
        ("in", "compressed_vfl.Join", name, "train[0:160]", "label owner", size)
        for name, size in (("targets", 160 * 8), ("inputs", 24 * 8))
    ]
    assert [
        (e.direction, e.message, e.name, e.batch, e.owner, e.bytes) for e in entries
    ] == start + rounds
    up = 2 * 32 * row
    down = 160 * 8 + 24 * 8 + 2 * (2 * 32 * row + weights + biases)
    for name, party in toy.parties.items():
        assert party.ledger.total("out") == toy.driver.ledger.total("in", name) == up
        assert party.ledger.total("in") == toy.driver.ledger.total("out", name) == down
        assert toy.transport.of(name).total("label owner") == down
    got = toy.transport.of("bob").tensors("embedding")
    sent = toy.transport.of("label owner")
    assert torch.equal(got[0], sent.tensors("embedding", "ada")[0])


def test_bytes_per_round_follow_theorem_4_2() -> None:
    """MNIST's sizes: 14 parties of 60 numbers, 1024 rows, k = 16 levels with Bin(16,
    1/2) noise, z = 256 levels."""
    k = 16
    N = 16
    B = 1024
    P = 60
    M = 14
    noisy = Binomial(k, N, 0.5, 0.0, 4.0)
    rules = {
        "embedding": Rule(noisy, Integers(*noisy.grid)),
        "model": Rule(codec=Quantize(256)),
        "targets": Rule(codec=Integers(0, 1, 10)),
    }
    batches = Batches({"train": torch.arange(B)}, batch_size=B, epochs=1, seed=0)
    features = torch.rand(B, 8, generator=torch.Generator().manual_seed(0))
    config = compressed_vfl.Config(local_steps=1)
    parties = {
        name: compressed_vfl.FeatureOwner(
            Organisation.at(name, batches, rules=rules),
            features,
            build("linear", (8,), seed=0, owner=name),
            config,
        )
        for name in (f"party_{number}" for number in range(M))
    }
    driver = compressed_vfl.LabelOwner(
        Organisation.at("server", batches, rules=rules),
        torch.arange(B) % 10,
        CrossEntropy(10),
        config,
    )
    driver.peers = Peers(
        "server", parties, InProcess(parties, through_bytes=True), driver.ledger
    )
    driver.meet(driver.peers.ask(roles.Introduce()))
    next(compressed_vfl.train(driver, driver.peers, batches))
    up = B * math.ceil(P * math.ceil(math.log2(k + N)) / 8)
    model = 10 * M * P + 10
    start = B * 4 // 8 + M * P * 8
    assert up == 1024 * 38
    for name, party in parties.items():
        assert party.ledger.total("out") == driver.ledger.total("in", name) == up
        assert (
            party.ledger.total("in")
            == driver.ledger.total("out", name)
            == (M - 1) * up + model + start
        )


def test_training_learns_through_noise() -> None:
    noisy = Binomial(64, 16, 0.5, -1.0, 7.0)
    toy = federation(
        compressed_vfl.ALGORITHM,
        rules={"embedding": Rule(noisy, Integers(*noisy.grid))},
        epochs=7,
    )
    losses = toy.run()
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    entry = next(e for e in toy.parties["ada"].ledger.entries if e.name == "embedding")
    assert (entry.event, entry.bytes) == ("binomial", 32 * math.ceil(8 * 7 / 8))


# Labels


def test_a_run_says_once_that_everybody_gets_the_labels() -> None:
    toy = federation(compressed_vfl.ALGORITHM)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        toy.run(2)
        toy.run(2)
    (warning,) = caught
    assert "'label owner' tells every party the labels of all training rows" in str(
        warning.message
    )


@pytest.mark.parametrize("transport", ["by reference", "through bytes", "cohorts"])
def test_parties_know_the_training_labels_and_no_others(transport: str) -> None:
    toy = federation(compressed_vfl.ALGORITHM, TRANSPORTS[transport])
    toy.run(1)
    train = toy.batches.splits["train"]
    for state in (toy.states()[name] for name in toy.parties):
        assert torch.equal(state["labels"][train], toy.driver.labels[train])
        rest = torch.ones(240, dtype=torch.bool).index_fill(0, train, False)
        assert not state["labels"][rest].any()


def test_randomized_response_is_drawn_once_and_is_all_that_parties_see() -> None:
    outbox = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 0.5}}}
    tables = small.quick(parties={"clinic": {"outbox": outbox}}, train={"epochs": 3})
    made = small.federation(
        settings={**tables, "algorithm": {"name": "compressed_vfl", "local_steps": 2}}
    )
    truth = made.holdings.label_owners["clinic"].labels
    train = made.batches.splits["train"]
    assert truth is not None
    made.fit()
    told = made.owners["lab"].state()["labels"][train]
    assert torch.equal(told, made.driver.labels[train])
    assert 0 < int((told != truth[train]).sum()) < len(train)
    assert (
        len(
            [
                e
                for e in made.ledgers["clinic"].entries
                if e.name == "targets" and e.direction == "out"
            ]
        )
        == 1
    )


def test_a_rule_for_targets_alone_protects_what_parties_are_told() -> None:
    rules = {"targets": Rule(RandomizedResponse(0.5, classes=3))}
    toy = federation(compressed_vfl.ALGORITHM, rules=rules)
    toy.run(1)
    told = toy.states()["ada"]["labels"][toy.batches.splits["train"]]
    assert 0 < int((told != toy.driver.labels[toy.batches.splits["train"]]).sum()) < 160


# What does not fit is refused


def test_a_round_for_another_batch_or_a_stranger_is_refused() -> None:
    toy = federation(compressed_vfl.ALGORITHM)
    model = tuple(
        toy.driver.outbox.release(part, "model")
        for part in toy.driver.model.parameters()
    )
    improve = compressed_vfl.Improve("train/0/0", (), model)
    with pytest.raises(
        PartyError, match="a round came for batch train/0/0, but None is pending"
    ):
        toy.peers["ada"].ask(improve)
    toy.peers["ada"].ask(embedding.Embed("train/0/0"))
    with pytest.raises(PartyError, match="a round came before this party had joined"):
        toy.peers["ada"].ask(improve)
    with pytest.raises(BoundaryError, match=r"does not serve embedding\.Descend"):
        toy.peers["ada"].ask(embedding.Descend("train/0/0", model[0]))


def test_a_prediction_in_the_middle_of_a_round_does_not_disturb_it() -> None:
    plain = federation(compressed_vfl.ALGORITHM)
    disturbed = federation(compressed_vfl.ALGORITHM)
    for toy in (plain, disturbed):
        toy.peers.ask_each(toy.driver.joins(toy.batches))
        sent = {
            k: reply.values
            for k, reply in toy.peers.ask(embedding.Embed("train/0/0")).items()
        }
        messages = toy.driver.messages(sent, "train/0/0")
        if toy is disturbed:
            toy.predict()
        toy.peers.ask_each(messages)
    for name, tensor in plain.states()["ada"]["model"].items():
        assert torch.equal(tensor, disturbed.states()["ada"]["model"][name])


@stacked_or_not
def test_a_label_owner_passes_its_own_embeddings_on_under_its_rule(wrap: Any) -> None:
    rules = {"embedding": Rule(codec=Quantize(levels=4))}
    toy = federation(
        compressed_vfl.ALGORITHM,
        lambda parties: Recording(wrap(parties)),
        rules=rules,
        driver="ada",
    )
    toy.run(2)
    passed = [
        e
        for e in toy.driver.ledger.entries
        if (e.direction, e.name, e.owner) == ("out", "embedding", "ada")
    ]
    assert {entry.codec for entry in passed} == {"quantize"}
    others = toy.transport.of("bob").tensors("embedding")
    assert others
    assert all(len(tensor.unique()) <= 4 * tensor.shape[-1] for tensor in others)
