"""Microsoft SEAL through TenSEAL's binding: contexts, keys, objects as bytes, raw
polynomials, and random numbers.

SEAL reads and writes files only. On Linux they are files in memory. Elsewhere they are
temporary files that only this user can read and that are deleted at once. No secret key
is ever written.

A few functions write SEAL's own file format, because the binding has no other way to
make a plaintext or ciphertext of given numbers. The names of the fields are SEAL's.
"""

from __future__ import annotations

import functools
import os
import secrets
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from colonnade.encryption.scheme import join_parts, split_parts
from colonnade.errors import ConfigError, WireError

Polynomial = NDArray[np.uint64]
"""The coefficients of a polynomial, or its values in NTT form, modulo one prime."""

HEADER_BYTES = 1 << 10
"""The most bytes of a ciphertext that SEAL writes besides its polynomials."""

SEAL_MAGIC = 0xA15E
SEAL_HEADER_BYTES = 16

ROTATE_BY_ONE = 3
"""The Galois element of a rotation by one slot.

Larger rotations are repeated ones, so that this key is enough: 0.7 MB instead of 18.
"""


@dataclass(frozen=True)
class Parameters:
    """Parameters of a scheme. SEAL refuses them below 128 bits of security.

    Args:
        scheme: "ckks" or "bfv".
        degree: The number of coefficients of a polynomial.
        bits: The sizes of the primes whose product is the coefficient modulus. The last
            prime serves key switching alone.
        plain_bits: The size of the plain modulus, for "bfv".
    """

    scheme: str
    degree: int
    bits: tuple[int, ...]
    plain_bits: int = 0


class NewKeys(NamedTuple):
    """A fresh secret key, inside SEAL's decryptor, and its public keys as bytes."""

    decryptor: Any
    public_key: bytes
    rotation_key: bytes
    """Rotates encrypted slots. Empty where nothing is rotated."""


def sealapi() -> ModuleType:
    """TenSEAL's binding of SEAL, which is imported only when something is encrypted."""
    import tenseal.sealapi

    module: ModuleType = tenseal.sealapi
    return module


@functools.cache
def context_for(parameters: Parameters) -> Any:
    """The SEAL context for these parameters, which are constants of this package.

    A peer cannot choose them.
    """
    scheme = getattr(sealapi().SCHEME_TYPE, parameters.scheme.upper())
    settings = sealapi().EncryptionParameters(scheme)
    degree = parameters.degree
    settings.set_poly_modulus_degree(degree)
    settings.set_coeff_modulus(
        sealapi().CoeffModulus.Create(degree, [*parameters.bits])
    )
    if parameters.plain_bits:
        plain_modulus = sealapi().PlainModulus.Batching(degree, parameters.plain_bits)
        settings.set_plain_modulus(plain_modulus)
    context = sealapi().SEALContext(settings, True, sealapi().SEC_LEVEL_TYPE.TC128)
    # SEAL itself would raise only when something is encrypted.
    if not context.parameters_set():
        raise ConfigError(
            f"{parameters.scheme} parameters must have 128 bits of security; found"
            f" degree {degree} with {sum(parameters.bits)} bits of primes"
            f" ({context.parameters_error_name()}). Raise the degree."
        )
    return context


@functools.cache
def primes(parameters: Parameters) -> tuple[int, ...]:
    """The primes of the coefficient modulus."""
    settings = context_for(parameters).key_context_data().parms()
    return tuple(prime.value() for prime in settings.coeff_modulus())


def generate_keys(parameters: Parameters, *, rotations: bool) -> NewKeys:
    """Draw a secret key, and make its public keys."""
    context = context_for(parameters)
    generator = sealapi().KeyGenerator(context)
    public_key = sealapi().PublicKey()
    generator.create_public_key(public_key)
    rotation_bytes = b""
    if rotations:
        rotation_key = sealapi().GaloisKeys()
        generator.create_galois_keys([ROTATE_BY_ONE], rotation_key)
        rotation_bytes = to_bytes(rotation_key)
    decryptor = sealapi().Decryptor(context, generator.secret_key())
    return NewKeys(decryptor, to_bytes(public_key), rotation_bytes)


def read_public_key(context: Any, data: bytes) -> Any:
    """Read a public key that was made with the context's parameters.

    A key whose second polynomial is zero is refused: its ciphertexts can be read
    without the secret key, and values that it blinds are not blinded.
    """
    key = from_bytes(sealapi().PublicKey(), context, data)
    if key.data().is_transparent():
        raise WireError(
            "A public key whose second polynomial is zero encrypts nothing."
        )
    return key


# Bytes


@contextmanager
def _file() -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The path of a file for SEAL, and a function that reads what SEAL wrote there."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("seal")

        def read() -> bytes:
            return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

        try:
            yield f"/proc/self/fd/{descriptor}", read
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory() as folder:  # only this user can enter it
            path = Path(folder) / "seal"
            yield str(path), path.read_bytes


def to_bytes(seal_object: Any) -> bytes:
    """A ciphertext, plaintext or public key as SEAL writes it."""
    with _file() as (path, read):
        seal_object.save(path)
        return read()


