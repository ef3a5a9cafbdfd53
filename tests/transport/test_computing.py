"""Counting a batch's work, and torch's threads for the time of a call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from colonnade.core.party import one_torch_thread
from colonnade.transport.cohort import at_once, work

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
    ),
]


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
def test_work_is_two_operations_per_weight_and_row_and_leaves_the_model_as_it_was(
    training: bool,
) -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)).train(training)
    before = torch.random.get_rng_state()
    assert work(model, torch.zeros(1, 7), 100) == 100 * 2 * (7 * 5 + 5 * 3)
    assert model.training is training
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("device", DEVICES)
def test_tasks_at_once_follow_what_came_before_and_come_before_what_follows(
    device: str,
) -> None:
    """Each result is whole when it is used, and in the order of the tasks."""
    x = torch.ones(500, 500, device=device)
    for _ in range(20):
        x = x @ x / 500
    found = at_once(
        [partial(torch.matmul, x, x * by) for by in range(4)], torch.device(device)
    )
    for by, one in enumerate(found):
        torch.testing.assert_close(one, torch.full_like(one, 500.0 * by))


@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        ((1, 7), (nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3, bias=False))),
        ((1, 2, 7), (nn.Flatten(), nn.Linear(14, 5), nn.Tanh(), nn.Identity())),
        ((1, 2, 7), (nn.Linear(7, 5), nn.Flatten(-2), nn.Linear(10, 4))),
    ],
)
def test_a_plain_chain_counts_as_torch_counts_it(
    shape: tuple[int, ...], layers: tuple[nn.Module, ...]
) -> None:
    row = torch.zeros(shape)
    with FlopCounterMode(display=False) as counter:
        nn.Sequential(*layers)(row)
    assert work(nn.Sequential(*layers), row, 3) == 3 * counter.get_total_flops()
