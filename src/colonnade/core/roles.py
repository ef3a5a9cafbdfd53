"""The four roles a party can play. Algorithms subclass the first two and add the requests they serve.

Methods are written for `[..., rows, features]`: the same method serves one party and a cohort of stacked ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.core.message import Message, Request
from colonnade.core.party import Party, Seat, State, serves
from colonnade.errors import ConfigError


class Card(Message):
    """How a feature owner introduces itself: the width of its embeddings, its rows, and what it thinks was agreed."""

    width: int
    rows: int
    agreed: str


class Introduce(Request[Card]):
    """Asked once, before anything else."""


class Pong(Message):
    """It is there."""


class Ping(Request[Pong]):
    """Is it there? Answered at once, whatever the party computes meanwhile, and with nothing of its data."""


class FeatureOwner(Party):
    """Holds columns and a local model f_k."""

    aside = (Ping,)

    row_axis = 0
    stackable = True  # False: what it does with keys of its own, no cohort may do for it
    optimizer: torch.optim.Optimizer | None = None  # None: it does not learn by gradient steps

    def __init__(self, seat: Seat, features: Tensor, model: nn.Module, config: Any) -> None:
        super().__init__(seat)
        self.features, self.model, self.config = features.to(self.device), model.to(self.device), config

    def x(self, batch: str) -> Tensor:
        """This party's columns of a batch's rows."""
        return self.features.index_select(self.row_axis, self.rows(batch))

    def training(self, batch: str) -> bool:
        """Whether a batch is to learn from, not only training rows to be scored; the model is put into that mode."""
        training = batch.startswith("train/")
        if self.model.training != training:
            self.model.train(training)
        return training

    @serves
    def introduce(self, request: Introduce) -> Card:  # noqa: ARG002
        self.model.eval()
        with torch.no_grad():
            width = self.model(self.features.narrow(self.row_axis, 0, 1)).shape[-1]
        return Card(width, self.features.shape[self.row_axis], self.seat.batches.fingerprint())

    @serves
    def ping(self, request: Ping) -> Pong:  # noqa: ARG002
        return Pong()

    def state(self) -> State:
        state = super().state() | {"model": self.model.state_dict()}
        return state if self.optimizer is None else state | {"optimizer": self.optimizer.state_dict()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.model.load_state_dict(state["model"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])


def check_agreed(party: str, rows: int, agreed: str, owner: str, own_rows: int, own: str) -> None:
    """Raise unless a party has as many rows as the label owner, and the same batches of them (`fingerprint`)."""
    if agreed != own or rows != own_rows:
        raise ConfigError(
            f"'{party}' and '{owner}' do not agree on the rows: {rows} rows with fingerprint {agreed} there, "
            f"{own_rows} with {own} here.\n    Give both the same aligned rows, split, batch size and seed."
        )


class LabelOwner(Party):
    """Holds labels and drives. `meet` is called once, with the cards of all feature owners."""

    widths: dict[str, int]

    def __init__(self, seat: Seat, labels: Tensor, loss: Any, config: Any) -> None:
        super().__init__(seat)
        self.labels, self.loss, self.config = labels.to(self.device), loss, config

    def meet(self, cards: Mapping[str, Card]) -> None:
        """Check that everybody agreed to the same rows, and learn how wide the embeddings are."""
        for party, card in cards.items():
            check_agreed(party, card.rows, card.agreed, self.name, len(self.labels), self.seat.batches.fingerprint())
        self.widths = {party: card.width for party, card in cards.items()}

    def y(self, batch: str) -> Tensor:
        """The labels of a batch's rows."""
        return self.labels.index_select(0, self.rows(batch))


class AggregationServer(Party):
    """Holds no data; adds up or averages what others release."""


class KeyServer(Party):
    """Holds no data; makes and hands out keys."""
