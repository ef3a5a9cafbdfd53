"""Modules made from a seed: the same seed the same weights, and PyTorch's global generator is left alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Generator, Tensor, nn

from colonnade.models.initialise import initialised


def made(seed: int | Generator) -> Tensor:
    with initialised(seed):
        return nn.Linear(3, 2).weight.detach()


def test_the_seed_alone_decides() -> None:
    before = torch.random.get_rng_state()
    first, again, other = made(1), made(1), made(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_generator_in_the_place_of_the_seed_gives_weights_from_where_it_stands() -> None:
    generator = Generator().manual_seed(1)
    assert torch.equal(made(generator), made(1))
    assert torch.equal(made(generator), made(1)), "and it still stands there"
    torch.rand(1, generator=generator)
    assert not torch.equal(made(generator), made(1))


def test_threads_that_make_models_at_once_do_not_disturb_each_other() -> None:
    def weights(seed: int) -> torch.Tensor:
        with initialised(seed):
            return torch.cat([nn.Linear(40, 40).weight.detach() for _ in range(20)])

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(weights, range(12)))
    assert all(torch.equal(one, weights(seed)) for seed, one in enumerate(found))
