"""CKKS: numbers with a small error, packed by thousands, fast and small.

Each slot of a ciphertext is a complex number. Where values are only added and weighted
("paired"), two travel in one slot; where they are multiplied one by one, or with a
matrix ("tiled"), one does.

    use            degree  primes      scales      a value is at most        takes
    sums            4096   54 54       2^36        2^16 in total             15 bytes
    products        8192   60 40 60    2^52 2^34   2^12 in any result        57 bytes
    combinations    8192   60 40 60    2^44 2^36   2^18 in any result        29 bytes

A vector times a matrix is the diagonal method: slot s of the ciphertext, rotated i
times, holds x[(s + i) mod n] and is multiplied by matrix[(s + i) mod n, s]. The n
rotations are shared by all columns of the matrix.

Blinding adds a mask that is uniform over all polynomials modulo q, and an encryption of
zero. To the secret key's holder the first makes what it decrypts uniformly random,
noise included; the second hides the other half (by RLWE, with a secret drawn for it
alone, which nobody is told). The mask comes off exactly.

Decrypted values still have noise in them, from which whoever knows the ciphertext can
compute the secret key (Li and Micciancio, On the security of homomorphic encryption on
approximate numbers, 2021). So `open_blinded`, whose result goes back to the
ciphertext's maker, adds fresh noise of 2^22, which costs precision: 2^-15. With 32
coefficients that is 14 bits above a product's own noise, and 10,000 openings of three
ciphertexts tell less than one bit; with 256 it is 9 bits, and BFV is the better choice.
What `decrypt` gives should not be sent to others at all; BFV's may be.
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

SUMS = seal.Parameters("ckks", 4096, (54, 54))
PRODUCTS = seal.Parameters("ckks", 8192, (60, 40, 60))
PARAMETERS = {"sums": SUMS, "products": PRODUCTS, "combinations": PRODUCTS}
SCALES = {
    "sums": (2.0**36, 1.0),
    "products": (2.0**52, 2.0**34),
    "combinations": (2.0**44, 2.0**36),
}
"""The scales of encrypted values, and of their plain factors. Encrypted values have
noise, so their scale is larger."""
CAPACITIES = {"sums": 2.0**16, "products": 2.0**12, "combinations": 2.0**18}
ERRORS = {"sums": 2.0**-19, "products": 2.0**-30, "combinations": 2.0**-26}
"""The errors of fresh encryptions. Noise has a standard deviation of about 3.2 sqrt(4/3
degree) per coefficient, and sqrt(degree) times that per slot; these are more than eight
of those."""
FLOOD = 2.0**22
"""Standard deviation, per coefficient, of the noise that is added when something
blinded is opened."""

Slots = NDArray[np.complex128]


class CkksPublicKey(seal.SealPublicKey):
    """See `scheme.PublicKey`."""

    scheme = "ckks"
    sum_layout = "paired"
    product_layout = "paired"

    def __init__(self, use: str, limit: float, key: bytes, galois: bytes) -> None:
        self.capacity = CAPACITIES[use]
        self.error = ERRORS[use]
        self._parameters, (self._scale, self._weight) = PARAMETERS[use], SCALES[use]
        super().__init__(use, limit, key, galois, self._parameters)
        self._encoder = need_tenseal().CKKSEncoder(self._context)
        self.slots = self._parameters.degree // 2

    @refusing
    def product(self, x: Encrypted, matrix: Tensor, *, owner: str) -> Encrypted:
        self._check_product(x, matrix, owner)
        groups = torch.split(matrix.detach().to("cpu", torch.float64), self.slots)
        result: list[Any] = []
        for tile, group in zip(self._fresh(x, "tiled"), groups, strict=True):
            self._diagonals(tile, group.numpy(), result)
        for part in result:
            self._evaluator.rescale_to_next_inplace(part)
        return wrap(
            self, (matrix.shape[1],), "paired", self.capacity, seal.body(result)
        )

    def product_error(self, matrix: Tensor) -> float:
        """Mostly the noise of opening, 2^-15; then each value's noise times its weight,
        and rounding of each weight."""
        if not matrix.numel():
            return 0.0
        rotations = max(1.0, math.sqrt(len(matrix)) / 32)
        noise = 2.0**-28 * rotations * (1 + float(matrix.abs().sum(0).max()))
        return 2.0**-15 + noise + 2.0**-30 * len(matrix) * self.limit

    @refusing
    def combine(self, weights: Tensor, rows: Encrypted, *, owner: str) -> Encrypted:
        flat = self._weights(weights, rows, owner)
        width = rows.shape[1]
        parts = self._fresh(rows, "rows")
        chunks = -(-width // (2 * self.slots))
        total: list[Any] = []
        for row, weight in enumerate(flat.tolist()):
            for chunk in range(chunks):
                weighted = self._times(
                    parts[row * chunks + chunk], np.full(self.slots, weight)
                )
                seal.accumulate(self._evaluator, total, chunk, weighted)
        for part in total:
            self._evaluator.rescale_to_next_inplace(part)
        return wrap(self, (width,), "paired", self.capacity, seal.body(total))

    @refusing
    def blind(self, x: Encrypted) -> tuple[Encrypted, list[seal.Polynomial]]:
        parms_id = self._context.last_parms_id()
        masks = []
        result = self._open(x, "paired")
        for part in result:
            if part.parms_id() != parms_id:
                raise WireError("Only the result of a product can be blinded.")
            zero = need_tenseal().Ciphertext()
            self._encryptor.encrypt_zero(parms_id, zero)
            zero.scale = part.scale
            self._evaluator.add_inplace(part, zero)
            mask = seal.uniform(self._modulus, self._parameters.degree)
            self._evaluator.add_plain_inplace(
                part, seal.plaintext(mask, self._context, parms_id, part.scale)
            )
            masks.append(mask)
        return (
            wrap(self, x.shape, "paired", x.bound, seal.body(result), "blinded"),
            masks,
        )

    @refusing
    def unblind(self, opened: Encrypted, mask: list[seal.Polynomial]) -> Tensor:
        parms_id = self._context.last_parms_id()
        clear = [
            seal.plaintext(part, self._context, parms_id, self._product_scale)
            for part in self._without_mask(opened, mask, self._modulus)
        ]
        return _unpaired(
            [self._encoder.decode_complex(plain) for plain in clear], opened.shape
        )

    @property
    def _product_scale(self) -> float:
        return self._scale * self._weight / seal.primes(self._parameters)[1]

    @property
    def _modulus(self) -> int:
        """q, once a product has been rescaled."""
        return seal.primes(self._parameters)[0]

    def _arranged(self, flat: Tensor) -> list[Slots]:
        if self.use == "products":
            return [
                seal.tiled(group + 0j, self.slots)
                for group in _runs(flat.flatten().numpy(), self.slots)
            ]
        rows = (
            flat.numpy()
            if self._layout(flat) == "rows"
            else flat.reshape(1, -1).numpy()
        )
        return [
            _paired(part, self.slots)
            for row in rows
            for part in _runs(row, 2 * self.slots)
        ]

    def _encoded(self, slots: Slots, parms_id: Any, scale: float) -> Any:
        encoded = need_tenseal().Plaintext()
        self._encoder.encode(slots.tolist(), parms_id, scale, encoded)
        return encoded

    def _plain(self, slots: Slots) -> Any:
        return self._encoded(slots, self._context.first_parms_id(), self._scale)

    def _diagonals(self, x: Any, matrix: NDArray[np.float64], total: list[Any]) -> None:
        """Add x times matrix to `total`, one ciphertext per run of columns; x is
        rotated away."""
        period = seal.period(len(matrix))
        padded = np.zeros(
            (period, -(-matrix.shape[1] // (2 * self.slots)) * 2 * self.slots)
        )
        padded[: len(matrix), : matrix.shape[1]] = matrix
        pairs = padded.reshape(period, -1, 2, self.slots)
        runs = pairs[:, :, 0] + 1j * pairs[:, :, 1]
        slot = np.arange(self.slots)
        for i in range(period):
            if i:
                self._evaluator.rotate_vector_inplace(x, 1, self._galois)
            for run in range(runs.shape[1]):
                seal.accumulate(
                    self._evaluator,
                    total,
                    run,
                    self._times(x, runs[(slot + i) % period, run, slot]),
                )

    def _times(self, x: Any, slots: Slots) -> Any:
        """x times plain slots. SEAL refuses a product that everybody can see to be
        zero, so a zero is encrypted."""
        result = need_tenseal().Ciphertext()
        encoded = self._encoded(slots, x.parms_id(), self._weight)
        if encoded.is_zero():
            self._encryptor.encrypt_zero(x.parms_id(), result)
            result.scale = x.scale * self._weight
        else:
            self._evaluator.multiply_plain(x, encoded, result)
        return result

    def _fresh(self, x: Encrypted, layout: str) -> list[Any]:
        """The ciphertexts of values that were not multiplied before: these parameters
        have room for one product."""
        parts = self._open(x, layout)
        if any(part.parms_id() != self._context.first_parms_id() for part in parts):
            raise WireError(
                "These ckks keys have room for one product, and this ciphertext already"
                " is one."
            )
        return parts


class CkksSecretKey(seal.SealSecretKey[CkksPublicKey]):
    """See `scheme.SecretKey`."""

    __slots__ = ()

    def __init__(self, use: str, limit: float) -> None:
        self._decryptor, key, galois = seal.make_keys(
            PARAMETERS[use], rotations=use == "products"
        )
        self.public = CkksPublicKey(use, limit, key, galois)

    @refusing
    def decrypt(self, x: Encrypted) -> Tensor:
        public = self.public
        slots = [
            public._encoder.decode_complex(plain)
            for plain in self._decrypted(x, "paired", "tiled", "rows")
        ]
        if x.layout == "rows":
            runs = len(slots) // max(x.shape[0], 1)
            rows = [
                _unpaired(slots[row * runs : (row + 1) * runs], x.shape[1:])
                for row in range(x.shape[0])
            ]
            return (
                torch.stack(rows) if rows else torch.empty(x.shape, dtype=torch.float64)
            )
        if x.layout == "paired":
            return _unpaired(slots, x.shape)
        flat = np.array(slots, dtype=np.complex128).real.reshape(-1)
        return torch.from_numpy(flat[: math.prod(x.shape)].copy()).reshape(x.shape)

    def _under_mask(self, x: Encrypted, decrypted: list[Any]) -> list[seal.Polynomial]:  # noqa: ARG002
        return [self._flooded(plain) for plain in decrypted]

    def _flooded(self, plain: Any) -> seal.Polynomial:
        """A plaintext with fresh Gaussian noise on every coefficient: Gaussian slots
        are Gaussian coefficients."""
        public, count = self.public, self.public.slots
        first, second = (
            1 + seal.uniform(1 << 53, 2 * count).reshape(2, -1).astype(np.float64)
        ) / 2**53
        # Box and Muller
        gaussian = np.sqrt(-2 * np.log(first)) * np.exp(2j * np.pi * second)
        spread = FLOOD * math.sqrt(count) / public._product_scale
        noise = public._encoded(
            spread * gaussian, plain.parms_id(), public._product_scale
        )
        total = seal.values_of(plain) + seal.values_of(noise)
        return np.where(
            total >= public._modulus, total - np.uint64(public._modulus), total
        )


def _runs(values: NDArray[np.float64], size: int) -> list[NDArray[np.float64]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def _paired(values: NDArray[np.float64], slots: int) -> Slots:
    """The first half in the real parts, the second in the imaginary ones."""
    padded = np.pad(values, (0, 2 * slots - len(values)))
    return padded[:slots] + 1j * padded[slots:]


def _unpaired(parts: list[list[complex]], shape: tuple[int, ...]) -> Tensor:
    """The values in `_paired` slots, run after run."""
    slots = np.array(parts, dtype=np.complex128)
    flat = (
        np.concatenate([half for part in slots for half in (part.real, part.imag)])
        if parts
        else np.empty(0)
    )
    return torch.from_numpy(flat[: math.prod(shape)].copy()).reshape(shape)
