"""Additive ElGamal on secp256k1: whole numbers whose sums can be formed by others, many rows at a time.

    secret   x_1 .. x_m                                      public   X_j = x_j G
    a row    (r G, r X_1 + v_1 G, ..., r X_m + v_m G)        with one fresh r for its m values

Points add up as their values do. The key's holder takes x_j r G off and finds v_j in a table of multiples of G, so sums
must stay small: some millions. Whoever adds must blind what it sends (`blinded`): the key's holder knows every r, and
could otherwise try which rows make up a sum. A neutral element has no bytes and is never sent.

It has 128 bits of strength and 33 bytes a point, and needs neither TenSEAL nor large keys. Like all of these schemes it
is malleable: who adds up can add up something else.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cache
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.cipher import Encrypted
from colonnade.encryption import points as curve
from colonnade.encryption.points import MEMORY, ORDER, WIRE, NotAPoint, Points
from colonnade.encryption.scheme import fingerprint, stays, unwrap, within, wrap
from colonnade.errors import WireError

SCHEME = "elgamal"
ROWS = "rows"  # the layout: each row's points one after the other
MOST_VALUES = 2048  # of a row
LARGEST = 2.0**31  # of a sum that can still be found
BABIES = 1 << 16


class ElGamalPublicKey:
    """Reads rows that its secret key encrypted, and adds them up."""

    scheme = SCHEME

    def __init__(self, data: bytes) -> None:
        count, left = divmod(len(data), WIRE)
        if left or not 0 < count <= MOST_VALUES:
            raise WireError(f"An ElGamal key has 33 bytes for each value of a row; found {len(data)} bytes.")
        try:
            self._points = curve.parsed(np.frombuffer(data, dtype=np.uint8).reshape(count, WIRE))
        except NotAPoint as error:
            raise WireError(f"These bytes are no ElGamal key: {error}.") from None
        self._data, self.values, self.id = data, count, fingerprint(data)
        self._bases: dict[int, curve.FixedBase] = {}

    def to_bytes(self) -> bytes:
        return self._data

    def read(self, x: Encrypted) -> Points:
        """The points of [rows, values] numbers, or fewer values, [rows, 1 + values, 64], checked to be on the curve."""
        width = x.shape[1] if len(x.shape) == 2 else 0
        return _read(self, x, min(width, self.values))

    def sums_of(
        self, rows: Points, order: NDArray[np.int64], starts: NDArray[np.int64], values: Sequence[int], *, owner: str
    ) -> tuple[Points, NDArray[np.uint64]]:
        """For each group order[starts[i] : starts[i + 1]] of rows the sums of these values, not blinded yet, and their
        addresses, [1 + values, groups] each; an empty group has no sum, and the address 0."""
        row_addresses, empty = curve.address(rows), np.diff(starts) == 0
        sums = curve.empty(1 + len(values), len(empty))
        addresses = curve.address(sums)
        for component, place in enumerate((0, *(1 + value for value in values))):
            neutral = curve.sums(row_addresses[order, place], starts, sums[component])
            if (neutral & ~empty).any():
                _cancelled(owner)
        addresses[:, empty] = 0
        return sums, addresses

    def blinded(self, parts: NDArray[np.uint64], values: Sequence[int], *, owner: str) -> Points:
        """Sums of points by their addresses, [n, 1 + values, k] (0: nothing to add), under a fresh r for each line."""
        count, width, most = parts.shape
        bases = [curve.generator(), *(self._base(value) for value in values)]
        sums = curve.empty(count * width)

        def blind_lines(first: int, last: int) -> None:
            digits = curve.random_digits(last - first)
            added = np.stack([base.addresses(digits) for base in bases], axis=1)
            addresses = np.concatenate([parts[first:last], added], axis=2).reshape(-1, most + curve.SCALAR)
            present = addresses != 0
            starts = np.concatenate([[0], np.cumsum(present.sum(1))]).astype(np.int64)
            if curve.sums(addresses[present], starts, sums[first * width : last * width]).any():
                _cancelled(owner)

        curve.in_threads(blind_lines, count)
        return sums

    def written(self, points: Points, shape: tuple[int, ...]) -> Encrypted:
        """Blinded points, to be sent."""
        return wrap(self, shape, ROWS, LARGEST, curve.formatted(points.reshape(-1, MEMORY)).tobytes())

    def _base(self, value: int) -> curve.FixedBase:
        if value not in self._bases:
            self._bases[value] = curve.FixedBase(self._points[value])
        return self._bases[value]


class ElGamalSecretKey:
    """Encrypts rows of whole numbers, and reads sums of them."""

    __slots__ = ("_x", "public")
    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = __getstate__ = stays

    def __init__(self, values: int) -> None:
        self._x = [1 + secrets.randbelow(ORDER - 1) for _ in range(values)]
        self.public = ElGamalPublicKey(curve.formatted(np.concatenate([curve.base(x) for x in self._x])).tobytes())

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        """[rows, values] whole numbers, as many values as the key is for, or fewer."""
        flat = within(values, LARGEST, owner=owner, scheme=SCHEME)
        if flat.dim() != 2 or flat.shape[1] > self.public.values or not bool((flat == flat.round()).all()):
            raise WireError(
                f"'{owner}' encrypts rows of up to {self.public.values} whole numbers with ElGamal; found "
                f"{list(flat.shape)}. Round them first."
            )
        rows = flat.to(torch.int64).numpy()
        distinct, index = np.unique(rows, return_inverse=True)
        points = curve.generator().times(curve.digits_of([value for value in distinct.tolist() if value]))
        addresses = np.zeros(len(distinct), dtype=np.uint64)
        addresses[distinct != 0] = curve.address(points)  # 0 has no point, and adds nothing
        parts = np.pad(addresses[index].reshape(rows.shape), ((0, 0), (1, 0)))[..., None]  # nothing is added to r G
        blinded = self.public.blinded(parts, range(rows.shape[1]), owner=owner)
        return self.public.written(blinded, tuple(flat.shape))

    def decrypt(self, x: Encrypted) -> Tensor:
        """Decrypt all values of each row."""
        return self.decrypt_sums(x, [range(x.shape[1] if len(x.shape) == 2 else 1)])

    def decrypt_sums(
        self, x: Encrypted, blocks: Sequence[Sequence[int]], *, most: float = LARGEST, negative: Sequence[bool] = ()
    ) -> Tensor:
        """Sums of values, none larger than `most`. The lines come in blocks of equal size, each with sums of the values
        that `blocks` names; `negative` says for each value whether its sums may be far below 0."""
        width, most = len(blocks[0]), min(most, LARGEST)
        points = _read(self.public, x, width)
        if len(points) % len(blocks):
            raise WireError(f"A ciphertext of {len(points)} lines cannot be of {len(blocks)} nodes.")
        size = len(points) // len(blocks)
        first = np.repeat(points[:, 0].reshape(len(blocks), size, MEMORY), width, axis=0)  # once for each value
        blinds = curve.multiplied(first, [-self._x[value] for block in blocks for value in block])
        blinds = np.moveaxis(blinds.reshape(len(blocks), width, size, MEMORY), 1, 2).copy()
        opened = curve.empty(len(points), width)
        pairs = np.stack([curve.address(points)[:, 1:].reshape(-1), curve.address(blinds).reshape(-1)], axis=1)
        zero = curve.rows_of(pairs, opened.reshape(-1, MEMORY)).reshape(len(points), width)
        sums = np.zeros((len(points), width))
        for column, below in enumerate(negative or [True] * width):
            nonzero = ~zero[:, column]
            sums[nonzero, column] = logarithms(opened[nonzero, column], most, (1, -1) if below else (1,))
        return torch.from_numpy(sums)


def logarithms(points: Points, most: float, signs: Sequence[int] = (1, -1)) -> NDArray[np.float64]:
    """v of each v G with 0 < |v| <= most, by a table of small multiples and steps of its size (baby steps and giant
    steps); WireError where there is none. With signs (1,) none is far below 0."""
    table = _table(_table_size(most))
    step = 2 * table.reach + 1
    values, known = table.find(points)
    values[~known] = np.nan
    for number in range(1, int((most + table.reach) // step) + 1):
        for sign in signs:
            unknown = np.flatnonzero(np.isnan(values))
            if not len(unknown):
                return values
            rest, giant = np.ascontiguousarray(points[unknown]), _giant(-sign * number * step)
            moved = curve.empty(len(unknown))
            giant_address = np.full(len(unknown), curve.address(giant)[0], dtype=np.uint64)
            exact = curve.rows_of(np.stack([curve.address(rest), giant_address], axis=1), moved)  # v is the step itself
            small, known = table.find(moved)
            small[exact], known = 0.0, known | exact
            values[unknown[known]] = small[known] + sign * number * step
    if np.isnan(values).any():
        raise WireError(f"A sum under ElGamal is no whole number from {-most:.0f} to {most:.0f}, as it must be.")
    return values


class _Table:
    """1 G .. reach G, sorted by their first bytes, which v G and -v G have in common."""

    def __init__(self, reach: int) -> None:
        self.reach, points = reach, curve.empty(reach)
        points[0], addresses = curve.base(1)[0], curve.address(points)
        known = 1
        while known < reach:
            pairs = np.stack([np.repeat(addresses[known - 1], known), addresses[:known]], axis=1)
            curve.rows_of(pairs, points[known : 2 * known])
            known *= 2
        keys = points[:, :8].copy().view(np.uint64)[:, 0]
        self._order = np.argsort(keys)
        self._keys, self._points = keys[self._order], points[self._order]

    def find(self, points: Points) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The values of the points, and which of these are in the table."""
        if not len(points):
            return np.zeros(0), np.zeros(0, dtype=np.bool_)
        keys = points[:, :8].copy().view(np.uint64)[:, 0]
        nearest = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        candidates = self._points[nearest]
        known = (candidates[:, :32] == points[:, :32]).all(1)
        sign = np.where((candidates[:, 32:] == points[:, 32:]).all(1), 1.0, -1.0)
        return sign * (self._order[nearest] + 1), known


_table = cache(_Table)
_giant = cache(curve.base)


def _table_size(most: float) -> int:
    reach = 1 << 10
    while reach < BABIES and reach * 16 < most:
        reach *= 2
    return reach


def _read(key: ElGamalPublicKey, x: Encrypted, values: int) -> Points:
    body = unwrap(key, x, ROWS)
    if len(x.shape) != 2 or x.shape[1] != values or len(body) != x.shape[0] * (1 + values) * WIRE:
        raise WireError(f"A ciphertext of ElGamal says {list(x.shape)}, and rows of {values} values were expected.")
    try:
        points = curve.parsed(np.frombuffer(body, dtype=np.uint8).reshape(-1, WIRE))
    except NotAPoint as error:
        raise WireError(f"A ciphertext of ElGamal holds something else than points: {error}.") from None
    return points.reshape(x.shape[0], 1 + values, MEMORY)


def _cancelled(owner: str) -> NoReturn:
    raise WireError(f"'{owner}' was sent points that cancel out, which no honest encryption makes.")
