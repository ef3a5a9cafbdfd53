"""FDML: every party holds a whole model; the label owner adds up their logits.

Hu, Niu, Yang and Zhou, FDML: A Collaborative Machine Learning Framework for Distributed
Features, KDD 2019 (arXiv:1812.06415), in rounds, as the VIM paper (arXiv:2207.10226)
compares with it.

    for each batch B:
        party k:      o_k = f_k(x_k[B]) W_k                       Embed   -> Embedding
        label owner:  g = dl/do at o = sum_k o_k                  the same for all
        party k:      one step of f_k and W_k with g              Descend -> Done

It is exactly centralized training of the composite model sum_k f_k W_k. The label owner
has no model. What crosses: logits up, one gradient down. What a party learns: the
gradient is softmax(o) - y, and its negative entry is the label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from colonnade.algorithms import embedding
from colonnade.algorithms.algorithm import Algorithm, Kind, Release
from colonnade.algorithms.embedding import Descend, Embed
from colonnade.algorithms.heads import Summed
from colonnade.core import Batches, Peers, Step, roles
from colonnade.optim.losses import Loss
from colonnade.settings import algorithms as settings

Config = settings.Fdml


class FeatureOwner(embedding.DescendingFeatureOwner):
    """Holds columns and the whole local model, f_k with its head W_k."""

    released_as = "logits"


class LabelOwner(roles.LabelOwner):
    """Holds labels; drives."""

    loss: Loss

    def outputs(self, o: Mapping[str, Tensor]) -> Tensor:
        """sum_k o_k."""
        return torch.stack(list(o.values())).sum(0)

    def learn(self, o: Mapping[str, Tensor], batch: str) -> tuple[float, Tensor]:
        """The loss of the sum, and its gradient there."""
        return self.slope(self.outputs(o), batch)


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    for batch in batches:
        replies = peers.ask(Embed(batch.name))
        loss, gradient = driver.learn(
            {k: r.values.tensor for k, r in replies.items()}, batch.name
        )
        peers.ask(
            Descend(batch.name, driver.outbox.release(gradient, "gradient", batch.name))
        )
        yield Step(batch, loss)


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=embedding.predict,
    weighs_rows=True,
    releases={
        "logits": embedding.LOGITS,
        "gradient": Release(Kind.LOGIT_GRADIENT, of="labels", per_row=True),
    },
    local_model=embedding.with_head,
    head=lambda _: Summed(),
    combine=LabelOwner.outputs,
)
