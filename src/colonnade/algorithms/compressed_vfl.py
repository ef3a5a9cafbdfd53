"""Compressed VFL and Noisy C-VFL: Q local iterations of everybody per round, on the
same stale, compressed messages.

Castiglia, Das, Wang and Patterson, Compressed-VFL, 2022 (arXiv:2206.08330); Arif and
Patterson, DP-Compressed VFL is secure for Model Inversion Attacks, Algorithm 1. For
each batch B, with server model g = theta_0:

    party m:   C_m(h_m(theta_m; x_m[B])) + Z_m to the server                           Embed   -> Embedding
    server:    sends C_0(theta_0) + Z_0 and what the other parties sent, as it came    Improve -> Done
    party m:   Q steps of theta_m on F_B(sent model, the others' sent embeddings, h_m(theta_m))
    server:    Q steps of theta_0 on F_B(theta_0, all sent embeddings)

Compression C and noise Z are the owners' outbox rules for "embedding" and "model"; a
mechanism that adds noise with a mean subtracts it as well. In each local iteration a
party recomputes its own embedding, unsent and uncompressed; everything else stays as it
was sent. With Q = 1 and nothing compressed this is SplitNN.

Every party computes the loss itself, so every party knows the labels, as the papers
assume: those of the training rows leave once, at the start, as "targets". Where the
label owner's rule for "labels" is randomized response, they are what was drawn, and the
server model learns from the same.

What crosses: embeddings up; the others' embeddings, the server model and, once, labels
down. What a party learns: the labels, and of the other parties what the server learns
of them. The embeddings that go down are the releases that came up, packed as they were;
their owners' receipts stay on them, and the server's ledger counts the bytes.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from colonnade.algorithms import embedding, heads
from colonnade.algorithms.algorithm import Algorithm, Kind, Release
from colonnade.algorithms.embedding import Embed, Embedding, make_optimizer, predict
from colonnade.core import (
    Batches,
    Done,
    Organisation,
    Peers,
    Released,
    Request,
    State,
    Step,
    roles,
    serves,
)
from colonnade.optim.execution import Captured
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared
from colonnade.settings import algorithms as settings

Config = settings.CompressedVfl


class Join(Request[Done]):
    """The first request. `inputs` are places among g's inputs: of this party, then of
    the others as they will come."""

    batch: str
    targets: Released  # the labels of all training rows, [rows]
    inputs: Released  # int64, as bytes
    # how much rows of each class count, where not all alike
    weights: tuple[float, ...] = ()


class Improve(Request[Done]):
    batch: str
    others: tuple[Released, ...]  # C_j(h_j) + Z_j, j != m, each [rows, width]
    # C_0(theta_0) + Z_0: weight and bias of each layer of g
    model: tuple[Released, ...]


class FeatureOwner(roles.FeatureOwner):
    """Holds columns, theta_m, and the training labels it was told."""

    config: Config
    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Config,
    ) -> None:
        super().__init__(organisation, features, model, config)
        # also by a label owner of the same organisation
        self.outbox.passed_on = frozenset({"embedding"})
        self.optimizer = make_optimizer(self.model.parameters(), config)
        self.labels: Tensor | None = None  # from Join on
        self.weights: tuple[float, ...] = ()
        self.inputs: Tensor | None = None
        self._pending: str | None = None
        self._descend = Captured(self._local_steps, self.model)

    @property
    def stack(self) -> tuple[int, ...]:
        """(M,) in a cohort's twin, () in a party of its own."""
        return tuple(self.features.shape[: self.row_axis])

    @serves
    def join(self, request: Join) -> Done:
        labels = request.targets.tensor
        rows = self.rows(request.batch)
        self.expect_shape("the labels", request.targets, len(rows))
        self.labels = labels.new_zeros(*self.stack, self.features.shape[self.row_axis])
        self.labels[..., rows] = labels
        self.weights = request.weights
        self.inputs = request.inputs.tensor.view(torch.int64).to(self.device)
        places = torch.arange(self.inputs.shape[-1], device=self.device)
        self.expect(
            bool((self.inputs.sort(-1).values == places).all()),
            "each input of the model has one place",
        )
        return Done()

    @serves
    def embed(self, request: Embed, asker: str | None) -> Embedding:
        if self.training(request.batch):
            self._pending = request.batch
        with torch.no_grad():
            h = self.model(self.x(request.batch))
        return Embedding(self.outbox.release(h, "embedding", request.batch, to=asker))

    @serves
    def improve(self, request: Improve) -> Done:
        batch = self._pending
        self.expect(
            batch == request.batch,
            f"a round came for batch {request.batch}, but {batch} is pending",
        )
        too_early = "a round came before this party had joined"
        labels = self.needed(self.labels, too_early)
        inputs = self.needed(self.inputs, too_early)
        self._pending = None
        self._expect_sizes(request, inputs.shape[-1])
        weight, bias, *rest = (released.tensor for released in request.model)
        others = [
            sent.tensor.expand(*self.stack, *sent.tensor.shape[-2:])
            for sent in request.others
        ]
        blocks = weight.mT[inputs]  # [..., inputs of g, outputs of its first layer]
        width = blocks.shape[-2] - sum(sent.shape[-1] for sent in others)
        own = blocks[..., :width, :]
        of_others = blocks[..., width:, :]
        given = torch.cat(others, dim=-1) @ of_others + bias if others else bias
        y = labels[..., self.rows(request.batch)]
        self._descend(self.x(request.batch), y, own, given, *rest)
        return Done()

    def _expect_sizes(self, request: Improve, inputs: int) -> None:
        """Refuse a model or embeddings of others that are not as large as was agreed."""
        rows = len(self.rows(request.batch))
        hidden = self.config.head_hidden
        model = request.model
        self.expect(
            len(model) == (4 if hidden else 2) and len(model[-1].shape) > 0,
            "a model has weights and biases",
        )
        outputs = model[-1].shape[-1]
        self.expect_outputs(outputs)
        first = hidden or outputs
        sizes = [(first, inputs), (first,), (outputs, first), (outputs,)]
        for part, size in zip(model, sizes[: len(model)], strict=True):
            self.expect_shape("a part of the model", part, *size)
        for sent in request.others:
            self.expect_shape("another party's embedding", sent, rows, *sent.shape[-1:])

    def _local_steps(
        self, x: Tensor, y: Tensor, own: Tensor, given: Tensor, *rest: Tensor
    ) -> None:
        """Q steps (lines 13 and 14), in which all of g's first layer but the own
        embedding's share is given."""
        for _ in range(self.config.local_steps):
            outputs = (
                self.outbox.bounded(self.model(x), "embedding", "train") @ own + given
            )
            if rest:
                outputs = outputs.relu() @ rest[0].mT + rest[1]
            loss = loss_of(y, outputs, self.weights)
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self.optimizer.step()

    def state(self) -> State:
        return super().state() | {
            "labels": self.labels,
            "inputs": self.inputs,
            "weights": list(self.weights),
        }

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.labels = state["labels"]
        self.inputs = state["inputs"]
        self.weights = tuple(state.get("weights", ()))
        self._descend.forget()


