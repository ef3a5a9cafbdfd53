"""Additive ElGamal on secp256k1: whole numbers whose sums others can form, many rows at
a time.

    secret   x_1 .. x_m                             public   X_j = x_j G
    a row    (r G, r X_1 + v_1 G, ..., r X_m + v_m G)
                                                    one fresh r for its m values

Points add up as their values do. The key's holder takes x_j r G off and finds v_j in a
table of multiples of G, so sums must stay small: some millions. Whoever adds must blind
the sums before they are sent (`ElGamalPublicKey.blind`): the key's holder knows every
r, and could otherwise try which rows make up a sum. A neutral element has no bytes and
is never sent.

ElGamal has 128 bits of strength and 33 bytes a point, and needs neither TenSEAL nor
large keys. Like all of these schemes it is malleable: whoever adds up can add up
something else.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core import workers
from colonnade.core.cipher import Encrypted
from colonnade.encryption import points as curve
from colonnade.encryption.points import (
    COMPRESSED_BYTES,
    NOTHING,
    ORDER,
    POINT_BYTES,
    SCALAR_BYTES,
    NotAPoint,
    Places,
    Points,
)
from colonnade.encryption.scheme import (
    StaysInProcess,
    checked_values,
    key_id,
    names_sender,
    unwrap,
    wrap,
)
from colonnade.errors import WireError

SCHEME = "elgamal"

ROWS = "rows"
"""The layout: the points of each row, one row after the other."""

MOST_VALUES = 2048
"""Values of a row."""

LARGEST_SUM = 2.0**31
"""The largest sum that can still be found."""

SMALLEST_TABLE = 1 << 10
LARGEST_TABLE = 1 << 16
"""Multiples of G in a table, in which the values of points are found."""

SECONDS_TO_ADD = 0.27e-6
SECONDS_TO_READ = 3.3e-6
SECONDS_TO_OPEN = 23e-6
"""About how long one point takes, to cut work into pieces."""

FIRST_HALF = slice(0, 32)
SECOND_HALF = slice(32, 64)
"""The coordinates x and y of a point in memory. P and -P have the same x."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class ElGamalPublicKey:
    """Reads rows that the secret key encrypted, adds them up, and blinds the sums.

    Args:
        data: The bytes of `to_bytes`, perhaps from a stranger.
    """

    scheme = SCHEME

    def __init__(self, data: bytes) -> None:
        count, remainder = divmod(len(data), COMPRESSED_BYTES)
        if remainder or not 0 < count <= MOST_VALUES:
            raise WireError(
                "An ElGamal key has 33 bytes for each value of a row; found"
                f" {len(data)} bytes."
            )
        compressed = np.frombuffer(data, dtype=np.uint8)
        try:
            points = curve.decompress(compressed.reshape(count, COMPRESSED_BYTES))
        except NotAPoint as error:
            raise WireError(f"These bytes are no ElGamal key: {error}.") from None
        self._bases = np.concatenate([curve.base_multiple(1), points])
        self._data = data
        self.values = count
        self.id = key_id(data)

    def to_bytes(self) -> bytes:
        return self._data

    @names_sender
    def read(self, x: Encrypted) -> Points:
        """Read rows of values, as many values as the key is for, or fewer.

        Returns the points [rows, 1 + values, 64], checked to be on the curve.
        """
        width = x.shape[1] if len(x.shape) == 2 else 0
        return _read_points(self, x, min(width, self.values))

    def group_sums(
        self,
        rows: Points,
        order: Places,
        starts: Places,
        values: Sequence[int],
        *,
        owner: str,
    ) -> Points:
        """Add up groups of rows. The sums are not blinded yet, and must not be sent.

        Args:
            rows: The points of `read`.
            order: The rows of all groups, one group after the other.
            starts: Where each group begins in `order`, and the end of the last one.
            values: The values of a row that are added up.
            owner: Who adds, for errors.

        Returns:
            [groups, 1 + values, 64]; zeros for an empty group.
        """
        columns = _columns_of(values)
        group_count = len(starts) - 1

        def arguments_for(groups: slice) -> Sequence[Any]:
            """The points of some groups, and the places of each group's terms."""
            own_starts = starts[groups.start : groups.stop + 1]
            own_order = order[own_starts[0] : own_starts[-1]]
            used_rows, places = _renumbered(own_order, len(rows))
            points = rows[used_rows, columns[:, None]]
            shape = np.array([len(columns)])
            return points, shape, places, own_starts - own_starts[0]

        terms_per_group = len(columns) * len(order) / max(group_count, 1)
        seconds = SECONDS_TO_ADD * terms_per_group
        sums = _computed(curve.ADD, group_count, seconds, arguments_for, owner)
        return sums.reshape(group_count, len(columns), POINT_BYTES)

    def blind(
        self, points: Points, places: Places, values: Sequence[int], *, owner: str
    ) -> bytes:
        """Add up points and blind the sums, under a fresh r for each line.

        Args:
            points: The points that are added up, [n, 64].
            places: The places of the terms of each sum, [lines, 1 + values, terms], and
                NOTHING where there is no term.
            values: The values of a row that each sum of a line is of.
            owner: Who adds, for errors.

        Returns:
            The lines as they are sent, for `wrap_lines`.
        """
        bases = self._bases[_columns_of(values)]
        line_count, width, term_count = places.shape

        def arguments_for(lines: slice) -> Sequence[Any]:
            """The points of some lines, and the places of each sum's terms."""
            used, own_places = _renumbered(places[lines], len(points))
            shape = np.array([width, term_count])
            return points[used], shape, own_places, bases

        # About half the terms are NOTHING. To blind a sum takes a term for each byte of
        # a scalar.
        terms_per_line = width * (term_count / 2 + SCALAR_BYTES)
        seconds = SECONDS_TO_ADD * terms_per_line
        lines = _computed(curve.BLIND, line_count, seconds, arguments_for, owner)
        return lines.tobytes()

    def wrap_lines(self, lines: bytes, shape: tuple[int, ...]) -> Encrypted:
        """Make a ciphertext of blinded lines."""
        return wrap(self, shape, ROWS, LARGEST_SUM, lines)


