"""Microsoft SEAL through TenSEAL's binding: contexts, objects as bytes, raw
polynomials, random numbers.

SEAL reads and writes files only. On Linux they are files in memory; elsewhere temporary
ones that only this user can read and that are deleted at once. No secret key is ever
written.
"""

from __future__ import annotations

import functools
import json
import math
import os
import secrets
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.cipher import Encrypted
from colonnade.encryption.scheme import (
    USES,
    fingerprint,
    fits,
    need_tenseal,
    refusing,
    stays,
    unwrap,
    within,
    wrap,
)
from colonnade.errors import ConfigError, WireError

Polynomial = NDArray[np.uint64]
HEADERS = 1 << 10
"""The most bytes that SEAL writes besides polynomials."""
ROTATE_BY_ONE = 3
"""The Galois element of a rotation by one slot. Repeated rotations by one need only
this key: 0.7 MB instead of 18."""


@dataclass(frozen=True)
class Parameters:
    """Parameters with 128 bits of security by SEAL's own tables; SEAL refuses weaker
    ones."""

    scheme: str
    degree: int
    # of the primes of the coefficient modulus; the last one serves key switching alone
    bits: tuple[int, ...]
    plain_bits: int = 0  # of BFV's plain modulus


@functools.cache
def context(parameters: Parameters) -> Any:
    """The SEAL context, one for equal parameters; a peer cannot choose them."""
    sealapi = need_tenseal()
    chosen = sealapi.EncryptionParameters(
        getattr(sealapi.SCHEME_TYPE, parameters.scheme.upper())
    )
    chosen.set_poly_modulus_degree(parameters.degree)
    chosen.set_coeff_modulus(
        sealapi.CoeffModulus.Create(parameters.degree, list(parameters.bits))
    )
    if parameters.plain_bits:
        chosen.set_plain_modulus(
            sealapi.PlainModulus.Batching(parameters.degree, parameters.plain_bits)
        )
    created = sealapi.SEALContext(chosen, True, sealapi.SEC_LEVEL_TYPE.TC128)
    # SEAL says so here, and raises only when something is encrypted
    if not created.parameters_set():
        raise ConfigError(
            f"{parameters.scheme} parameters must have 128 bits of security; found"
            f" degree {parameters.degree} with {sum(parameters.bits)} bits of primes"
            f" ({created.parameters_error_name()}). Raise the degree."
        )
    return created


@functools.cache
def primes(parameters: Parameters) -> tuple[int, ...]:
    """The primes of the coefficient modulus."""
    return tuple(
        prime.value()
        for prime in context(parameters).key_context_data().parms().coeff_modulus()
    )


def public_key(where: Any, data: bytes) -> Any:
    """Read a public key that was made with these parameters. A key whose second half is
    zero is refused: what it encrypts can be read without the secret key, and what it
    blinds is not blinded."""
    key = from_bytes(need_tenseal().PublicKey(), where, data)
    if key.data().is_transparent():
        raise WireError(
            "A public key whose second polynomial is zero encrypts nothing."
        )
    return key


def make_keys(parameters: Parameters, *, rotations: bool) -> tuple[Any, bytes, bytes]:
    """A decryptor with a fresh secret key in it, and the public keys as bytes: to
    encrypt, and to rotate."""
    sealapi = need_tenseal()
    generator = sealapi.KeyGenerator(context(parameters))
    key = sealapi.PublicKey()
    rotation = sealapi.GaloisKeys()
    generator.create_public_key(key)
    if rotations:
        generator.create_galois_keys([ROTATE_BY_ONE], rotation)
    decryptor = sealapi.Decryptor(context(parameters), generator.secret_key())
    return decryptor, to_bytes(key), to_bytes(rotation) if rotations else b""


def accumulate(evaluator: Any, sums: list[Any], number: int, term: Any) -> None:
    """Add a ciphertext to one of the sums, in place; the first term starts a sum."""
    if number == len(sums):
        sums.append(term)
    else:
        evaluator.add_inplace(sums[number], term)


def period(count: int) -> int:
    """The next power of two: it divides the number of slots."""
    return 1 << max(count - 1, 0).bit_length()


