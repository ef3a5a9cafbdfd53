"""One shot: each party sends a few numbers per row once, learned without labels, and
nothing ever comes back.

Khan et al., Communication-efficient vertical federated learning, Algorithms 15(8),
2022; Irureta et al., Towards active participant centric vertical federated learning,
2024 (arXiv:2410.17648). Neither learns from labels at a party, so what is learned of
them stays with the label owner by construction.

    party k:      learns a map from its columns to `width` numbers, from its own training rows: PCA or an autoencoder
                  h_k = f_k(x_k)                                    Embed -> Embedding
    label owner:  learns from its own columns as they are, h_1 .. h_M and y: trees, logistic regression or MLP

What crosses: `4 * width` bytes a row and party, once to train and once for each
question. What a party learns: which rows are asked for, and nothing about labels, since
no message of the label owner depends on them. What the label owner learns: h_k, a
summary of each row's columns; it could rebuild as much of them as `width` numbers hold.

The label owner's estimator is one of a fixed list (`optim.estimators`); what it learned
is kept as plain tensors. Its own organisation's columns never leave, so they are not
narrowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from colonnade.algorithms import embedding
from colonnade.algorithms.algorithm import Algorithm, Kind, LocalInputs, Release
from colonnade.algorithms.embedding import Embed, Embedding
from colonnade.core import Batches, Organisation, Peers, State, Step, roles, serves
from colonnade.models.encoders import Autoencoder, Encoder, Pca
from colonnade.optim import estimators
from colonnade.optim.losses import Loss
from colonnade.settings import algorithms as settings

PIECE = 1 << 22
"""How many numbers a piece of rows may take on its way through the trees."""


Config = settings.OneShot


def encoder(model: nn.Module, given: LocalInputs[Config]) -> nn.Module:
    """A party's encoder; the label owner's own organisation gives its columns as they
    are."""
    if given.own:
        return nn.Flatten()
    columns = given.row[0].numel()
    config = given.config
    width = min(config.width, columns)
    if config.encoder == "pca":
        return Pca(columns, width)
    return Autoencoder(model, given.width, width, config.encoder_epochs)


class FeatureOwner(roles.FeatureOwner):
    """Holds columns, and a map to few numbers that it learns from them when training
    rows are first asked for."""

    config: Config
    stackable = False

    @serves
    def embed(self, request: Embed, asker: str | None) -> Embedding:
        x = self.x(request.batch)
        if self.training(request.batch):
            for part in self.model.modules():
                if isinstance(part, Encoder):
                    part.learn(x, self.generator)
        self.model.eval()
        with torch.no_grad():
            h = self.model(x)
        return Embedding(self.outbox.release(h, "embedding", request.batch, to=asker))


class LabelOwner(roles.LabelOwner):
    """Holds labels, and learns from them alone; drives."""

    loss: Loss
    config: Config
    model: estimators.Estimated

    def __init__(
        self, organisation: Organisation, labels: Tensor, loss: Loss, config: Config
    ) -> None:
        super().__init__(organisation, labels, loss, config)
        self.model = estimators.constant(1, torch.zeros(loss.outputs))

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        super().meet(introductions)
        self.model = estimators.constant(
            sum(self.widths.values()), torch.zeros(self.loss.outputs)
        ).to(self.device)

    def learn(self, h: Mapping[str, Tensor], batch: str) -> float:
        """Learn anew from all training rows. Returns the loss on them."""
        seed = int(torch.randint(1 << 31, (1,), generator=self.generator))
        x = torch.cat([part.flatten(1) for part in h.values()], dim=1)
        self.model = estimators.learn(
            self.config.estimator, x, self.y(batch), self.loss, seed
        ).to(self.device)
        return float(self.loss(self.outputs(h), self.y(batch)))

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        """The learned model's outputs for rows with these embeddings."""
        parts = list(h.values())
        size = max(
            1, PIECE // max(1, sum(buffer.shape[0] for buffer in self.model.buffers()))
        )
        pieces = zip(*(torch.split(part, size) for part in parts), strict=True)
        with torch.no_grad():
            return torch.cat([self.model(list(piece)) for piece in pieces])

    def state(self) -> State:
        return super().state() | {"model": self.model.state_dict()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.model = estimators.restore(state["model"]).to(self.device)


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    """One round: there is one batch, of all training rows, and one epoch."""
    for batch in batches:
        replies = peers.ask(Embed(batch.name))
        yield Step(
            batch,
            driver.learn(
                {k: reply.values.tensor for k, reply in replies.items()}, batch.name
            ),
        )


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=embedding.predict,
    releases={"embedding": Release(Kind.EMBEDDING, of="columns", per_row=True)},
    local_model=encoder,
    learns_first=True,
    head=lambda given: estimators.restore(given.state["model"]),
    combine=LabelOwner.outputs,
)
