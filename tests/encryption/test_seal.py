"""Raw polynomials in and out of SEAL, and random numbers below a modulus."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from colonnade.encryption import make_keys, seal
from colonnade.encryption.ckks import PRODUCTS, SUMS
from colonnade.encryption.scheme import join_parts, split_parts, wrap
from colonnade.errors import ConfigError, WireError


def test_a_plaintext_has_exactly_the_given_values() -> None:
    where = seal.context_for(PRODUCTS)
    q = seal.primes(PRODUCTS)[0]
    values = seal.uniform(q, 8192)
    plain = seal.make_plaintext(values, where, where.last_parms_id(), 2.0**40)
    assert plain.is_ntt_form()
    assert plain.scale == 2.0**40
    assert np.array_equal(seal.numbers_in(plain), values)


def test_the_parameters_have_128_bits_of_security() -> None:
    for parameters in (SUMS, PRODUCTS):
        assert seal.context_for(parameters).parameters_set()
    with pytest.raises(
        ConfigError,
        match=(
            "must have 128 bits of security; found degree 4096 with 120 bits of primes"
        ),
    ):
        seal.context_for(seal.Parameters("ckks", 4096, (60, 60)))


def test_joined_parts_come_apart_and_bad_lengths_are_refused() -> None:
    parts = [b"", b"abc", b"\0" * 9]
    assert split_parts(join_parts(parts)) == parts
    for bad in (b"\x05\0\0\0\0\0\0\0ab", b"\xff" * 8, b"\x01"):
        with pytest.raises(WireError):
            split_parts(bad)


@pytest.mark.parametrize(
    "data",
    [b"", b"junk", b"\x5e\xa1\x10\x04\x03\x00\x00\x00" + b"\xff" * 8 + b"x" * 99],
)
def test_bytes_that_are_no_ciphertext_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="not what SEAL would write"):
        seal.from_bytes(seal.sealapi().Ciphertext(), seal.context_for(SUMS), data)


@pytest.mark.parametrize("modulus", [3, 1000, (1 << 60) - 93, (1 << 63) + 1])
def test_uniform_numbers_are_below_the_modulus_and_uniform(modulus: int) -> None:
    values = seal.uniform(modulus, 6000)
    assert int(values.max()) < modulus
    counts = np.bincount(
        (values.astype(float) / modulus * 3).astype(int).clip(0, 2), minlength=3
    )
    assert stats.chisquare(counts).pvalue > 1e-6


def test_differences_are_modulo_the_modulus() -> None:
    q = (1 << 60) - 93
    a = seal.uniform(q, 100)
    b = seal.uniform(q, 100)
    expected = [(int(x) - int(y)) % q for x, y in zip(a, b, strict=True)]
    assert seal.subtract(a, b, q).tolist() == expected


def test_where_there_are_no_files_in_memory_temporary_ones_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    where = seal.context_for(SUMS)
    plain = seal.make_plaintext(
        seal.uniform(1000, 4096), where, where.last_parms_id(), 2.0**20
    )
    again = seal.from_bytes(seal.sealapi().Plaintext(), where, seal.to_bytes(plain))
    assert np.array_equal(seal.numbers_in(again), seal.numbers_in(plain))


def test_a_ciphertext_that_would_unpack_to_much_more_is_refused_unread() -> None:
    """SEAL packs what it writes: half a megabyte of zeros takes a hundred bytes.

    A frame has room for many of them.
    """
    secret = make_keys("bfv", use="sums", limit=10.0)
    x = secret.encrypt(torch.ones(4), owner="ada")
    small = seal.to_bytes(seal.sealapi().Ciphertext())
    bad = replace(
        wrap(secret.public, x.shape, x.layout, x.bound, join_parts([small] * 1000)),
        sender="eve",
    )
    with pytest.raises(WireError, match=r"cannot have \d+ bytes. It was sent by 'eve'"):
        secret.decrypt(bad)
