"""BFV: whole numbers modulo a 60-bit prime t, exactly. Values become fixed-point
numbers, so that a sum over parties has one answer to the last bit, whoever adds it up
and in whichever order.

    use            values are rounded to   a value is at most        takes
    sums           2^-30                   2^28 in total             53 bytes
    products       2^-22                   2^14 in any result        106 bytes
    combinations   2^-22                   2^14 in any result        53 bytes
    columns        2^-22                   2^14 in any result        53 bytes

For columns, values are coefficients of a polynomial and not slots: a product of two
polynomials has a sum of products as a coefficient, so that no ciphertext is rotated,
and a column of 8192 rows is one multiplication. With rows i at x^(i a) and entries of
column j at x^(j - i a), column j times the values is the coefficient of x^j, for a
columns at once. Whoever opens a product gives back only these coefficients.

Blinding adds a mask that is uniform modulo t, so that the secret key's holder decrypts
uniformly random numbers; an encryption of zero, which hides the other half of the
ciphertext (by RLWE); and noise of 2^100, which drowns the product's own noise, that
depends on the plain matrix (2^80 for 32 coefficients: 20 bits below; 2^60 for columns).
The holder gives back exact numbers without any noise in them, so they tell nothing
about its secret key.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.cipher import Encrypted
from colonnade.encryption import seal
from colonnade.encryption.scheme import need_tenseal, refusing, wrap
from colonnade.errors import WireError

PARAMETERS = seal.Parameters("bfv", 8192, (43, 43, 44, 44, 44), plain_bits=60)
# bits after the point
FRACTION = {"sums": 30, "products": 22, "combinations": 22, "columns": 22}
SLOTS = PARAMETERS.degree
FLOOD = 100
LIMB = np.uint64(20)  # bits
ROW = SLOTS // 2  # slots are two rows, which rotate side by side

Whole = NDArray[np.int64]


class BfvPublicKey(seal.SealPublicKey):
    """See `scheme.PublicKey`."""

    scheme = "bfv"
    sum_layout = "flat"
    product_layout = "product"
    uses = tuple(FRACTION)

    def __init__(self, use: str, limit: float, key: bytes, galois: bytes) -> None:
        self.fraction = FRACTION[use]
        self.capacity = 2.0 ** (58 - self.fraction * (1 if use == "sums" else 2))
        self.error = 2.0 ** -(self.fraction + 1)
        super().__init__(use, limit, key, galois, PARAMETERS)
        self._encoder = need_tenseal().BatchEncoder(self._context)
        self._modulus: int = (
            self._context.first_context_data().parms().plain_modulus().value()
        )

    @refusing
    def product(self, x: Encrypted, matrix: Tensor, *, owner: str) -> Encrypted:
        self._check_product(x, matrix, owner)
        exact = matrix.detach().to("cpu", torch.float64)
        if self.use == "columns":
            return self._times_columns(x, _whole(exact, self.fraction))
        result: list[Any] = []
        groups = torch.split(exact, ROW)
        for tile, group in zip(self._open(x, "tiled"), groups, strict=True):
            self._diagonals(tile, _whole(group, self.fraction), result)
        return wrap(
            self, (matrix.shape[1],), "product", self.capacity, seal.body(result)
        )

    def product_error(self, matrix: Tensor) -> float:
        """Rounding of the vector through each weight, and of the matrix through each
        value."""
        if not matrix.numel():
            return 0.0
        return self.error * (
            float(matrix.abs().sum(0).max()) + len(matrix) * (self.limit + self.error)
        )

    @refusing
    def combine(self, weights: Tensor, rows: Encrypted, *, owner: str) -> Encrypted:
        flat = self._weights(weights, rows, owner)
        width = rows.shape[1]
        parts = self._open(rows, "rows")
        chunks = -(-width // SLOTS)
        total: list[Any] = []
        for row, weight in enumerate(_whole(flat, self.fraction)):
            for chunk in range(chunks):
                weighted = self._times(
                    parts[row * chunks + chunk], np.full(SLOTS, weight)
                )
                seal.accumulate(self._evaluator, total, chunk, weighted)
        return wrap(self, (width,), "product", self.capacity, seal.body(total))

    @refusing
    def blind(self, x: Encrypted) -> tuple[Encrypted, list[seal.Polynomial]]:
        result = self._open(x, "product")
        masks = []
        for part in result:
            masks.append(seal.uniform(self._modulus, SLOTS))
            self._evaluator.add_plain_inplace(
                part, self._plain(self._centred(masks[-1]))
            )
            self._evaluator.add_inplace(part, self._zero(part))
            self._evaluator.add_inplace(part, self._flood(part.parms_id()))
            # the rest of the modulus is enough to decrypt, and takes half the bytes
            for _ in range(2):
                self._evaluator.mod_switch_to_next_inplace(part)
        return wrap(
            self, x.shape, "product", x.bound, seal.body(result), "blinded"
        ), self._product_numbers(x, masks)

    @refusing
    def unblind(self, opened: Encrypted, mask: list[seal.Polynomial]) -> Tensor:
        clear = [
            self._centred(part)
            for part in self._without_mask(opened, mask, self._modulus)
        ]
        return _values(clear, 2 * self.fraction, opened.shape)

    def _times_columns(self, x: Encrypted, matrix: Whole) -> Encrypted:
        """The product of each output of x [rows, outputs] with each column."""
        (rows, count), outputs = matrix.shape, math.prod(x.shape[1:])
        stride = _stride(rows)
        runs = range(0, rows, SLOTS)
        values = self._open(x, "spread")
        for value in values:
            self._evaluator.transform_to_ntt_inplace(value)
        size = _columns_each(count, -(-count // stride))
        result = [list[Any]() for _ in range(outputs)]
        for group, first in enumerate(range(0, count, size)):
            for run, start in enumerate(runs):
                entries = matrix[start : start + SLOTS, first : first + size]
                power = (
                    np.arange(entries.shape[1])
                    - stride * np.arange(len(entries))[:, None]
                )
                polynomial = np.zeros(SLOTS, dtype=np.int64)
                # x^8192 is -1
                polynomial[power % SLOTS] = np.where(power < 0, -entries, entries)
                encoded = self._in_ntt_form(polynomial, values[0].parms_id())
                for output, total in enumerate(result):
                    term = self._times_ntt(values[output * len(runs) + run], encoded)
                    seal.accumulate(self._evaluator, total, group, term)
        parts = [part for total in result for part in total]
        for part in parts:
            self._evaluator.transform_from_ntt_inplace(part)
        return wrap(
            self, (*x.shape[1:], count), "product", self.capacity, seal.body(parts)
        )

    def _product_numbers(
        self, x: Encrypted, opened: list[seal.Polynomial]
    ) -> list[seal.Polynomial]:
        """The numbers of opened parts that are products: of columns only as many
        coefficients as x says."""
        if self.use != "columns":
            return opened
        count = x.shape[-1]
        outputs = math.prod(x.shape[:-1])
        groups = len(opened) // max(outputs, 1)
        size = _columns_each(count, groups)
        if (
            len(opened) != groups * outputs
            or -(-count // size) != groups
            or size > SLOTS
        ):
            raise WireError(
                f"{len(opened)} ciphertexts are not the products of {outputs} values"
                f" with {count} columns."
            )
        return [
            part[: min(size, count - number % groups * size)]
            for number, part in enumerate(opened)
        ]

    def _arranged(self, flat: Tensor) -> list[Whole]:
        whole = _whole(flat, self.fraction)
        layout = self._layout(flat)
        if layout == "spread":
            return [
                part
                for output in whole.reshape(len(whole), -1).T
                for part in _spread(output)
            ]
        rows = whole if layout == "rows" else whole.reshape(1, -1)
        size = ROW if layout == "tiled" else SLOTS
        runs = [
            row[start : start + size]
            for row in rows
            for start in range(0, len(row), size)
        ]
        return [
            (
                seal.tiled(run, SLOTS)
                if layout == "tiled"
                else np.pad(run, (0, SLOTS - len(run)))
            )
            for run in runs
        ]

    def _plain(self, slots: Whole) -> Any:
        if self.use == "columns":
            ring = np.where(slots < 0, slots + self._modulus, slots).astype(np.uint64)
            return seal.plaintext(ring, self._context, (0, 0, 0, 0), 1.0)
        encoded = need_tenseal().Plaintext()
        self._encoder.encode(slots.tolist(), encoded)
        return encoded

    def _diagonals(self, x: Any, matrix: Whole, total: list[Any]) -> None:
        """Add x times matrix to `total`, one ciphertext per run of columns; x is
        rotated away."""
        period = seal.period(len(matrix))
        padded = np.zeros((period, -(-matrix.shape[1] // SLOTS), SLOTS), dtype=np.int64)
        padded.reshape(period, -1)[: len(matrix), : matrix.shape[1]] = matrix
        slot = np.arange(SLOTS)
        x_ntt = need_tenseal().Ciphertext()
        sums = list[Any]()
        for i in range(period):
            if i:
                self._evaluator.rotate_rows_inplace(x, 1, self._galois)
            self._evaluator.transform_to_ntt(x, x_ntt)  # once, for all runs of columns
            for run in range(padded.shape[1]):
                diagonal = self._in_ntt_form(
                    padded[(slot + i) % period, run, slot], x.parms_id()
                )
                seal.accumulate(
                    self._evaluator, sums, run, self._times_ntt(x_ntt, diagonal)
                )
        for run, run_sum in enumerate(sums):
            self._evaluator.transform_from_ntt_inplace(run_sum)
            seal.accumulate(self._evaluator, total, run, run_sum)

    def _in_ntt_form(self, slots: Whole, parms_id: Any) -> Any | None:
        """Plain slots in NTT form; None where all are zero."""
        if not slots.any():
            return None
        encoded = self._plain(slots)
        self._evaluator.transform_to_ntt_inplace(encoded, parms_id)
        return encoded

    def _times_ntt(self, x: Any, encoded: Any | None) -> Any:
        """As `_times`, where both are in NTT form."""
        if encoded is None:
            zero = self._zero(x)
            self._evaluator.transform_to_ntt_inplace(zero)
            return zero
        result = need_tenseal().Ciphertext()
        self._evaluator.multiply_plain(x, encoded, result)
        return result

    def _times(self, x: Any, slots: Whole) -> Any:
        """x times plain slots. SEAL refuses a product that everybody can see to be
        zero, so a zero is encrypted."""
        if not slots.any():
            return self._zero(x)
        result = need_tenseal().Ciphertext()
        self._evaluator.multiply_plain(x, self._plain(slots), result)
        return result

    def _zero(self, like: Any) -> Any:
        zero = need_tenseal().Ciphertext()
        self._encryptor.encrypt_zero(like.parms_id(), zero)
        return zero

    def _flood(self, parms_id: Any) -> Any:
        """Noise from 0 to 2^100, to drown a product's own, which is below 2^80 for 32
        coefficients."""
        limbs = seal.uniform(1 << int(LIMB), FLOOD // int(LIMB) * SLOTS).reshape(
            -1, SLOTS
        )
        primes = [np.uint64(prime) for prime in seal.primes(PARAMETERS)[:-1]]
        rows = [np.zeros(SLOTS, dtype=np.uint64) for _ in primes]
        for limb in limbs:  # a prime has 44 bits at most, so that nothing wraps around
            rows = [
                ((row << LIMB) + limb) % prime
                for row, prime in zip(rows, primes, strict=True)
            ]
        return seal.ciphertext(rows, self._context, parms_id)

    def _numbers(self, plain: Any) -> seal.Polynomial:
        """The numbers in a plaintext, from 0 to t - 1."""
        if self.use != "columns":
            return np.array(self._encoder.decode_uint64(plain), dtype="<u8")
        coefficients = seal.values_of(plain)
        return np.pad(coefficients, (0, SLOTS - len(coefficients)))

    def _centred(self, values: seal.Polynomial) -> Whole:
        """Numbers from 0 .. t - 1, moved to -t/2 .. t/2."""
        signed = values.astype(np.int64)
        return np.where(signed > self._modulus // 2, signed - self._modulus, signed)


class BfvSecretKey(seal.SealSecretKey[BfvPublicKey]):
    """See `scheme.SecretKey`."""

    __slots__ = ()

    def __init__(self, use: str, limit: float) -> None:
        self._decryptor, key, galois = seal.make_keys(
            PARAMETERS, rotations=use == "products"
        )
        self.public = BfvPublicKey(use, limit, key, galois)

    @refusing
    def decrypt(self, x: Encrypted) -> Tensor:
        public = self.public
        parts = [
            public._numbers(plain)
            for plain in self._decrypted(x, "flat", "tiled", "product", "rows")
        ]
        slots = [
            public._centred(part)
            for part in (
                public._product_numbers(x, parts) if x.layout == "product" else parts
            )
        ]
        bits = public.fraction * (2 if x.layout == "product" else 1)
        if x.layout == "rows":
            runs = len(slots) // max(x.shape[0], 1)
            rows = [
                _values(slots[row * runs : (row + 1) * runs], bits, x.shape[1:])
                for row in range(x.shape[0])
            ]
            return (
                torch.stack(rows) if rows else torch.empty(x.shape, dtype=torch.float64)
            )
        tiled = public.use == "products" and x.layout == "tiled"
        return _values(
            [part[:ROW] for part in slots] if tiled else slots, bits, x.shape
        )

    def _under_mask(self, x: Encrypted, plain: list[Any]) -> list[seal.Polynomial]:
        return self.public._product_numbers(
            x, [self.public._numbers(part) for part in plain]
        )

    def _check_noise(self, ciphertext: Any) -> None:
        if not self._decryptor.invariant_noise_budget(ciphertext):
            raise WireError(
                "A bfv ciphertext was computed with too often: its noise has reached"
                " its values."
            )


def _whole(values: Tensor, bits: int) -> Whole:
    return (values * 2.0**bits).round().to(torch.int64).numpy()


def _values(slots: list[Whole], bits: int, shape: tuple[int, ...]) -> Tensor:
    flat = np.concatenate(slots) if slots else np.empty(0, dtype=np.int64)
    return torch.from_numpy(flat[: math.prod(shape)] / 2.0**bits).reshape(shape)


def _stride(rows: int) -> int:
    """By how many powers the coefficients of two rows are apart: so many columns fit
    between them."""
    return max(SLOTS // max(rows, 1), 1)


def _columns_each(count: int, groups: int) -> int:
    """How many of `count` columns each of `groups` ciphertexts has."""
    return max(-(-count // max(groups, 1)), 1)


def _spread(values: Whole) -> list[Whole]:
    """One output's values, at powers that are as far apart as their number allows."""
    stride = _stride(len(values))
    parts = []
    for start in range(0, len(values), SLOTS):
        run = values[start : start + SLOTS]
        part = np.zeros(SLOTS, dtype=np.int64)
        part[: len(run) * stride : stride] = run
        parts.append(part)
    return parts
