"""BFV: whole numbers modulo a 60-bit prime t, exactly. Values become fixed-point
numbers, so that a sum over parties has one answer to the last bit, whoever adds it up
and in whichever order.

    use            values are rounded to   a value is at most        takes
    sums           2^-30                   2^28 in total             53 bytes
    products       2^-22                   2^14 in any result        106 bytes
    combinations   2^-22                   2^14 in any result        53 bytes
    columns        2^-22                   2^14 in any result        53 bytes

For columns, values are coefficients of a polynomial and not slots. A coefficient of the
product of two polynomials is a sum of products, so that no ciphertext is rotated, and a
column of 8192 rows is one multiplication. Row i of the values stands at x^(i a), and
row i of column j at x^(j - i a). Column j times the values is then the coefficient of
x^j, for a columns at once; a is the stride. Whoever opens a product gives back only
these coefficients.

Blinding adds three things: a mask that is uniform modulo t, so that the secret key's
holder decrypts uniformly random numbers; an encryption of zero, which hides the other
half of the ciphertext (by RLWE); and noise of 2^100, which drowns the product's own
noise, which depends on the plain matrix (2^80 for 32 coefficients, 20 bits below; 2^60
for columns). The holder gives back exact numbers without any noise in them, so they
tell nothing about its secret key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.cipher import Encrypted
from colonnade.encryption import seal
from colonnade.encryption.scheme import (
    checked_matrix,
    names_sender,
    wrap,
)
from colonnade.encryption.seal import Polynomial
from colonnade.encryption.seal_keys import (
    SealPublicKey,
    SealSecretKey,
    cut,
    decoded_rows,
    tiled,
)
from colonnade.errors import WireError

PARAMETERS = seal.Parameters("bfv", 8192, (43, 43, 44, 44, 44), plain_bits=60)

FRACTION_BITS = {"sums": 30, "products": 22, "combinations": 22, "columns": 22}
"""Bits after the point of an encrypted value, by use."""

USES = tuple(FRACTION_BITS)

WHOLE_BITS = 58
"""Bits of the largest number that can be decrypted, with its sign, modulo t."""

SLOTS = PARAMETERS.degree
ROTATED_SLOTS = SLOTS // 2
"""The slots are two rows of this length, which are rotated side by side."""

FLOOD_BITS = 100
LIMB_BITS = 20
"""The flood is drawn in limbs of so many bits, to compute its remainders."""

DROPPED_PRIMES = 2
"""Of the four primes of a ciphertext, a blinded product does without so many.