class ElGamalSecretKey(StaysInProcess):
    """Encrypts rows of whole numbers, and reads sums of them.

    Args:
        values: The number of values of a row.
    """

    __slots__ = ("_scalars", "public")

    def __init__(self, values: int) -> None:
        self._scalars = [1 + secrets.randbelow(ORDER - 1) for _ in range(values)]
        points = [curve.base_multiple(scalar) for scalar in self._scalars]
        self.public = ElGamalPublicKey(curve.compress(np.concatenate(points)).tobytes())

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        """Encrypt rows of whole numbers, [rows, values], or fewer values of each."""
        rows = self._checked_rows(values, owner)
        distinct, index = np.unique(rows, return_inverse=True)
        is_nonzero = distinct != 0
        points = curve.base_multiples(distinct[is_nonzero].tolist())
        # 0 times G is no point, and 0 adds nothing.
        place_of = np.full(len(distinct), NOTHING, dtype=np.int64)
        place_of[is_nonzero] = np.arange(len(points))
        value_places = place_of[index].reshape(rows.shape)
        # A row begins with r G, to which nothing is added.
        places = np.pad(value_places, ((0, 0), (1, 0)), constant_values=NOTHING)
        one_term = places[..., None]
        lines = self.public.blind(points, one_term, range(rows.shape[1]), owner=owner)
        return self.public.wrap_lines(lines, rows.shape)

    def decrypt(self, x: Encrypted) -> Tensor:
        """Decrypt all values of each row."""
        return self.decrypt_sums(x, [range(min(x.shape[-1], self.public.values))])

    @names_sender
    def decrypt_sums(
        self,
        x: Encrypted,
        blocks: Sequence[Sequence[int]],
        *,
        largest: float = LARGEST_SUM,
        may_be_negative: Sequence[bool] = (),
    ) -> Tensor:
        """Decrypt lines of sums.

        Args:
            x: The lines, in blocks of equal size.
            blocks: For each block, the values of a row that its sums are of.
            largest: The largest size of a sum. A larger one is refused.
            may_be_negative: For each value of a block, whether its sums may be far
                below 0. By default all.
        """
        width = len(blocks[0])
        largest = min(largest, LARGEST_SUM)
        lines = _read_points(self.public, x, width)
        if len(lines) % len(blocks):
            raise WireError(
                f"A ciphertext of {len(lines)} lines cannot be cut into {len(blocks)}"
                " blocks of equal size."
            )
        opened = self._opened(lines, blocks)
        points = opened.points.reshape(len(lines), width, POINT_BYTES)
        is_nonzero = ~opened.cancelled.reshape(len(lines), width)
        sums = np.zeros((len(lines), width))
        for column, far_below in enumerate(may_be_negative or [True] * width):
            signs = (1, -1) if far_below else (1,)
            places = np.flatnonzero(is_nonzero[:, column])
            sums[places, column] = logarithms(points[places, column], largest, signs)
        return torch.from_numpy(sums)

    def _checked_rows(self, values: Tensor, owner: str) -> NDArray[np.int64]:
        exact = checked_values(values, LARGEST_SUM, owner=owner, scheme=SCHEME)
        has_shape = exact.dim() == 2 and exact.shape[1] <= self.public.values
        if not has_shape or not bool((exact == exact.round()).all()):
            raise WireError(
                f"'{owner}' encrypts rows of up to {self.public.values} whole numbers"
                f" with ElGamal; found {list(exact.shape)}. Round them first."
            )
        return exact.to(torch.int64).numpy()

    def _opened(self, lines: Points, blocks: Sequence[Sequence[int]]) -> curve.Sums:
        """Take x_j r G off each r X_j + v_j G, which leaves v_j G.

        Returns one sum for each value of each line. It cancels out where v_j is 0.
        """
        width = len(blocks[0])
        lines_per_block = len(lines) // len(blocks)
        scalars = b""
        for block in blocks:
            minus_x = [curve.scalar_bytes(-self._scalars[value]) for value in block]
            scalars += b"".join(minus_x) * lines_per_block
        factors = np.frombuffer(scalars, dtype=np.uint8).reshape(-1, SCALAR_BYTES)
        firsts = np.repeat(lines[:, 0], width, axis=0)
        others = lines[:, 1:].reshape(-1, POINT_BYTES)

        def arguments_for(places: slice) -> Sequence[Any]:
            return firsts[places], factors[places], others[places]

        answers = workers.spread(
            curve.work, curve.OPEN, len(firsts), SECONDS_TO_OPEN, arguments_for
        )
        points = _concatenated(answers).reshape(-1, POINT_BYTES)
        return curve.Sums(points, _concatenated(answers, part=1) > 0)


