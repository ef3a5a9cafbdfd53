"""CKKS: numbers with a small error, packed by thousands, fast and small.

Each slot of a ciphertext is a complex number. In the layout "paired", two values travel
in one slot. In "tiled", for a product with a matrix, one value does.

    use            degree  primes      scales      a value is at most        takes
    sums            4096   54 54       2^36        2^16 in total             15 bytes
    products        8192   60 40 60    2^52 2^34   2^12 in any result        57 bytes
    combinations    8192   60 40 60    2^44 2^36   2^18 in any result        29 bytes

Blinding adds a mask that is uniform over all polynomials modulo q, and an encryption of
zero. The mask makes uniformly random what the secret key's holder decrypts, noise
included. The zero hides the other half of the ciphertext (by RLWE, with a secret drawn
for it alone, which nobody is told). The mask comes off exactly.

Decrypted values still have noise in them, from which whoever knows the ciphertext can
compute the secret key (Li and Micciancio, On the security of homomorphic encryption on
approximate numbers, 2021). So `open_blinded`, whose result goes back to the
ciphertext's maker, adds fresh noise of 2^22, which costs precision: 2^-15. With 32
coefficients that is 14 bits above a product's own noise, and 10,000 openings of three
ciphertexts tell less than one bit. With 256 coefficients it is 9 bits, and BFV is the
better choice. The result of `decrypt` should not be sent to others at all; BFV's may
be.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.cipher import Encrypted
from colonnade.encryption import seal
from colonnade.encryption.scheme import names_sender, wrap
from colonnade.encryption.seal import Polynomial
from colonnade.encryption.seal_keys import (
    SealPublicKey,
    SealSecretKey,
    cut,
    decoded_rows,
    tiled,
)
from colonnade.errors import WireError

SUMS = seal.Parameters("ckks", 4096, (54, 54))
PRODUCTS = seal.Parameters("ckks", 8192, (60, 40, 60))


class Use(NamedTuple):
    """The constants of CKKS keys for one use."""

    parameters: seal.Parameters
    scale: float
    """The scale of encrypted values. It is the larger one, because they have noise."""
    factor_scale: float
    """The scale of the plain factors that encrypted values are multiplied by."""
    capacity: float
    """The largest size of a value that can be decrypted."""
    error: float
    """The largest error of a fresh encryption.

    Noise has a standard deviation of about 3.2 sqrt(4/3 degree) for a coefficient, and
    sqrt(degree) times that for a slot. This is more than eight of those.
    """


USES = {
    "sums": Use(SUMS, 2.0**36, 1.0, 2.0**16, 2.0**-19),
    "products": Use(PRODUCTS, 2.0**52, 2.0**34, 2.0**12, 2.0**-30),
    "combinations": Use(PRODUCTS, 2.0**44, 2.0**36, 2.0**18, 2.0**-26),
}

FLOOD = 2.0**22
"""The standard deviation, for a coefficient, of the noise that `open_blinded` adds."""

OPENING_ERROR = 2.0**-15
"""The error that this noise makes."""

Slots = NDArray[np.complex128]


class CkksPublicKey(SealPublicKey):
    """A public key of CKKS. See `scheme.PublicKey` for what the methods do."""

    scheme = "ckks"
    sum_layout = "paired"
    product_layout = "paired"

    def __init__(self, use: str, limit: float, key: bytes, rotation_key: bytes) -> None:
        constants = USES[use]
        self._parameters = constants.parameters
        self._scale = constants.scale
        self._factor_scale = constants.factor_scale
        self.capacity = constants.capacity
        self.error = constants.error
        self.slots = constants.parameters.degree // 2
        self.row_values = 2 * self.slots
        self.tile_values = self.slots
        super().__init__(use, limit, key, rotation_key, constants.parameters)
        self._encoder = seal.sealapi().CKKSEncoder(self._context)

    @property
    def product_scale(self) -> float:
        """The scale of a product, after SEAL has divided it by the second prime."""
        return self._scale * self._factor_scale / seal.primes(self._parameters)[1]

    @property
    def product_modulus(self) -> int:
        """q, the modulus of a product: the first prime, which is left."""
        return seal.primes(self._parameters)[0]

    def product_error(self, matrix: Tensor) -> float:
        """Bound the error of a product that is blinded and opened.

        Most of it is the noise of opening. Then come the noise of each value times its
        factor, and the rounding of each factor.
        """
        if not matrix.numel():
            return 0.0
        largest_column = float(matrix.abs().sum(0).max())
        rotations = max(1.0, math.sqrt(len(matrix)) / 32)
        noise = 2.0**-28 * rotations * (1 + largest_column)
        rounding = 2.0**-30 * len(matrix) * self.limit
        return OPENING_ERROR + noise + rounding

    @names_sender
    def blind(self, x: Encrypted) -> tuple[Encrypted, list[Polynomial]]:
        """Hide a product under a uniform mask, and under an encryption of zero.

        Returns the hidden product, and the masks of its ciphertexts.
        """
        parms_id = self._context.last_parms_id()
        masks = []
        parts = self.ciphertexts_in(x, "paired")
        for part in parts:
            if part.parms_id() != parms_id:
                raise WireError("Only the result of a product can be blinded.")
            zero = seal.sealapi().Ciphertext()
            self._encryptor.encrypt_zero(parms_id, zero)
            zero.scale = part.scale
            self._evaluator.add_inplace(part, zero)
            mask = seal.uniform(self.product_modulus, self._parameters.degree)
            encoded = seal.make_plaintext(mask, self._context, parms_id, part.scale)
            self._evaluator.add_plain_inplace(part, encoded)
            masks.append(mask)
        body = seal.ciphertexts_to_bytes(parts)
        return wrap(self, x.shape, "paired", x.bound, body, "blinded"), masks

    @names_sender
    def unblind(self, opened: Encrypted, mask: list[Polynomial]) -> Tensor:
        """Take the mask off, and decode the product."""
        parms_id = self._context.last_parms_id()
        slots = []
        for numbers in self._without_mask(opened, mask, self.product_modulus):
            plaintext = seal.make_plaintext(
                numbers, self._context, parms_id, self.product_scale
            )
            slots.append(self.slots_in(plaintext))
        return unpaired(slots, opened.shape)

    def slots_in(self, plaintext: Any) -> Slots:
        """Decode a plaintext."""
        return np.array(self._encoder.decode_complex(plaintext), dtype=np.complex128)

    def encode(self, slots: Slots, parms_id: Any, scale: float) -> Any:
        """Encode slots at a scale, for the moduli that SEAL calls `parms_id`."""
        encoded = seal.sealapi().Plaintext()
        self._encoder.encode(slots.tolist(), parms_id, scale, encoded)
        return encoded

    def _arranged(self, values: Tensor, layout: str) -> list[Slots]:
        if layout == "tiled":
            tiles = cut(values.flatten().numpy(), self.tile_values)
            return [tiled(tile + 0j, self.slots) for tile in tiles]
        rows = values if layout == "rows" else values.reshape(1, -1)
        arranged = []
        for row in rows.numpy():
            for part in cut(row, self.row_values):
                arranged.append(paired(part, self.slots))
        return arranged

    def _encoded(self, slots: Slots) -> Any:
        return self.encode(slots, self._context.first_parms_id(), self._scale)

    def _encoded_factor(self, slots: Slots, x: Any) -> Any:
        return self.encode(slots, x.parms_id(), self._factor_scale)

    def _numbers(self, values: Tensor) -> NDArray[np.float64]:
        return values.numpy()

    def _columns_in_slots(self, matrix: NDArray[np.float64]) -> Slots:
        rows, columns = matrix.shape
        padding = -columns % self.row_values
        padded = np.pad(matrix, ((0, 0), (0, padding)))
        pairs = padded.reshape(rows, -1, 2, self.slots)
        return pairs[:, :, 0] + 1j * pairs[:, :, 1]

    def _rotate_by_one(self, x: Any) -> None:
        self._evaluator.rotate_vector_inplace(x, 1, self._rotation_key)

    def _multiplicand(self, x: Any) -> Any:
        return x

    def _encrypted_zero(self, x: Any) -> Any:
        zero = seal.sealapi().Ciphertext()
        self._encryptor.encrypt_zero(x.parms_id(), zero)
        zero.scale = x.scale * self._factor_scale
        return zero

    def _finish(self, product: Any) -> None:
        self._evaluator.rescale_to_next_inplace(product)

    def _factors(self, x: Encrypted, layout: str) -> list[Any]:
        """The ciphertexts inside x, if they are no product already.

        These parameters have room for one product.
        """
        parts = super()._factors(x, layout)
        fresh = self._context.first_parms_id()
        if any(part.parms_id() != fresh for part in parts):
            raise WireError(
                "These ckks keys have room for one product, and this ciphertext already"
                " is one."
            )
        return parts


class CkksSecretKey(SealSecretKey[CkksPublicKey]):
    """A secret key of CKKS. See `scheme.SecretKey` for what the methods do."""

    __slots__ = ()

    def __init__(self, use: str, limit: float) -> None:
        parameters = USES[use].parameters
        keys = seal.generate_keys(parameters, rotations=use == "products")
        self._decryptor = keys.decryptor
        self.public = CkksPublicKey(use, limit, keys.public_key, keys.rotation_key)

    @names_sender
    def decrypt(self, x: Encrypted) -> Tensor:
        """Decrypt values in any layout."""
        plaintexts = self._plaintexts(x, "paired", "tiled", "rows")
        slots = [self.public.slots_in(plaintext) for plaintext in plaintexts]
        if x.layout == "rows":
            return decoded_rows(slots, x.shape, unpaired)
        if x.layout == "paired":
            return unpaired(slots, x.shape)
        return as_tensor([part.real for part in slots], x.shape)

    def _numbers_to_return(
        self,
        x: Encrypted,  # noqa: ARG002
        plaintexts: list[Any],
    ) -> list[Polynomial]:
        return [self._flooded(plaintext) for plaintext in plaintexts]

    def _flooded(self, plaintext: Any) -> Polynomial:
        """A plaintext's numbers, with fresh Gaussian noise on every coefficient.

        The noise is drawn for the slots. Gaussian slots are Gaussian coefficients.
        """
        public = self.public
        spread = FLOOD * math.sqrt(public.slots) / public.product_scale
        slots = spread * complex_gaussian(public.slots)
        noise = public.encode(slots, plaintext.parms_id(), public.product_scale)
        modulus = np.uint64(public.product_modulus)
        total = seal.numbers_in(plaintext) + seal.numbers_in(noise)
        return np.where(total >= modulus, total - modulus, total)


def complex_gaussian(count: int) -> Slots:
    """Draw complex numbers whose real and imaginary parts are standard normal.

    They are made by Box and Muller's method of the system's random numbers.
    """
    resolution = 1 << 53
    drawn = seal.uniform(resolution, 2 * count).reshape(2, -1).astype(np.float64)
    radius_share, turn = (1 + drawn) / resolution  # above 0, at most 1
    radius = np.sqrt(-2 * np.log(radius_share))
    return np.asarray(radius * np.exp(2j * np.pi * turn), dtype=np.complex128)


def paired(values: NDArray[np.float64], slots: int) -> Slots:
    """Put the first half of the values in the real parts, the second in the others."""
    padded = np.pad(values, (0, 2 * slots - len(values)))
    return padded[:slots] + 1j * padded[slots:]


def unpaired(slots: list[Slots], shape: tuple[int, ...]) -> Tensor:
    """The values that `paired` put in the slots of several ciphertexts."""
    halves: list[NDArray[np.float64]] = []
    for part in slots:
        halves += [part.real, part.imag]
    return as_tensor(halves, shape)


def as_tensor(parts: list[NDArray[np.float64]], shape: tuple[int, ...]) -> Tensor:
    """The first values of these parts, in a shape. The rest is padding."""
    flat = np.concatenate([np.empty(0), *parts])
    return torch.from_numpy(flat[: math.prod(shape)].copy()).reshape(shape)
