"""BFV, beyond what all schemes must do: it is exact, and its masks are uniform."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Generator, Tensor

from colonnade.core import Encrypted
from colonnade.encryption import make_keys
from colonnade.encryption.bfv import FRACTION_BITS, BfvPublicKey, BfvSecretKey
from colonnade.encryption.scheme import split_parts, unwrap, wrap
from colonnade.errors import ConfigError, WireError

LIMIT = 8.0
PLAIN_MODULUS = 2.0**60
MODULUS_BITS = 174
"""Bits of a ciphertext's modulus, which its values and its noise share."""


@functools.cache
def keys(use: str) -> BfvSecretKey:
    secret = make_keys("bfv", use=use, limit=LIMIT)
    assert isinstance(secret, BfvSecretKey)
    return secret


def random(*shape: int) -> Tensor:
    """Numbers from -2 to 2."""
    generator = Generator().manual_seed(0)
    return torch.rand(shape, generator=generator, dtype=torch.float64) * 4 - 2


def rounded(values: Tensor, use: str) -> Tensor:
    """Values as keys for this use encrypt them."""
    scale = 2.0 ** FRACTION_BITS[use]
    return (values * scale).round() / scale


def opened_numbers(public: BfvPublicKey, opened: Encrypted) -> list[NDArray[np.uint64]]:
    """The numbers under a mask, as the secret key's holder sees them."""
    parts = split_parts(unwrap(public, opened, "opened"))
    return [np.frombuffer(part, dtype=np.uint64) for part in parts]


def smallest_noise_budget(secret: BfvSecretKey, x: Encrypted) -> int:
    return min(secret.noise_budget(part) for part in secret.public.ciphertexts_in(x))


def assert_uniform(numbers: NDArray[np.uint64]) -> None:
    """A test that fails once in 10^6 where numbers are uniform modulo t."""
    assert stats.kstest(numbers / PLAIN_MODULUS, "uniform").pvalue > 1e-6


def test_sums_are_exact_to_the_last_bit_in_any_order() -> None:
    secret = keys("sums")
    parts = [random(5) / (number + 1) for number in range(4)]
    encrypted = [secret.encrypt(part, owner="ada") for part in parts]
    expected = torch.stack([rounded(part, "sums") for part in parts]).sum(0)
    for order in (encrypted, encrypted[::-1]):
        assert torch.equal(secret.decrypt(secret.public.add(*order)), expected)


def test_a_product_is_the_product_of_the_rounded_numbers() -> None:
    secret = keys("products")
    public = secret.public
    x = random(5)
    matrix = random(5, 30)
    product = public.product(secret.encrypt(x, owner="ada"), matrix, owner="bob")
    # Its values are below 2^9, in steps of 2^-44: float64 holds them exactly.
    exact = rounded(x, "products") @ rounded(matrix, "products")
    assert torch.equal(secret.decrypt(product), exact)
    blinded, mask = public.blind(product)
    assert torch.equal(public.unblind(secret.open_blinded(blinded), mask), exact)


def test_under_the_mask_the_keys_holder_sees_uniform_numbers() -> None:
    secret = keys("products")
    public = secret.public
    x = secret.encrypt(random(2), owner="ada")
    blinded, _ = public.blind(public.product(x, torch.ones(2, 9), owner="bob"))
    (numbers,) = opened_numbers(public, secret.open_blinded(blinded))
    assert_uniform(numbers)


def test_a_blinded_product_of_the_largest_values_can_still_be_decrypted() -> None:
    secret = keys("products")
    public = secret.public
    rows = 64
    largest = public.capacity / rows / LIMIT
    matrix = torch.full((rows, 5), largest, dtype=torch.float64)
    x = secret.encrypt(torch.full((rows,), LIMIT), owner="ada")
    blinded, mask = public.blind(public.product(x, matrix, owner="bob"))
    assert smallest_noise_budget(secret, blinded) >= 8
    product = public.unblind(secret.open_blinded(blinded), mask)
    assert torch.equal(product, torch.full((5,), public.capacity).double())


@pytest.mark.parametrize(
    ("rows", "columns", "outputs"),
    [(1, 1, 1), (7, 3, 2), (1000, 20, 1), (4097, 2, 2), (9000, 3, 1)],
)
def test_values_of_rows_times_columns_are_exact_and_nothing_else_is_opened(
    rows: int, columns: int, outputs: int
) -> None:
    """It holds where columns share a ciphertext, and where rows need two.

    One number for each product is given back from under the mask. No other coefficient
    is: a party could have filled it with the values themselves.
    """
    secret = keys("columns")
    public = secret.public
    x = random(rows, outputs)
    matrix = random(rows, columns) / 8
    matrix[:, 0] = 0
    product = public.product(secret.encrypt(x, owner="ada"), matrix, owner="bob")
    assert product.shape == (outputs, columns)
    exact = rounded(x, "columns").T @ rounded(matrix, "columns")
    rounding_of_float64 = 1e-10
    assert float((secret.decrypt(product) - exact).abs().max()) < rounding_of_float64
    assert float((exact - x.T @ matrix).abs().max()) <= public.product_error(matrix)

    blinded, mask = public.blind(product)
    opened = secret.open_blinded(blinded)
    count = sum(len(numbers) for numbers in opened_numbers(public, opened))
    assert count == outputs * columns
    assert torch.equal(public.unblind(opened, mask), secret.decrypt(product))


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 8193 * 2)])
def test_more_ciphertexts_than_a_product_of_the_shape_has_are_not_opened(
    shape: tuple[int, int],
) -> None:
    """Each of the two ciphertexts could hold 8192 values of somebody's choice."""
    secret = keys("columns")
    public = secret.public
    x = secret.encrypt(random(9000, 1), owner="ada")
    product = public.product(x, torch.ones(9000, 2) / 8, owner="bob")
    blinded, _ = public.blind(product)
    body = unwrap(public, blinded)
    with pytest.raises(WireError, match="2 ciphertexts are not the products of"):
        secret.open_blinded(wrap(public, shape, "product", 1.0, body, "blinded"))


def test_the_flood_drowns_the_noise_of_the_largest_columns() -> None:
    """The noise of a product is below 2^60, that of the flood 2^100."""
    secret = keys("columns")
    public = secret.public
    rows = 9000
    largest = public.capacity / rows / LIMIT
    matrix = torch.full((rows, 1), largest, dtype=torch.float64)
    x = secret.encrypt(torch.full((rows, 1), LIMIT), owner="ada")
    product = public.product(x, matrix, owner="bob")
    value_bits = 60
    noise_bits = 60
    least = MODULUS_BITS - value_bits - noise_bits - 1
    assert smallest_noise_budget(secret, product) >= least
    blinded, _ = public.blind(product)
    assert smallest_noise_budget(secret, blinded) >= 8


def test_under_the_mask_products_with_columns_are_uniform() -> None:
    secret = keys("columns")
    public = secret.public
    x = secret.encrypt(random(2, 1), owner="ada")
    blinded, _ = public.blind(public.product(x, torch.ones(2, 4096), owner="bob"))
    (numbers,) = opened_numbers(public, secret.open_blinded(blinded))
    assert_uniform(numbers)


def test_only_bfv_has_keys_for_columns() -> None:
    with pytest.raises(ConfigError, match="no use of keys 'columns'; there are sums"):
        make_keys("ckks", use="columns")
