"""The keys of CKKS and BFV, as far as both schemes agree.

A ciphertext has a number of slots. Values are arranged in slots in one of several
layouts, which a ciphertext names:

    sum layout       values that are only added: "paired" in ckks, "flat" in bfv
    tiled            an encrypted vector, repeated to fill the slots, for products
    rows             like the sum layout, but each row starts a ciphertext
    product layout   the result of a product: "paired" in ckks, "product" in bfv
    opened           numbers under a mask, from which the encryption was taken off

A vector times a matrix is the diagonal method (Halevi and Shoup, 2014). Slot s of the
vector's ciphertext, rotated i times, holds x[(s + i) mod n] and is multiplied by
matrix[(s + i) mod n, s]. The sum over all i is the product. The n rotations are shared
by all columns of the matrix.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.cipher import Encrypted
from colonnade.encryption import seal
from colonnade.encryption.scheme import (
    StaysInProcess,
    check_capacity,
    checked_matrix,
    checked_values,
    checked_weights,
    join_parts,
    key_id,
    key_to_bytes,
    names_sender,
    split_parts,
    unwrap,
    wrap,
)
from colonnade.encryption.seal import Polynomial
from colonnade.errors import ConfigError, WireError

Slots = NDArray[Any]
"""The plain contents of a ciphertext's slots: complex in ckks, whole in bfv."""

Numbers = NDArray[Any]
"""Plain values as the scheme multiplies them: float64 in ckks, fixed-point in bfv."""


