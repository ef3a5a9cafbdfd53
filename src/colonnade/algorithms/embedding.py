"""What many algorithms share: a party embeds a batch by its name, and steps with the
gradient that comes back.

    party k:      h_k = f_k(x_k[B])                      Embed   -> Embedding
    label owner:  makes outputs of h_1 .. h_M
    party k:      one step of f_k with dloss/dh_k        Descend -> Done

An algorithm takes from here what its box has: many send embeddings, and not all of
these a gradient of each row.

VIMADMM and VIMADMM-J (Xie, Chen, Zhang and Li, 2022, arXiv:2207.10226) step towards a
target instead. With logits o:

    party k:      sends what its model gives for B, and remembers it              Embed -> Embedding
    label owner:  z = argmin l(z; y) - lambda^T z + rho/2 ||o - z||^2             Eq. 6 and 17
                  lambda <- lambda + rho (o - z)                                  Eq. 7 and 18
    party k:      tau steps towards a target formed from what it sent             Eq. 10, 20 and 21
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    mapped_zeros,
    roles,
)
from colonnade.core.batches import seed_for
from colonnade.core.party import ALL_THREADS_PAY, one_torch_thread, serves
from colonnade.errors import ConfigError
from colonnade.models import initialised
from colonnade.optim.buffers import Buffers
from colonnade.optim.descent import Descent, Pass
from colonnade.optim.execution import Arriving, Captured, gpu_kernels
from colonnade.optim.losses import Loss, ZUpdate

Arithmetic = Callable[..., tuple[Tensor, ...]]
EMBEDDING = Release(Kind.EMBEDDING, of="columns", per_row=True)
LOGITS = Release(Kind.LOGITS, of="columns", per_row=True)
GRADIENT = Release(Kind.GRADIENT, of="labels", per_row=True)
RESIDUAL = Release(Kind.RESIDUAL, of="labels", per_row=True)


class Optimizing(Protocol):
    """What an algorithm's Config says about local optimization."""

    @property
    def optimizer(self) -> str: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


def _without_compiler() -> None:
    """Torch puts what makes, saves and loads an optimizer out of its compiler's reach
    (`torch._disable_dynamo`), and imports that one for it: as long as importing torch
    itself, where nobody compiles."""
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        plain = inspect.unwrap(vars(torch.optim.Optimizer)[name])
        vars(plain).setdefault("__dynamo_disable", plain)


def make_optimizer(
    parameters: Iterable[Tensor], settings: Optimizing
) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam with `momentum` as its first decay rate; both act
    element by element, so that a cohort's stacked parameters move exactly as the
    members' own would."""
    rate = settings.learning_rate
    momentum = settings.momentum
    decay = settings.weight_decay
    tensors = list(parameters)
    if not tensors:
        raise ConfigError(
            "A local model has no parameters, so there is nothing to train. Give it at"
            " least one layer."
        )
    _without_compiler()
    if settings.optimizer == "adam":
        on_gpu = tensors[0].device.type == "cuda"
        return torch.optim.Adam(
            tensors,
            rate,
            betas=(momentum, 0.999),
            weight_decay=decay,
            capturable=on_gpu,
        )
    return torch.optim.SGD(tensors, rate, momentum=momentum, weight_decay=decay)


class Embedding(Message):
    values: Annotated[Released, Kind.EMBEDDING, Kind.LOGITS]  # [rows, width]


class Embed(Request[Embedding]):
    batch: str  # a batch travels by name; every party knows its rows


class Descend(Request[Done]):
    batch: str
    gradient: Released  # dloss/dh_k, [rows, width]


class Embedder(roles.FeatureOwner):
    """Holds columns, and f_k with what steps it."""

    released_as: str
    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Any,
    ) -> None:
        super().__init__(organisation, features, model, config)
        self.optimizer = make_optimizer(self.model.parameters(), config)

    @cached_property
    def descent(self) -> Descent:
        return Descent(self.model, self.optimizer)