def from_bytes(empty: Any, context: Any, data: bytes) -> Any:
    """Fill an empty SEAL object from bytes. SEAL checks them against the context."""
    with _file() as (path, _):
        Path(path).write_bytes(data)
        try:
            empty.load(context, path)
        except (RuntimeError, ValueError) as error:
            raise WireError(
                f"Bytes are not what SEAL would write with these parameters: {error}."
            ) from None
    return empty


def ciphertexts_to_bytes(ciphertexts: Sequence[Any]) -> bytes:
    """Several ciphertexts as bytes."""
    return join_parts([to_bytes(ciphertext) for ciphertext in ciphertexts])


def ciphertexts_from_bytes(data: bytes, context: Any) -> list[Any]:
    """Read the ciphertexts that `ciphertexts_to_bytes` wrote.

    A stranger may have sent the bytes.
    """
    parameters = context.key_context_data().parms()
    degree = parameters.poly_modulus_degree()
    # A ciphertext is two polynomials of random numbers, which cannot be packed much.
    # Shorter bytes would unpack to something far larger, again and again.
    fewest_bytes = 8 * degree
    most_bytes = 16 * degree * len(parameters.coeff_modulus()) + HEADER_BYTES
    ciphertexts = []
    for part in split_parts(data):
        if not fewest_bytes <= len(part) <= most_bytes:
            raise WireError(
                f"A ciphertext of degree {degree} cannot have {len(part)} bytes."
            )
        ciphertext = from_bytes(sealapi().Ciphertext(), context, part)
        if ciphertext.size() != 2:
            raise WireError("A ciphertext must have two polynomials.")
        ciphertexts.append(ciphertext)
    return ciphertexts


# Raw polynomials


def numbers_in(plaintext: Any) -> Polynomial:
    """A plaintext's coefficients, or its values in NTT form, as SEAL holds them."""
    count = plaintext.coeff_count()
    return np.fromiter(map(plaintext.__getitem__, range(count)), np.uint64, count)


def make_plaintext(
    numbers: Polynomial, context: Any, parms_id: Sequence[int], scale: float
) -> Any:
    """Make a plaintext of exactly these numbers, through SEAL's file format.

    Args:
        numbers: Coefficients where `parms_id` is zero, else values in NTT form.
        context: The SEAL context.
        parms_id: SEAL's id of the moduli that the numbers are for.
        scale: The scale of CKKS, or 1.
    """
    header = struct.pack("<4QQd", *parms_id, len(numbers), scale)
    data = seal_file(header + seal_array(numbers))
    return from_bytes(sealapi().Plaintext(), context, data)


def make_open_ciphertext(
    residues: Sequence[Polynomial], context: Any, parms_id: Sequence[int]
) -> Any:
    """Make the ciphertext (polynomial, 0) through SEAL's file format.

    Anybody can read it. It is there to be added to an encryption.

    Args:
        residues: The coefficients of the polynomial, modulo each prime.
        context: The SEAL context.
        parms_id: SEAL's id of the moduli.
    """
    first = np.stack(residues)
    polynomials = np.concatenate([first, np.zeros_like(first)])
    prime_count, degree = first.shape
    is_ntt_form = 0
    size = 2
    scale = 1.0
    correction_factor = 1
    header = struct.pack(
        "<4QBQQQdQ",
        *parms_id,
        is_ntt_form,
        size,
        degree,
        prime_count,
        scale,
        correction_factor,
    )
    data = seal_file(header + seal_array(polynomials))
    return from_bytes(sealapi().Ciphertext(), context, data)


def seal_array(numbers: NDArray[np.uint64]) -> bytes:
    """Numbers as SEAL writes an array: a file of its own, within another."""
    count = struct.pack("<Q", numbers.size)
    return seal_file(count + numbers.astype("<u8").tobytes())


def seal_file(body: bytes) -> bytes:
    """The bytes of a SEAL file: a header, and a body that is not compressed."""
    major, minor = _seal_version()
    compression = 0
    reserved = 0
    header = struct.pack(
        "<HBBBBHQ",
        SEAL_MAGIC,
        SEAL_HEADER_BYTES,
        major,
        minor,
        compression,
        reserved,
        SEAL_HEADER_BYTES + len(body),
    )
    return header + body


@functools.cache
def _seal_version() -> tuple[int, int]:
    """SEAL's major and minor version, from the header of a file that it wrote."""
    written = to_bytes(sealapi().Plaintext("1"))
    return written[3], written[4]


# Numbers modulo a prime


def uniform(modulus: int, count: int) -> Polynomial:
    """Draw numbers below a modulus of at most 64 bits, each equally likely.

    They come from the system's random source. Numbers that are too large are drawn
    again, because a remainder would make small numbers likelier.
    """
    unused_bits = np.uint64(64 - modulus.bit_length())

    def draw(size: int) -> Polynomial:
        return np.frombuffer(secrets.token_bytes(8 * size), np.uint64) >> unused_bits

    numbers = draw(count)
    too_large = numbers >= np.uint64(modulus)
    while too_large.any():
        numbers[too_large] = draw(int(too_large.sum()))
        too_large = numbers >= np.uint64(modulus)
    return numbers


def subtract(a: Polynomial, b: Polynomial, modulus: int) -> Polynomial:
    """a - b modulo `modulus`, number by number."""
    return np.where(a >= b, a - b, a + np.uint64(modulus) - b)
