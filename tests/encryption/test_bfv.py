"""BFV beyond what all schemes must do: it is exact, and its masks are uniform."""

from __future__ import annotations

import functools

import numpy as np
import torch
from scipy import stats

from colonnade.encryption import SecretKey, make_keys, seal
from colonnade.encryption.bfv import FRACTION


@functools.cache
def keys(use: str) -> SecretKey:
    return make_keys("bfv", use=use, limit=8.0)


def random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4 - 2


def rounded(values: torch.Tensor, use: str) -> torch.Tensor:
    return (values * 2.0 ** FRACTION[use]).round() / 2.0 ** FRACTION[use]


def test_sums_are_exact_to_the_last_bit_in_any_order() -> None:
    public, parts = keys("sums").public, [random(5) / (k + 1) for k in range(4)]
    encrypted = [public.encrypt(part, owner="ada") for part in parts]
    expected = torch.stack([rounded(part, "sums") for part in parts]).sum(0)
    assert torch.equal(keys("sums").decrypt(public.add(*encrypted)), expected)
    assert torch.equal(keys("sums").decrypt(public.add(*encrypted[::-1])), expected)


def test_a_product_is_the_product_of_the_rounded_numbers() -> None:
    public, x, matrix = keys("products").public, random(5), random(5, 30)
    product = public.product(public.encrypt(x, owner="ada"), matrix, owner="bob")
    exact = rounded(x, "products") @ rounded(matrix, "products")  # 2^-44 steps below 2^9: float64 holds them
    assert torch.equal(keys("products").decrypt(product), exact)
    blinded, mask = public.blind(product)
    assert torch.equal(public.unblind(keys("products").open_blinded(blinded), mask), exact)


def test_under_the_mask_the_keys_holder_sees_uniform_numbers() -> None:
    public = keys("products").public
    blinded, _ = public.blind(public.product(public.encrypt(random(2), owner="a"), torch.ones(2, 9), owner="b"))
    (part,) = seal.parted(keys("products").open_blinded(blinded).data[8:])
    assert stats.kstest(np.frombuffer(part, dtype=np.uint64) / 2.0**60, "uniform").pvalue > 1e-6


def test_what_is_blinded_can_still_be_decrypted_with_bits_to_spare() -> None:
    """At the largest values that the keys allow, and for many rows."""
    public, secret = keys("products").public, keys("products")
    matrix = torch.full((64, 5), public.capacity / 64 / 8.0, dtype=torch.float64)
    product = public.product(public.encrypt(torch.full((64,), 8.0), owner="ada"), matrix, owner="bob")
    blinded, mask = public.blind(product)
    budgets = [secret._decryptor.invariant_noise_budget(one) for one in public._open(blinded)]  # type: ignore[attr-defined]
    assert min(budgets) >= 8
    assert torch.equal(public.unblind(secret.open_blinded(blinded), mask), torch.full((5,), public.capacity).double())
