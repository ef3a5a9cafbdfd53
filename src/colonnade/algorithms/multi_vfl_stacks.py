"""Several copies of one shape, trained at once: stacked, or beside each other on streams of a GPU.

Both take what one `Copy` takes with the K in front, and leave the copies' own parameters trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from colonnade.algorithms.multi_vfl_copies import Copy
from colonnade.transport.stacked import Stacked, slicewise

T = TypeVar("T")
Loss = Callable[[Tensor, Tensor], Tensor]


class Copies(Protocol):
    """K of them."""

    def restart(self, source: nn.Module) -> None: ...

    def outputs(self, x: Tensor) -> Tensor:
        """f(x), with no gradient to come."""
        ...

    def embed(self, x: Tensor, batch: str) -> Tensor: ...

    def descend(self, gradient: Tensor) -> None: ...

    def step(self, x: Tensor, gradient: Tensor) -> None:
        """Both of them, at once."""
        ...

    def learn(self, h: Sequence[Tensor], y: Tensor, loss: Loss, axis: int) -> tuple[Tensor, list[Tensor]]: ...


class Stack(Copy):
    """A kernel for all. The copies' parameters become views of the stack's own, so there is nothing to hand back."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        super().__init__(Stacked([copy.model for copy in copies]), copies[0].settings)
        for whole, *parts in zip(self.model.parameters(), *(copy.model.parameters() for copy in copies), strict=True):
            for index, part in enumerate(parts):
                part.data = whole.data[index]
        self.bound = partial(slicewise, [copy.bound for copy in copies])

    def outputs(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(x)  # type: ignore[no-any-return]

    def learn(self, h: Sequence[Tensor], y: Tensor, loss: Loss, axis: int) -> tuple[Tensor, list[Tensor]]:
        return super().learn(h, y, torch.vmap(loss), axis)


class Abreast:
    """A stream for each."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self.copies, self.device = copies, next(copies[0].model.parameters()).device

    def restart(self, source: nn.Module) -> None:
        for copy in self.copies:
            copy.restart(source)

    def outputs(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.stack(self._each(lambda copy, part: copy.model(part), x))

    def embed(self, x: Tensor, batch: str) -> Tensor:
        return torch.stack(self._each(lambda copy, part: copy.embed(part, batch), x))

    def descend(self, gradient: Tensor) -> None:
        self._each(lambda copy, part: copy.descend(part), gradient)

    def step(self, x: Tensor, gradient: Tensor) -> None:
        self._each(lambda copy, *parts: copy.step(*parts), x, gradient)

    def learn(self, h: Sequence[Tensor], y: Tensor, loss: Loss, axis: int) -> tuple[Tensor, list[Tensor]]:
        done = self._each(lambda copy, *parts: copy.learn(parts[:-1], parts[-1], loss, axis), *h, y)
        gradients = zip(*(each for _, each in done), strict=True)
        return torch.stack([losses for losses, _ in done]), [torch.stack(parts) for parts in gradients]

    def _each(self, do: Callable[..., T], *tensors: Tensor) -> list[T]:
        slices = zip(self.copies, *tensors, strict=True)
        return at_once([partial(do, copy, *parts) for copy, *parts in slices], self.device)


def several(copies: Sequence[Copy]) -> Copies:
    """As one stack, except convolutions of several channels on a GPU: stacked they become grouped ones, and an H200
    takes four times as long for those as for the same convolutions side by side (5 of 32 channels on 28 x 28: 3.0
    against 0.8 ms a step)."""
    model = copies[0].model
    on_gpu = next(model.parameters()).device.type == "cuda"
    wide = any(isinstance(part, _ConvNd) and part.in_channels > 1 for part in model.modules())
    return Abreast(copies) if on_gpu and wide else Stack(copies)


def at_once(tasks: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """On a GPU each task on a stream of its own, between what came before and what comes after; else in turn."""
    if device.type != "cuda":
        return [task() for task in tasks]
    here = torch.cuda.current_stream(device)
    streams = [torch.cuda.Stream(device) for _ in tasks]  # type: ignore[no-untyped-call]
    done = []
    for stream, task in zip(streams, tasks, strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            done.append(task())
    for stream in streams:
        here.wait_stream(stream)
    return done
