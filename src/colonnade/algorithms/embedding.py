"""What many algorithms share: a party embeds a batch by its name, and steps with the gradient that comes back.

    party k:      h_k = f_k(x_k[B])                      Embed   -> Embedding
    label owner:  makes outputs of h_1 .. h_M
    party k:      one step of f_k with dloss/dh_k        Descend -> Done

An algorithm takes from here what its box has: many send embeddings, and not all of these a gradient of each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Protocol

import torch
from torch import Generator, Tensor, nn

from colonnade.algorithms.algorithm import Kind, LocalInputs, Release
from colonnade.core import (
    Batches,
    Done,
    Message,
    Organisation,
    Outbox,
    Peers,
    Released,
    Request,
    Rows,
    State,
    Step,
    roles,
)
from colonnade.core.batches import seed_for
from colonnade.core.party import serves
from colonnade.models import initialised
from colonnade.optim.descent import Descent, Pass
from colonnade.optim.losses import Loss, beside, make_optimizer, norms

EMBEDDING = Release(
    Kind.EMBEDDING, of="columns", per_row=True, tells="the local model's output for each row, a summary of its columns"
)
LOGITS = Release(
    Kind.LOGITS,
    of="columns",
    per_row=True,
    tells="what each row's columns say about its label, in the local model's view",
)
GRADIENT = Release(
    Kind.GRADIENT,
    of="labels",
    per_row=True,
    tells="per row how the loss changes with the embedding: labels can be guessed from it",
)


class Embedding(Message):
    values: Annotated[Released, Kind.EMBEDDING, Kind.LOGITS]  # [rows, width]


class Embed(Request[Embedding]):
    batch: str  # a batch travels by name; every party knows its rows


class Descend(Request[Done]):
    batch: str
    gradient: Released  # dloss/dh_k, [rows, width]


class FeatureOwner(roles.FeatureOwner):
    """Holds columns and f_k, and remembers the batch that it last embedded for training."""

    released_as = "embedding"
    optimizer: torch.optim.Optimizer
    _pending: tuple[str, Pass, Tensor] | None = None

    def __init__(self, organisation: Organisation, features: Tensor, model: nn.Module, config: Any) -> None:
        super().__init__(organisation, features, model, config)
        self.optimizer = make_optimizer(self.model.parameters(), config)

    @cached_property
    def descent(self) -> Descent:
        return Descent(self.model, self.optimizer)

    @serves
    def embed(self, request: Embed, asker: str | None) -> Embedding:
        x = self.x(request.batch)
        if self.training(request.batch):
            passed = self.descent.over(x)
            h = self.outbox.bounded(passed.outputs, self.released_as, request.batch, to=asker)
            self._pending = (request.batch, passed, h) if h.requires_grad else None
        else:
            with torch.no_grad():
                h = self.outbox.bounded(self.model(x), self.released_as, request.batch, to=asker)
        return Embedding(self.outbox.release(h, self.released_as, request.batch, to=asker))

    def step_with(self, gradient: Tensor, batch: str) -> Done:
        """One optimizer step with dloss/dh_k of the pending batch, which is pending no longer."""
        _, passed, h = self.expect_pending(self._pending, batch, "a gradient came")
        self._pending = None
        passed.step(h, gradient.expand_as(h))
        return Done()


class DescendingFeatureOwner(FeatureOwner):
    """Holds columns and f_k, and is told how the loss changes with each row's embedding."""

    @serves
    def descend(self, request: Descend) -> Done:
        return self.step_with(request.gradient.tensor, request.batch)


class LabelOwner(roles.LabelOwner):
    """Holds labels and a model g of everything that was embedded; drives. `meet` makes g and its optimizer."""

    loss: Loss
    model: nn.Module
    optimizer: torch.optim.Optimizer

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        """The outputs that g makes of the embeddings."""
        raise NotImplementedError

    def of_batch(self, h: Mapping[str, Tensor], batch: str) -> Tensor:  # noqa: ARG002
        """The outputs for a batch, where it matters who holds which of its rows."""
        return self.outputs(h)

    def learn(self, h: Mapping[str, Tensor], batch: str) -> tuple[float, dict[str, Tensor]]:
        """One step of g, and dloss/dh_k for every party."""
        leaves = {k: h_k.requires_grad_() for k, h_k in h.items()}
        loss = self.lost(self.of_batch(leaves, batch), batch)
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


