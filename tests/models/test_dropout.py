"""Dropout from a party's own generator: PyTorch's law, repeatable, and no global random
number."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, nn

from colonnade.errors import ConfigError
from colonnade.models.randomness import Dropout, seeded


def test_it_keeps_the_mean_and_drops_the_share() -> None:
    layer = Dropout(0.3, Generator().manual_seed(0))
    out = layer(torch.ones(200, 500))
    assert abs(float((out == 0).float().mean()) - 0.3) < 0.01
    assert abs(float(out.mean()) - 1) < 0.01
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.7])


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_the_ends(p: float) -> None:
    x = torch.randn(4, 3)
    assert torch.equal(Dropout(p, Generator())(x), x * (1 - p))


def test_it_does_nothing_in_evaluation() -> None:
    x = torch.randn(4, 3)
    assert Dropout(0.5, Generator()).eval()(x) is x


def test_the_same_generator_state_gives_the_same_mask() -> None:
    """The global generator is not touched."""
    before = torch.random.get_rng_state()
    x = torch.ones(50, 4)
    first, second = (Dropout(0.5, Generator().manual_seed(3))(x) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_gradients_pass_where_values_do() -> None:
    x = torch.ones(50, 4, requires_grad=True)
    out = Dropout(0.5, Generator().manual_seed(3))(x)
    torch.autograd.backward(out.sum())
    assert x.grad is not None
    assert torch.equal(x.grad, out.detach())


def test_every_layer_is_replaced_and_the_rest_kept() -> None:
    model = nn.Sequential(
        nn.Linear(2, 2), nn.Dropout(0.2), nn.Sequential(nn.Dropout(0.4), nn.ReLU())
    )
    generator = Generator()
    out = seeded(model, generator, owner="lab")
    found = [part for part in out.modules() if isinstance(part, nn.Dropout)]
    assert [part.p for part in found] == [0.2, 0.4]
    assert all(
        isinstance(part, Dropout) and part.generator is generator for part in found
    )
    assert isinstance(seeded(nn.Dropout(0.1), generator, owner="lab"), Dropout)


def test_other_kinds_are_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"The model of 'lab' has a Dropout2d, .* Use nn.Dropout"
    ):
        seeded(nn.Sequential(nn.Dropout2d(0.1)), Generator(), owner="lab")