class LabelOwner(embedding.Concatenating):
    """Holds labels and theta_0; drives."""

    config: Config

    def others_of(self, party: str) -> list[str]:
        """The other parties by width, then in party order: for parties of one width the
        n-th others are then equally wide, so that their messages can be stacked."""
        return sorted(
            (name for name in self.widths if name != party), key=self.widths.__getitem__
        )

    def joins(self, batches: Batches) -> dict[str, Join]:
        """The first request to each party; the labels are released once, to all."""
        warnings.warn(
            f"compressed_vfl: '{self.name}' tells every party the labels of all"
            " training rows, as the method assumes (each computes the loss itself)."
            " Randomized response on labels makes them uncertain.",
            stacklevel=3,
        )
        batch = f"train[0:{len(batches.splits['train'])}]"
        targets = self.outbox.release(self.y(batch), "targets", batch)
        ends = itertools.accumulate(self.widths.values())
        places = {
            k: torch.arange(end - self.widths[k], end)
            for k, end in zip(self.widths, ends, strict=True)
        }
        orders = {
            k: torch.cat([places[j] for j in (k, *self.others_of(k))])
            for k in self.widths
        }
        inputs = {
            k: self.outbox.publish(order.numpy().tobytes(), "inputs")
            for k, order in orders.items()
        }
        return {
            k: Join(batch, targets, places_of_k, self.loss.weights)
            for k, places_of_k in inputs.items()
        }

    def messages(self, sent: Mapping[str, Released], batch: str) -> dict[str, Improve]:
        """Lines 8 and 9: the model as it stands, and what the other parties sent."""
        model = tuple(
            self.outbox.release(part, "model", batch)
            for part in self.model.parameters()
        )
        return {
            k: Improve(batch, tuple(sent[j] for j in self.others_of(k)), model)
            for k in sent
        }

    def local_steps(self, h: Mapping[str, Tensor], batch: str) -> float:
        """Do Q steps of theta_0. Returns the loss before them."""
        losses = []
        for _ in range(self.config.local_steps):
            losses.append(self.loss(self.outputs(h), self.y(batch)))
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(losses[-1])
            self.optimizer.step()
        return losses[0].item()


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    if batches.done == 0:
        peers.ask_each(driver.joins(batches))
    for batch in batches:
        sent = {k: reply.values for k, reply in peers.ask(Embed(batch.name)).items()}
        messages = driver.messages(sent, batch.name)
        loss = driver.local_steps(
            {k: released.tensor for k, released in sent.items()}, batch.name
        )
        peers.ask_each(messages)
        yield Step(batch, loss)


def loss_of(y: Tensor, outputs: Tensor, weights: tuple[float, ...] = ()) -> Tensor:
    """The loss that fits these labels and outputs: a mean over the rows, summed over
    the stacked parties."""
    classes = outputs.shape[-1]
    loss: Loss = Squared()
    if not y.is_floating_point():
        loss = (
            Logistic(weights=weights)
            if classes == 1
            else CrossEntropy(classes, weights)
        )
    parties = outputs.shape[:-2].numel()
    return parties * loss(
        outputs.flatten(0, -2), y.expand(outputs.shape[:-1]).flatten()
    )


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=predict,
    releases={
        "embedding": Release(Kind.EMBEDDING, of="columns", per_row=True),
        "model": Release(Kind.MODEL, of="labels", per_row=False),
        "targets": Release(Kind.LABELS, of="labels", per_row=True),
        "inputs": Release(Kind.LAYOUT, of="nothing", per_row=False),
    },
    reader="every other party",  # of embeddings: the label owner passes them on
    head=lambda given: heads.concatenating(given, given.config.head_hidden),
    combine=LabelOwner.outputs,
    head_norms=LabelOwner.head_norms,
    heads=LabelOwner.heads,
)
