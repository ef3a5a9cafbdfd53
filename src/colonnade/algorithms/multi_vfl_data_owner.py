"""Multi-VFL's data owner: columns, a model f_d, and a copy f_{d,k} of it for each label
owner k.

It answers label owners alone. Whose copy a call concerns says who asks, and a batch's
name must say the same. `Copy` is the arithmetic of a round, of these copies and of the
label owners' own g_k alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Protocol

import torch
from torch import Generator, Tensor, nn

from colonnade.algorithms.algorithm import Kind
from colonnade.algorithms.embedding import Optimizing, make_optimizer
from colonnade.core import (
    Agreed,
    Done,
    Message,
    Organisation,
    Released,
    Request,
    State,
    serves,
)
from colonnade.core.roles import Introduce, Introduction, Reachable
from colonnade.errors import ConfigError
from colonnade.optim.server import mean


class Weighting(Optimizing, Protocol):
    """What the algorithm's Config says to a data owner."""

    def weight(self, rows: int) -> float:
        """How much a label owner with so many training rows counts in every mean."""
        ...


class Open(Request[Done]):
    round: int  # begins; the asker's copy is the average again


class Embedding(Message):
    values: Annotated[Released, Kind.EMBEDDING]  # [rows, width], or feature maps


class Embed(Request[Embedding]):
    batch: str  # says whose it is, as in clinic:train/0/3
    # or the asker's "own"; a training batch always meets the asker's copy
    model: str = "aggregated"


class Descend(Request[Done]):
    batch: str
    gradient: Released  # dloss/dh_d, of the same shape


class Average(Request[Done]):
    round: int  # so many are over
    took_part: tuple[str, ...]


class Copy:
    """A model trained for one round from given weights, or a stack of K of them, of
    which none moves another."""

    def __init__(
        self, model: nn.Module, settings: Optimizing, generator: Generator | None = None
    ) -> None:
        """A copy with the same weights; dropout goes on drawing from the party's
        generator."""
        self.model = copy.deepcopy(model, {id(generator): generator})
        self.settings = settings
        self.optimizer = make_optimizer(self.model.parameters(), settings)
        self.open = False
        self.pending: str | None = None
        self.shape: tuple[int, ...] = ()  # of what is pending
        self._h: Tensor | None = None

    def load(self, source: nn.Module) -> None:
        """Take the source's weights."""
        with torch.no_grad():
            for parameter, value in zip(
                self.model.parameters(), source.parameters(), strict=True
            ):
                parameter.copy_(value)

    def restart(self, source: nn.Module) -> None:
        """Begin a round from the source's weights."""
        self.stop()
        self.load(source)
        self.model.train()
        for remembered in self.optimizer.state.values():
            for value in remembered.values():
                if isinstance(value, Tensor):
                    value.zero_()
        self.open = True

    def stop(self) -> None:
        """The round is over, finished or not."""
        self.open = False
        self.pending = None
        self._h = None

    def embed(self, x: Tensor, batch: str, bound: Callable[[Tensor], Tensor]) -> Tensor:
        """f(x), whose gradient is to come; `bound` is what the owner's rule leaves of
        it, but for noise."""
        h = bound(self.model(x))
        self._h = h
        self.pending = batch
        self.shape = tuple(h.shape)
        return h

    def descend(self, gradient: Tensor) -> None:
        """Take a step with dloss/df(x)."""
        assert self._h is not None
        kept = self._h
        self._h = None
        self.pending = None
        self._step(kept, gradient)

    def learn(
        self,
        h: Sequence[Tensor],
        y: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor],
        axis: int,
    ) -> tuple[Tensor, list[Tensor]]:
        """Take a step of g on its own loss.

        Args:
            h: What g reads of each data owner.
            y: The labels.
            loss: The loss of outputs and labels.
            axis: The dimension along which the parts of `h` are joined.

        Gives the loss before the step, and dloss/dh for each part.
        """
        joined = torch.cat([part.detach() for part in h], dim=axis).requires_grad_()
        losses = loss(self.model(joined), y)
        self._step(losses, torch.ones_like(losses))
        assert joined.grad is not None
        sizes = [part.shape[axis] for part in h]
        gradients = joined.grad.split(sizes, dim=axis)  # type: ignore[no-untyped-call]
        return losses.detach(), list(gradients)

    def _step(self, root: Tensor, gradient: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(root, gradient)
        self.optimizer.step()


class DataOwner(Reachable):
    """Holds columns, f_d, and a copy f_{d,k} for each label owner k: whose it is says
    who asks."""

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Weighting,
        agreed: Agreed,
    ) -> None:
        super().__init__(organisation)
        refuse_unaveraged(model, self.name)
        self.features, self.model = features.to(self.device), model.to(self.device)
        self.config = config
        self.agreed = agreed
        self.copies = {k: Copy(self.model, config, self.generator) for k in agreed}
        self.round = 0
        self.took_part: tuple[str, ...] = ()
        self.serves_for = agreed.keys()
        with torch.no_grad():
            self.shape = tuple(self.model.eval()(self.features[:1]).shape[1:])

    def rows(self, batch: str) -> Tensor:
        return self.agreed.rows(batch, self.device)

    @serves
    def introduce(self, request: Introduce, asker: str | None) -> Introduction:  # noqa: ARG002
        k = self._label_owner(asker)
        return Introduction(
            self.shape,
            self.agreed.shared_with(k, len(self.features)),
            self.agreed[k].fingerprint(),
        )

    @serves
    def open(self, request: Open, asker: str | None) -> Done:
        self.expect(
            request.round == self.round,
            f"round {request.round} was opened, and {self.round} are averaged",
        )
        self.copies[self._label_owner(asker)].restart(self.model)
        return Done()

    @serves
    def embed(self, request: Embed, asker: str | None) -> Embedding:
        k = self._label_owner(asker)
        batch = request.batch
        self.expect(
            batch.partition(":")[0] == k, f"the batch {batch} is not one of '{k}'"
        )
        own = self.copies[k]
        x = take(self.features, self.rows(batch))
        if batch.startswith(f"{k}:train/"):
            self.expect(own.open, f"batch {batch} came before a round was opened")
            h = own.embed(
                x,
                batch,
                partial(self.outbox.bounded, as_="embedding", batch=batch, to=k),
            )
        else:
            with torch.no_grad():
                h = (self.model if request.model == "aggregated" else own.model).eval()(
                    x
                )
        return Embedding(self.outbox.release(h, "embedding", batch, to=k))

    @serves
    def descend(self, request: Descend, asker: str | None) -> Done:
        own = self.copies[self._label_owner(asker)]
        batch = request.batch
        shape = request.gradient.shape
        self.expect(
            own.pending == batch,
            f"a gradient came for batch {batch}, but {own.pending} is pending",
        )
        self.expect(
            shape == own.shape,
            f"a gradient of shape {list(shape)} came for one of {list(own.shape)}",
        )
        own.descend(request.gradient.tensor)
        return Done()

    @serves
    def average(self, request: Average) -> Done:
        """Over the copies of those that took part; whoever passes it on after the first
        is only compared."""
        again = request.round == self.round
        self.expect(
            again or request.round == self.round + 1,
            f"round {request.round} is over, and {self.round} here",
        )
        self.expect(
            not again or request.took_part == self.took_part,
            f"others say that {self.took_part} took part",
        )
        unknown = [k for k in request.took_part if k not in self.copies]
        self.expect(
            not unknown and bool(request.took_part),
            f"{unknown or 'nobody'} took part in round {self.round}",
        )
        if not again:
            copies = [
                dict(self.copies[k].model.named_parameters()) for k in request.took_part
            ]
            weights = [
                self.config.weight(len(self.agreed[k].splits["train"]))
                for k in request.took_part
            ]
            with torch.no_grad():
                averaged = mean(copies, weights)
                for name, parameter in self.model.named_parameters():
                    parameter.copy_(averaged[name])
            for k, trained in self.copies.items():
                trained.stop()
                if k not in request.took_part:
                    trained.load(self.model)
            self.round = request.round
            self.took_part = request.took_part
        return Done()

    def _label_owner(self, asker: str | None) -> str:
        return self.needed(
            asker if asker in self.copies else None,
            f"{asker!r} is no label owner of this federation",
        )

    def state(self) -> State:
        copies = {k: trained.model.state_dict() for k, trained in self.copies.items()}
        return super().state() | {
            "model": self.model.state_dict(),
            "copies": copies,
            "round": self.round,
            "took_part": list(self.took_part),
        }

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.model.load_state_dict(state["model"])
        for k, trained in self.copies.items():
            trained.stop()
            trained.model.load_state_dict(state["copies"][k])
        self.round = int(state["round"])
        self.took_part = tuple(state["took_part"])


