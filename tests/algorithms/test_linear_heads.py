"""One matrix is as good as a head per party."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Generator

from colonnade.algorithms.embedding import blocks, norms, uniform_heads

WIDTHS = [(4,), (3, 5, 1), (8, 8, 8, 8)]


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_product_with_all_is_the_sum_over_the_parties(
    widths: tuple[int, ...], outputs: int
) -> None:
    heads = uniform_heads(widths, outputs, seeded())
    h = [torch.randn(6, width, generator=seeded(width)) for width in widths]
    one_by_one = [h_k @ W_k for h_k, W_k in zip(h, blocks(heads, widths), strict=True)]
    assert torch.allclose(
        torch.cat(h, dim=-1) @ heads, torch.stack(one_by_one).sum(0), atol=1e-6
    )


@pytest.mark.parametrize("widths", WIDTHS)
def test_blocks_put_together_again_are_the_whole(widths: tuple[int, ...]) -> None:
    heads = uniform_heads(widths, 3, seeded())
    assert heads.shape == (sum(widths), 3)
    assert [tuple(block.shape) for block in blocks(heads, widths)] == [
        (width, 3) for width in widths
    ]
    assert torch.equal(torch.cat(blocks(heads, widths)), heads)


def test_blocks_are_views() -> None:
    heads = uniform_heads((2, 3), 3, seeded())
    blocks(heads, (2, 3))[1].zero_()
    assert (heads[2:] == 0).all()
    assert (heads[:2] != 0).all()


@pytest.mark.parametrize("widths", [(2, 2), (2, 4)])
def test_blocks_must_cover_every_row(widths: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="split"):
        blocks(torch.zeros(5, 3), widths)


def test_widths_may_be_any_iterable() -> None:
    widths = {"ada": 2, "bob": 3}
    heads = uniform_heads(widths.values(), 3, seeded())
    assert [len(block) for block in blocks(heads, widths.values())] == [2, 3]


def test_each_block_is_spread_as_its_own_width_says() -> None:
    """Uniform in +-a has the standard deviation a/sqrt(3)."""
    widths = (100, 2500)
    for width, block in zip(
        widths, blocks(uniform_heads(widths, 40, seeded()), widths), strict=True
    ):
        assert float(block.abs().max()) <= width**-0.5
        assert float(block.std()) == pytest.approx((3 * width) ** -0.5, rel=0.03)
        assert abs(float(block.mean())) <= 0.05 * width**-0.5


def test_a_seed_gives_one_start_and_another_seed_another() -> None:
    one, same, other = (uniform_heads((3, 5), 2, seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_party_more_does_not_change_the_heads_of_those_before() -> None:
    assert torch.equal(
        uniform_heads((3, 5), 2, seeded()), uniform_heads((3, 5, 4), 2, seeded())[:8]
    )


def test_no_global_random_numbers_are_used() -> None:
    before = torch.random.get_rng_state()
    uniform_heads((3, 5), 2, seeded())
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_norm_is_that_of_the_partys_own_block() -> None:
    heads = torch.tensor([[3.0, 4.0], [0.0, 0.0], [5.0, 12.0]])
    assert norms(heads, {"ada": 2, "bob": 1}) == {"ada": 5.0, "bob": 13.0}
    with warnings.catch_warnings():
        # torch warns of a number that could still be differentiated
        warnings.simplefilter("error")
        assert norms(heads.requires_grad_(), {"ada": 2, "bob": 1}) == {
            "ada": 5.0,
            "bob": 13.0,
        }
