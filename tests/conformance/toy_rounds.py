"""Toy: boosted stumps. No torch model, no optimizer; a step is a round over all rows,
and a party's part is a table.

In the manner of SecureBoost (arXiv:1901.08755), without its encryption. In each round:

    party k:      the sum of its stumps for each row                Vote -> Votes
    label owner:  o = sum_k votes_k; the slope dl/do of each row    Fit  -> Done
    party k:      some stumps more, each against what is left of the slopes

What crosses: votes up, slopes down. What a party learns: a slope is the probability
minus the label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from colonnade.algorithms.algorithm import Algorithm, Kind, Release
from colonnade.core import (
    Batches,
    Done,
    Message,
    Organisation,
    Peers,
    Released,
    Request,
    Rows,
    State,
    Step,
    roles,
    serves,
)
from colonnade.optim.losses import Loss
from colonnade.settings.algorithms import AlgorithmSettings
from colonnade.settings.schema import Positive, Whole


class Config(AlgorithmSettings):
    """toy_rounds: a toy of the tests."""

    name = "toy_rounds"
    reveals = {
        "votes": "what each row's columns say about its label",
        "slopes": "the probability minus the label",
    }
    in_batches = False

    stumps: Whole = Field(default=8, description="of a party in a round")
    shrink: Positive = Field(default=0.5, description="how much of a stump is taken")


class Votes(Message):
    values: Annotated[Released, Kind.LOGITS]  # [rows, outputs]


class Vote(Request[Votes]):
    batch: str


class Fit(Request[Done]):
    batch: str
    slopes: Released  # dl/do, [rows, outputs]
    parties: int  # who share what is left


class FeatureOwner(roles.FeatureOwner):
    """Holds columns and a table of stumps: column, threshold, and what is said below
    and above it."""

    config: Config
    stackable = False

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Config,
    ) -> None:
        super().__init__(organisation, features, model, config)
        self.table: list[dict[str, Tensor]] = []

    @serves
    def vote(self, request: Vote) -> Votes:
        x = self.x(request.batch)
        said = (
            torch.stack([stump_says(stump, x) for stump in self.table]).sum(0)
            if self.table
            else x[:, :1] * 0
        )
        return Votes(self.outbox.release(said, "votes", request.batch))

    @serves
    def fit(self, request: Fit) -> Done:
        x = self.x(request.batch)
        slopes = request.slopes.tensor
        left = -slopes * len(slopes) / request.parties
        for _ in range(self.config.stumps):
            stump = best_stump(x, left, self.config.shrink)
            left = left - stump_says(stump, x)
            self.table = [*self.table, stump]
        return Done()

    def state(self) -> State:
        return super().state() | {"table": self.table}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.table = list(state["table"])


class LabelOwner(roles.LabelOwner):
    """Holds labels; drives."""

    loss: Loss

    def outputs(self, votes: Mapping[str, Tensor]) -> Tensor:
        """o, the sum of all votes; a party without a stump has said nothing yet."""
        return torch.stack(
            [v.expand(-1, self.loss.outputs) for v in votes.values()]
        ).sum(0)

    def slopes(self, votes: Mapping[str, Tensor], batch: str) -> tuple[float, Tensor]:
        o = self.outputs(votes).detach().requires_grad_()
        loss = self.loss(o, self.y(batch))
        (slopes,) = torch.autograd.grad(loss, o)
        return loss.item(), slopes


def stump_says(stump: Mapping[str, Tensor], x: Tensor) -> Tensor:
    above = x[:, stump["column"]] > stump["threshold"]
    return torch.where(above[:, None], stump["above"], stump["below"])


def best_stump(x: Tensor, target: Tensor, shrink: float) -> dict[str, Tensor]:
    """Of the medians and quartiles of all columns, the threshold whose sides differ
    most."""
    found: list[tuple[float, dict[str, Tensor]]] = []
    for column in range(x.shape[1]):
        for threshold in torch.quantile(
            x[:, column], torch.tensor([0.25, 0.5, 0.75], dtype=x.dtype)
        ):
            above = x[:, column] > threshold
            if 0 < int(above.sum()) < len(above):
                means = [target[side].mean(0) for side in (~above, above)]
                gain = sum(
                    float(m.square().sum() * side.sum())
                    for m, side in zip(means, (~above, above), strict=True)
                )
                stump = {"column": torch.tensor(column), "threshold": threshold}
                found.append(
                    (
                        gain,
                        {
                            **stump,
                            "below": shrink * means[0],
                            "above": shrink * means[1],
                        },
                    )
                )
    return max(found, key=lambda one: one[0])[1]


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    for batch in batches:
        votes = {
            k: reply.values.tensor for k, reply in peers.ask(Vote(batch.name)).items()
        }
        loss, slopes = driver.slopes(votes, batch.name)
        peers.ask(
            Fit(
                batch.name,
                driver.outbox.release(slopes, "slopes", batch.name),
                len(peers),
            )
        )
        yield Step(batch, loss)


def predict(driver: LabelOwner, peers: Peers, rows: Rows) -> Tensor:
    return driver.outputs(
        {k: reply.values.tensor for k, reply in peers.ask(Vote(rows.name)).items()}
    )


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=predict,
    releases={
        "votes": Release(
            Kind.LOGITS,
            of="columns",
            per_row=True,
        ),
        "slopes": Release(
            Kind.LOGIT_GRADIENT,
            of="labels",
            per_row=True,
        ),
    },
    local_model=None,
    no_head="its parties hold tables of thresholds",
    combine=LabelOwner.outputs,
)