class FeatureOwner(Embedder):
    """Remembers the batch that it last embedded for training."""

    released_as = "embedding"
    _pending: tuple[str, Pass, Tensor] | None = None

    @serves
    def embed(self, request: Embed, asker: str | None) -> Embedding:
        x = self.x(request.batch)
        if self.training(request.batch):
            passed = self.descent.over(x)
            h = self.outbox.bounded(
                passed.outputs, self.released_as, request.batch, to=asker
            )
            self._pending = (request.batch, passed, h) if h.requires_grad else None
        else:
            with torch.no_grad():
                h = self.outbox.bounded(
                    self.model(x), self.released_as, request.batch, to=asker
                )
        return Embedding(
            self.outbox.release(h, self.released_as, request.batch, to=asker)
        )

    def step_with(self, gradient: Tensor, batch: str) -> Done:
        """One optimizer step with dloss/dh_k of the pending batch, which is pending no
        longer."""
        _, passed, h = self.expect_pending(self._pending, batch, "a gradient came")
        self._pending = None
        passed.step(h, gradient.expand_as(h))
        return Done()


class DescendingFeatureOwner(FeatureOwner):
    """Holds columns and f_k, and is told how the loss changes with each row's
    embedding."""

    @serves
    def descend(self, request: Descend) -> Done:
        return self.step_with(request.gradient.tensor, request.batch)


class AdmmFeatureOwner(Embedder):
    """Holds columns and a model, and remembers what it sent until it is told what to
    make of it."""

    _local_steps: Callable[..., None]  # tau of them, in place; each algorithm's own
    _pending: tuple[str, Tensor, Tensor] | None = None

    @cached_property
    def _descend(self) -> Captured:
        return Captured(self._local_steps, self.model)

    @property
    def steps_at_once(self) -> int:
        return int(self.config.local_steps)

    @serves
    def embed(self, request: Embed, asker: str | None) -> Embedding:
        training = self.training(request.batch)
        x = self.x(request.batch)
        if training:
            h = self.descent.outputs(x)
        else:
            with torch.no_grad():
                h = self.model(x)
        sent = self.outbox.release(h, self.released_as, request.batch, to=asker)
        if training:
            self._pending = request.batch, self.outbox.own(sent), x
        return Embedding(sent)

    def sent(self, batch: str) -> tuple[Tensor, Tensor]:
        """What was sent for the pending batch, which is pending no longer, and the
        columns that it was made of."""
        _, sent, x = self.expect_pending(self._pending, batch, "variables came")
        self._pending = None
        return sent, x

    def load_state(self, state: State) -> None:
        super().load_state(state)
        vars(self).pop("_descend", None)


