"""A copy's round: from given weights, with nothing remembered, and back into one vector."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from colonnade.algorithms import multi_vfl
from colonnade.algorithms.multi_vfl_copies import Copy, flat, load, refuse_unaveraged
from colonnade.errors import ConfigError
from colonnade.models import build, seeded
from colonnade.optim.local import make_optimizer


def model(seed: int = 0) -> nn.Module:
    return build({"name": "mlp", "hidden": [3], "width": 2}, (4,), seed=seed, owner="x").double()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_round_remembers_nothing_of_the_one_before(optimizer: str) -> None:
    """Bit for bit what a fresh optimizer does."""
    config = multi_vfl.Config(optimizer=optimizer, learning_rate=0.1, weight_decay=0.01)
    source, x, y = model(), torch.randn(6, 4).double(), torch.tensor([0, 1, 0, 1, 1, 0])
    used = Copy(source, config)
    for _ in range(2):
        used.restart(source)
        fresh = copy.deepcopy(source)
        steps = make_optimizer(fresh.parameters(), config)
        for _ in range(3):
            used.learn([x], y, cross_entropy, -1)
            steps.zero_grad()
            torch.autograd.backward(cross_entropy(fresh(x), y))
            steps.step()
    for a, b in zip(used.model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_copy_is_its_own_and_shares_the_party_s_generator() -> None:
    generator = torch.Generator().manual_seed(0)
    source = seeded(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)), generator, owner="x")
    one = Copy(source, multi_vfl.Config(), generator)
    assert one.model is not source
    assert vars(one.model.get_submodule("1"))["generator"] is generator
    before = flat(source)
    one.restart(source)
    one.step(torch.ones(3, 4), torch.ones(3, 2))
    assert torch.equal(flat(source), before)
    assert not torch.equal(flat(one.model), before)


def test_what_is_pending_ends_with_the_round() -> None:
    one = Copy(model(), multi_vfl.Config())
    assert not one.open
    one.restart(model())
    one.embed(torch.ones(2, 4).double(), "a:train/0/0")
    assert (one.open, one.pending) == (True, "a:train/0/0")
    one.stop()
    assert (one.open, one.pending) == (False, None)


def test_one_vector_and_back() -> None:
    one, other = model(0), model(1)
    vector = flat(one)
    assert vector.shape == (4 * 3 + 3 + 3 * 2 + 2,)
    load(other, vector)
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    other.get_parameter("0.weight").data.add_(1)
    assert torch.equal(flat(one), vector)
    with pytest.raises(ConfigError, match="Weights for 23 parameters were expected; found a tensor of shape \\[22\\]"):
        load(one, vector[1:])


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        (nn.BatchNorm1d(3), "GroupNorm"),
        (nn.ReLU(), "found no parameters"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
            "one floating-point type; found torch",
        ),
    ],
    ids=["statistics", "nothing", "two types"],
)
def test_what_cannot_be_averaged_is_refused(bad: nn.Module, rule: str) -> None:
    refuse_unaveraged(model(), "heart")
    with pytest.raises(ConfigError, match=rf"'heart' .*{rule}"):
        refuse_unaveraged(bad, "heart")