class SealPublicKey(ABC):
    """A public key of CKKS or BFV. See `scheme.PublicKey` for what the methods do.

    A subclass sets the annotated attributes before it calls this class's `__init__`.
    """

    scheme: str
    sum_layout: str
    product_layout: str
    capacity: float
    error: float
    slots: int
    """Slots of a ciphertext."""
    row_values: int
    """Values of a row that one ciphertext holds, in the sum layout."""
    tile_values: int
    """Values of a vector that one ciphertext holds, to be multiplied by a matrix."""

    def __init__(
        self,
        use: str,
        limit: float,
        key: bytes,
        rotation_key: bytes,
        parameters: seal.Parameters,
    ) -> None:
        check_capacity(limit, self.capacity, scheme=self.scheme, what="A value")
        self.use = use
        self.limit = limit
        self._parts = (key, rotation_key)
        self._context = seal.context_for(parameters)
        self._evaluator = seal.sealapi().Evaluator(self._context)
        public_key = seal.read_public_key(self._context, key)
        self._encryptor = seal.sealapi().Encryptor(self._context, public_key)
        self._rotation_key = None
        if rotation_key:
            empty = seal.sealapi().GaloisKeys()
            self._rotation_key = seal.from_bytes(empty, self._context, rotation_key)
        self.id = key_id(self.to_bytes())

    def to_bytes(self) -> bytes:
        return key_to_bytes(self, *self._parts)

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        """Encrypt values, in the layout that the use of these keys needs."""
        exact = checked_values(values, self.limit, owner=owner, scheme=self.scheme)
        layout = self._layout_of(exact)
        arranged = self._arranged(exact, layout)
        body = seal.ciphertexts_to_bytes([self._encrypted(slots) for slots in arranged])
        return wrap(self, tuple(values.shape), layout, self.limit, body)

    @names_sender
    def add(self, *parts: Encrypted) -> Encrypted:
        """Add ciphertexts of the same shape."""
        everything = range(len(parts))
        return next(self.add_groups(parts, [everything]))

    def add_groups(
        self, parts: Sequence[Encrypted], groups: Sequence[Sequence[int]]
    ) -> Iterator[Encrypted]:
        """Add several groups of ciphertexts. Each is read once, whatever the groups.

        All checks come first, so that nothing is computed if one group is wrong.
        """
        bounds = [self._bound_of(parts, group) for group in groups]
        first = parts[0]
        for part in parts[1:]:
            if (part.shape, part.layout) != (first.shape, first.layout):
                raise WireError(
                    f"Ciphertexts of shapes {list(first.shape)} and {list(part.shape)}"
                    " cannot be added."
                )
        opened = [self.ciphertexts_in(part) for part in parts]
        for group, bound in zip(groups, bounds, strict=True):
            total = self._sum([opened[place] for place in group])
            body = seal.ciphertexts_to_bytes(total)
            yield wrap(self, first.shape, first.layout, bound, body, first.hides)

    def _bound_of(self, parts: Sequence[Encrypted], group: Sequence[int]) -> float:
        """The largest size of a group's sum, or an error if it could overflow."""
        bound = sum(parts[place].bound for place in group)
        check_capacity(bound, self.capacity, scheme=self.scheme, what="The sum")
        return bound

    def _sum(self, terms: Sequence[list[Any]]) -> list[Any]:
        """Add lists of ciphertexts, place by place, and leave them as they are."""
        first, *others = terms
        if not others:
            return first
        total = []
        for place, ciphertext in enumerate(first):
            # Other groups may have the same terms, so the sum is a new ciphertext.
            place_sum = seal.sealapi().Ciphertext()
            self._evaluator.add(ciphertext, others[0][place], place_sum)
            for other in others[1:]:
                self._evaluator.add_inplace(place_sum, other[place])
            total.append(place_sum)
        return total

    @names_sender
    def product(self, x: Encrypted, matrix: Tensor, *, owner: str) -> Encrypted:
        """Multiply an encrypted vector by a plain matrix.

        A vector too long for one ciphertext is in several tiles. Each tile is
        multiplied by its own rows of the matrix, and the products are added.
        """
        self._check_use("products", "A product with a matrix")
        exact = checked_matrix(
            matrix,
            x,
            vector_size=math.prod(x.shape),
            largest_sum=self._largest_factor_sum(x),
            owner=owner,
            scheme=self.scheme,
        )
        blocks = torch.split(exact, self.tile_values)
        tiles = self._factors(x, "tiled")
        total: list[Any] = []
        for tile, block in zip(tiles, blocks, strict=True):
            self._add_tile_product(tile, self._numbers(block), total)
        return self._product_of(total, (matrix.shape[1],))

    def _add_tile_product(self, tile: Any, matrix: Numbers, total: list[Any]) -> None:
        """Add an encrypted vector times a matrix to `total`, by the diagonal method.

        Args:
            tile: The vector's ciphertext, which is rotated in place.
            matrix: As many rows as the vector has values.
            total: A ciphertext for each run of columns. It is empty at first.
        """
        # The vector is repeated with this period. Rows of zeros fill the matrix up.
        period = period_of(len(matrix))
        padded = np.pad(matrix, ((0, period - len(matrix)), (0, 0)))
        columns = self._columns_in_slots(padded)
        slot = np.arange(self.slots)
        for step in range(period):
            if step:
                self._rotate_by_one(tile)
            multiplicand = self._multiplicand(tile)
            value_in_slot = (slot + step) % period
            for run in range(columns.shape[1]):
                diagonal = columns[value_in_slot, run, slot]
                self._accumulate(total, run, self._times(multiplicand, diagonal))

    @names_sender
    def combine(self, weights: Tensor, rows: Encrypted, *, owner: str) -> Encrypted:
        """Add encrypted rows, each times its plain weight.

        A row may need several ciphertexts. Those of the same place in their rows are
        added.
        """
        self._check_use("combinations", "A weighted sum of rows")
        exact = checked_weights(
            weights,
            rows,
            largest=self.capacity,
            largest_sum=self._largest_factor_sum(rows),
            owner=owner,
            scheme=self.scheme,
        )
        width = rows.shape[1]
        parts = self._factors(rows, "rows")
        parts_per_row = math.ceil(width / self.row_values)
        total: list[Any] = []
        for row, weight in enumerate(self._numbers(exact)):
            same_weight = np.full(self.slots, weight)
            for chunk in range(parts_per_row):
                part = parts[row * parts_per_row + chunk]
                self._accumulate(total, chunk, self._times(part, same_weight))
        return self._product_of(total, (width,))

    @names_sender
    def ciphertexts_in(self, x: Encrypted, *layouts: str) -> list[Any]:
        """The ciphertexts inside, if x is of this key and in one of these layouts."""
        body = unwrap(self, x, *layouts)
        return seal.ciphertexts_from_bytes(body, self._context)

    # Steps that the schemes do in their own way

    @abstractmethod
    def product_error(self, matrix: Tensor) -> float: ...

    @abstractmethod
    def blind(self, x: Encrypted) -> tuple[Encrypted, list[Polynomial]]: ...

    @abstractmethod
    def unblind(self, opened: Encrypted, mask: list[Polynomial]) -> Tensor: ...

    @abstractmethod
    def _arranged(self, values: Tensor, layout: str) -> Sequence[Slots]:
        """Arrange values in the slots of as many ciphertexts as they need."""

    @abstractmethod
    def _encoded(self, slots: Slots) -> Any:
        """Encode slots as a plaintext that is encrypted or added."""

    @abstractmethod
    def _encoded_factor(self, slots: Slots, x: Any) -> Any:
        """Encode slots as a plaintext that the ciphertext x is multiplied by."""

    @abstractmethod
    def _numbers(self, values: Tensor) -> Numbers:
        """Plain values as the scheme multiplies them."""

    @abstractmethod
    def _columns_in_slots(self, matrix: Numbers) -> Numbers:
        """Arrange the columns of a matrix as those of a product.

        Returns [rows, ciphertexts, slots].
        """

    @abstractmethod
    def _rotate_by_one(self, x: Any) -> None:
        """Move each value of a tiled vector to the slot before it."""

    @abstractmethod
    def _multiplicand(self, x: Any) -> Any:
        """Give x in the form in which it is multiplied fastest."""

    @abstractmethod
    def _encrypted_zero(self, x: Any) -> Any:
        """Encrypt zeros, in the form of a product with the ciphertext x."""

    @abstractmethod
    def _finish(self, product: Any) -> None:
        """Turn a sum of products, in place, into a ciphertext that can be decrypted."""

    # Steps that they share

    def _encrypted(self, slots: Slots) -> Any:
        ciphertext = seal.sealapi().Ciphertext()
        self._encryptor.encrypt(self._encoded(slots), ciphertext)
        return ciphertext

    def _factors(self, x: Encrypted, layout: str) -> list[Any]:
        """The ciphertexts inside x, which are to be multiplied."""
        return self.ciphertexts_in(x, layout)

    def _times(self, x: Any, slots: Slots) -> Any:
        """Multiply a ciphertext by plain slots."""
        return self._times_encoded(x, self._encoded_factor(slots, x))

    def _times_encoded(self, x: Any, encoded: Any) -> Any:
        """Multiply a ciphertext by a plaintext that was encoded for it.

        SEAL refuses a product that everybody can see to be zero. A zero is encrypted
        instead.
        """
        if encoded.is_zero():
            return self._encrypted_zero(x)
        product = seal.sealapi().Ciphertext()
        self._evaluator.multiply_plain(x, encoded, product)
        return product

    def _accumulate(self, sums: list[Any], place: int, term: Any) -> None:
        """Add a ciphertext to one of the sums. The first term of a sum starts it."""
        if place == len(sums):
            sums.append(term)
        else:
            self._evaluator.add_inplace(sums[place], term)

    def _product_of(self, total: list[Any], shape: tuple[int, ...]) -> Encrypted:
        """Wrap the result of a product."""
        for part in total:
            self._finish(part)
        body = seal.ciphertexts_to_bytes(total)
        return wrap(self, shape, self.product_layout, self.capacity, body)

    def _without_mask(
        self, opened: Encrypted, mask: Sequence[Polynomial], modulus: int
    ) -> list[Polynomial]:
        """Subtract a mask from the numbers that came back under it.

        The numbers are the key holder's, and are checked: they must be as many as the
        mask has, and below the modulus.
        """
        body = unwrap(self, opened, "opened")
        parts = [np.frombuffer(part, dtype="<u8") for part in split_parts(body)]
        same_sizes = [len(part) for part in parts] == [len(hidden) for hidden in mask]
        too_large = any((part >= modulus).any() for part in parts)
        if too_large or not same_sizes:
            raise WireError(
                "What came back under the mask does not have the mask's size."
            )
        return [
            seal.subtract(part, hidden, modulus)
            for part, hidden in zip(parts, mask, strict=True)
        ]

    def _layout_of(self, values: Tensor) -> str:
        """The layout in which values are encrypted, for the use of these keys."""
        if self.use == "products":
            return "tiled"
        if self.use == "combinations" and values.dim() == 2:
            return "rows"
        return self.sum_layout

    def _check_use(self, needed: str, operation: str) -> None:
        if self.use != needed:
            raise ConfigError(
                f'{operation} needs {self.scheme} keys made for "{needed}"; these were'
                f' made for "{self.use}". Make them with make_keys("{self.scheme}",'
                f' use="{needed}").'
            )

    def _largest_factor_sum(self, x: Encrypted) -> float:
        """The largest sum of factors with which a product of x does not overflow.

        It follows from the key alone. If it followed from the ciphertext's own bound,
        its sender could learn the size of the plain factors: they are refused, or not,
        depending on the bound.
        """
        if x.bound != self.limit:
            raise WireError(
                f"A ciphertext of values up to {x.bound:g} came, and its key is for"
                f" {self.limit:g}."
            )
        return self.capacity / self.limit