class LabelOwner(roles.LabelOwner):
    """Holds labels and a model g of everything that was embedded; drives. `meet` makes
    g and its optimizer."""

    loss: Loss
    model: nn.Module
    optimizer: torch.optim.Optimizer

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        """The outputs that g makes of the embeddings."""
        raise NotImplementedError

    def of_batch(self, h: Mapping[str, Tensor], batch: str) -> Tensor:  # noqa: ARG002
        """The outputs for a batch, where it matters who holds which of its rows."""
        return self.outputs(h)

    def learn(
        self, h: Mapping[str, Tensor], batch: str
    ) -> tuple[float, dict[str, Tensor]]:
        """One step of g, and dloss/dh_k for every party."""
        leaves = {k: h_k.requires_grad_() for k, h_k in h.items()}
        loss = self.lost(self.of_batch(leaves, batch), batch)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.item(), {
            k: leaf.grad for k, leaf in leaves.items() if leaf.grad is not None
        }

    def state(self) -> State:
        return super().state() | {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class Concatenating(LabelOwner):
    """Its g reads all embeddings side by side; it is linear, or has one hidden layer
    (`config.head_hidden`)."""

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        super().meet(introductions)
        seed = self.organisation.start(seed_for(self.generator.initial_seed(), "head"))
        self.model = head(
            self.inputs, self.loss.outputs, self.config.head_hidden, seed
        ).to(self.device)
        self.optimizer = make_optimizer(self.model.parameters(), self.config)

    @property
    def inputs(self) -> int:
        """How many numbers g reads of a row."""
        return sum(self.widths.values())

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        """g([h_1 .. h_M])."""
        return self.model(torch.cat(list(h.values()), dim=-1))  # type: ignore[no-any-return]

    def heads(self) -> Tensor | None:
        """A linear g as one matrix, a block of rows per party; none with a hidden
        layer, which mixes the parties."""
        return (
            self.model.weight.detach().T if isinstance(self.model, nn.Linear) else None
        )

    def head_norms(self) -> dict[str, float]:
        """The norm of the block of a linear g that meets h_k; none where the parties
        are mixed."""
        return {} if (W := self.heads()) is None else norms(W, self.widths)


def uniform_heads(widths: Iterable[int], outputs: int, generator: Generator) -> Tensor:
    """Each block uniform in +-1/sqrt(width), as a linear layer starts."""
    blocks = (
        torch.rand(width, outputs, generator=generator) * 2 - 1 for width in widths
    )
    return torch.cat([block / len(block) ** 0.5 for block in blocks])


def blocks(stacked: Tensor, widths: Iterable[int]) -> tuple[Tensor, ...]:
    """The rows that belong to each party."""
    return torch.split(stacked, list(widths))


def beside(
    h: Mapping[str, Tensor], widths: Mapping[str, int], room: Buffers | None = None
) -> Tensor:
    """The embeddings side by side, [rows, all widths], in a buffer where there is room
    for one. A party that is not in `h` has zeros there, so that its term h_k W_k is
    left out of the sum."""
    like = next(iter(h.values()))
    if len(h) < len(widths):
        h = {
            k: h[k] if k in h else like.new_zeros(*like.shape[:-1], width)
            for k, width in widths.items()
        }
    if room is None:
        return torch.cat(list(h.values()), dim=-1)
    room.begin()
    out = room.take((*like.shape[:-1], sum(widths.values())), like)
    return torch.cat(list(h.values()), dim=-1, out=out)


def norms(stacked: Tensor, widths: Mapping[str, int]) -> dict[str, float]:
    """The Frobenius norm of each party's block."""
    parts = blocks(stacked.detach(), widths.values())
    return {
        party: float(block.norm()) for party, block in zip(widths, parts, strict=True)
    }


class LinearHeads(roles.LabelOwner):
    """Its outputs are sum_k h_k W_k; the heads W have a block of rows per party."""

    loss: Loss
    heads: Tensor

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        super().meet(introductions)
        self.heads = uniform_heads(
            self.widths.values(), self.loss.outputs, self.generator
        ).to(self.device)

    def state(self) -> State:
        return super().state() | {"heads": self.heads}

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        """sum_k h_k W_k."""
        return beside(h, self.widths) @ self.heads

    @cached_property
    def room(self) -> Buffers:
        """For all embeddings of a batch, side by side."""
        return Buffers()

    def head_norms(self) -> dict[str, float]:
        """||W_k||, which reflects how much each party matters (VIM, Section 5.2)."""
        return norms(self.heads, self.widths)


class AdmmLabelOwner(roles.LabelOwner):
    """Holds labels, and the duals lambda (one row per training row)."""

    loss: Loss
    arithmetic: Arithmetic  # of a batch; each algorithm's own
    looks_at_nothing = True  # whether that depends on no value that is computed in it

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        super().meet(introductions)
        self.duals = mapped_zeros(
            (len(self.labels), self.loss.outputs), device=self.device
        )

    @cached_property
    def _solve(self) -> ZUpdate:
        return ZUpdate(self.loss, self.config.rho)

    @cached_property
    def _of_rows(self) -> Arithmetic:
        """Some rows' arithmetic, which a GPU replays where it need not wait for
        anything."""

        def of_rows(rows: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            counts = self.counts(rows)
            known = (
                self.duals[rows],
                self.labels[rows],
                *(() if counts is None else (counts,)),
            )
            r, self.duals[rows], measures, *more = self.arithmetic(*tensors, *known)
            return measures, r, *more

        return (
            Captured(of_rows)
            if self.looks_at_nothing and gpu_kernels(self.device) is not None
            else of_rows
        )

    def split(
        self, o: Tensor, duals: Tensor, *y: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The new z and lambda of a batch's rows; and the loss before, with how far a z
        is from its minimum at most."""
        z, worst = self._solve(o, duals, *y)
        return (
            z,
            duals + self.config.rho * (o - z),
            torch.stack([self.loss(o, *y).double(), worst]),
        )

    def advance(
        self, batch: str, *tensors: Tensor
    ) -> tuple[Arriving, Tensor, Sequence[Tensor]]:
        """Do a batch's arithmetic, and remember the new lambda; z is found anew from it
        the next time. Returns what `loss_of` reads, r, and more. Where it is little
        work, several torch threads would wait for each other."""
        operations = 4 * tensors[0].numel() * self.loss.outputs  # of two products
        with one_torch_thread(
            self.device.type == "cpu" and operations < ALL_THREADS_PAY
        ):
            measures, r, *more = self._of_rows(self.rows(batch), *tensors)
        return Arriving(measures), r, more

    def loss_of(self, measures: Arriving) -> float:
        """A batch's loss; where its z was not found, that is said."""
        loss, worst = measures.read()
        self._solve.warn_unless_solved(worst)
        return loss

    def state(self) -> State:
        return super().state() | {"duals": self.duals}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        # a graph keeps the tensors that it was made with
        vars(self).pop("_of_rows", None)
        if state["duals"].shape == self.duals.shape:
            self.duals.copy_(state["duals"])
        else:  # loaded to predict other rows than it was trained with
            self.duals = state["duals"].to(self.device)


class Combining(Protocol):
    """A label owner that makes outputs from what the parties released."""

    def outputs(self, h: Mapping[str, Tensor], /) -> Tensor: ...


class Learning(Protocol):
    """A label owner that learns from embeddings, and says how the loss changes with
    each."""

    outbox: Outbox

    def learn(
        self, h: Mapping[str, Tensor], batch: str, /
    ) -> tuple[float, dict[str, Tensor]]: ...


def train(driver: Learning, peers: Peers, batches: Batches) -> Iterator[Step]:
    """Embed, learn, descend, batch by batch."""
    for batch in batches:
        replies = peers.ask(Embed(batch.name))
        loss, gradients = driver.learn(
            {k: r.values.tensor.detach() for k, r in replies.items()}, batch.name
        )
        peers.ask_each(
            {
                k: Descend(batch.name, driver.outbox.release(g, "gradient", batch.name))
                for k, g in gradients.items()
            }
        )
        yield Step(batch, loss)


def predict(driver: Combining, peers: Peers, rows: Rows) -> Tensor:
    """Predict by any algorithm whose label owner combines embeddings or logits into
    outputs."""
    replies = peers.ask(Embed(rows.name))
    with torch.no_grad():
        return driver.outputs({k: r.values.tensor for k, r in replies.items()})


def head(inputs: int, outputs: int, hidden: int, seed: int | Generator) -> nn.Module:
    """g on the concatenation: linear, or with one hidden layer."""
    with initialised(seed):
        if not hidden:
            return nn.Linear(inputs, outputs)
        return nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        )


def with_head(model: nn.Module, given: LocalInputs[Any]) -> nn.Module:
    """A party's whole model from columns to logits: f_k and a head without bias, as
    VIM's linear heads."""
    # a subclass may do more than its layers
    layers = list(model) if type(model) is nn.Sequential else [model]
    return nn.Sequential(*layers, nn.Linear(given.width, given.outputs, bias=False))


class LogOdds(roles.ByRow):
    """m logits as m - 1 log-odds against the first class."""

    def forward(self, z: Tensor) -> Tensor:
        return z[..., 1:] - z[..., :1]


def with_log_odds(model: nn.Module, given: LocalInputs[Any]) -> nn.Module:
    """A party's whole model from columns to log-odds: f_k and a dense layer with a
    logit per class."""
    # a subclass may do more than its layers
    layers = list(model) if type(model) is nn.Sequential else [model]
    return nn.Sequential(
        *layers, nn.Linear(given.width, max(given.outputs, 2)), LogOdds()
    )
