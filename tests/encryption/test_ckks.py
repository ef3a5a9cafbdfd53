"""CKKS beyond what all schemes must do: what a mask hides, what bytes cost, and that
there is room for one product."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from scipy import stats

from colonnade.encryption import ckks, make_keys, seal
from colonnade.encryption.ckks import PRODUCTS, CkksSecretKey
from colonnade.encryption.scheme import split_parts
from colonnade.errors import WireError


@functools.cache
def keys(use: str = "products") -> CkksSecretKey:
    secret = make_keys("ckks", use=use, limit=1.0)
    assert isinstance(secret, CkksSecretKey)
    return secret


def test_under_the_mask_the_keys_holder_sees_uniform_numbers() -> None:
    """Also where the product is zero: all that is decrypted, noise included, is uniform
    modulo q."""
    public = keys().public
    q = seal.primes(PRODUCTS)[0]
    product = public.product(
        public.encrypt(torch.zeros(2), owner="ada"), torch.ones(2, 100), owner="bob"
    )
    blinded, _ = public.blind(product)
    (part,) = split_parts(keys().open_blinded(blinded).data[8:])
    seen = np.frombuffer(part, dtype=np.uint64)
    assert len(seen) == 8192
    assert stats.kstest(seen / q, "uniform").pvalue > 1e-6
    low = np.bincount((seen & np.uint64(15)).astype(int), minlength=16)
    assert stats.chisquare(low).pvalue > 1e-6


def test_what_is_opened_does_not_give_the_secret_key_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The party knows its ciphertext (c0, c1); were c0 + c1 s returned exactly, it
    could divide and have s, the same from any two ciphertexts (Li and Micciancio)."""
    public = keys().public
    q = seal.primes(PRODUCTS)[0]

    def solved() -> list[list[int]]:
        product = public.product(
            public.encrypt(torch.ones(2), owner="ada"), torch.ones(2, 9000), owner="bob"
        )
        blinded, _ = public.blind(product)
        opened = [
            np.frombuffer(part, dtype=np.uint64)
            for part in split_parts(keys().open_blinded(blinded).data[8:])
        ]
        found = []
        for one, seen in zip(public.ciphertexts_in(blinded), opened, strict=True):
            c0, c1 = ([one[half * 8192 + at] for at in range(64)] for half in (0, 1))
            found.append(
                [
                    (int(d) - a) * pow(b, -1, q) % q
                    for d, a, b in zip(seen[:64], c0, c1, strict=True)
                ]
            )
        return found

    first, second = solved()
    assert not set(first) & set(second)
    monkeypatch.setattr(ckks, "FLOOD", 0.0)
    first, second = solved()
    assert first == second, "the attack must work where nothing prevents it"


def test_two_masks_differ_and_a_mask_fits_only_its_own() -> None:
    public = keys().public
    secret = keys()
    product = public.product(
        public.encrypt(torch.ones(2), owner="ada"), torch.ones(2, 3), owner="bob"
    )
    (one, mask), (other, wrong) = public.blind(product), public.blind(product)
    assert one.data != other.data
    opened = secret.open_blinded(one)
    assert torch.allclose(
        public.unblind(opened, mask),
        torch.full((3,), 2.0, dtype=torch.float64),
        atol=1e-4,
    )
    assert not torch.allclose(
        public.unblind(opened, wrong),
        torch.full((3,), 2.0, dtype=torch.float64),
        atol=1.0,
    )
    with pytest.raises(WireError, match="does not have the mask's size"):
        public.unblind(opened, [*mask, *mask])


def test_encrypting_twice_gives_different_bytes() -> None:
    public = keys("sums").public
    assert (
        public.encrypt(torch.ones(3), owner="a").data
        != public.encrypt(torch.ones(3), owner="a").data
    )


def test_bytes_per_value_are_as_documented() -> None:
    for use, most in (("sums", 15.5), ("products", 57.5), ("combinations", 29)):
        public = keys(use).public
        count = 2 * PRODUCTS.degree
        assert len(public.encrypt(torch.ones(count), owner="ada").data) / count < most


def test_there_is_room_for_one_product() -> None:
    public = keys().public
    once = public.product(
        public.encrypt(torch.ones(2), owner="ada"), torch.ones(2, 2), owner="bob"
    )
    with pytest.raises(WireError):
        public.product(once, torch.zeros(2, 2), owner="bob")


def test_more_coefficients_than_slots_take_several_ciphertexts() -> None:
    """A batch may have more coefficients than a ciphertext has slots; a few rows of the
    matrix are enough to see it."""
    public = keys("combinations").public
    rows = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(0)).clamp(
        -1, 1
    )
    total = public.combine(
        torch.tensor([1.0, -1.0, 0.5]), public.encrypt(rows, owner="ada"), owner="bob"
    )
    expected = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64) @ rows.double()
    assert torch.allclose(keys("combinations").decrypt(total), expected, atol=1e-5)