The others are enough to decrypt it, and take half the bytes.
"""

Whole = NDArray[np.int64]


class BfvPublicKey(SealPublicKey):
    """A public key of BFV for sums, products or combinations.

    See `scheme.PublicKey` for what the methods do.
    """

    scheme = "bfv"
    sum_layout = "flat"
    product_layout = "product"
    slots = SLOTS
    row_values = SLOTS
    tile_values = ROTATED_SLOTS

    def __init__(self, use: str, limit: float, key: bytes, rotation_key: bytes) -> None:
        self.fraction_bits = FRACTION_BITS[use]
        self.product_bits = 2 * self.fraction_bits
        largest_fraction = self.fraction_bits if use == "sums" else self.product_bits
        self.capacity = 2.0 ** (WHOLE_BITS - largest_fraction)
        self.error = 2.0 ** -(self.fraction_bits + 1)
        super().__init__(use, limit, key, rotation_key, PARAMETERS)
        self._encoder = seal.sealapi().BatchEncoder(self._context)
        settings = self._context.first_context_data().parms()
        self._modulus: int = settings.plain_modulus().value()

    def product_error(self, matrix: Tensor) -> float:
        """Bound the error of a product.

        Values are rounded, and multiplied by the matrix; the matrix is rounded, and
        multiplied by the values.
        """
        if not matrix.numel():
            return 0.0
        largest_column = float(matrix.abs().sum(0).max())
        largest_vector = len(matrix) * (self.limit + self.error)
        return self.error * (largest_column + largest_vector)

    @names_sender
    def blind(self, x: Encrypted) -> tuple[Encrypted, list[Polynomial]]:
        """Hide a product under a uniform mask, an encryption of zero, and noise.

        Returns the hidden product, and the numbers of the mask that will come back.
        """
        parts = self.ciphertexts_in(x, "product")
        masks = []
        for part in parts:
            mask = seal.uniform(self._modulus, SLOTS)
            masks.append(mask)
            self._evaluator.add_plain_inplace(part, self._encoded(self.centred(mask)))
            self._evaluator.add_inplace(part, self._encrypted_zero(part))
            self._evaluator.add_inplace(part, self._flood(part.parms_id()))
            for _ in range(DROPPED_PRIMES):
                self._evaluator.mod_switch_to_next_inplace(part)
        body = seal.ciphertexts_to_bytes(parts)
        blinded = wrap(self, x.shape, "product", x.bound, body, "blinded")
        return blinded, self.product_numbers(masks, x.shape)

    @names_sender
    def unblind(self, opened: Encrypted, mask: list[Polynomial]) -> Tensor:
        """Take the mask off, modulo t, and read the product."""
        numbers = self._without_mask(opened, mask, self._modulus)
        centred = [self.centred(part) for part in numbers]
        return from_fixed_point(centred, self.product_bits, opened.shape)

    def numbers_in(self, plaintext: Any) -> Polynomial:
        """The numbers in a plaintext, from 0 to t - 1."""
        return np.array(self._encoder.decode_uint64(plaintext), dtype="<u8")

    def product_numbers(
        self,
        opened: list[Polynomial],
        shape: tuple[int, ...],  # noqa: ARG002
    ) -> list[Polynomial]:
        """The numbers among the opened ones that a product of this shape consists of.

        Only they go back to the party that multiplied.
        """
        return opened

    def centred(self, numbers: Polynomial) -> Whole:
        """Move numbers from 0 .. t - 1 to -t/2 .. t/2."""
        signed = numbers.astype(np.int64)
        return np.where(signed > self._modulus // 2, signed - self._modulus, signed)

    def _arranged(self, values: Tensor, layout: str) -> list[Whole]:
        whole = self._numbers(values)
        if layout == "tiled":
            tiles = cut(whole.reshape(-1), ROTATED_SLOTS)
            return [tiled(tile, SLOTS) for tile in tiles]
        rows = whole if layout == "rows" else whole.reshape(1, -1)
        arranged = []
        for row in rows:
            for part in cut(row, SLOTS):
                arranged.append(np.pad(part, (0, SLOTS - len(part))))
        return arranged

    def _encoded(self, slots: Whole) -> Any:
        encoded = seal.sealapi().Plaintext()
        self._encoder.encode(slots.tolist(), encoded)
        return encoded

    def _encoded_factor(self, slots: Whole, x: Any) -> Any:
        encoded = self._encoded(slots)
        if x.is_ntt_form():
            self._evaluator.transform_to_ntt_inplace(encoded, x.parms_id())
        return encoded

    def _numbers(self, values: Tensor) -> Whole:
        return to_fixed_point(values, self.fraction_bits)

    def _columns_in_slots(self, matrix: Whole) -> Whole:
        rows, columns = matrix.shape
        padded = np.pad(matrix, ((0, 0), (0, -columns % SLOTS)))
        return padded.reshape(rows, -1, SLOTS)

    def _rotate_by_one(self, x: Any) -> None:
        self._evaluator.rotate_rows_inplace(x, 1, self._rotation_key)

    def _multiplicand(self, x: Any) -> Any:
        """Give x in NTT form, which is computed once for all columns of a matrix."""
        in_ntt_form = seal.sealapi().Ciphertext()
        self._evaluator.transform_to_ntt(x, in_ntt_form)
        return in_ntt_form

    def _encrypted_zero(self, x: Any) -> Any:
        zero = seal.sealapi().Ciphertext()
        self._encryptor.encrypt_zero(x.parms_id(), zero)
        if x.is_ntt_form():
            self._evaluator.transform_to_ntt_inplace(zero)
        return zero

    def _finish(self, product: Any) -> None:
        if product.is_ntt_form():
            self._evaluator.transform_from_ntt_inplace(product)

    def _flood(self, parms_id: Any) -> Any:
        """Noise from 0 to 2^100, as a ciphertext that anybody can read.

        It drowns the noise of a product, which is below 2^80 for 32 coefficients.
        """
        limb_count = FLOOD_BITS // LIMB_BITS
        limbs = seal.uniform(1 << LIMB_BITS, limb_count * SLOTS).reshape(limb_count, -1)
        residues = []
        for prime in seal.primes(PARAMETERS)[:-1]:
            residue = np.zeros(SLOTS, dtype=np.uint64)
            for limb in limbs:
                # A prime has at most 44 bits, so that nothing wraps around here.
                residue = ((residue << np.uint64(LIMB_BITS)) + limb) % np.uint64(prime)
            residues.append(residue)
        return seal.make_open_ciphertext(residues, self._context, parms_id)


class BfvColumnsPublicKey(BfvPublicKey):
    """A public key of BFV for columns, whose values are coefficients, not slots."""

    @names_sender
    def product(self, x: Encrypted, matrix: Tensor, *, owner: str) -> Encrypted:
        """Multiply each output of x [rows, outputs] by each column of a matrix.

        An output is encrypted in one ciphertext for each run of rows. The products of
        an output's runs with a group of columns are added up in one ciphertext.
        """
        exact = checked_matrix(
            matrix,
            x,
            vector_size=x.shape[0],
            largest_sum=self._largest_factor_sum(x),
            owner=owner,
            scheme=self.scheme,
        )
        values = self.ciphertexts_in(x, "spread")
        for value in values:
            self._evaluator.transform_to_ntt_inplace(value)
        outputs = math.prod(x.shape[1:])
        runs = math.ceil(len(exact) / SLOTS)
        totals: list[list[Any]] = [[] for _ in range(outputs)]
        for group, run, polynomial in column_polynomials(self._numbers(exact)):
            encoded = self._encoded_factor(polynomial, values[0])
            for output, total in enumerate(totals):
                value = values[output * runs + run]
                self._accumulate(total, group, self._times_encoded(value, encoded))
        parts: list[Any] = []
        for total in totals:
            parts += total
        return self._product_of(parts, (*x.shape[1:], matrix.shape[1]))

    def numbers_in(self, plaintext: Any) -> Polynomial:
        """The coefficients of a plaintext. SEAL leaves leading zeros out."""
        coefficients = seal.numbers_in(plaintext)
        return np.pad(coefficients, (0, SLOTS - len(coefficients)))

    def product_numbers(
        self, opened: list[Polynomial], shape: tuple[int, ...]
    ) -> list[Polynomial]:
        """The coefficients that are products, one for each column.

        The party that multiplied chose all other coefficients, too. It could have put
        the encrypted values themselves there, so they are not given back.
        """
        columns = shape[-1]
        outputs = math.prod(shape[:-1])
        groups = len(opened) // max(outputs, 1)
        size = columns_per_group(columns, groups)
        is_complete = len(opened) == groups * outputs
        if not is_complete or math.ceil(columns / size) != groups or size > SLOTS:
            raise WireError(
                f"{len(opened)} ciphertexts are not the products of {outputs} values"
                f" with {columns} columns."
            )
        numbers = []
        for place, part in enumerate(opened):
            group = place % groups
            numbers.append(part[: min(size, columns - group * size)])
        return numbers

    def _layout_of(self, values: Tensor) -> str:  # noqa: ARG002
        return "spread"

    def _arranged(self, values: Tensor, layout: str) -> list[Whole]:  # noqa: ARG002
        whole = self._numbers(values)
        arranged = []
        for output in whole.reshape(len(whole), -1).T:
            arranged += spread(output)
        return arranged

    def _encoded(self, slots: Whole) -> Any:
        """Make a plaintext with these coefficients. Here they are not slots."""
        in_ring = np.where(slots < 0, slots + self._modulus, slots).astype(np.uint64)
        no_ntt_form = (0, 0, 0, 0)
        return seal.make_plaintext(in_ring, self._context, no_ntt_form, 1.0)


def public_key(use: str, limit: float, key: bytes, rotation_key: bytes) -> BfvPublicKey:
    """Read a public key of BFV for this use."""
    kind = BfvColumnsPublicKey if use == "columns" else BfvPublicKey
    return kind(use, limit, key, rotation_key)


class BfvSecretKey(SealSecretKey[BfvPublicKey]):
    """A secret key of BFV. See `scheme.SecretKey` for what the methods do."""

    __slots__ = ()

    def __init__(self, use: str, limit: float) -> None:
        keys = seal.generate_keys(PARAMETERS, rotations=use == "products")
        self._decryptor = keys.decryptor
        self.public = public_key(use, limit, keys.public_key, keys.rotation_key)

    @names_sender
    def decrypt(self, x: Encrypted) -> Tensor:
        """Decrypt values in any layout but "spread", which is only multiplied."""
        public = self.public
        plaintexts = self._plaintexts(x, "flat", "tiled", "product", "rows")
        numbers = [public.numbers_in(plaintext) for plaintext in plaintexts]
        bits = public.fraction_bits
        if x.layout == "product":
            numbers = public.product_numbers(numbers, x.shape)
            bits = public.product_bits
        slots = [public.centred(part) for part in numbers]
        if x.layout == "tiled":  # the second row of slots repeats the first
            slots = [part[:ROTATED_SLOTS] for part in slots]
        if x.layout == "rows":
            return decoded_rows(
                slots, x.shape, lambda row, shape: from_fixed_point(row, bits, shape)
            )
        return from_fixed_point(slots, bits, x.shape)

    def noise_budget(self, ciphertext: Any) -> int:
        """The bits by which a ciphertext's noise is still below its values."""
        return int(self._decryptor.invariant_noise_budget(ciphertext))

    def _numbers_to_return(
        self, x: Encrypted, plaintexts: list[Any]
    ) -> list[Polynomial]:
        numbers = [self.public.numbers_in(plaintext) for plaintext in plaintexts]
        return self.public.product_numbers(numbers, x.shape)

    def _check_noise(self, ciphertext: Any) -> None:
        if not self.noise_budget(ciphertext):
            raise WireError(
                "A bfv ciphertext was computed with too often: its noise has reached"
                " its values."
            )


