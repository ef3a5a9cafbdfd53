"""BFV beyond what all schemes must do: it is exact, and its masks are uniform."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from scipy import stats

from colonnade.encryption import make_keys
from colonnade.encryption.bfv import FRACTION_BITS, BfvSecretKey
from colonnade.encryption.scheme import split_parts, wrap
from colonnade.errors import ConfigError, WireError


@functools.cache
def keys(use: str) -> BfvSecretKey:
    secret = make_keys("bfv", use=use, limit=8.0)
    assert isinstance(secret, BfvSecretKey)
    return secret


def random(*shape: int) -> torch.Tensor:
    return (
        torch.rand(
            shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        * 4
        - 2
    )


def rounded(values: torch.Tensor, use: str) -> torch.Tensor:
    return (values * 2.0 ** FRACTION_BITS[use]).round() / 2.0 ** FRACTION_BITS[use]


def test_sums_are_exact_to_the_last_bit_in_any_order() -> None:
    public = keys("sums").public
    parts = [random(5) / (k + 1) for k in range(4)]
    encrypted = [public.encrypt(part, owner="ada") for part in parts]
    expected = torch.stack([rounded(part, "sums") for part in parts]).sum(0)
    assert torch.equal(keys("sums").decrypt(public.add(*encrypted)), expected)
    assert torch.equal(keys("sums").decrypt(public.add(*encrypted[::-1])), expected)


def test_a_product_is_the_product_of_the_rounded_numbers() -> None:
    public = keys("products").public
    x = random(5)
    matrix = random(5, 30)
    product = public.product(public.encrypt(x, owner="ada"), matrix, owner="bob")
    # 2^-44 steps below 2^9: float64 holds them
    exact = rounded(x, "products") @ rounded(matrix, "products")
    assert torch.equal(keys("products").decrypt(product), exact)
    blinded, mask = public.blind(product)
    assert torch.equal(
        public.unblind(keys("products").open_blinded(blinded), mask), exact
    )


def test_under_the_mask_the_keys_holder_sees_uniform_numbers() -> None:
    public = keys("products").public
    blinded, _ = public.blind(
        public.product(
            public.encrypt(random(2), owner="a"), torch.ones(2, 9), owner="b"
        )
    )
    (part,) = split_parts(keys("products").open_blinded(blinded).data[8:])
    assert (
        stats.kstest(np.frombuffer(part, dtype=np.uint64) / 2.0**60, "uniform").pvalue
        > 1e-6
    )


def test_what_is_blinded_can_still_be_decrypted_with_bits_to_spare() -> None:
    """At the largest values that the keys allow, and for many rows."""
    public = keys("products").public
    secret = keys("products")
    matrix = torch.full((64, 5), public.capacity / 64 / 8.0, dtype=torch.float64)
    product = public.product(
        public.encrypt(torch.full((64,), 8.0), owner="ada"), matrix, owner="bob"
    )
    blinded, mask = public.blind(product)
    budgets = [secret.noise_budget(one) for one in public.ciphertexts_in(blinded)]
    assert min(budgets) >= 8
    assert torch.equal(
        public.unblind(secret.open_blinded(blinded), mask),
        torch.full((5,), public.capacity).double(),
    )


@pytest.mark.parametrize(
    ("rows", "columns", "outputs"),
    [(1, 1, 1), (7, 3, 2), (1000, 20, 1), (4097, 2, 2), (9000, 3, 1)],
)
def test_values_of_rows_times_columns_are_exact_and_nothing_else_is_opened(
    rows: int, columns: int, outputs: int
) -> None:
    """Whether columns share a ciphertext, or rows need two. Of what is under the mask a
    number per product is given back, and no other coefficient, which a party could have
    filled with the values themselves."""
    public = keys("columns").public
    secret = keys("columns")
    x = random(rows, outputs)
    matrix = random(rows, columns) / 8
    matrix[:, 0] = 0
    product = public.product(secret.encrypt(x, owner="ada"), matrix, owner="bob")
    exact = rounded(x, "columns").T @ rounded(matrix, "columns")
    assert product.shape == (outputs, columns)
    assert float((secret.decrypt(product) - exact).abs().max()) < 1e-10  # of float64
    assert float((exact - x.T @ matrix).abs().max()) <= public.product_error(matrix)
    blinded, mask = public.blind(product)
    opened = secret.open_blinded(blinded)
    assert sum(map(len, split_parts(opened.data[8:]))) == 8 * outputs * columns
    assert torch.equal(public.unblind(opened, mask), secret.decrypt(product))


@pytest.mark.parametrize("said", [(1, 1), (3, 1), (1, 8193 * 2)])
def test_ciphertexts_that_do_not_fit_what_is_said_of_them_are_not_opened(
    said: tuple[int, int],
) -> None:
    """Each of the two could hold 8192 values of somebody's choice."""
    public = keys("columns").public
    secret = keys("columns")
    product = public.product(
        secret.encrypt(random(9000, 1), owner="ada"),
        torch.ones(9000, 2) / 8,
        owner="bob",
    )
    body = public.blind(product)[0].data[8:]
    with pytest.raises(WireError, match="2 ciphertexts are not the products of"):
        secret.open_blinded(wrap(public, said, "product", 1.0, body, "blinded"))


def test_of_columns_the_noise_drowns_and_what_is_under_the_mask_is_uniform() -> None:
    """At the largest values that the keys allow: 2^60 in 2^100, and bits to spare."""
    public = keys("columns").public
    secret = keys("columns")
    matrix = torch.full((9000, 1), public.capacity / 9000 / 8.0, dtype=torch.float64)
    product = public.product(
        secret.encrypt(torch.full((9000, 1), 8.0), owner="ada"), matrix, owner="bob"
    )
    before, after = (
        [secret.noise_budget(one) for one in public.ciphertexts_in(x)]
        for x in (product, public.blind(product)[0])
    )
    assert min(before) >= 174 - 60 - 1 - 60
    assert min(after) >= 8
    many = public.product(
        secret.encrypt(random(2, 1), owner="a"), torch.ones(2, 4096), owner="b"
    )
    (part,) = split_parts(secret.open_blinded(public.blind(many)[0]).data[8:])
    assert (
        stats.kstest(np.frombuffer(part, dtype=np.uint64) / 2.0**60, "uniform").pvalue
        > 1e-6
    )


def test_only_bfv_has_keys_for_columns() -> None:
    with pytest.raises(
        ConfigError,
        match="no use of keys 'columns'; there are sums, products, combinations",
    ):
        make_keys("ckks", use="columns")