class Concatenating(LabelOwner):
    """Its g reads all embeddings side by side; it is linear, or has one hidden layer (`config.head_hidden`)."""

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        super().meet(introductions)
        seed = self.organisation.start(seed_for(self.generator.initial_seed(), "head"))
        self.model = head(self.inputs, self.loss.outputs, self.config.head_hidden, seed).to(self.device)
        self.optimizer = make_optimizer(self.model.parameters(), self.config)

    @property
    def inputs(self) -> int:
        """How many numbers g reads of a row."""
        return sum(self.widths.values())

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        """g([h_1 .. h_M])."""
        return self.model(torch.cat(list(h.values()), dim=-1))  # type: ignore[no-any-return]

    def heads(self) -> Tensor | None:
        """A linear g as one matrix, a block of rows per party; none with a hidden layer, which mixes the parties."""
        return self.model.weight.detach().T if isinstance(self.model, nn.Linear) else None

    def head_norms(self) -> dict[str, float]:
        """The norm of the block of a linear g that meets h_k; none where the parties are mixed."""
        return {} if (W := self.heads()) is None else norms(W, self.widths)


class LinearHeads(roles.LabelOwner):
    """Its outputs are sum_k h_k W_k; the heads W have a block of rows per party."""

    heads: Tensor

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        """sum_k h_k W_k."""
        return beside(h, self.widths) @ self.heads

    def head_norms(self) -> dict[str, float]:
        """||W_k||, which reflects how much each party matters (VIM, Section 5.2)."""
        return norms(self.heads, self.widths)


class Combining(Protocol):
    """A label owner that makes outputs from what the parties released."""

    def outputs(self, h: Mapping[str, Tensor], /) -> Tensor: ...


class Learning(Protocol):
    """A label owner that learns from embeddings, and says how the loss changes with each."""

    outbox: Outbox

    def learn(self, h: Mapping[str, Tensor], batch: str, /) -> tuple[float, dict[str, Tensor]]: ...


def train(driver: Learning, peers: Peers, batches: Batches) -> Iterator[Step]:
    """Embed, learn, descend, batch by batch."""
    for batch in batches:
        replies = peers.ask(Embed(batch.name))
        loss, gradients = driver.learn({k: r.values.tensor.detach() for k, r in replies.items()}, batch.name)
        peers.ask_each(
            {k: Descend(batch.name, driver.outbox.release(g, "gradient", batch.name)) for k, g in gradients.items()}
        )
        yield Step(batch, loss)


def predict(driver: Combining, peers: Peers, rows: Rows) -> Tensor:
    """Predict by any algorithm whose label owner combines embeddings or logits into outputs."""
    replies = peers.ask(Embed(rows.name))
    with torch.no_grad():
        return driver.outputs({k: r.values.tensor for k, r in replies.items()})


def head(inputs: int, outputs: int, hidden: int, seed: int | Generator) -> nn.Module:
    """g on the concatenation: linear, or with one hidden layer."""
    with initialised(seed):
        if not hidden:
            return nn.Linear(inputs, outputs)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def with_head(model: nn.Module, given: LocalInputs[Any]) -> nn.Module:
    """A party's whole model from columns to logits: f_k and a head without bias, as VIM's linear heads."""
    layers = list(model) if type(model) is nn.Sequential else [model]  # a subclass may do more than its layers
    return nn.Sequential(*layers, nn.Linear(given.width, given.outputs, bias=False))


class LogOdds(roles.ByRow):
    """m logits as m - 1 log-odds against the first class."""

    def forward(self, z: Tensor) -> Tensor:
        return z[..., 1:] - z[..., :1]


def with_log_odds(model: nn.Module, given: LocalInputs[Any]) -> nn.Module:
    """A party's whole model from columns to log-odds: f_k and a dense layer with a logit per class."""
    layers = list(model) if type(model) is nn.Sequential else [model]  # a subclass may do more than its layers
    return nn.Sequential(*layers, nn.Linear(given.width, max(given.outputs, 2)), LogOdds())