def to_fixed_point(values: Tensor, bits: int) -> Whole:
    """Round values to whole multiples of 2^-bits, and give the multiples."""
    return (values * 2.0**bits).round().to(torch.int64).numpy()


def from_fixed_point(parts: list[Whole], bits: int, shape: tuple[int, ...]) -> Tensor:
    """The first values of these parts, in a shape. The rest is padding."""
    whole = np.concatenate([np.empty(0, dtype=np.int64), *parts])
    values = whole[: math.prod(shape)] / 2.0**bits
    return torch.from_numpy(values).reshape(shape)


def stride_of(rows: int) -> int:
    """The distance a between the powers of two rows: so many columns fit in between."""
    return max(SLOTS // max(rows, 1), 1)


def columns_per_group(columns: int, groups: int) -> int:
    """How many columns share a ciphertext, if they are spread over so many groups."""
    return max(math.ceil(columns / max(groups, 1)), 1)


def spread(values: Whole) -> list[Whole]:
    """Put value i at the power x^(i a) of a polynomial, or of several if needed."""
    stride = stride_of(len(values))
    polynomials = []
    for run in cut(values, SLOTS):
        polynomial = np.zeros(SLOTS, dtype=np.int64)
        polynomial[: len(run) * stride : stride] = run
        polynomials.append(polynomial)
    return polynomials


def column_polynomials(matrix: Whole) -> Iterator[tuple[int, int, Whole]]:
    """Arrange a matrix as the polynomials that encrypted values are multiplied by.

    The columns are put into as few groups as can be, of about equal size. The rows of a
    group are cut into runs, each as long as a ciphertext.

    Yields:
        The number of the group, the number of the run, and their polynomial.
    """
    row_count, column_count = matrix.shape
    stride = stride_of(row_count)
    group_count = math.ceil(column_count / stride)
    group_size = columns_per_group(column_count, group_count)
    for group, columns in enumerate(cut(matrix.T, group_size)):
        for run, entries in enumerate(cut(columns.T, SLOTS)):
            yield group, run, column_polynomial(entries, stride)


def column_polynomial(entries: Whole, stride: int) -> Whole:
    """Put row i of column j at the power x^(j - i a) of one polynomial.

    A negative power is a positive one with the other sign, because x^8192 is -1.
    """
    row_count, column_count = entries.shape
    rows = np.arange(row_count)[:, None]
    power = np.arange(column_count) - stride * rows
    polynomial = np.zeros(SLOTS, dtype=np.int64)
    polynomial[power % SLOTS] = np.where(power < 0, -entries, entries)
    return polynomial
