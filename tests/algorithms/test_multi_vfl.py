"""Multi-VFL is its box: a plain loop over whole models, with one label owner split
learning; what the server sees."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.algorithms.several import ROWS, Reference, made
from torch import nn

from colonnade.algorithms import find, multi_vfl
from colonnade.algorithms.multi_vfl_data_owner import flat
from colonnade.core import Done, Rule
from colonnade.errors import ConfigError
from colonnade.privacy.gaussian import Gaussian
from colonnade.transport import Recording

SGD = {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.5}
ADAM = {
    "optimizer": "adam",
    "learning_rate": 0.01,
    "momentum": 0.8,
    "weight_decay": 0.01,
}


def test_it_is_found_by_name() -> None:
    assert find("multi_vfl") is multi_vfl.ALGORITHM
    assert "arXiv:" in str(multi_vfl.__doc__)
    assert "What crosses:" in str(multi_vfl.__doc__)


@pytest.mark.parametrize("weighting", ["rows", "uniform"])
@pytest.mark.parametrize("local", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_fedavg_is_the_plain_loop(
    weighting: Any, local: dict[str, Any], epochs: int
) -> None:
    """Two architectures at data owners, three label owners of different sizes, tables
    in different orders."""
    toy = made(
        config=multi_vfl.Config(weighting=weighting, local_epochs=epochs, **local)
    )
    reference = Reference(toy)
    losses = [reference.round(number, ROWS) for number in range(toy.rounds)]
    assert toy.run() == pytest.approx(losses, rel=1e-9)
    reference.assert_equal(toy)


def test_the_two_means_differ() -> None:
    rows, uniform = (
        made(config=multi_vfl.Config(weighting=w, **SGD))  # type: ignore[arg-type]
        for w in ("rows", "uniform")
    )
    assert rows.run()[-1] != uniform.run()[-1]


def test_one_label_owner_is_split_learning_on_the_joined_model() -> None:
    """K = 1, FedAvg at rate 1, E = 1: centralized training of [f_1 .. f_D, g], with the
    state of a round."""
    config = multi_vfl.Config(
        server_rate=1.0, optimizer="sgd", learning_rate=0.1, momentum=0.0
    )
    toy = made(config=config, rows={"abel": 56})
    owner = toy.label_owners["abel"]
    joined = nn.ModuleList([*(o.model for o in toy.data_owners.values()), owner.model])
    joined = copy.deepcopy(joined)
    optimizer = torch.optim.SGD(joined.parameters(), 0.1)
    toy.run()
    for batch in owner.batches:
        rows = {d: o.rows(batch.name) for d, o in toy.data_owners.items()}
        h = [
            joined[n](o.features[rows[d]])
            for n, (d, o) in enumerate(toy.data_owners.items())
        ]
        loss = nn.functional.cross_entropy(
            joined[-1](torch.cat(h, -1)), owner.y(batch.name)
        )
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    mine = [
        *(p for o in toy.data_owners.values() for p in o.model.parameters()),
        *owner.model.parameters(),
    ]
    for a, b in zip(mine, joined.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("server", ["fedavg", "fedadam", "fedyogi", "feddemonadam"])
def test_label_owners_with_the_same_rows_are_one(server: str) -> None:
    config = multi_vfl.Config(server=server, **SGD)  # type: ignore[arg-type]
    one = made(config=config, rows={"abel": 40})
    three = made(
        config=config, rows={"abel": 40, "bea": 40, "carl": 40}, same_rows=True
    )
    assert three.run() == pytest.approx(one.run(), rel=1e-9)
    assert one.server.weights is not None
    torch.testing.assert_close(
        three.server.weights, one.server.weights, rtol=1e-9, atol=1e-12
    )
    for d, owner in one.data_owners.items():
        for a, b in zip(
            owner.model.parameters(),
            three.data_owners[d].model.parameters(),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("server", ["fedadam", "fedyogi", "feddemonadam"])
@pytest.mark.parametrize("second_moment", ["momentum", "delta"])
def test_the_server_optimizer_moves_the_weights_and_data_owners_still_average(
    server: Any, second_moment: Any
) -> None:
    config = multi_vfl.Config(
        server=server,
        second_moment=second_moment,
        server_rate=0.05,
        **SGD,  # type: ignore[arg-type]
    )
    toy = made(config=config)
    plain = made(config=multi_vfl.Config(**SGD))  # type: ignore[arg-type]
    start = flat(next(iter(toy.label_owners.values())).model)
    toy.run(1)
    plain.run(1)
    assert plain.server.weights is not None
    optimizer = multi_vfl.server_optimizer(config, toy.rounds)
    moved, _ = optimizer.update(
        optimizer.init({"W": start}),
        {"W": start},
        {"W": plain.server.weights - start},
        1,
    )
    torch.testing.assert_close(toy.server.weights, moved["W"], rtol=1e-9, atol=1e-12)
    for d, owner in plain.data_owners.items():
        for a, b in zip(
            owner.model.parameters(), toy.data_owners[d].model.parameters(), strict=True
        ):
            assert torch.equal(a, b)


def test_the_loss_falls() -> None:
    for server, rate in (("fedavg", 1.0), ("fedadam", 0.02)):
        config = multi_vfl.Config(server=server, server_rate=rate, **SGD)  # type: ignore[arg-type]
        losses = made(config=config, rounds=20).run()
        assert losses[-1] < 0.8 * losses[0]


def test_the_server_sees_weights_and_scalars_alone() -> None:
    """Its whole transcript: no embedding, no gradient, nothing from a data owner."""
    toy = made(upper=Recording)
    toy.run()
    recording = toy.server.peers.transport
    assert isinstance(recording, Recording)
    seen = recording.of("server")
    assert {type(one.message) for one in seen} == {
        multi_vfl.Beginning,
        multi_vfl.Trained,
        Done,
    }
    assert {one.sender for one in seen} == set(ROWS)
    tensors = [released for one in seen for released in one.message.released()]
    assert {released.receipt.name for released in tensors} == {"weights"}
    assert {released.receipt.owner for released in tensors} == set(ROWS)
    size = sum(p.numel() for p in toy.label_owners["abel"].model.parameters())
    assert {released.shape for released in tensors} == {(size,)}
    assert set(recording.transcripts) == {"server", *ROWS}
    for d, owner in toy.data_owners.items():
        assert "server" not in {entry.peer for entry in owner.ledger.entries}, d
    assert {(e.peer in ROWS, e.name) for e in toy.server.ledger.entries} == {
        (True, "weights")
    }


def test_every_tensor_is_in_both_ledgers() -> None:
    toy = made(rounds=1)
    toy.run()
    for k, label_owner in toy.label_owners.items():
        for d, data_owner in toy.data_owners.items():
            mine = [e for e in label_owner.ledger.entries if e.peer == d]
            theirs = [e for e in data_owner.ledger.entries if e.peer == k]
            assert len(mine) == len(theirs) == 2 * label_owner.batches.per_epoch
            turned = {"in": "out", "out": "in"}
            assert [
                (turned[e.direction], e.name, e.batch, e.bytes, e.number) for e in mine
            ] == [(e.direction, e.name, e.batch, e.bytes, e.number) for e in theirs]
            assert {e.batch.partition(":")[0] for e in mine if e.batch} == {k}


def test_no_noise_and_no_clipping_is_plain() -> None:
    rule = {"embedding": Rule(Gaussian(sigma=0.0, clip=float("inf")))}
    noisy = made(rules={"heart": rule, "lung": rule})
    plain = made()
    assert noisy.run() == plain.run()
    events = {
        e.event
        for e in noisy.data_owners["heart"].ledger.entries
        if e.direction == "out"
    }
    assert events == {"non-private"}  # no noise promises nothing
    assert {e.event for e in plain.data_owners["heart"].ledger.entries} == {
        "non-private"
    }


def test_a_rule_may_be_for_one_purpose_whoever_asks() -> None:
    rule = {"test.embedding": Rule(Gaussian(sigma=5.0, clip=0.1))}
    noisy = made(rules={"heart": rule})
    plain = made()
    assert noisy.run() == plain.run()
    assert not torch.equal(noisy.predict(), plain.predict())


def test_predictions_by_the_aggregated_model_and_by_one_s_own() -> None:
    toy = made()
    toy.run(1)
    at = toy.label_owners["bea"].batches.rows("bea:test[0:20]")
    for model, used in (("aggregated", ROWS), ("own", ["bea"])):
        fresh = Reference(made())
        fresh.round(0, used)
        x = [
            fresh.f[d](o.features[o.agreed.order("bea")[at]])
            for d, o in toy.data_owners.items()
        ]
        torch.testing.assert_close(
            toy.predict("bea", model=model), fresh.g(torch.cat(x, -1)).detach()
        )


BAD: list[tuple[str, Any]] = [
    ("server", "fedprox"),
    ("server_rate", -1.0),
    ("beta1", 1.0),
    ("beta2", -0.1),
    ("tau", 0.0),
    ("second_moment", "v"),
    ("weighting", "size"),
    ("local_epochs", 0),
    ("optimizer", "lion"),
    ("learning_rate", 0.0),
    ("momentum", 1.0),
    ("weight_decay", -1.0),
    ("concatenate", "width"),
    ("demon", "both"),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[name for name, _ in BAD])
def test_bad_settings_are_refused_with_the_rule_and_the_value(
    name: str, value: Any
) -> None:
    with pytest.raises(
        ConfigError, match=rf"multi_vfl\) {name} must be .*; found {value!r}"
    ):
        multi_vfl.Config(**{name: value})
