"""Memory that is used again from step to step.

On a CPU the first touch of fresh pages costs as much as the arithmetic of a step, and
pages that are given back make every core wait.
"""

from __future__ import annotations

import threading

from torch import Tensor

LARGEST_KEPT_BYTES = 1 << 24
"""A larger buffer is given back after its use."""


class Buffers:
    """Buffers that are handed out in the same order in every round.

    `begin` starts a round. A round that asks for the same shapes as the one before gets
    the same memory. On a GPU every buffer is new, because its allocator keeps memory.
    """

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self.begin()

    def begin(self) -> None:
        """Start a round: what was taken before may be overwritten from here on."""
        self._taken = 0

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape that nobody else has taken in this round. Its numbers
        are arbitrary.

        Args:
            shape: The tensor's shape.
            like: A tensor with the wished type and device.
        """
        if like.device.type != "cpu":
            return like.new_empty(shape)
        place = self._taken
        self._taken += 1
        if place < len(self._kept):
            kept = self._kept[place]
            if kept.shape == shape and kept.dtype == like.dtype:
                return kept
        fresh = like.new_empty(shape)
        if fresh.nbytes > LARGEST_KEPT_BYTES:
            return fresh
        if place < len(self._kept):
            self._kept[place] = fresh  # the round before had another shape here
        else:
            self._kept.append(fresh)
        return fresh


class ThreadBuffers(Buffers, threading.local):
    """Buffers of which every thread has its own, for use within one call."""


SCRATCH = ThreadBuffers()
"""Memory for results that nobody reads after the call that made them."""