K = TypeVar("K", bound=SealPublicKey)


class SealSecretKey(StaysInProcess, ABC, Generic[K]):
    """A secret key of CKKS or BFV. See `scheme.SecretKey` for what the methods do.

    The secret key itself is inside SEAL's decryptor.
    """

    __slots__ = ("_decryptor", "public")
    _decryptor: Any
    public: K

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        return self.public.encrypt(values, owner=owner)

    @abstractmethod
    def decrypt(self, x: Encrypted) -> Tensor: ...

    @names_sender
    def open_blinded(self, x: Encrypted) -> Encrypted:
        """Decrypt values under a mask, for the party that has the mask.

        Without the check, a party could have this key's holder decrypt what is not
        masked, and send it back.
        """
        if x.hides != "blinded":
            raise WireError("This ciphertext is under no mask; decrypt it.")
        plaintexts = self._plaintexts(x, self.public.product_layout)
        opened = [part.tobytes() for part in self._numbers_to_return(x, plaintexts)]
        body = join_parts(opened)
        return wrap(self.public, x.shape, "opened", x.bound, body, "blinded")

    @abstractmethod
    def _numbers_to_return(
        self, x: Encrypted, plaintexts: list[Any]
    ) -> list[Polynomial]:
        """The numbers, still under a mask, that the mask's maker gets back.

        They must not tell anything about this secret key.
        """

    def _check_noise(self, ciphertext: Any) -> None:
        """Raise if a ciphertext's noise has reached its values, where that is known."""

    def _plaintexts(self, x: Encrypted, *layouts: str) -> list[Any]:
        """Decrypt the ciphertexts inside x."""
        plaintexts = []
        for ciphertext in self.public.ciphertexts_in(x, *layouts):
            self._check_noise(ciphertext)
            plaintext = seal.sealapi().Plaintext()
            self._decryptor.decrypt(ciphertext, plaintext)
            plaintexts.append(plaintext)
        return plaintexts


