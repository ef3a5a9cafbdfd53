"""Counting a batch's work, and torch's threads for the time of a call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from colonnade.algorithms import splitnn
from colonnade.core import Batches, Seat
from colonnade.transport.computing import one_torch_thread, work


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_one_thread_inside_and_all_of_them_after_even_when_it_fails() -> None:
    with one_torch_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(ValueError, match="inside"), one_torch_thread():
        raise ValueError("inside")
    assert torch.get_num_threads() == 2
    with one_torch_thread(False):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("training", [True, False])
def test_work_is_two_operations_per_weight_and_row_and_leaves_the_model_as_it_was(training: bool) -> None:
    batches = Batches({"train": torch.arange(8)}, batch_size=4, epochs=1, seed=0)
    model = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)).train(training)
    party = splitnn.FeatureOwner(Seat.at("lab", batches), torch.randn(8, 7), model, splitnn.Config())
    before = torch.random.get_rng_state()
    assert work(party, 100) == 100 * 2 * (7 * 5 + 5 * 3)
    assert party.model.training is training
    assert torch.equal(torch.random.get_rng_state(), before)