def tiled(values: NDArray[Any], slots: int) -> NDArray[Any]:
    """The values, repeated, so that rotating all slots, or each of BFV's two rows of
    them, rotates the values."""
    return np.resize(np.pad(values, (0, period(len(values)) - len(values))), slots)


@contextmanager
def _file() -> Iterator[tuple[str, Callable[[], bytes]]]:
    """A path for SEAL, and how to read what it wrote."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("seal")
        try:
            yield (
                f"/proc/self/fd/{descriptor}",
                lambda: os.pread(descriptor, os.fstat(descriptor).st_size, 0),
            )
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory() as folder:  # mode 0700
            path = Path(folder) / "seal"
            yield str(path), path.read_bytes


def to_bytes(thing: Any) -> bytes:
    """A ciphertext or public key as SEAL writes it."""
    with _file() as (path, read):
        thing.save(path)
        return read()


def from_bytes(thing: Any, where: Any, data: bytes) -> Any:
    """Let an empty SEAL object read itself; SEAL checks it against the context."""
    with _file() as (path, _):
        Path(path).write_bytes(data)
        try:
            thing.load(where, path)
        except (RuntimeError, ValueError) as error:
            raise WireError(
                f"Bytes are not what SEAL would write with these parameters: {error}."
            ) from None
    return thing


def ciphertexts(data: bytes, where: Any) -> list[Any]:
    """The ciphertexts in a body made by `joined`."""
    sealapi = need_tenseal()
    parameters = where.key_context_data().parms()
    degree = parameters.poly_modulus_degree()
    primes = len(parameters.coeff_modulus())
    read = []
    for part in parted(data):
        # Two polynomials of random numbers cannot be packed much; what is shorter would
        # only be larger once unpacked.
        if not 8 * degree <= len(part) <= 16 * degree * primes + HEADERS:
            raise WireError(
                f"A ciphertext of degree {degree} cannot have {len(part)} bytes."
            )
        read.append(from_bytes(sealapi.Ciphertext(), where, part))
        if read[-1].size() != 2:
            raise WireError("A ciphertext must have two polynomials.")
    return read


def body(parts: Sequence[Any]) -> bytes:
    """Several ciphertexts as bytes."""
    return joined([to_bytes(part) for part in parts])


def joined(parts: Sequence[bytes]) -> bytes:
    """Several byte strings as one, each after its length."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def parted(data: bytes) -> list[bytes]:
    """The byte strings that `joined` joined."""
    parts = []
    start = 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 8], "little")
        parts.append(data[start + 8 : start + 8 + size])
        start += 8 + size
        if start > len(data):
            raise WireError(
                f"A ciphertext of {len(data)} bytes says that a part ends at {start}."
            )
    return parts


def values_of(plaintext: Any) -> Polynomial:
    """A plaintext's coefficients, or its NTT values, as SEAL holds them."""
    return np.fromiter(
        map(plaintext.__getitem__, range(plaintext.coeff_count())),
        np.uint64,
        plaintext.coeff_count(),
    )


def plaintext(
    values: Polynomial, where: Any, parms_id: Sequence[int], scale: float
) -> Any:
    """A plaintext with exactly these NTT values, by SEAL's file format (uncompressed)."""
    array = _stream(struct.pack("<Q", len(values)) + values.astype("<u8").tobytes())
    body = struct.pack("<4QQd", *parms_id, len(values), scale) + array
    return from_bytes(need_tenseal().Plaintext(), where, _stream(body))


def ciphertext(
    polynomial: Sequence[Polynomial], where: Any, parms_id: Sequence[int]
) -> Any:
    """The ciphertext (polynomial, 0), which anybody can read, to be added to another.
    The polynomial has a row of coefficients per prime, by SEAL's file format."""
    first = np.stack(polynomial)
    values = np.concatenate([first, np.zeros_like(first)])
    array = _stream(struct.pack("<Q", values.size) + values.astype("<u8").tobytes())
    header = struct.pack(
        "<4QBQQQdQ", *parms_id, 0, 2, first.shape[1], len(first), 1.0, 1
    )
    return from_bytes(need_tenseal().Ciphertext(), where, _stream(header + array))


def uniform(modulus: int, count: int) -> Polynomial:
    """Numbers below `modulus` (of at most 64 bits), each equally likely, from the
    system's random source."""
    shift = np.uint64(64 - modulus.bit_length())
    values = np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64) >> shift
    while (high := values >= np.uint64(modulus)).any():
        values[high] = (
            np.frombuffer(secrets.token_bytes(8 * int(high.sum())), dtype=np.uint64)
            >> shift
        )
    return values