def take(table: Tensor, rows: Tensor) -> Tensor:
    """The rows of a table: [..., rows, columns] for row numbers [..., rows]."""
    return table.index_select(0, rows.flatten()).view(*rows.shape, *table.shape[1:])


def flat(model: nn.Module, like: nn.Module | None = None) -> Tensor:
    """All parameters, one after the other; where they have an axis more than `like`
    has, so has this."""
    pairs = zip(model.parameters(), (like or model).parameters(), strict=True)
    return torch.cat(
        [mine.detach().flatten(mine.dim() - one.dim()) for mine, one in pairs], dim=-1
    )


def load(model: nn.Module, vector: Tensor) -> None:
    """The parameters that `flat` laid out."""
    sizes = [parameter.numel() for parameter in model.parameters()]
    if vector.shape != (sum(sizes),):
        raise ConfigError(
            f"Weights for {sum(sizes)} parameters were expected; found a tensor of"
            f" shape {list(vector.shape)}. Give all label owners the same architecture"
            " and classes."
        )
    with torch.no_grad():
        for parameter, part in zip(
            model.parameters(),
            vector.split(sizes),  # type: ignore[no-untyped-call]
            strict=True,
        ):
            parameter.copy_(part.view_as(parameter))


def refuse_unaveraged(model: nn.Module, owner: str) -> None:
    """What is no parameter cannot be averaged, and numbers of two kinds do not fit into
    one vector."""
    buffers = [name for name, _ in model.named_buffers()]
    if buffers:
        raise ConfigError(
            f"The model of '{owner}' keeps {buffers[0]!r} beside its parameters, and"
            " statistics of different label owners' rows have no meaningful average."
            " Use GroupNorm or LayerNorm instead of BatchNorm."
        )
    kinds = {parameter.dtype for parameter in model.parameters()}
    if len(kinds) != 1 or not next(iter(kinds)).is_floating_point:
        types = ", ".join(sorted(map(str, kinds))) or "no parameters"
        raise ConfigError(
            f"The model of '{owner}' must have parameters of one floating-point type;"
            f" found {types}."
        )
