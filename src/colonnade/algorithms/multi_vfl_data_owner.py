"""Multi-VFL's data owner: columns, a model f_d, and a copy f_{d,k} of it for each label owner k.

It answers label owners alone. Whose copy a call concerns says who asks, and a batch's name must say the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from colonnade.algorithms.multi_vfl_copies import Copy, refuse_unaveraged
from colonnade.core import Agreed, Done, Message, Party, Released, Request, Seat, State, serves
from colonnade.core.roles import Ping, Pong
from colonnade.optim.server import mean

if TYPE_CHECKING:
    from colonnade.algorithms.multi_vfl import Config


class Cut(Message):
    """How a data owner introduces itself to a label owner: what it sends per row, and which rows it thinks it has."""

    shape: tuple[int, ...]
    rows: int
    agreed: str


class Introduce(Request[Cut]):
    """Asked once, before anything else."""


class Open(Request[Done]):
    round: int  # begins; the asker's copy is the average again


class Embedding(Message):
    values: Released  # [rows, width], or feature maps


class Embed(Request[Embedding]):
    batch: str  # says whose it is, as in clinic:train/0/3
    model: str = "aggregated"  # or the asker's "own"; a training batch always meets the asker's copy


class Descend(Request[Done]):
    batch: str
    gradient: Released  # dloss/dh_d, of the same shape


class Average(Request[Done]):
    round: int  # so many are over
    took_part: tuple[str, ...]


class DataOwner(Party):
    """Holds columns, f_d, and a copy f_{d,k} for each label owner k: whose it is says who asks."""

    aside = (Ping,)

    def __init__(self, seat: Seat, features: Tensor, model: nn.Module, config: Config, agreed: Agreed) -> None:
        super().__init__(seat)
        refuse_unaveraged(model, self.name)
        self.features, self.model = features.to(self.device), model.to(self.device)
        self.config, self.agreed = config, agreed
        self.copies = {k: Copy(self.model, config, self.generator) for k in agreed}
        for k, copy in self.copies.items():
            copy.bound = partial(self._bound, k)
        self.round = 0
        self.took_part: tuple[str, ...] = ()
        self.serves_for = agreed.keys()
        with torch.no_grad():
            self.shape = tuple(self.model.eval()(self.features[:1]).shape[1:])

    def rows(self, batch: str) -> Tensor:
        return self.agreed.rows(batch, self.device)

    @serves
    def introduce(self, request: Introduce) -> Cut:  # noqa: ARG002
        k = self._asker()
        return Cut(self.shape, len(self.agreed.orders[k]), self.agreed[k].fingerprint())

    @serves
    def open(self, request: Open) -> Done:
        self.expect(request.round == self.round, f"round {request.round} was opened, and {self.round} are averaged")
        self.copies[self._asker()].restart(self.model)
        return Done()

    @serves
    def embed(self, request: Embed) -> Embedding:
        k, batch = self._asker(), request.batch
        self.expect(batch.partition(":")[0] == k, f"the batch {batch} is not one of '{k}'")
        copy, x = self.copies[k], self.features.index_select(0, self.rows(batch))
        if batch.startswith(f"{k}:train/"):
            self.expect(copy.open, f"batch {batch} came before a round was opened")
            h = copy.embed(x, batch)
        else:
            with torch.no_grad():
                h = (self.model if request.model == "aggregated" else copy.model).eval()(x)
        return Embedding(self.outbox.release(h, "embedding", batch))

    def _bound(self, k: str, h: Tensor) -> Tensor:
        with self.outbox.answering(k):
            return self.outbox.bounded(h, "embedding", f"{k}:train")

    @serves
    def descend(self, request: Descend) -> Done:
        copy = self.copies[self._asker()]
        self.expect(
            copy.pending == request.batch,
            f"a gradient came for batch {request.batch}, but {copy.pending} is pending",
        )
        shape = request.gradient.shape
        self.expect(shape[1:] == self.shape, f"a gradient of shape {list(shape)} came for rows of {list(self.shape)}")
        copy.descend(request.gradient.tensor)
        return Done()

    @serves
    def average(self, request: Average) -> Done:
        """Over the copies of those that took part; whoever passes it on after the first is only compared."""
        again = request.round == self.round
        self.expect(again or request.round == self.round + 1, f"round {request.round} is over, and {self.round} here")
        self.expect(not again or request.took_part == self.took_part, f"others say that {self.took_part} took part")
        unknown = [k for k in request.took_part if k not in self.copies]
        self.expect(not unknown and bool(request.took_part), f"{unknown or 'nobody'} took part in round {self.round}")
        if not again:
            copies = [dict(self.copies[k].model.named_parameters()) for k in request.took_part]
            weights = [self.config.weight(len(self.agreed[k].splits["train"])) for k in request.took_part]
            with torch.no_grad():
                averaged = mean(copies, weights)
                for name, parameter in self.model.named_parameters():
                    parameter.copy_(averaged[name])
            for k, copy in self.copies.items():
                copy.stop()
                if k not in request.took_part:
                    copy.load(self.model)
            self.round, self.took_part = request.round, request.took_part
        return Done()

    @serves
    def ping(self, request: Ping) -> Pong:  # noqa: ARG002
        return Pong()

    def _asker(self) -> str:
        self.expect(self.asker in self.copies, f"{self.asker!r} is no label owner of this federation")
        assert self.asker is not None
        return self.asker

    def state(self) -> State:
        copies = {k: copy.model.state_dict() for k, copy in self.copies.items()}
        return super().state() | {
            "model": self.model.state_dict(), "copies": copies, "round": self.round, "took_part": list(self.took_part),
        }  # fmt: skip

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.model.load_state_dict(state["model"])
        for k, copy in self.copies.items():
            copy.stop()
            copy.model.load_state_dict(state["copies"][k])
        self.round, self.took_part = int(state["round"]), tuple(state["took_part"])