# Arrangements


def period_of(count: int) -> int:
    """The smallest power of two that is not below `count`. It divides all slots."""
    return 1 << max(count - 1, 0).bit_length()


def tiled(values: Slots, slots: int) -> Slots:
    """Repeat values until they fill the slots.

    Rotating all slots, or each of BFV's two rows of them, then rotates the values.
    """
    padded = np.pad(values, (0, period_of(len(values)) - len(values)))
    return np.resize(padded, slots)


def cut(values: Numbers, size: int) -> list[Numbers]:
    """Cut values into runs of `size`. The last run may be shorter."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def decoded_rows(
    slots: list[Slots],
    shape: tuple[int, ...],
    decoded: Callable[[list[Slots], tuple[int, ...]], Tensor],
) -> Tensor:
    """Decode values [rows, ...], of which each row starts a ciphertext.

    Args:
        slots: The slots of all ciphertexts.
        shape: The shape of all values.
        decoded: Decodes the slots of one row, given its shape.
    """
    count = shape[0]
    if not count:
        return torch.empty(shape, dtype=torch.float64)
    per_row = len(slots) // count
    rows = []
    for row in range(count):
        row_slots = slots[row * per_row : (row + 1) * per_row]
        rows.append(decoded(row_slots, shape[1:]))
    return torch.stack(rows)
