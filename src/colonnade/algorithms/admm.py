"""What VIMADMM and VIMADMM-J have in common: parties that step towards a target, and a label owner with z and lambda.

Xie, Chen, Zhang and Li, 2022 (arXiv:2207.10226). For each batch B, with logits o:

    party k:      sends what its model gives for B, and remembers it              Embed -> Embedding
    label owner:  z = argmin l(z; y) - lambda^T z + rho/2 ||o - z||^2             Eq. 6 and 17
                  lambda <- lambda + rho (o - z)                                  Eq. 7 and 18
    party k:      tau steps towards a target formed from what it sent             Eq. 10, 20 and 21
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.algorithms.embedding import Embed, Embedding
from colonnade.core import Organisation, State, mapped, roles, serves
from colonnade.optim.capture import Captured
from colonnade.optim.descent import Descent
from colonnade.optim.local import make_optimizer
from colonnade.optim.losses import Loss
from colonnade.optim.proximal import ZUpdate


class FeatureOwner(roles.FeatureOwner):
    """Holds columns and a model, and remembers what it sent until it is told what to make of it."""

    released_as: str
    optimizer: torch.optim.Optimizer
    _local_steps: Callable[..., None]  # tau of them, in place; each algorithm's own

    def __init__(self, organisation: Organisation, features: Tensor, model: nn.Module, config: Any) -> None:
        super().__init__(organisation, features, model, config)
        self.optimizer = make_optimizer(self.model.parameters(), config)
        self._pending: tuple[str, Tensor] | None = None
        self._descend = Captured(self._local_steps)

    @cached_property
    def descent(self) -> Descent:
        """What moves its model."""
        return Descent(self.model, self.optimizer)

    @property
    def steps_at_once(self) -> int:
        return int(self.config.local_steps)

    @serves
    def embed(self, request: Embed) -> Embedding:
        training = self.training(request.batch)
        with torch.no_grad():
            sent = self.outbox.release(self.model(self.x(request.batch)), self.released_as, request.batch)
        if training:
            self._pending = request.batch, self.outbox.own(sent)
        return Embedding(sent)

    def sent(self, batch: str) -> Tensor:
        """What was sent for the pending batch, which is pending no longer."""
        pending, sent = self._pending or (None, None)
        self.expect(pending == batch, f"variables came for batch {batch}, but {pending} is pending")
        assert sent is not None
        self._pending = None
        return sent

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self._descend.forget()


class LabelOwner(roles.LabelOwner):
    """Holds labels, and z and the duals lambda (one row per training row)."""

    loss: Loss

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        super().meet(introductions)
        shape = len(self.labels), self.loss.outputs
        self.z, self.duals = (mapped.zeros(shape, device=self.device) for _ in range(2))
        self._solve = ZUpdate(self.loss, self.config.rho)

    def split(self, o: Tensor, batch: str) -> tuple[Tensor, Tensor]:
        """The new z and lambda of a batch's rows, which are remembered."""
        rows, rho = self.rows(batch), self.config.rho
        z = self._solve(o, self.duals[rows], self.y(batch))
        duals = self.duals[rows] + rho * (o - z)
        self.z[rows], self.duals[rows] = z, duals
        return z, duals

    def state(self) -> State:
        return super().state() | {"z": self.z, "duals": self.duals}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        if state["z"].shape == self.z.shape:
            self.z.copy_(state["z"])
            self.duals.copy_(state["duals"])
        else:  # loaded to predict other rows than it was trained with
            self.z, self.duals = state["z"].to(self.device), state["duals"].to(self.device)
