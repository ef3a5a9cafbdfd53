"""VIMADMM-J: ADMM with whole models at the parties; the label owner needs only the sum of their logits.

Xie, Chen, Zhang and Li, 2022 (arXiv:2207.10226), Algorithm 3. With o = sum_k o_k, for each batch B:

    party k:      o_k = f_k(x_k[B]) W_k                                                   Embed   -> Embedding
    label owner:  z = argmin l(z; y) - lambda^T z + rho/2 ||o - z||^2                     Eq. 17
                  lambda <- lambda + rho (o - z)                                          Eq. 18
                  r = z - o - lambda/rho, the same to all                                 Improve -> Done
    party k:      tau steps of W_k and f_k together on
                  rho/2 ||r + o_k - f_k(x_k) W_k||^2 / |B|, with the o_k it sent          Eq. 20, 21

As in VIMADMM, r and what a party sent stand for lambda and the printed residual s_k. The paper steps W_k first and f_k
at the new W_k; with momentum that diverged on MNIST at its own settings (batch 28 of epoch 1), while one step of both
from the same gradient gives the authors' accuracies. What crosses: logits up, r down.
What a party learns: z and lambda carry labels, so a party can read them from r.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from colonnade.algorithms.fdml import local_model
from colonnade.algorithms.splitnn import Embed, Embedding, predict
from colonnade.core import Batches, Done, Peers, Released, Request, Seat, State, Step, roles, serves
from colonnade.core.checks import fraction, not_negative, one_of, positive, whole
from colonnade.optim.capture import Captured
from colonnade.optim.local import make_optimizer
from colonnade.optim.losses import Loss
from colonnade.optim.proximal import z_update

__all__ = ["REVEALS", "Config", "FeatureOwner", "Improve", "LabelOwner", "local_model", "predict", "train"]

REVEALS = {
    "logits": "what each row's columns say about its label, in the local model's view",
    "residual": "per row a vector that follows the label: labels can be guessed from it",
}


@dataclass(frozen=True)
class Config:
    """Table 2's settings for MNIST are the defaults."""

    rho: float = positive(default=0.5)  # ADMM's penalty
    local_steps: int = whole(default=20)  # tau
    optimizer: str = one_of("sgd", "adam", default="sgd")
    learning_rate: float = positive(default=0.05)
    momentum: float = fraction(default=0.9)
    weight_decay: float = not_negative(default=0.001)  # beta


class Improve(Request[Done]):
    batch: str
    residual: Released  # r, [rows, outputs]


class FeatureOwner(roles.FeatureOwner):
    """Holds columns and the whole local model, f_k with its head W_k."""

    config: Config

    def __init__(self, seat: Seat, features: Tensor, model: nn.Module, config: Config) -> None:
        super().__init__(seat, features, model, config)
        self.optimizer = make_optimizer(self.model.parameters(), config)
        self._sent: tuple[str, Tensor] | None = None
        self._descend = Captured(self._local_steps)

    @serves
    def embed(self, request: Embed) -> Embedding:
        training = self.training(request.batch)
        with torch.no_grad():
            sent = self.outbox.release(self.model(self.x(request.batch)), "logits", request.batch)
        if training:
            self._sent = request.batch, sent.tensor
        return Embedding(sent)

    @serves
    def improve(self, request: Improve) -> Done:
        batch, o = self._sent or (None, None)
        self.expect(batch == request.batch, f"variables came for batch {request.batch}, but {batch} is pending")
        assert o is not None
        self._sent = None
        self._descend(self.x(request.batch), request.residual.tensor + o)  # s_k - lambda/rho
        return Done()

    def _local_steps(self, x: Tensor, target: Tensor) -> None:
        """tau steps towards f_k(x_k) W_k = target (Eq. 20 and 21)."""
        for _ in range(self.config.local_steps):
            error = self.model(x) - target
            loss = self.config.rho / 2 * error.square().sum() / error.shape[-2]
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self._descend.forget()


class LabelOwner(roles.LabelOwner):
    """Holds labels, and z and the duals lambda (one row per training row)."""

    loss: Loss
    config: Config

    def meet(self, cards: Mapping[str, roles.Card]) -> None:
        super().meet(cards)
        shape = len(self.labels), self.loss.outputs
        self.z, self.duals = (torch.zeros(shape, device=self.device) for _ in range(2))

    def outputs(self, o: Mapping[str, Tensor]) -> Tensor:
        """sum_k o_k."""
        return torch.stack(list(o.values())).sum(0)

    def update(self, o: Tensor, batch: str) -> tuple[float, Tensor]:
        """Eq. 17 and 18 for a batch; gives the loss before the update, and the parties' residual r."""
        rows, labels, rho = self.rows(batch), self.y(batch), self.config.rho
        z = z_update(self.loss, o, self.duals[rows], labels, rho)
        duals = self.duals[rows] + rho * (o - z)
        self.z[rows], self.duals[rows] = z, duals
        return self.loss(o, labels).item(), z - o - duals / rho

    def state(self) -> State:
        return super().state() | {"z": self.z, "duals": self.duals}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.z, self.duals = state["z"], state["duals"]


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    for batch in batches:
        o = {k: reply.values.tensor for k, reply in peers.ask(Embed(batch.name)).items()}
        loss, residual = driver.update(driver.outputs(o), batch.name)
        peers.ask(Improve(batch.name, driver.outbox.release(residual, "residual", batch.name)))
        yield Step(batch, loss)
