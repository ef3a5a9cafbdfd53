"""BFV: whole numbers modulo a 60-bit prime t, exactly. Values become fixed-point numbers, so that a sum over parties
has one answer to the last bit, whoever adds it up and in whichever order.

    use            values are rounded to   a value is at most        takes
    sums           2^-30                   2^28 in total             53 bytes
    products       2^-22                   2^14 in any result        106 bytes
    combinations   2^-22                   2^14 in any result        53 bytes

Blinding adds a mask that is uniform modulo t, so that the secret key's holder decrypts uniformly random numbers; an
encryption of zero, which hides the other half of the ciphertext (by RLWE); and noise of 2^100, in which the product's
own noise, that depends on the plain matrix, drowns (2^80 for 32 coefficients: 20 bits below). What the holder gives
back are exact numbers without any noise in them, so they tell nothing about its secret key.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.cipher import Encrypted
from colonnade.encryption import seal
from colonnade.encryption.scheme import fingerprint, fits, need_tenseal, refusing, stays, unsuited, unwrap, within, wrap
from colonnade.errors import WireError

PARAMETERS = seal.Parameters("bfv", 8192, (43, 43, 44, 44, 44), plain_bits=60)
FRACTION = {"sums": 30, "products": 22, "combinations": 22}  # bits after the point
SLOTS = PARAMETERS.degree
FLOOD = 100  # bits
ROW = SLOTS // 2  # slots are two rows, which rotate side by side

Whole = NDArray[np.int64]


class BfvPublicKey:
    """See `scheme.PublicKey`."""

    scheme = "bfv"

    def __init__(self, use: str, limit: float, key: bytes, galois: bytes) -> None:
        sealapi = need_tenseal()
        self.use, self.fraction = use, FRACTION[use]
        self.capacity = 2.0 ** (58 - self.fraction * (1 if use == "sums" else 2))
        self.error = 2.0 ** -(self.fraction + 1)
        self.limit = fits(limit, self.capacity, scheme="bfv", what="A value")
        self._parts, self._context = (key, galois), seal.context(PARAMETERS)
        self._key = seal.public_key(self._context, key)
        self._galois = seal.from_bytes(sealapi.GaloisKeys(), self._context, galois) if galois else None
        self._encoder, self._evaluator = sealapi.BatchEncoder(self._context), sealapi.Evaluator(self._context)
        self._encryptor = sealapi.Encryptor(self._context, self._key)
        self._modulus: int = self._context.first_context_data().parms().plain_modulus().value()
        self.id = fingerprint(self.to_bytes())

    def to_bytes(self) -> bytes:
        about = json.dumps({"scheme": "bfv", "use": self.use, "limit": self.limit}).encode()
        return seal.joined([about, *self._parts])

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        flat = within(values, self.limit, owner=owner, scheme="bfv")
        body = []
        for slots in self._arranged(flat, self.fraction):
            one = need_tenseal().Ciphertext()
            self._encryptor.encrypt(self._encoded(slots), one)
            body.append(one)
        return wrap(self, tuple(values.shape), self._layout(flat), self.limit, seal.body(body))

    @refusing
    def add(self, *parts: Encrypted) -> Encrypted:
        return next(self.add_groups(parts, [range(len(parts))]))

    def add_groups(self, parts: Sequence[Encrypted], groups: Sequence[Sequence[int]]) -> Iterator[Encrypted]:
        first, bounds = parts[0], [sum(parts[at].bound for at in group) for group in groups]
        bounds = [fits(bound, self.capacity, scheme="bfv", what="The sum") for bound in bounds]
        for part in parts[1:]:
            if (part.shape, part.layout) != (first.shape, first.layout):
                raise WireError(f"Ciphertexts of shapes {list(first.shape)} and {list(part.shape)} cannot be added.")
        opened = [self._open(part) for part in parts]
        for total, bound in zip(seal.group_sums(self._evaluator, opened, groups), bounds, strict=True):
            yield wrap(self, first.shape, first.layout, bound, seal.body(total))

    @refusing
    def product(self, x: Encrypted, matrix: Tensor, *, owner: str) -> Encrypted:
        if self.use != "products":
            unsuited(self, "products", "A product with a matrix")
        rows, columns = matrix.shape
        if math.prod(x.shape) != rows:
            raise WireError(f"Encrypted values of shape {list(x.shape)} do not fit a matrix with {rows} rows.")
        what = "multiply by in a column"
        within(matrix.abs().sum(0), self.capacity / x.bound, owner=owner, scheme="bfv", what=what)
        result: list[Any] = []
        groups = torch.split(matrix.detach().to("cpu", torch.float64), ROW)
        for one, group in zip(self._open(x, "tiled"), groups, strict=True):
            self._diagonals(one, _whole(group, self.fraction), result)
        return wrap(self, (columns,), "product", self.capacity, seal.body(result))

    def product_error(self, matrix: Tensor) -> float:
        """Rounding of the vector through each weight, and of the matrix through each value."""
        if not matrix.numel():
            return 0.0
        return self.error * (float(matrix.abs().sum(0).max()) + len(matrix) * (self.limit + self.error))

    @refusing
    def combine(self, weights: Tensor, rows: Encrypted, *, owner: str) -> Encrypted:
        if self.use != "combinations":
            unsuited(self, "combinations", "A weighted sum of rows")
        flat = within(weights, self.capacity, owner=owner, scheme="bfv", what="weigh by")
        count, width = rows.shape
        if tuple(flat.shape) != (count,):
            raise WireError(f"{flat.numel()} weights do not fit {count} encrypted rows.")
        within(flat.abs().sum(), self.capacity / rows.bound, owner=owner, scheme="bfv", what="weigh by in all")
        parts, chunks = self._open(rows, "rows"), -(-width // SLOTS)
        total: list[Any] = []
        for row, weight in enumerate(_whole(flat, self.fraction)):
            for at in range(chunks):
                weighted = self._times(parts[row * chunks + at], np.full(SLOTS, weight))
                seal.accumulate(self._evaluator, total, at, weighted)
        return wrap(self, (width,), "product", self.capacity, seal.body(total))

    @refusing
    def blind(self, x: Encrypted) -> tuple[Encrypted, list[seal.Polynomial]]:
        result, masks = self._open(x, "product"), []
        for one in result:
            masks.append(seal.uniform(self._modulus, SLOTS))
            self._evaluator.add_plain_inplace(one, self._encoded(self._centred(masks[-1])))
            self._evaluator.add_inplace(one, self._zero(one))
            self._evaluator.add_inplace(one, self._flood(one.parms_id()))
            for _ in range(2):  # what is left of the modulus is enough to decrypt, and half the bytes
                self._evaluator.mod_switch_to_next_inplace(one)
        return wrap(self, x.shape, "product", x.bound, seal.body(result), "blinded"), masks

    @refusing
    def unblind(self, opened: Encrypted, mask: list[seal.Polynomial]) -> Tensor:
        parts = [np.frombuffer(part, dtype="<u8") for part in seal.parted(unwrap(self, opened, "opened"))]
        if list(map(len, parts)) != list(map(len, mask)) or any((part >= self._modulus).any() for part in parts):
            raise WireError("What came back under the mask does not have the mask's size.")
        pairs = zip(parts, mask, strict=True)
        clear = [self._centred(seal.minus(part, hidden, self._modulus)) for part, hidden in pairs]
        return _values(clear, 2 * self.fraction, opened.shape)

    def _layout(self, values: Tensor) -> str:
        rows = self.use == "combinations" and values.dim() == 2
        return "rows" if rows else "tiled" if self.use == "products" else "flat"

    def _arranged(self, values: Tensor, bits: int) -> list[Whole]:
        """Fixed-point values as slots of as many ciphertexts as it takes; each of `rows` starts a new one."""
        whole, layout = _whole(values, bits), self._layout(values)
        rows, size = whole if layout == "rows" else whole.reshape(1, -1), ROW if layout == "tiled" else SLOTS
        runs = [row[start : start + size] for row in rows for start in range(0, len(row), size)]
        return [_tiled(run) if layout == "tiled" else np.pad(run, (0, SLOTS - len(run))) for run in runs]

    def _encoded(self, slots: Whole) -> Any:
        encoded = need_tenseal().Plaintext()
        self._encoder.encode(slots.tolist(), encoded)
        return encoded

    def _diagonals(self, x: Any, matrix: Whole, total: list[Any]) -> None:
        """Add x times matrix to `total`, one ciphertext per run of columns; x is rotated away."""
        period = seal.period(len(matrix))
        padded = np.zeros((period, -(-matrix.shape[1] // SLOTS), SLOTS), dtype=np.int64)
        padded.reshape(period, -1)[: len(matrix), : matrix.shape[1]] = matrix
        slot, turned, sums = np.arange(SLOTS), need_tenseal().Ciphertext(), list[Any]()
        for i in range(period):
            if i:
                self._evaluator.rotate_rows_inplace(x, 1, self._galois)
            self._evaluator.transform_to_ntt(x, turned)  # once, for all runs of columns
            for at in range(padded.shape[1]):
                diagonal = padded[(slot + i) % period, at, slot]
                if diagonal.any():
                    encoded, term = self._encoded(diagonal), need_tenseal().Ciphertext()
                    self._evaluator.transform_to_ntt_inplace(encoded, x.parms_id())
                    self._evaluator.multiply_plain(turned, encoded, term)
                else:  # SEAL refuses a product that is zero for all to see
                    term = self._zero(x)
                    self._evaluator.transform_to_ntt_inplace(term)
                seal.accumulate(self._evaluator, sums, at, term)
        for at, one in enumerate(sums):
            self._evaluator.transform_from_ntt_inplace(one)
            seal.accumulate(self._evaluator, total, at, one)

    def _times(self, x: Any, slots: Whole) -> Any:
        """x times plain slots; SEAL refuses a product that is zero for all to see, so that one is encrypted."""
        if not slots.any():
            return self._zero(x)
        result = need_tenseal().Ciphertext()
        self._evaluator.multiply_plain(x, self._encoded(slots), result)
        return result

    def _zero(self, like: Any) -> Any:
        zero = need_tenseal().Ciphertext()
        self._encryptor.encrypt_zero(like.parms_id(), zero)
        return zero

    def _flood(self, parms_id: Any) -> Any:
        """Noise from 0 to 2^100, to drown that of a product, which is below 2^80 for 32 coefficients."""
        whole = np.array([secrets.randbits(FLOOD) for _ in range(SLOTS)], dtype=object)
        rows = [(whole % prime).astype(np.uint64) for prime in seal.primes(PARAMETERS)[:-1]]
        return seal.ciphertext(rows, self._context, parms_id)

    def _centred(self, values: seal.Polynomial) -> Whole:
        """From 0 .. t - 1 to -t/2 .. t/2."""
        signed = values.astype(np.int64)
        return np.where(signed > self._modulus // 2, signed - self._modulus, signed)

    @refusing
    def _open(self, x: Encrypted, *layouts: str) -> list[Any]:
        return seal.ciphertexts(unwrap(self, x, *layouts), self._context)


class BfvSecretKey:
    """See `scheme.SecretKey`."""

    __slots__ = ("_decryptor", "public")
    __reduce_ex__ = __reduce__ = __getstate__ = __copy__ = __deepcopy__ = stays

    def __init__(self, use: str, limit: float) -> None:
        self._decryptor, key, galois = seal.make_keys(PARAMETERS, rotations=use == "products")
        self.public = BfvPublicKey(use, limit, key, galois)

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        return self.public.encrypt(values, owner=owner)

    @refusing
    def decrypt(self, x: Encrypted) -> Tensor:
        public = self.public
        found = self._decrypted(x, "flat", "tiled", "product", "rows")
        slots = [np.array(public._encoder.decode_int64(one), dtype=np.int64) for one in found]
        bits = public.fraction * (2 if x.layout == "product" else 1)
        if x.layout == "rows":
            runs = len(slots) // max(x.shape[0], 1)
            rows = [_values(slots[row * runs : (row + 1) * runs], bits, x.shape[1:]) for row in range(x.shape[0])]
            return torch.stack(rows) if rows else torch.empty(x.shape, dtype=torch.float64)
        tiled = public.use == "products" and x.layout == "tiled"
        return _values([part[:ROW] for part in slots] if tiled else slots, bits, x.shape)

    @refusing
    def open_blinded(self, x: Encrypted) -> Encrypted:
        if x.hides != "blinded":
            raise WireError("This ciphertext is under no mask; decrypt it.")
        decode = self.public._encoder.decode_uint64
        opened = [np.array(decode(one), dtype="<u8").tobytes() for one in self._decrypted(x, "product")]
        return wrap(self.public, x.shape, "opened", x.bound, seal.joined(opened), "blinded")

    def _decrypted(self, x: Encrypted, *layouts: str) -> list[Any]:
        found = []
        for one in self.public._open(x, *layouts):
            if not self._decryptor.invariant_noise_budget(one):
                raise WireError("A bfv ciphertext was computed with too often: its noise has reached its values.")
            plain = need_tenseal().Plaintext()
            self._decryptor.decrypt(one, plain)
            found.append(plain)
        return found


def _whole(values: Tensor, bits: int) -> Whole:
    whole: Whole = (values * 2.0**bits).round().to(torch.int64).numpy()
    return whole


def _values(slots: list[Whole], bits: int, shape: tuple[int, ...]) -> Tensor:
    flat = np.concatenate(slots) if slots else np.empty(0, dtype=np.int64)
    return torch.from_numpy(flat[: math.prod(shape)] / 2.0**bits).reshape(shape)


def _tiled(values: Whole) -> Whole:
    """The values again and again in both rows, so that rotating the rows rotates them."""
    return np.resize(np.pad(values, (0, seal.period(len(values)) - len(values))), SLOTS)
