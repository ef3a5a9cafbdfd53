"""How arithmetic is run: compiled on a CPU; on a GPU in kernels of our own where Triton
is installed, and replayed as a graph.
"""

from __future__ import annotations

import gc
import importlib.util
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from colonnade.optim.chains import Stack

T = TypeVar("T")

_compiled_functions: dict[Any, Any] = {}
_compiling = threading.Lock()


def call_compiled(
    function: Callable[..., T], *arguments: Any, device: torch.device
) -> T:
    """Call a function of tensors, compiled on a CPU and as it stands elsewhere."""
    if device.type != "cpu":
        return function(*arguments)
    fast = _compiled_functions.get(function)
    if fast is None:
        with _compiling:  # parties in threads may come here at the same time
            fast = _compiled_functions.get(function) or compiled(function)
            _compiled_functions[function] = fast
    return fast(*arguments)  # type: ignore[no-any-return]


def compiled(function: Callable[..., T]) -> Callable[..., T]:
    """Compile a function with TorchScript, so that it runs without the interpreter.

    Returns the function itself where this torch has no compiler, or none for this
    version of Python, or where the function's source is not at hand.
    """
    with warnings.catch_warnings():
        # deprecated, but torch has nothing else that needs no C compiler
        warnings.simplefilter("ignore")
        try:
            script: Callable[..., T] = torch.jit.script(function)
        except (RuntimeError, AttributeError, OSError):
            return function
        return script


def gpu_kernels(device: torch.device) -> ModuleType | None:
    """The module `kernels`, which does in one GPU kernel what torch does in several, or
    None on a CPU and where Triton does not work."""
    return _working_kernels() if device.type == "cuda" else None


@cache
def _working_kernels() -> ModuleType | None:
    """Import `kernels` and try one of them: Triton may lack its C compiler."""
    if importlib.util.find_spec("triton") is None:
        return None
    from colonnade.optim import kernels

    trial = torch.ones(1, 1, dtype=torch.float64, device="cuda")
    try:
        kernels.newton(trial, trial, None, 1.0, 1.0, 1)
    except Exception as error:  # whatever Triton raises
        warnings.warn(
            f"Triton is installed but does not work, so steps take longer: {error}",
            stacklevel=2,
        )
        return None
    return kernels


class Arriving:
    """Numbers on their way from a GPU, which may still be computing them.

    The copy is ordered when this object is made. Whoever reads the numbers waits for
    them alone, and not for what the GPU was given to do after them.
    """

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers
        self._copied: torch.cuda.Event | None = None
        if numbers.is_cuda:
            here = torch.empty_like(numbers, device="cpu", pin_memory=True)
            self._numbers = here.copy_(numbers, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def read(self) -> list[float]:
        """Wait for the numbers, and return them."""
        if self._copied is not None:
            self._copied.synchronize()
        return list(self._numbers.tolist())


class _Graph(NamedTuple):
    """A CUDA graph, with the tensors that it reads and those that it writes."""

    graph: Any
    inputs: tuple[Tensor, ...]
    outputs: Any


class Captured:
    """A function of tensors that a GPU replays as one graph without waiting for Python.

    The function changes parameters in place, or returns new tensors, or does both. On a
    CPU it is simply called. On a GPU the first call for each set of shapes runs the
    function as it is, which also creates what a capture needs (an optimizer's state,
    library handles). The second call captures a graph, and later calls copy their
    arguments into the graph's inputs and replay it.

    A graph contains the values of everything but its tensors, such as an optimizer's
    settings. So the function must not depend on values that change from call to call,
    other than its arguments. The next replay overwrites what a replay returned.

    Args:
        function: The function.
        model: The model that the function runs, if it may have convolutions. Such a
            function is not captured unless the model is a stack, because the graphs of
            several parties then read each other's memory (seen on an H200 with torch
            2.11). One graph of a stack is right.
    """

    def __init__(
        self, function: Callable[..., Any], model: nn.Module | None = None
    ) -> None:
        self.function = function
        self.replays = (
            model is None or isinstance(model, Stack) or not _convolves(model)
        )
        self._graphs: dict[tuple[Any, ...], _Graph | None] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        if tensors[0].device.type != "cuda" or not self.replays:
            return self.function(*tensors)
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        if shapes not in self._graphs:
            self._graphs[shapes] = None
            return self._warm_up(*tensors)
        graph = self._graphs[shapes]
        if graph is None:
            graph = self._capture(*tensors)
            self._graphs[shapes] = graph
        for graph_input, tensor in zip(graph.inputs, tensors, strict=True):
            graph_input.copy_(tensor)
        graph.graph.replay()
        return graph.outputs

    def forget(self) -> None:
        """Drop all graphs, because parameters or an optimizer's state are other tensors
        now."""
        self._graphs.clear()

    def _warm_up(self, *tensors: Tensor) -> Any:
        """Call the function on a stream of its own, as torch asks for before a
        capture."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            outputs = self.function(*tensors)
        torch.cuda.current_stream().wait_stream(side)
        return outputs

    def _capture(self, *tensors: Tensor) -> _Graph:
        """Record the function as a graph that reads copies of these tensors."""
        inputs = tuple(tensor.clone() for tensor in tensors)
        graph = torch.cuda.CUDAGraph()
        with _no_garbage_collection(), torch.cuda.graph(graph):
            outputs = self.function(*inputs)
        return _Graph(graph, inputs, outputs)


def _convolves(model: nn.Module) -> bool:
    return any(isinstance(part, _ConvNd) for part in model.modules())


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect garbage before the block and not within it: to free an older graph breaks
    one that is being captured."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
