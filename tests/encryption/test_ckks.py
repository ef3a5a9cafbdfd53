"""CKKS, beyond what all schemes must do: masks, bytes, and room for one product."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Generator

from colonnade.core import Encrypted
from colonnade.encryption import ckks, make_keys, seal
from colonnade.encryption.ckks import PRODUCTS, CkksSecretKey
from colonnade.encryption.scheme import split_parts, unwrap
from colonnade.errors import WireError

DEGREE = PRODUCTS.degree
MODULUS = seal.primes(PRODUCTS)[0]
"""q, the modulus of a product."""


@functools.cache
def keys(use: str = "products") -> CkksSecretKey:
    secret = make_keys("ckks", use=use, limit=1.0)
    assert isinstance(secret, CkksSecretKey)
    return secret


def blinded_product(value: float, columns: int) -> Encrypted:
    """Two equal values times columns of ones, under a mask."""
    public = keys().public
    x = public.encrypt(torch.full((2,), value), owner="ada")
    blinded, _ = public.blind(public.product(x, torch.ones(2, columns), owner="bob"))
    return blinded


def opened_numbers(blinded: Encrypted) -> list[NDArray[np.uint64]]:
    """The numbers under a mask, as the secret key's holder gives them back."""
    opened = keys().open_blinded(blinded)
    parts = split_parts(unwrap(keys().public, opened, "opened"))
    return [np.frombuffer(part, dtype=np.uint64) for part in parts]


def test_under_the_mask_the_keys_holder_sees_uniform_numbers() -> None:
    """Even where the product is zero, all that is decrypted is uniform modulo q."""
    (numbers,) = opened_numbers(blinded_product(0.0, columns=100))
    assert len(numbers) == DEGREE
    assert stats.kstest(numbers / MODULUS, "uniform").pvalue > 1e-6
    lowest_bits = (numbers & np.uint64(15)).astype(int)
    assert stats.chisquare(np.bincount(lowest_bits, minlength=16)).pvalue > 1e-6


def secrets_solved_for(blinded: Encrypted) -> list[list[int]]:
    """What a party would take for the secret key s, from what is given back to it.

    The party knows each ciphertext (c0, c1). If c0 + c1 s came back exactly, it could
    subtract c0, divide by c1, and have s (Li and Micciancio).
    """
    numbers_to_solve = 64
    solved = []
    ciphertexts = keys().public.ciphertexts_in(blinded)
    for ciphertext, opened in zip(ciphertexts, opened_numbers(blinded), strict=True):
        candidate = []
        for place in range(numbers_to_solve):
            c0 = ciphertext[place]
            c1 = ciphertext[DEGREE + place]
            difference = int(opened[place]) - c0
            candidate.append(difference * pow(c1, -1, MODULUS) % MODULUS)
        solved.append(candidate)
    return solved


def test_what_is_opened_does_not_give_the_secret_key_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = secrets_solved_for(blinded_product(1.0, columns=9000))
    assert not set(first) & set(second)
    monkeypatch.setattr(ckks, "FLOOD", 0.0)
    first, second = secrets_solved_for(blinded_product(1.0, columns=9000))
    assert first == second, "the attack must work where nothing prevents it"


def test_two_masks_differ_and_a_mask_fits_only_its_own() -> None:
    secret = keys()
    public = secret.public
    x = public.encrypt(torch.ones(2), owner="ada")
    product = public.product(x, torch.ones(2, 3), owner="bob")
    blinded, mask = public.blind(product)
    other, wrong_mask = public.blind(product)
    assert blinded.data != other.data
    opened = secret.open_blinded(blinded)
    expected = torch.full((3,), 2.0, dtype=torch.float64)
    assert torch.allclose(public.unblind(opened, mask), expected, atol=1e-4)
    assert not torch.allclose(public.unblind(opened, wrong_mask), expected, atol=1.0)
    with pytest.raises(WireError, match="does not have the mask's size"):
        public.unblind(opened, [*mask, *mask])


def test_encrypting_twice_gives_different_bytes() -> None:
    secret = keys("sums")
    once = secret.encrypt(torch.ones(3), owner="ada")
    again = secret.encrypt(torch.ones(3), owner="ada")
    assert once.data != again.data


@pytest.mark.parametrize(
    ("use", "most"), [("sums", 15.5), ("products", 57.5), ("combinations", 29)]
)
def test_bytes_per_value_are_as_documented(use: str, most: float) -> None:
    count = 2 * DEGREE
    encrypted = keys(use).encrypt(torch.ones(count), owner="ada")
    assert len(encrypted.data) / count < most


def test_there_is_room_for_one_product() -> None:
    public = keys().public
    x = public.encrypt(torch.ones(2), owner="ada")
    product = public.product(x, torch.ones(2, 2), owner="bob")
    with pytest.raises(WireError):
        public.product(product, torch.zeros(2, 2), owner="bob")


def test_rows_longer_than_a_ciphertext_take_several() -> None:
    secret = keys("combinations")
    generator = Generator().manual_seed(0)
    rows = torch.randn(3, 20_000, generator=generator).clamp(-1, 1)
    weights = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    encrypted = secret.encrypt(rows, owner="ada")
    total = secret.public.combine(weights, encrypted, owner="bob")
    expected = weights @ rows.double()
    assert torch.allclose(secret.decrypt(total), expected, atol=1e-5)
