"""SplitNN on vertically partitioned data: concatenated embeddings, one head at the label owner.

Vepakomma et al., Split learning for health, 2018 (arXiv:1812.00564); Ceballos et al., 2020 (arXiv:2008.04137).

    for each batch B:
        party k:      h_k = f_k(x_k[B])                      Embed   -> Embedding
        label owner:  loss = l(g([h_1 .. h_M]), y[B]); step g
        party k:      step f_k with dloss/dh_k               Descend -> Done

What crosses: embeddings up, their gradients down. What a party learns: gradients reveal labels to a party that
looks; embeddings reveal features to whoever knows f_k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from colonnade.core import Batches, Done, Message, Peers, Released, Request, Rows, Seat, State, Step, roles, serves
from colonnade.core.checks import fraction, not_negative, one_of, positive, whole
from colonnade.core.party import seed_for
from colonnade.models import initialised
from colonnade.optim.heads import norms
from colonnade.optim.local import make_optimizer
from colonnade.optim.losses import Loss

REVEALS = {
    "embedding": "what the local model leaves of each row's columns",
    "gradient": "per row how the loss changes with the embedding: labels can be guessed from it",
}


@dataclass(frozen=True)
class Config:
    """Hyper-parameters; each is checked where it is written, so a bad TOML fails before anything is sent."""

    optimizer: str = one_of("sgd", "adam", default="sgd")
    learning_rate: float = positive(default=0.1)
    momentum: float = fraction(default=0.9)
    weight_decay: float = not_negative(default=0.0)
    head_hidden: int = whole(default=0, least=0)  # width of one hidden layer in g; 0: g is linear


def missing(config: Config) -> set[str]:  # noqa: ARG001
    """g reads all embeddings; a zero would be a value like any other."""
    return {"stale"}


class Embedding(Message):
    values: Released  # [rows, width]


class Embed(Request[Embedding]):
    batch: str  # a batch travels by name; every party knows its rows


class Descend(Request[Done]):
    batch: str
    gradient: Released  # dloss/dh_k, [rows, width]


class FeatureOwner(roles.FeatureOwner):
    """Holds columns and f_k."""

    released_as = "embedding"

    def __init__(self, seat: Seat, features: Tensor, model: nn.Module, config: Config) -> None:
        super().__init__(seat, features, model, config)
        self.optimizer = make_optimizer(self.model.parameters(), config)
        self._pending: tuple[str, Tensor] | None = None

    @serves
    def embed(self, request: Embed) -> Embedding:
        with torch.set_grad_enabled(self.training(request.batch)):
            h = self.outbox.bounded(self.model(self.x(request.batch)), self.released_as, request.batch)
        if h.requires_grad:
            self._pending = request.batch, h
        return Embedding(self.outbox.release(h, self.released_as, request.batch))

    @serves
    def descend(self, request: Descend) -> Done:
        batch, h = self._pending or (None, None)
        self.expect(batch == request.batch, f"a gradient came for batch {request.batch}, but {batch} is pending")
        assert h is not None
        self._pending = None
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(h, request.gradient.tensor.expand_as(h))
        self.optimizer.step()
        return Done()


class Combining(Protocol):
    """A label owner that makes outputs from what the parties released."""

    def outputs(self, h: Mapping[str, Tensor], /) -> Tensor: ...


class LabelOwner(roles.LabelOwner):
    """Holds labels and g; drives."""

    loss: Loss
    config: Config
    model: nn.Module

    def meet(self, cards: Mapping[str, roles.Card]) -> None:
        super().meet(cards)
        seed = self.seat.start(seed_for(self.generator.initial_seed(), "head"))
        self.model = head(sum(self.widths.values()), self.loss.outputs, self.config.head_hidden, seed).to(self.device)
        self.optimizer = make_optimizer(self.model.parameters(), self.config)

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        """g([h_1 .. h_M])."""
        return self.model(torch.cat(list(h.values()), dim=-1))  # type: ignore[no-any-return]

    def head_norms(self) -> dict[str, float]:
        """The norm of the block of a linear g that meets h_k; none where a hidden layer mixes the parties."""
        return norms(self.model.weight.detach().T, self.widths) if isinstance(self.model, nn.Linear) else {}

    def learn(self, h: Mapping[str, Tensor], batch: str) -> tuple[float, dict[str, Tensor]]:
        """One step of g, and dloss/dh_k for every party."""
        leaves = {k: h_k.requires_grad_() for k, h_k in h.items()}
        loss = self.loss(self.outputs(leaves), self.y(batch))
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.item(), {k: leaf.grad for k, leaf in leaves.items() if leaf.grad is not None}

    def state(self) -> State:
        return super().state() | {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    for batch in batches:
        replies = peers.ask(Embed(batch.name))
        loss, gradients = driver.learn({k: r.values.tensor.detach() for k, r in replies.items()}, batch.name)
        peers.ask_each(
            {k: Descend(batch.name, driver.outbox.release(g, "gradient", batch.name)) for k, g in gradients.items()}
        )
        yield Step(batch, loss)


def predict(driver: Combining, peers: Peers, rows: Rows) -> Tensor:
    """Any algorithm's whose label owner combines embeddings or logits into outputs."""
    replies = peers.ask(Embed(rows.name))
    with torch.no_grad():
        return driver.outputs({k: r.values.tensor for k, r in replies.items()})


def head(inputs: int, outputs: int, hidden: int, seed: int | Generator) -> nn.Module:
    """g: linear on the concatenation, or with one hidden layer."""
    with initialised(seed):
        if not hidden:
            return nn.Linear(inputs, outputs)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
