"""Toy: SplitNN under names of its own, to show that nothing else needs to know an
algorithm or what it releases.

After arXiv:1812.00564. What crosses: hidden units up, slopes down. What a party learns:
labels follow from slopes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from pydantic import Field
from torch import Tensor

from colonnade.algorithms import embedding, heads
from colonnade.algorithms.algorithm import Algorithm, Kind, Release
from colonnade.algorithms.embedding import make_optimizer
from colonnade.core import Batches, Peers, Step, roles
from colonnade.core.batches import seed_for
from colonnade.settings.algorithms import AlgorithmSettings, Optimizer
from colonnade.settings.schema import Fraction, NotNegative, Positive


class Config(AlgorithmSettings):
    """toy_neural: a toy of the tests."""

    name = "toy_neural"
    reveals = {
        "hidden": "what hidden units leave of the columns",
        "slope": "labels can be guessed from each row's slope",
    }

    optimizer: Optimizer = Field(default="sgd", description="of everybody")
    learning_rate: Positive = Field(default=0.1, description="of everybody")
    momentum: Fraction = Field(default=0.9, description="of everybody")
    weight_decay: NotNegative = Field(default=0.0, description="of everybody")


class FeatureOwner(embedding.DescendingFeatureOwner):
    """Holds columns and f_k."""

    released_as = "hidden"


class LabelOwner(embedding.LabelOwner):
    """Holds labels and a linear g."""

    def meet(self, cards: Mapping[str, roles.Introduction]) -> None:
        super().meet(cards)
        seed = self.organisation.start(seed_for(self.generator.initial_seed(), "head"))
        self.model = embedding.head(
            sum(self.widths.values()), self.loss.outputs, 0, seed
        ).to(self.device)
        self.optimizer = make_optimizer(self.model.parameters(), self.config)

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        g: Tensor = self.model(torch.cat(list(h.values()), dim=-1))
        return g


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    for batch in batches:
        replies = peers.ask(embedding.Embed(batch.name))
        loss, slopes = driver.learn(
            {k: r.values.tensor.detach() for k, r in replies.items()}, batch.name
        )
        sent = {
            k: driver.outbox.release(slope, "slope", batch.name)
            for k, slope in slopes.items()
        }
        peers.ask_each(
            {k: embedding.Descend(batch.name, slope) for k, slope in sent.items()}
        )
        yield Step(batch, loss)


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=embedding.predict,
    releases={
        "hidden": Release(
            Kind.EMBEDDING,
            of="columns",
            per_row=True,
        ),
        "slope": Release(
            Kind.GRADIENT,
            of="labels",
            per_row=True,
        ),
    },
    head=lambda given: heads.concatenating(given, hidden=0),
    combine=LabelOwner.outputs,
)
