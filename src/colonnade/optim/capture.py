"""Computations with fixed shapes as one CUDA graph: the GPU replays them without waiting for Python.

On a CPU the function simply runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Captured:
    """Wraps `steps(*tensors)`, which changes parameters in place, or gives new tensors, or both.

    Per set of shapes, the first call runs as it is, which also warms up what a capture needs (optimizer state,
    library handles); the second is captured and replayed; later ones copy their inputs in and replay. The
    optimizer's settings are part of a graph, so `steps` must not depend on values that change from call to call
    other than its arguments. What a replay gives is overwritten by the next.
    """

    def __init__(self, steps: Callable[..., Any]) -> None:
        self.steps = steps
        self._graphs: dict[tuple[Any, ...], tuple[Any, tuple[Tensor, ...], Any] | None] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        if tensors[0].device.type != "cuda":
            return self.steps(*tensors)
        key = tuple((tuple(t.shape), t.dtype) for t in tensors)
        if key not in self._graphs:
            self._graphs[key] = None
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                outputs = self.steps(*tensors)
            torch.cuda.current_stream().wait_stream(side)
            return outputs
        found = self._graphs[key]
        if found is None:
            inputs = tuple(t.clone() for t in tensors)
            graph = torch.cuda.CUDAGraph()
            with _no_collection(), torch.cuda.graph(graph):
                outputs = self.steps(*inputs)
            found = self._graphs[key] = graph, inputs, outputs
        graph, inputs, outputs = found
        for mine, theirs in zip(inputs, tensors, strict=True):
            mine.copy_(theirs)
        graph.replay()
        return outputs

    def forget(self) -> None:
        """Drop the graphs: parameters or optimizer state were replaced by other tensors."""
        self._graphs.clear()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Freeing an older graph breaks one that is being captured; Python's collector must do it before, or later."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