def minus(a: Polynomial, b: Polynomial, modulus: int) -> Polynomial:
    """a - b, value by value."""
    return np.where(a >= b, a - b, a + np.uint64(modulus) - b)


def _stream(body: bytes) -> bytes:
    major, minor = _version()
    return (
        struct.pack("<HBBBBHQ", 0xA15E, 16, major, minor, 0, 0, 16 + len(body)) + body
    )


@functools.cache
def _version() -> tuple[int, int]:
    """SEAL's version, from the header of something it wrote."""
    written = to_bytes(need_tenseal().Plaintext("1"))
    return written[3], written[4]


class SealPublicKey:
    """What public keys of CKKS and BFV share; see `scheme.PublicKey`. Subclasses set
    `capacity` and `error` first."""

    scheme: str
    capacity: float
    error: float
    sum_layout: str  # of values that are only added
    product_layout: str  # of the values of a product
    uses: tuple[str, ...] = USES

    def __init__(
        self, use: str, limit: float, key: bytes, galois: bytes, parameters: Parameters
    ) -> None:
        sealapi = need_tenseal()
        self.use, self.limit = (
            use,
            fits(limit, self.capacity, scheme=self.scheme, what="A value"),
        )
        self._parts = (key, galois)
        self._context = context(parameters)
        self._galois = (
            from_bytes(sealapi.GaloisKeys(), self._context, galois) if galois else None
        )
        self._evaluator = sealapi.Evaluator(self._context)
        self._encryptor = sealapi.Encryptor(
            self._context, public_key(self._context, key)
        )
        self.id = fingerprint(self.to_bytes())

    def to_bytes(self) -> bytes:
        about = json.dumps(
            {"scheme": self.scheme, "use": self.use, "limit": self.limit}
        ).encode()
        return joined([about, *self._parts])

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        flat = within(values, self.limit, owner=owner, scheme=self.scheme)
        parts = [self._encrypted(slots) for slots in self._arranged(flat)]
        return wrap(
            self, tuple(values.shape), self._layout(flat), self.limit, body(parts)
        )

    def _arranged(self, flat: Tensor) -> Sequence[Any]:
        """Values as slots of as many ciphertexts as they need; each of `rows` starts a
        new one."""
        raise NotImplementedError

    def _plain(self, slots: Any) -> Any:
        """Slots, encoded to be encrypted."""
        raise NotImplementedError

    def _encrypted(self, slots: Any) -> Any:
        encrypted = need_tenseal().Ciphertext()
        self._encryptor.encrypt(self._plain(slots), encrypted)
        return encrypted

    @refusing
    def add(self, *parts: Encrypted) -> Encrypted:
        return next(self.add_groups(parts, [range(len(parts))]))

    def add_groups(
        self, parts: Sequence[Encrypted], groups: Sequence[Sequence[int]]
    ) -> Iterator[Encrypted]:
        first = parts[0]
        bounds = [sum(parts[number].bound for number in group) for group in groups]
        bounds = [
            fits(bound, self.capacity, scheme=self.scheme, what="The sum")
            for bound in bounds
        ]
        for part in parts[1:]:
            if (part.shape, part.layout) != (first.shape, first.layout):
                raise WireError(
                    f"Ciphertexts of shapes {list(first.shape)} and {list(part.shape)}"
                    " cannot be added."
                )
        opened = [self._open(part) for part in parts]
        for (one, *others), bound in zip(groups, bounds, strict=True):
            # which is not changed, since other groups may have it too
            total = list(opened[one])
            for at in range(len(total) if others else 0):
                total[at] = need_tenseal().Ciphertext()
                self._evaluator.add(opened[one][at], opened[others[0]][at], total[at])
                for other in others[1:]:
                    self._evaluator.add_inplace(total[at], opened[other][at])
            yield wrap(self, first.shape, first.layout, bound, body(total), first.hides)

    def _check_use(self, needed: str, operation: str) -> None:
        if self.use != needed:
            raise ConfigError(
                f'{operation} needs {self.scheme} keys made for "{needed}"; these were'
                f' made for "{self.use}". Make them with make_keys("{self.scheme}",'
                f' use="{needed}").'
            )

    def _check_product(self, x: Encrypted, matrix: Tensor, owner: str) -> None:
        columns = self.use == "columns"
        self._check_use("columns" if columns else "products", "A product with a matrix")
        if (x.shape[0] if columns else math.prod(x.shape)) != len(matrix):
            raise WireError(
                f"Encrypted values of shape {list(x.shape)} do not fit a matrix with"
                f" {len(matrix)} rows."
            )
        within(
            matrix.abs().sum(0),
            self._most(x),
            owner=owner,
            scheme=self.scheme,
            what="multiply by in a column",
        )

    def _most(self, x: Encrypted) -> float:
        """The most that values may be multiplied by in all. The key says so and not the
        ciphertext: otherwise whether a ciphertext with another bound is refused would
        tell the size of what it is multiplied by."""
        if x.bound != self.limit:
            raise WireError(
                f"A ciphertext of values up to {x.bound:g} came, and its key is for"
                f" {self.limit:g}."
            )
        return self.capacity / self.limit

    def _weights(self, weights: Tensor, rows: Encrypted, owner: str) -> Tensor:
        """The weights of encrypted rows, checked to fit them."""
        self._check_use("combinations", "A weighted sum of rows")
        flat = within(
            weights, self.capacity, owner=owner, scheme=self.scheme, what="weigh by"
        )
        if tuple(flat.shape) != rows.shape[:1]:
            raise WireError(
                f"{flat.numel()} weights do not fit {rows.shape[0]} encrypted rows."
            )
        within(
            flat.abs().sum(),
            self._most(rows),
            owner=owner,
            scheme=self.scheme,
            what="weigh by in all",
        )
        return flat

    def _without_mask(
        self, opened: Encrypted, mask: Sequence[Polynomial], modulus: int
    ) -> list[Polynomial]:
        parts = [
            np.frombuffer(part, dtype="<u8")
            for part in parted(unwrap(self, opened, "opened"))
        ]
        if list(map(len, parts)) != list(map(len, mask)) or any(
            (part >= modulus).any() for part in parts
        ):
            raise WireError(
                "What came back under the mask does not have the mask's size."
            )
        return [
            minus(part, hidden, modulus)
            for part, hidden in zip(parts, mask, strict=True)
        ]

    def _layout(self, values: Tensor) -> str:
        rows = self.use == "combinations" and values.dim() == 2
        return (
            "rows"
            if rows
            else {"products": "tiled", "columns": "spread"}.get(
                self.use, self.sum_layout
            )
        )

    @refusing
    def _open(self, x: Encrypted, *layouts: str) -> list[Any]:
        return ciphertexts(unwrap(self, x, *layouts), self._context)