# Values of points


def logarithms(
    points: Points, largest: float, signs: Sequence[int] = (1, -1)
) -> Floats:
    """Find v of each v G, by baby steps and giant steps.

    A table has all small multiples of G. A point that is not in the table is moved by
    multiples of the table's size until it is.

    Args:
        points: The points, [n, 64].
        largest: The largest size of v. Where there is no such v, a WireError is raised.
        signs: Where v is looked for: (1,) if none is far below 0.
    """
    table = _table(table_reach(largest))
    step = 2 * table.reach + 1
    values, is_known = table.find(points)
    values[~is_known] = np.nan
    step_count = int((largest + table.reach) // step)
    for number in range(1, step_count + 1):
        for sign in signs:
            unknown = np.flatnonzero(np.isnan(values))
            if not len(unknown):
                return values
            shift = sign * number * step
            moved = curve.pair_sums(points[unknown], _base_multiple(-shift))
            small, is_known = table.find(moved.points)
            small[moved.cancelled] = 0.0  # v is the shift itself
            is_known |= moved.cancelled
            values[unknown[is_known]] = small[is_known] + shift
    if np.isnan(values).any():
        raise WireError(
            f"A sum under ElGamal is no whole number from {-largest:.0f} to"
            f" {largest:.0f}, as it must be."
        )
    return values


class Multiples:
    """A table of 1 G .. reach G, in which multiples from -reach to reach are found.

    The table is sorted by the first bytes of x, which v G and -v G have in common.

    Args:
        reach: The largest multiple, a power of 2.
    """

    def __init__(self, reach: int) -> None:
        self.reach = reach
        points = curve.first_multiples(curve.base_multiple(1), reach)
        keys = _sorting_keys(points)
        order = np.argsort(keys)
        self._keys = keys[order]
        self._points = points[order]
        self._values = order + 1

    def find(self, points: Points) -> tuple[Floats, Flags]:
        """The value of each point, and whether it is in the table at all."""
        if not len(points):
            return np.zeros(0), np.zeros(0, dtype=np.bool_)
        places = np.searchsorted(self._keys, _sorting_keys(points))
        places = places.clip(max=len(self._keys) - 1)
        candidates = self._points[places]
        same_x = candidates[:, FIRST_HALF] == points[:, FIRST_HALF]
        same_y = candidates[:, SECOND_HALF] == points[:, SECOND_HALF]
        sign = np.where(same_y.all(1), 1.0, -1.0)
        return sign * self._values[places], same_x.all(1)


def _sorting_keys(points: Points) -> NDArray[np.uint64]:
    return points[:, :8].copy().view(np.uint64)[:, 0]


_table = cache(Multiples)
_base_multiple = cache(curve.base_multiple)


def table_reach(largest: float) -> int:
    """The size of a table that is worth its making for values of this size."""
    reach = SMALLEST_TABLE
    while reach < LARGEST_TABLE and reach * 16 < largest:
        reach *= 2
    return reach


# Many points at once


def _columns_of(values: Sequence[int]) -> Places:
    """The columns of points that belong to some values of a row: r G, and theirs."""
    return np.array([0, *(1 + value for value in values)], dtype=np.int64)


def _read_points(key: ElGamalPublicKey, x: Encrypted, values: int) -> Points:
    """The points of rows of so many values, [rows, 1 + values, 64].

    The rows may come from a stranger.
    """
    body = unwrap(key, x, ROWS)
    points_per_row = 1 + values
    has_shape = len(x.shape) == 2 and x.shape[1] == values
    if not has_shape or len(body) != x.shape[0] * points_per_row * COMPRESSED_BYTES:
        raise WireError(
            f"A ciphertext of ElGamal says {list(x.shape)}, and rows of {values} values"
            " were expected."
        )
    compressed = np.frombuffer(body, dtype=np.uint8).reshape(-1, COMPRESSED_BYTES)

    def arguments_for(places: slice) -> Sequence[Any]:
        return (compressed[places],)

    count = len(compressed)
    try:
        answers = workers.spread(
            curve.work, curve.DECOMPRESS, count, SECONDS_TO_READ, arguments_for
        )
    except workers.Wrong as wrong:
        raise WireError(
            "A ciphertext of ElGamal holds something else than points: point"
            f" {wrong.at} is not on the curve secp256k1."
        ) from None
    return _concatenated(answers).reshape(x.shape[0], points_per_row, POINT_BYTES)


def _renumbered(places: Places, count: int) -> tuple[Places, Places]:
    """Find which of `count` points are used, so that only they go to a process.

    Returns the used points, and the places among them. NOTHING stays as it is.
    """
    is_used = np.zeros(count + 1, dtype=np.bool_)
    is_used[places] = True
    is_used[NOTHING] = False  # the last entry stands for NOTHING, which is -1
    used = np.flatnonzero(is_used)
    new_place = np.full(count + 1, NOTHING, dtype=np.int64)
    new_place[used] = np.arange(len(used))
    return used, np.ascontiguousarray(new_place[places])


def _computed(
    kind: bytes,
    count: int,
    seconds: float,
    arguments_for: Callable[[slice], Sequence[Any]],
    owner: str,
) -> NDArray[np.uint8]:
    """Let several processes compute sums of points that others sent.

    Args:
        kind: The question, as `points.work` knows it.
        count: How many items there are.
        seconds: How long an item takes.
        arguments_for: Gives the arguments of the question about some of the items.
        owner: Who was sent the points, for the error.
    """
    try:
        answers = workers.spread(curve.work, kind, count, seconds, arguments_for)
    except workers.Wrong:
        raise WireError(
            f"'{owner}' was sent points that cancel out, which no honest encryption"
            " makes."
        ) from None
    return _concatenated(answers)


def _concatenated(answers: Sequence[Sequence[Any]], part: int = 0) -> NDArray[np.uint8]:
    """One part of several answers, one answer after the other."""
    parts = [np.frombuffer(answer[part], dtype=np.uint8) for answer in answers]
    return np.concatenate(parts)
