"""VAFL: a learned weighted average of the parties' embeddings, and a linear model on
it; in rounds or asynchronous.

Chen, Jin, Sun and Yin, VAFL: a Method of Vertical Asynchronous Federated Learning, 2020
(arXiv:2007.06081). In rounds, as the VIM paper (arXiv:2207.10226) compares with it, it
is for each batch B:

        party k:      h_k = f_k(x_k[B])                                          Embed   -> Embedding
        label owner:  loss = l(g(sum_k alpha_k h_k), y[B]); step g and alpha     (alpha starts at 1/M)
        party k:      step f_k with dloss/dh_k                                   Descend -> Done

Asynchronous, nobody waits for another. The label owner keeps the latest embedding
H_k[row] of every party, zero until the first comes. Each party takes the batches of an
epoch in their order, at its own pace; its turn, with batch B:

        party k:      step f_k with the gradient for its batch before;
                      h_k = f_k(x_k[B])                                          Turn    -> Embedding
        label owner:  H_k[B] = h_k; loss = l(g(sum_i alpha_i H_i[B]), y[B]);
                      step g and alpha; keep dloss/dh_k for k's next turn

As many turns as there are parties make a `Step`, whose loss is the mean of theirs. At
the end of an epoch all have taken every batch once, and the gradients that are still
kept are delivered (Descend), so that what is saved and evaluated there is settled.
"turns" delivers them after every step, which changes no number: a party's model rests
between its turns. So it continues bit-equal from any step, and "arrival" from the end
of an epoch.

What crosses: embeddings up, their gradients down, as much as in rounds. To begin with
zeros costs no bytes; a pass in which all first embed everything would cost an epoch's
uplink, and release every row once more. What a party learns: as in SplitNN, gradients
reveal labels to a party that looks; embeddings reveal features to whoever knows f_k.
From "arrival" the label owner also learns how fast each party is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from torch import Generator, Tensor, nn

from colonnade.algorithms import embedding, heads
from colonnade.algorithms.algorithm import Algorithm, HeadInputs
from colonnade.algorithms.embedding import Descend, Embed, Embedding
from colonnade.core import (
    Batches,
    Organisation,
    Peers,
    Released,
    Request,
    State,
    Step,
    mapped_zeros,
    roles,
    serves,
)
from colonnade.core.batches import seed_for
from colonnade.models import initialised
from colonnade.optim.losses import Loss
from colonnade.settings import algorithms as settings

Config = settings.Vafl


class Turn(Request[Embedding]):
    batch: str  # the one to embed now
    before: str | None  # the one that the gradient is for
    gradient: Released | None  # dloss/dh_k, [rows, width]


class FeatureOwner(embedding.DescendingFeatureOwner):
    """Holds columns and f_k."""

    @serves
    def turn(self, request: Turn, asker: str | None) -> Embedding:
        # a batch that nobody agreed on is refused before the gradient is spent
        self.rows(request.batch)
        if request.gradient is not None:
            self.descend(Descend(request.before or "", request.gradient))
        return self.embed(Embed(request.batch), asker)


class Average(nn.Module):
    """g(sum_k alpha_k h_k): `[M, rows, width] -> [rows, outputs]`."""

    def __init__(self, parties: int, width: int, outputs: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((parties,), 1 / parties))
        self.linear = nn.Linear(width, outputs)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.linear(torch.einsum("k,krw->rw", self.alpha, h))
        return out


class LabelOwner(embedding.LabelOwner):
    """Holds labels, alpha and g, and between turns the latest embeddings; drives."""

    config: Config

    def __init__(
        self, organisation: Organisation, labels: Tensor, loss: Loss, config: Config
    ) -> None:
        super().__init__(organisation, labels, loss, config)
        train = organisation.batches.splits.get(
            "train", torch.empty(0, dtype=torch.int64)
        ).to(self.device)
        self.place = train.new_zeros(len(labels)).index_copy_(
            0, train, torch.arange(len(train), device=self.device)
        )
        # H, [M, training rows, width], from the first turn on
        self.latest: Tensor | None = None
        self.epoch = 0
        # how many batches of the epoch each party has taken
        self.taken = dict[str, int]()
        # the gradient for a party's last batch, until it is sent
        self.owed: dict[str, Descend] = {}

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        super().meet(introductions)
        width = self.one_width(
            "VAFL averages embeddings, so all must have the same width"
        )
        with initialised(
            self.organisation.start(seed_for(self.generator.initial_seed(), "head"))
        ):
            self.model = Average(len(self.widths), width, self.loss.outputs).to(
                self.device
            )
        rate = self.config.learning_rate
        decay = self.config.weight_decay
        learned: list[dict[str, Any]] = [{"params": list(self.model.parameters())}]
        if self.config.average_rate:
            average = {
                "params": [self.model.alpha],
                "lr": self.config.average_rate,
                "weight_decay": 0.0,
            }
            learned = [{"params": list(self.model.linear.parameters())}, average]
        if self.config.optimizer == "adam":
            betas = (self.config.momentum, 0.999)
            self.optimizer = torch.optim.Adam(
                learned, rate, betas=betas, weight_decay=decay
            )
        else:
            self.optimizer = torch.optim.SGD(learned, rate, weight_decay=decay)

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        # a party that is left out adds nothing to the sum
        if len(h) < len(self.widths):
            zeros = torch.zeros_like(next(iter(h.values())))
            h = {k: h.get(k, zeros) for k in self.widths}
        return self.model(torch.stack(list(h.values())))  # type: ignore[no-any-return]

    def head_norms(self) -> dict[str, float]:
        """||alpha_k W||: how the linear model W weighs h_k, comparable to the other algorithms' ||W_k||."""
        assert isinstance(self.model, Average)
        norms = (
            self.model.alpha.detach().abs() * self.model.linear.weight.detach().norm()
        )
        return dict(zip(self.widths, norms.tolist(), strict=True))

    def order(self, epoch: int, per_epoch: int) -> list[str]:
        """The parties' turns in an epoch, `per_epoch` for each, shuffled with a seed of
        its own."""
        generator = Generator().manual_seed(
            seed_for(self.generator.initial_seed(), "turns", str(epoch))
        )
        turns = [party for party in self.widths for _ in range(per_epoch)]
        return [
            turns[turn]
            for turn in torch.randperm(len(turns), generator=generator).tolist()
        ]

    def begin(self, epoch: int, per_epoch: int) -> None:
        """Begin a new epoch, in which nobody has taken any batch; or continue one that
        was left half done."""
        if epoch != self.epoch or sum(self.taken.values()) in (
            0,
            per_epoch * len(self.widths),
        ):
            self.epoch, self.taken = epoch, dict.fromkeys(self.widths, 0)

    def next_batch(self, party: str) -> str:
        return f"train/{self.epoch}/{self.taken[party]}"

    def next_turn(self, party: str, per_epoch: int) -> Turn | None:
        """The next request to a party; None when it has taken all batches of the epoch."""
        if self.taken[party] == per_epoch:
            return None
        last = self.owed.pop(party, None)
        batch = self.next_batch(party)
        return (
            Turn(batch, None, None)
            if last is None
            else Turn(batch, last.batch, last.gradient)
        )

    def took(self, party: str, h_k: Tensor) -> float:
        """Take a party's embedding of its next batch: one step of g and alpha with what
        the others sent last."""
        batch = self.next_batch(party)
        parties = list(self.widths)
        if self.latest is None:
            train = self.organisation.batches.splits["train"]
            self.latest = mapped_zeros(
                (len(parties), len(train), h_k.shape[-1]), h_k.dtype, self.device
            )
        rows = self.place[self.rows(batch)]
        self.latest[parties.index(party), rows] = h_k
        loss, gradients = self.learn(
            dict(zip(parties, self.latest[:, rows], strict=True)), batch
        )
        self.owed[party] = Descend(
            batch, self.outbox.release(gradients[party], "gradient", batch)
        )
        self.taken[party] += 1
        return loss

    def state(self) -> State:
        if self.config.schedule == "rounds":
            return super().state()
        return super().state() | {
            "latest": self.latest,
            "epoch": self.epoch,
            "taken": dict(self.taken),
        }

    def load_state(self, state: State) -> None:
        super().load_state(state)
        if self.config.schedule != "rounds":
            self.latest = state["latest"]
            self.epoch = state["epoch"]
            self.taken = dict(state["taken"])
            self.owed = {}
            # a file of its own: what was read may be a checkpoint's
            if self.latest is not None:
                self.latest = mapped_zeros(
                    self.latest.shape, self.latest.dtype, self.device
                ).copy_(self.latest)


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    """Train in rounds, or by a step per M turns."""
    if driver.config.schedule == "rounds":
        yield from embedding.train(driver, peers, batches)
        return
    in_turns = driver.config.schedule == "turns"
    per_epoch = batches.per_epoch
    losses: Iterator[float] | None = None
    for batch in batches:
        if batch.number == 0 or losses is None:
            losses = _epoch(driver, peers, batch.epoch, per_epoch)
        ends = batch.number + 1 == per_epoch
        loss = fmean(islice(losses, None if ends else len(peers)))
        if ends or in_turns:
            for _ in peers.stream(
                lambda k: driver.owed.pop(k, None),
                list(driver.owed) if in_turns else None,
            ):
                pass
        yield Step(batch, loss)


def _epoch(
    driver: LabelOwner, peers: Peers, epoch: int, per_epoch: int
) -> Iterator[float]:
    """The losses of the turns that are left of an epoch."""
    driver.begin(epoch, per_epoch)
    turns = (
        driver.order(epoch, per_epoch)[sum(driver.taken.values()) :]
        if driver.config.schedule == "turns"
        else None
    )
    for party, reply in peers.stream(lambda k: driver.next_turn(k, per_epoch), turns):
        yield driver.took(party, reply.values.tensor.to(driver.device))


def averaging(given: HeadInputs[Config]) -> nn.Module:
    """The trained g and alpha."""
    model = Average(len(given.widths), given.widths[0], given.outputs)
    return heads.Joining(heads.loaded(model, given.state["model"]), torch.stack)


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=embedding.predict,
    weighs_rows=True,
    releases={"embedding": embedding.EMBEDDING, "gradient": embedding.GRADIENT},
    head=averaging,
    combine=LabelOwner.outputs,
    head_norms=LabelOwner.head_norms,
)
