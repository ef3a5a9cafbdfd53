"""How parties of one process share the processor: how much work a batch is, and how many threads torch may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils.flop_counter import FlopCounterMode

from colonnade.core.roles import FeatureOwner


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


def work(party: FeatureOwner, rows: int) -> int:
    """Floating-point operations of one forward pass over so many rows: counted, not timed, so that what follows from
    it is the same in every run."""
    training = party.model.training
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        party.model.eval()(party.features[:1])
    party.model.train(training)
    return rows * int(counter.get_total_flops())
