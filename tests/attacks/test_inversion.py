"""Inversion finds x where f can be inverted, and less where f, or the owner's rule,
leaves less of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from colonnade.attacks.inversion import (
    PICTURE,
    TABLE,
    Defence,
    Search,
    defence_of,
    half_square,
    invert,
    total_variation,
)
from colonnade.attacks.received import Received
from colonnade.compression import TopK
from colonnade.core import NON_PRIVATE, DpEvent
from colonnade.models import build
from colonnade.privacy.binomial import Binomial
from colonnade.privacy.gaussian import Gaussian

EXACT = Search(half_square, 0.0, steps=800)


def rows(count: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(count, *shape, generator=Generator().manual_seed(seed))


def error(x: Tensor, guess: Tensor) -> float:
    """1 is guessing the mean."""
    return float((x - guess).square().sum() / (x - x.mean(0)).square().sum())


def as_received(
    values: Tensor, event: DpEvent = NON_PRIVATE, codec: str = "identity"
) -> Received:
    return Received(torch.arange(len(values)), values, "test[0:8]", event, codec)


def test_an_invertible_linear_model_gives_x_back() -> None:
    f = nn.Linear(8, 8)
    with torch.no_grad():
        f.weight.copy_(torch.linalg.qr(rows(8, 8))[0] * torch.linspace(0.5, 2, 8))
    x = rows(5, 8, seed=1)
    assert float((invert(f(x), f, (8,), EXACT) - x).abs().max()) < 1e-4


def test_a_wide_relu_network_gives_x_back_nearly_and_a_narrow_one_does_not() -> None:
    x = rows(40, 6, seed=2)
    found = {}
    for width in (64, 3):
        f = build(
            {"name": "mlp", "hidden": [64], "width": width}, (6,), seed=0, owner="ada"
        )
        found[width] = error(x, invert(f(x), f, (6,), TABLE))
    assert found[64] < 0.05
    assert found[3] > 0.3


def test_entries_that_were_not_sent_cannot_help() -> None:
    x = rows(40, 6, seed=3)
    f = build({"name": "mlp", "hidden": [32], "width": 24}, (6,), seed=0, owner="ada")
    h = f(x).detach()
    found = []
    for keep in (24, 4, 1):
        packed = TopK(keep).encode(h)
        values = TopK(keep).decode(packed)
        found.append(
            error(
                x,
                invert(
                    values,
                    f,
                    (6,),
                    TABLE,
                    defence_of(as_received(values, codec="top_k")),
                ),
            )
        )
    assert found[0] < 0.2
    assert found == sorted(found)
    assert found[2] > 0.4
    sent = TopK(4).decode(TopK(4).encode(h))
    taken_for_zeros = error(x, invert(sent, f, (6,), TABLE))
    assert found[1] < taken_for_zeros  # who knows of top-k does better


def test_noise_makes_it_worse_and_knowing_its_size_helps() -> None:
    x = rows(60, 6, seed=4)
    f = build({"name": "mlp", "hidden": [32], "width": 24}, (6,), seed=0, owner="ada")
    h = f(x).detach()
    noisy, event = Gaussian(clip=2.0, sigma=0.3).apply(h, Generator().manual_seed(0))
    plain = error(x, invert(h, f, (6,), TABLE))
    known = defence_of(as_received(noisy, event))
    assert known.clip == 2.0
    assert known.variance == pytest.approx(0.36)
    told, untold = (
        error(x, invert(noisy, f, (6,), TABLE, one)) for one in (known, None)
    )
    assert plain < told < untold


def test_binomial_noise_is_read_off_its_grid_and_its_mean_matters() -> None:
    x = rows(60, 6, seed=5)
    f = build({"name": "mlp", "hidden": [32], "width": 24}, (6,), seed=0, owner="ada")
    h = f(x).detach()
    mechanism = Binomial(levels=32, trials=16, p=0.5, low=0.0, high=2.0)
    noisy, event = mechanism.apply(h, Generator().manual_seed(0))
    known = defence_of(as_received(noisy, event, "integers"))
    assert known.mean == pytest.approx(mechanism.step * 8, rel=1e-4)
    assert known.variance == pytest.approx(mechanism.step**2 * 4, rel=1e-3)
    guesses = [
        invert(values, f, (6,), TABLE, known) for values in (noisy, noisy + known.mean)
    ]
    knows, does_not = (error(x, guess) for guess in guesses)
    assert knows < does_not


def test_rows_are_solved_each_by_itself_and_the_model_is_left_alone() -> None:
    x = rows(6, 5, seed=6)
    f = build(
        {"name": "mlp", "hidden": [8], "width": 8}, (5,), seed=0, owner="ada"
    ).train()
    before = {name: value.clone() for name, value in f.state_dict().items()}
    attack = dataclasses.replace(TABLE, steps=50)
    spread = f(x).detach()
    whole = invert(spread, f, (5,), attack)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(
        invert(spread[order], f, (5,), attack), whole[order], atol=1e-4, rtol=1e-3
    )
    assert f.training
    assert all(
        torch.equal(before[name], value) for name, value in f.state_dict().items()
    )
    assert all(parameter.grad is None for parameter in f.parameters())


def test_pixels_stay_in_their_range() -> None:
    x = rows(4, 6, 6, seed=7).clamp(-1, 1)
    f = build({"name": "mlp", "hidden": [16], "width": 8}, (6, 6), seed=0, owner="ada")
    guess = invert(
        f(x).detach() * 5,
        f,
        (6, 6),
        dataclasses.replace(PICTURE, bounds=(-1.0, 1.0), steps=100),
    )
    assert guess.shape == x.shape
    assert float(guess.min()) >= -1
    assert float(guess.max()) <= 1


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 6)])
def test_total_variation_is_the_sum_over_neighbours(shape: tuple[int, ...]) -> None:
    pictures = rows(3, *shape, seed=8).double()
    total_of_flat = total_variation(torch.full((2, *shape), 0.7))
    assert torch.equal(total_of_flat, torch.zeros(2))
    for picture, found in zip(pictures.numpy(), total_variation(pictures), strict=True):
        planes = picture.reshape(-1, *shape[-2:])
        expected = 0.0
        for plane in planes:
            for i, j in np.ndindex(*plane.shape):
                expected += (
                    abs(plane[i + 1, j] - plane[i, j]) if i + 1 < plane.shape[0] else 0
                )
                expected += (
                    abs(plane[i, j + 1] - plane[i, j]) if j + 1 < plane.shape[1] else 0
                )
        assert float(found) == pytest.approx(expected / picture.size)


def test_half_the_square_is_a_standard_normals_exponent_per_column() -> None:
    assert half_square(torch.tensor([[3.0, 4.0]])).tolist() == [25 / 2 / 2]


def test_a_plain_release_tells_nothing_more() -> None:
    assert dataclasses.asdict(
        defence_of(as_received(rows(8, 3)))
    ) == dataclasses.asdict(Defence())