K = TypeVar("K", bound=SealPublicKey)


class SealSecretKey(Generic[K]):
    """What secret keys of CKKS and BFV share; see `scheme.SecretKey`."""

    __slots__ = ("_decryptor", "public")
    __reduce_ex__ = __reduce__ = __getstate__ = __copy__ = __deepcopy__ = stays
    _decryptor: Any
    public: K

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        return self.public.encrypt(values, owner=owner)

    @refusing
    def open_blinded(self, x: Encrypted) -> Encrypted:
        if x.hides != "blinded":
            raise WireError("This ciphertext is under no mask; decrypt it.")
        decrypted = self._decrypted(x, self.public.product_layout)
        opened = [values.tobytes() for values in self._under_mask(x, decrypted)]
        return wrap(self.public, x.shape, "opened", x.bound, joined(opened), "blinded")

    def _under_mask(self, x: Encrypted, decrypted: list[Any]) -> list[Polynomial]:
        """What the key's holder may give back of something under a mask."""
        raise NotImplementedError

    def _check_noise(self, ciphertext: Any) -> None:
        """Raise where a ciphertext's noise has reached its values, if the scheme can
        see that."""

    def _decrypted(self, x: Encrypted, *layouts: str) -> list[Any]:
        plaintexts = []
        for encrypted in self.public._open(x, *layouts):
            self._check_noise(encrypted)
            plain = need_tenseal().Plaintext()
            self._decryptor.decrypt(encrypted, plain)
            plaintexts.append(plain)
        return plaintexts
