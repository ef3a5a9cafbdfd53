"""VIMADMM-J: ADMM with whole models at the parties; the label owner needs only the sum
of their logits.

Xie, Chen, Zhang and Li, 2022 (arXiv:2207.10226), Algorithm 3. With o = sum_k o_k, for
each batch B:

    party k:      o_k = f_k(x_k[B]) W_k                                                   Embed   -> Embedding
    label owner:  z = argmin l(z; y) - lambda^T z + rho/2 ||o - z||^2                     Eq. 17
                  lambda <- lambda + rho (o - z)                                          Eq. 18
                  r = z - o - lambda/rho, the same to all                                 Improve -> Done
    party k:      tau steps of W_k and f_k together on
                  rho/2 ||r + o_k - f_k(x_k) W_k||^2 / |B|, with the o_k it sent          Eq. 20, 21

The label owner needs the sum alone. With aggregation = "secure" it gets nothing else:
the parties agree on keys, each masks its logits, and the masks cancel in the sum
(`secure_sum`).

As in VIMADMM, r and what a party sent stand for lambda and the printed residual s_k.
The paper steps W_k first and f_k at the new W_k (`local_order = "head_first"`); with
momentum that diverged on MNIST at its own settings (batch 28 of epoch 1), while one
step of both from the same gradient gives the authors' accuracies. What crosses: logits
up, masked or not, and r down. What a party learns: z and lambda carry labels, so a
party can read them from r.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from colonnade.algorithms.algorithm import Algorithm, Crossing, Kind, Release
from colonnade.algorithms.embedding import (
    RESIDUAL,
    AdmmFeatureOwner,
    AdmmLabelOwner,
    with_head,
)
from colonnade.algorithms.heads import Summed
from colonnade.algorithms.secure_sum import Masked, Summing
from colonnade.core import (
    Batches,
    Done,
    Organisation,
    Peers,
    Released,
    Request,
    Rows,
    Step,
    roles,
    serves,
)
from colonnade.core.receipt import NON_PRIVATE, DpEvent
from colonnade.optim.execution import Arriving
from colonnade.optim.losses import Loss
from colonnade.settings import algorithms as settings

Config = settings.VimAdmmJoint


def crossing(config: Config) -> tuple[Crossing, Crossing]:
    """What crosses from columns and from labels. A sum of logits can be read, so no
    epsilon follows from the masks."""
    logits = (
        DpEvent("summed (secure aggregation)")
        if config.aggregation == "secure"
        else NON_PRIVATE
    )
    return {"logits": logits}, {"residual": NON_PRIVATE}


class Improve(Request[Done]):
    batch: str
    residual: Released  # r, [rows, outputs]


class FeatureOwner(Masked, AdmmFeatureOwner):
    """Holds columns and the whole local model, f_k with its head W_k."""

    config: Config
    released_as = "logits"

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Config,
    ) -> None:
        super().__init__(organisation, features, model, config)
        if config.aggregation == "secure":
            self.mask("logits")

    @serves
    def improve(self, request: Improve) -> Done:
        sent, x = self.sent(request.batch)
        self.expect_shape("the residual", request.residual, *sent.shape[-2:])
        self._descend(x, sent, request.residual.tensor)
        self.follow(request.residual)
        return Done()

    def _local_steps(self, x: Tensor, sent: Tensor, r: Tensor) -> None:
        """tau steps towards f_k(x_k) W_k = s_k - lambda/rho (Eq. 20 and 21)."""
        steps = self.config.local_steps
        rho = self.config.rho
        if self.config.local_order == "head_first":
            self.descent.towards_last_first(steps, x, r + sent, rho=rho)
        else:
            self.descent.towards(steps, x, r + sent, rho=rho)


class LabelOwner(AdmmLabelOwner):
    """Holds labels, and the duals lambda (one row per training row)."""

    config: Config

    def __init__(
        self, organisation: Organisation, labels: Tensor, loss: Loss, config: Config
    ) -> None:
        super().__init__(organisation, labels, loss, config)
        self.sum = Summing(config.aggregation == "secure")

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        self.sum.check(self.name, introductions)
        super().meet(introductions)

    def outputs(self, o: Mapping[str, Tensor]) -> Tensor:
        """sum_k o_k."""
        return torch.stack(list(o.values())).sum(0).to(self.duals.dtype)

    def update(self, o: Tensor, batch: str) -> tuple[Arriving, Tensor]:
        """Eq. 17 and 18 for a batch; gives what `loss_of` reads, and the parties'
        residual r."""
        measures, r, _ = self.advance(batch, o)
        return measures, r

    def arithmetic(self, o: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
        duals, *y = rows
        z, duals, measures = self.split(o, duals, *y)
        return z - o - duals / self.config.rho, duals, measures


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    for batch in batches:
        measures, residual = driver.update(logits(driver, peers, batch), batch.name)
        peers.ask(
            Improve(batch.name, driver.outbox.release(residual, "residual", batch.name))
        )
        yield Step(batch, driver.loss_of(measures))


def predict(driver: LabelOwner, peers: Peers, rows: Rows) -> Tensor:
    with torch.no_grad():
        return logits(driver, peers, rows)


def logits(driver: LabelOwner, peers: Peers, rows: Rows) -> Tensor:
    """o = sum_k o_k."""
    return driver.outputs(driver.sum.scores(peers, rows))


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=predict,
    weighs_rows=True,
    releases={
        "logits": Release(Kind.LOGITS, of="columns", per_row=True),
        "residual": RESIDUAL,
    },
    crossing=crossing,
    modes={how: Config(aggregation=how) for how in ("plain", "secure")},
    separable=lambda config: config.aggregation == "plain",
    local_model=with_head,
    head=lambda _: Summed(),
    combine=LabelOwner.outputs,
)
