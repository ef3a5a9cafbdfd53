"""A small federation of several data and label owners, and Multi-VFL's box written once
more in plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.algorithms import multi_vfl
from colonnade.core import Agreed, Batches, Organisation, Peers, Rule, Transport, roles
from colonnade.core.batches import RoundDone, seed_for
from colonnade.models import initialised
from colonnade.optim.losses import CrossEntropy
from colonnade.transport import InProcess

COLUMNS = {"heart": 4, "lung": 3}
ROWS = {"abel": 40, "bea": 56, "carl": 24}
ROUNDS = 3
CLASSES = 3

Wrap = Callable[[Transport], Transport]


def tower(columns: int, deep: bool, seed: int) -> nn.Module:
    """Each data owner has an architecture of its own."""
    with initialised(seed):
        if deep:
            return nn.Sequential(
                nn.Linear(columns, 6), nn.Tanh(), nn.Linear(6, 5), nn.ReLU()
            )
        return nn.Sequential(nn.Linear(columns, 4), nn.Tanh())


def top(shape: tuple[int, ...]) -> nn.Module:
    with initialised(7):
        return nn.Sequential(nn.Linear(shape[-1], 8), nn.ReLU(), nn.Linear(8, CLASSES))


@dataclass
class Several:
    """Drive it with `run`."""

    server: multi_vfl.AggregationServer
    label_owners: dict[str, multi_vfl.LabelOwner]
    data_owners: dict[str, multi_vfl.DataOwner]
    rounds: int
    said: list[RoundDone] = field(default_factory=list)

    def run(self, rounds: int | None = None) -> list[float]:
        steps = multi_vfl.train(self.server, self.server.peers, self.rounds)
        fresh = list(islice(steps, rounds))
        self.said += fresh
        return [step.loss for step in fresh]

    def everyone(self) -> dict[str, Any]:
        return {"server": self.server} | self.label_owners | self.data_owners

    def states(self) -> dict[str, Any]:
        return {
            name: copy.deepcopy(party.state())
            for name, party in self.everyone().items()
        }

    def predict(
        self, k: str = "abel", split: str = "test", model: str = "aggregated"
    ) -> Tensor:
        owner = self.label_owners[k]
        parts = [
            multi_vfl.predict(owner, owner.peers, rows, model)
            for rows in owner.batches.chunks(split, 7)
        ]
        return torch.cat(parts)


def made(
    *,
    config: multi_vfl.Config | None = None,
    rows: Mapping[str, int] = ROWS,
    columns: Mapping[str, int] = COLUMNS,
    rounds: int = ROUNDS,
    through_bytes: bool = False,
    dtype: torch.dtype = torch.float64,
    same_rows: bool = False,
    upper: Wrap = lambda transport: transport,
    lower: Callable[[str, Transport], Transport] = lambda _, transport: transport,
    rules: Mapping[str, Mapping[str, Rule]] | None = None,
    batch_size: int = 8,
    device: str = "cpu",
    towers: Sequence[bool] = (False, True),
    wrap_model: Callable[[nn.Module, Organisation], nn.Module] = lambda model, _: model,
) -> Several:
    """Label owners with rows of their own (some known to two), data owners whose tables
    are in another order."""
    config = config or multi_vfl.Config(
        optimizer="sgd", learning_rate=0.1, momentum=0.5
    )
    generator = torch.Generator().manual_seed(0)
    people = 200
    table = torch.randn(
        people, sum(columns.values()), generator=generator, dtype=torch.float64
    )
    truth = (
        table
        @ torch.randn(table.shape[1], CLASSES, generator=generator, dtype=torch.float64)
    ).argmax(-1)
    orders: dict[str, dict[str, tuple[Batches, Tensor]]] = {d: {} for d in columns}
    shuffled = {d: torch.randperm(people, generator=generator) for d in columns}
    batches: dict[str, Batches] = {}
    chosen: dict[str, Tensor] = {}
    for k, count in rows.items():
        first = 0 if same_rows else 20 * len(chosen)
        chosen[k] = torch.arange(first, first + count + 20)
        splits = {"train": torch.arange(count), "test": torch.arange(count, count + 20)}
        epochs = rounds * config.local_epochs
        batches[k] = Batches(
            splits, batch_size=batch_size, epochs=epochs, seed=3, owner=k
        )
        for d in columns:
            orders[d][k] = batches[k], shuffled[d].argsort()[chosen[k]]
    given = rules or {}

    def organisation(name: str, agreed: Any) -> Organisation:
        return Organisation.at(
            name, agreed, seed=1, rules=given.get(name), device=device
        )

    data_owners: dict[str, multi_vfl.DataOwner] = {}
    start = 0
    for number, (d, width) in enumerate(columns.items()):
        agreed = Agreed(orders[d])
        place = organisation(d, agreed)
        model = wrap_model(
            tower(width, towers[number % len(towers)], seed_for(0, d)).to(dtype), place
        )
        x = table[shuffled[d]][:, start : start + width].to(dtype)
        data_owners[d] = multi_vfl.DataOwner(place, x, model, config, agreed)
        start += width
    label_owners: dict[str, multi_vfl.LabelOwner] = {}
    for k in rows:
        place = organisation(k, batches[k])
        owner = multi_vfl.LabelOwner(
            place,
            truth[chosen[k]],
            CrossEntropy(CLASSES),
            config,
            batches[k],
            lambda shape: top(shape).to(dtype),
        )
        transport = lower(
            k, InProcess(data_owners, parallel="never", through_bytes=through_bytes)
        )
        owner.peers = Peers(k, data_owners, transport, place.ledger)
        owner.meet(owner.peers.ask(roles.Introduce()))
        label_owners[k] = owner
    any_batches = next(iter(batches.values()))
    server = multi_vfl.AggregationServer(
        organisation("server", any_batches), config, rounds
    )
    carrier: Transport = InProcess(
        label_owners, parallel="never", through_bytes=through_bytes
    )
    server.peers = Peers("server", label_owners, upper(carrier), server.ledger)
    return Several(server, label_owners, data_owners, rounds)


class Reference:
    """Algorithm 1 as one plain loop over whole models: autograd through all of it, and
    nothing between the parties."""

    def __init__(self, toy: Several) -> None:
        self.config = toy.server.config
        self.x = {d: owner.features for d, owner in toy.data_owners.items()}
        self.y = {k: owner.labels for k, owner in toy.label_owners.items()}
        self.toy = toy
        self.f = {
            d: copy.deepcopy(owner.model).train()
            for d, owner in toy.data_owners.items()
        }
        self.g = copy.deepcopy(next(iter(toy.label_owners.values())).model).train()

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        c = self.config
        if c.optimizer == "adam":
            betas = (c.momentum, 0.999)
            return torch.optim.Adam(
                parameters, c.learning_rate, betas=betas, weight_decay=c.weight_decay
            )
        return torch.optim.SGD(
            parameters,
            c.learning_rate,
            momentum=c.momentum,
            weight_decay=c.weight_decay,
        )

    def round(self, number: int, present: Collection[str]) -> float:
        """One round of those present, with the mean of what they end with."""
        ends: list[list[nn.Module]] = []
        losses = []
        rows = []
        for k in present:
            f = copy.deepcopy(self.f)
            g = copy.deepcopy(self.g)
            models = [*f.values(), g]
            optimizer = self.optimizer(
                [p for model in models for p in model.parameters()]
            )
            batches = self.toy.label_owners[k].batches
            total = 0.0
            seen = 0
            for epoch in range(
                number * self.config.local_epochs,
                (number + 1) * self.config.local_epochs,
            ):
                for i in range(batches.per_epoch):
                    at = batches.rows(f"{k}:train/{epoch}/{i}")
                    h = [
                        f[d](self.x[d][self.toy.data_owners[d].agreed.order(k)[at]])
                        for d in self.x
                    ]
                    loss = nn.functional.cross_entropy(
                        g(torch.cat(h, -1)), self.y[k][at]
                    )
                    optimizer.zero_grad()
                    torch.autograd.backward(loss)
                    optimizer.step()
                    total += loss.item() * len(at)
                    seen += len(at)
            ends.append(models)
            losses.append(total / seen)
            rows.append(len(batches.splits["train"]))
        shares = rows if self.config.weighting == "rows" else [1] * len(rows)
        with torch.no_grad():
            for place, model in enumerate([*self.f.values(), self.g]):
                for index, parameter in enumerate(model.parameters()):
                    each = [list(models[place].parameters())[index] for models in ends]
                    parameter.copy_(
                        sum(s * p for s, p in zip(shares, each, strict=True))  # type: ignore[arg-type]
                        / sum(shares)
                    )
        return sum(a * b for a, b in zip(losses, rows, strict=True)) / sum(rows)

    def assert_equal(self, toy: Several, rtol: float = 1e-9) -> None:
        """That the federation has the same models, at every party that could be told."""
        pairs = [(owner.model, self.f[d]) for d, owner in toy.data_owners.items()]
        told = [
            owner
            for owner in toy.label_owners.values()
            if owner.round == toy.server.round
        ]
        pairs += [(owner.model, self.g) for owner in told]
        assert told
        for mine, theirs in pairs:
            for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)
