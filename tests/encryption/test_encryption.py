"""Keys by the name of their scheme, and public keys from strangers."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
import tenseal.sealapi as sealapi

from colonnade.encryption import bfv, ckks, make_keys, read_public_key, seal
from colonnade.encryption.scheme import join_parts
from colonnade.errors import BoundaryError, ConfigError, WireError


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (
            {"scheme": "ckk"},
            (
                r"no encryption scheme 'ckk' \(did you mean 'ckks'\?\); there are ckks,"
                r" bfv, plain"
            ),
        ),
        (
            {"scheme": "ckks", "use": "sum"},
            r"no use of keys 'sum' \(did you mean 'sums'\?\)",
        ),
        ({"scheme": "ckks", "limit": 0.0}, "a limit above 0; found 0.0"),
        ({"scheme": "ckks", "limit": math.nan}, "a limit above 0; found nan"),
    ],
)
def test_keys_that_cannot_be_made_are_refused(
    settings: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        make_keys(**settings)


def test_bytes_that_are_no_public_key_are_refused() -> None:
    with pytest.raises(WireError, match="no public key"):
        read_public_key(b"\x02\0\0\0\0\0\0\0{}", scheme="bfv", use="sums")


@pytest.mark.filterwarnings('ignore:The encryption scheme "plain"')
@pytest.mark.parametrize(
    ("own", "what"),
    [
        (
            {"scheme": "bfv", "use": "sums"},
            "of the scheme 'plain' came, and by this party's own settings it is 'bfv'",
        ),
        (
            {"scheme": "plain", "use": "products"},
            "of the use 'sums' came, .* it is 'products'",
        ),
        (
            {"scheme": "plain", "use": "sums", "limit": 4.0},
            "of the limit '8.0' came, .* it is '4.0'",
        ),
    ],
)
def test_a_key_is_read_by_the_readers_own_settings(
    own: dict[str, Any], what: str
) -> None:
    data = make_keys("plain", limit=8.0).public.to_bytes()
    with pytest.raises(BoundaryError, match=what):
        read_public_key(data, **own)
    assert read_public_key(data, scheme="plain", use="sums", limit=8.0).limit == 8.0


@pytest.mark.filterwarnings('ignore:The encryption scheme "plain"')
@pytest.mark.parametrize("limit", ["0", "-1", "NaN", '"8"', "null"])
def test_a_limit_that_is_none_is_refused(limit: str) -> None:
    about = f'{{"scheme": "plain", "use": "sums", "limit": {limit}}}'.encode()
    with pytest.raises(WireError, match=r"a limit above 0|no public key"):
        read_public_key(join_parts([about, b"12345678"]), scheme="plain", use="sums")


MOST_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
"""The most bits of the coefficient modulus, by degree.

They give 128 bits of security against classical attacks with ternary secrets (Albrecht
et al., Homomorphic Encryption Security Standard, 2018, Table 1).
"""


@pytest.mark.parametrize(
    "parameters", [bfv.PARAMETERS, ckks.SUMS, ckks.PRODUCTS], ids=str
)
def test_all_parameters_have_128_bits_by_the_standard(
    parameters: seal.Parameters,
) -> None:
    assert sum(parameters.bits) <= MOST_BITS[parameters.degree]


@pytest.mark.parametrize("degree", [1024, 4096])
def test_a_key_of_other_parameters_is_no_key_of_the_scheme(degree: int) -> None:
    """A sender may say "bfv", and make a key for a ring that can be broken."""
    weak = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV)
    weak.set_poly_modulus_degree(degree)
    weak.set_coeff_modulus(sealapi.CoeffModulus.Create(degree, [40, 40]))
    weak.set_plain_modulus(sealapi.PlainModulus.Batching(degree, 20))
    context = sealapi.SEALContext(weak, True, sealapi.SEC_LEVEL_TYPE.NONE)
    key = sealapi.PublicKey()
    sealapi.KeyGenerator(context).create_public_key(key)
    about = json.dumps({"scheme": "bfv", "use": "sums", "limit": 4.0}).encode()
    with pytest.raises(
        WireError, match="not what SEAL would write with these parameters"
    ):
        read_public_key(
            join_parts([about, seal.to_bytes(key), b""]), scheme="bfv", use="sums"
        )


def test_a_key_that_is_zero_encrypts_nothing_and_is_refused() -> None:
    """With such a key, a ciphertext can be read without any secret key.

    It is the encoded plaintext and a little noise.
    """
    context = seal.context_for(ckks.SUMS)
    real = sealapi.PublicKey()
    sealapi.KeyGenerator(context).create_public_key(real)
    written = seal.to_bytes(real)
    about = json.dumps({"scheme": "ckks", "use": "sums", "limit": 4.0}).encode()
    read_public_key(join_parts([about, written, b""]), scheme="ckks", use="sums")
    zero = join_parts([about, zeroed(context, real.parms_id()), b""])
    with pytest.raises(WireError, match="second polynomial is zero"):
        read_public_key(zero, scheme="ckks", use="sums")


def zeroed(context: Any, parms_id: Any) -> bytes:
    """A public key of zeros in SEAL's format.

    It is a ciphertext of two polynomials over all primes, in NTT form.
    """
    primes = len(ckks.SUMS.bits)
    degree = ckks.SUMS.degree
    array = seal.seal_array(np.zeros(2 * primes * degree, dtype=np.uint64))
    return seal.seal_file(
        struct.pack("<4QBQQQdQ", *parms_id, 1, 2, degree, primes, 1.0, 1) + array
    )
