"""Multi-VFL's arithmetic: a model that is trained for one round from given weights, alone or as a stack of several.

A data owner has one per label owner (f_{d,k}), a label owner one (g_k). Methods are written for `[..., rows,
features]`, so a stack of K copies runs them too: its losses are K numbers, and no copy moves another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor, nn

from colonnade.errors import ConfigError
from colonnade.optim.local import Settings, make_optimizer


class Copy:
    """A model and its optimizer, which remembers nothing from one round to the next."""

    def __init__(self, model: nn.Module, settings: Settings, generator: Generator | None = None) -> None:
        """A copy with the same weights; dropout goes on drawing from the party's generator."""
        self.model = copy.deepcopy(model, {id(generator): generator})
        self.settings = settings
        self.optimizer = make_optimizer(self.model.parameters(), settings)
        self.bound: Callable[[Tensor], Tensor] = lambda h: h  # what the owner's rule leaves of f(x), but for noise
        self.open = False
        self.pending: str | None = None
        self._h: Tensor | None = None

    def load(self, source: nn.Module) -> None:
        """The source's weights; in every place of a stack."""
        with torch.no_grad():
            for mine, theirs in zip(self.model.parameters(), source.parameters(), strict=True):
                mine.copy_(theirs)

    def restart(self, source: nn.Module) -> None:
        """Begin a round from the source's weights. All is done in place: a captured graph knows these tensors."""
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
        self.open, self.pending, self._h = False, None, None

    def embed(self, x: Tensor, batch: str) -> Tensor:
        """f(x), whose gradient is to come."""
        self._h, self.pending = self.bound(self.model(x)), batch
        return self._h

    def descend(self, gradient: Tensor) -> None:
        """A step with dloss/df(x)."""
        assert self._h is not None
        h, self._h, self.pending = self._h, None, None
        self._step(h, gradient)

    def step(self, x: Tensor, gradient: Tensor) -> None:
        """Both of these: forwards, and the step."""
        self.embed(x, "")
        self.descend(gradient)

    def learn(
        self, h: Sequence[Tensor], y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], axis: int
    ) -> tuple[Tensor, list[Tensor]]:
        """A step of g on its own loss: the loss before it, and dloss/dh for each h."""
        joined = torch.cat([part.detach() for part in h], dim=axis).requires_grad_()
        losses = loss(self.model(joined), y)
        self._step(losses, torch.ones_like(losses))
        assert joined.grad is not None
        return losses.detach(), list(joined.grad.split([part.shape[axis] for part in h], dim=axis))  # type: ignore[no-untyped-call]

    def _step(self, root: Tensor, gradient: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(root, gradient)
        self.optimizer.step()


def flat(model: nn.Module, stacked: bool = False) -> Tensor:
    """All parameters, one after the other; of a stack, one row per place."""
    return torch.cat([parameter.detach().flatten(int(stacked)) for parameter in model.parameters()], dim=-1)


def load(model: nn.Module, vector: Tensor) -> None:
    """The parameters that `flat` laid out."""
    sizes = [parameter.numel() for parameter in model.parameters()]
    if vector.shape != (sum(sizes),):
        raise ConfigError(
            f"Weights for {sum(sizes)} parameters were expected; found a tensor of shape {list(vector.shape)}. "
            "Give all label owners the same architecture and classes."
        )
    with torch.no_grad():
        for parameter, part in zip(model.parameters(), vector.split(sizes), strict=True):  # type: ignore[no-untyped-call]
            parameter.copy_(part.view_as(parameter))


def refuse_unaveraged(model: nn.Module, owner: str) -> None:
    """What is no parameter cannot be averaged, and numbers of two kinds do not fit into one vector."""
    buffers = [name for name, _ in model.named_buffers()]
    if buffers:
        raise ConfigError(
            f"The model of '{owner}' keeps {buffers[0]!r} beside its parameters, and statistics of different label "
            "owners' rows have no meaningful average. Use GroupNorm or LayerNorm instead of BatchNorm."
        )
    kinds = {parameter.dtype for parameter in model.parameters()}
    if len(kinds) != 1 or not next(iter(kinds)).is_floating_point:
        found = ", ".join(sorted(map(str, kinds))) or "no parameters"
        raise ConfigError(f"The model of '{owner}' must have parameters of one floating-point type; found {found}.")
