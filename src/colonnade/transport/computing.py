"""How parties of one process share the processor: how much work a batch is, and how many threads torch may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

T = TypeVar("T")
A_STEP = 3
"""Forward passes that a step is worth: its own, and twice that for the gradients."""


@contextmanager
def one_torch_thread(wanted: bool = True) -> Iterator[None]:
    """Inside, torch computes with one thread; the setting is the process's, so it is put back afterwards."""
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def at_once(tasks: Sequence[Callable[[], T]], device: torch.device, streams: Sequence[Any] = ()) -> list[T]:
    """On a GPU each task on a stream of its own, between what came before and what comes after; else in turn."""
    if device.type != "cuda" or len(tasks) < 2:
        return [task() for task in tasks]
    here = torch.cuda.current_stream(device)
    streams = streams or [torch.cuda.Stream(device) for _ in tasks]  # type: ignore[no-untyped-call]
    done = []
    for stream, task in zip(streams, tasks, strict=False):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            done.append(task())
    for stream in streams[: len(tasks)]:
        here.wait_stream(stream)
    return done


def work(model: nn.Module, row: Tensor, rows: int) -> int:
    """Floating-point operations of one forward pass over so many rows: counted, not timed, so that what follows from
    it is the same in every run."""
    training = model.training
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(row)
    model.train(training)
    return rows * int(counter.get_total_flops())
