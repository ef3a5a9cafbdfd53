"""Additive ElGamal on secp256k1: whole numbers whose sums can be formed by others, many rows at a time.

    secret   x_1 .. x_m                                      public   X_j = x_j G
    a row    (r G, r X_1 + v_1 G, ..., r X_m + v_m G)        with one fresh r for its m values

Points add up as their values do. The key's holder takes x_j r G off and finds v_j in a table of multiples of G, so sums
must stay small: some millions. Whoever adds must blind what it sends (`sums_of` does): the key's holder knows every r,
and could else try which rows make up a sum. A neutral element has no bytes and is never sent.

128 bits of strength, 33 bytes a point; it needs neither TenSEAL nor large keys. It is malleable as any of these
schemes: who adds up can add up something else.
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
        """The points of [rows, values] numbers, [rows, 1 + values, 64]: each is checked to be on the curve. Rows may
        have fewer values than the key is for: its first ones."""
        wide = x.shape[1] if len(x.shape) == 2 else 0
        return _read(self, x, min(wide, self.values))

    def sums_of(
        self, rows: Points, order: NDArray[np.int64], starts: NDArray[np.int64], values: Sequence[int], *, owner: str
    ) -> tuple[Points, NDArray[np.uint64]]:
        """For each group order[starts[i] : starts[i + 1]] of rows the sums of these values, not blinded yet, and where
        they lie, [1 + values, groups] each; an empty group has no sum, and lies at 0."""
        where, wide, empty = curve.address(rows), 1 + len(values), np.diff(starts) == 0
        made = curve.empty(wide, len(empty))
        lie = curve.address(made)
        for component, place in enumerate((0, *(1 + value for value in values))):
            none = curve.sums(where[order, place], starts, made[component])
            if (none & ~empty).any():
                _cancelled(owner)
        lie[:, empty] = 0
        return made, lie

    def blinded(self, parts: NDArray[np.uint64], values: Sequence[int], *, owner: str) -> Points:
        """Sums of points by their addresses, [n, 1 + values, k] (0: nothing to add), under a fresh r for each line."""
        count, wide, most = parts.shape
        bases = [curve.generator(), *(self._base(value) for value in values)]
        made = curve.empty(count * wide)

        def some(first: int, last: int) -> None:
            digits = curve.random_digits(last - first)
            added = np.stack([base.addresses(digits) for base in bases], axis=1)
            every = np.concatenate([parts[first:last], added], axis=2).reshape(-1, most + curve.SCALAR)
            there = every != 0
            starts = np.concatenate([[0], np.cumsum(there.sum(1))]).astype(np.int64)
            if curve.sums(every[there], starts, made[first * wide : last * wide]).any():
                _cancelled(owner)

        curve.in_threads(some, count)
        return made

    def written(self, points: Points, shape: tuple[int, ...]) -> Encrypted:
        """What was blinded, to be sent."""
        return wrap(self, shape, ROWS, LARGEST, curve.formatted(points.reshape(-1, MEMORY)).tobytes())

    def _base(self, value: int) -> curve.FixedBase:
        if value not in self._bases:
            self._bases[value] = curve.FixedBase(self._points[value])
        return self._bases[value]


class ElGamalSecretKey:
    """Encrypts rows of whole numbers, and reads sums of them."""

    __slots__ = ("_public", "_x")
    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = __getstate__ = stays

    def __init__(self, values: int) -> None:
        self._x = [1 + secrets.randbelow(ORDER - 1) for _ in range(values)]
        self._public = ElGamalPublicKey(curve.formatted(np.concatenate([curve.base(x) for x in self._x])).tobytes())

    @property
    def public(self) -> ElGamalPublicKey:
        return self._public

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        """[rows, values] whole numbers, as many values as the key is for, or fewer."""
        flat = within(values, LARGEST, owner=owner, scheme=SCHEME)
        if flat.dim() != 2 or flat.shape[1] > self._public.values or not bool((flat == flat.round()).all()):
            raise WireError(
                f"'{owner}' encrypts rows of up to {self._public.values} whole numbers with ElGamal; found "
                f"{list(flat.shape)}. Round them first."
            )
        rows = flat.to(torch.int64).numpy()
        different, which = np.unique(rows, return_inverse=True)
        points = curve.generator().times(curve.digits_of([value for value in different.tolist() if value]))
        lie = np.zeros(len(different), dtype=np.uint64)
        lie[different != 0] = curve.address(points)  # 0 has no point, and adds nothing
        parts = np.pad(lie[which].reshape(rows.shape), ((0, 0), (1, 0)))[..., None]  # r G has nothing to add to it
        made = self._public.blinded(parts, range(rows.shape[1]), owner=owner)
        return self._public.written(made, tuple(flat.shape))

    def decrypt(self, x: Encrypted) -> Tensor:
        """All values of a row."""
        return self.decrypt_sums(x, [range(x.shape[1] if len(x.shape) == 2 else 1)])

    def decrypt_sums(
        self, x: Encrypted, blocks: Sequence[Sequence[int]], *, most: float = LARGEST, negative: Sequence[bool] = ()
    ) -> Tensor:
        """Sums of values, of which none is larger than `most`. The lines come in blocks of equal size, each of which
        has sums of the values that `blocks` names; `negative` says of each whether sums may be far below 0."""
        wide, most = len(blocks[0]), min(most, LARGEST)
        points = _read(self._public, x, wide)
        if len(points) % len(blocks):
            raise WireError(f"A ciphertext of {len(points)} lines cannot be of {len(blocks)} nodes.")
        size = len(points) // len(blocks)
        off, made = curve.empty(*points.shape[:2])[:, 1:].copy(), curve.empty(len(points), wide)
        for number, block in enumerate(blocks):
            lines = slice(number * size, (number + 1) * size)
            for column, value in enumerate(block):
                off[lines, column] = curve.multiplied(points[lines, 0], -self._x[value])
        pairs = np.stack([curve.address(points)[:, 1:].reshape(-1), curve.address(off).reshape(-1)], axis=1)
        zero = curve.rows_of(pairs, made.reshape(-1, MEMORY))
        found, there = np.zeros((len(points), wide)), ~zero.reshape(len(points), wide)
        for column, below in enumerate(negative or [True] * wide):
            mine = there[:, column]
            found[mine, column] = logarithms(made[mine, column], most, (1, -1) if below else (1,))
        return torch.from_numpy(found)


def logarithms(points: Points, most: float, signs: Sequence[int] = (1, -1)) -> NDArray[np.float64]:
    """v of each v G with 0 < |v| <= most, by a table of small ones and steps over it; WireError where there is none.
    With signs (1,) none is far below 0."""
    table = _table(_babies(most))
    step = 2 * table.reach + 1
    found, left = np.full(len(points), np.nan), np.arange(len(points))
    value, known = table.find(points)
    found[left[known]] = value[known]
    for number in range(1, int((most + table.reach) // step) + 1):
        for sign in signs:
            left = np.flatnonzero(np.isnan(found))
            if not len(left):
                return found
            rest, giant = np.ascontiguousarray(points[left]), table.giant(-sign * number * step)
            made = curve.empty(len(left))
            there = curve.address(giant)[0]
            pairs = np.stack([curve.address(rest), np.full(len(left), there, dtype=np.uint64)], axis=1)
            exact = curve.rows_of(pairs, made)  # nothing is left: it is the step itself
            value, known = table.find(made)
            value[exact], known = 0.0, known | exact
            found[left[known]] = value[known] + sign * number * step
    if np.isnan(found).any():
        raise WireError(f"A sum under ElGamal is no whole number from {-most:.0f} to {most:.0f}, as it must be.")
    return found


class _Table:
    """1 G .. reach G, sorted by their first bytes, which v G and -v G have in common."""

    def __init__(self, reach: int) -> None:
        self.reach, points = reach, curve.empty(reach)
        points[0], where = curve.base(1)[0], curve.address(points)
        known = 1
        while known < reach:
            pairs = np.stack([np.repeat(where[known - 1], known), where[:known]], axis=1)
            curve.rows_of(pairs, points[known : 2 * known])
            known *= 2
        keys = points[:, :8].copy().view(np.uint64)[:, 0]
        self._order = np.argsort(keys)
        self._keys, self._points = keys[self._order], points[self._order]
        self._giants: dict[int, Points] = {}

    def find(self, points: Points) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The values, and where they are in the table."""
        if not len(points):
            return np.zeros(0), np.zeros(0, dtype=np.bool_)
        keys = points[:, :8].copy().view(np.uint64)[:, 0]
        at = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        there = self._points[at]
        known = (there[:, :32] == points[:, :32]).all(1)
        sign = np.where((there[:, 32:] == points[:, 32:]).all(1), 1.0, -1.0)
        return sign * (self._order[at] + 1), known

    def giant(self, value: int) -> Points:
        if value not in self._giants:
            self._giants[value] = curve.base(value)
        return self._giants[value]


def _babies(most: float) -> int:
    reach = 1 << 10
    while reach < BABIES and reach * 16 < most:
        reach *= 2
    return reach


@cache
def _table(reach: int) -> _Table:
    return _Table(reach)


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
