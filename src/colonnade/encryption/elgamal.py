"""Additive ElGamal on secp256k1: whole numbers whose sums can be formed by others, many
rows at a time.

    secret   x_1 .. x_m                                      public   X_j = x_j G
    a row    (r G, r X_1 + v_1 G, ..., r X_m + v_m G)        with one fresh r for its m values

Points add up as their values do. The key's holder takes x_j r G off and finds v_j in a
table of multiples of G, so sums must stay small: some millions. Whoever adds must blind
what it sends (`blinded`): the key's holder knows every r, and could otherwise try which
rows make up a sum. A neutral element has no bytes and is never sent.

It has 128 bits of strength and 33 bytes a point, and needs neither TenSEAL nor large
keys. Like all of these schemes it is malleable: who adds up can add up something else.
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
from colonnade.encryption.points import MEMORY, ORDER, WIRE, NotAPoint, Places, Points
from colonnade.encryption.scheme import (
    fingerprint,
    refusing,
    stays,
    unwrap,
    within,
    wrap,
)
from colonnade.errors import WireError

SCHEME = "elgamal"
ROWS = "rows"  # the layout: each row's points one after the other
MOST_VALUES = 2048  # of a row
LARGEST = 2.0**31  # of a sum that can still be found
BABIES = 1 << 16
ADDING = 0.27e-6
PARSING = 3.3e-6
OPENING = 23e-6
"""Seconds for a point, about."""


class ElGamalPublicKey:
    """Reads rows that its secret key encrypted, and adds them up."""

    scheme = SCHEME

    def __init__(self, data: bytes) -> None:
        count, left = divmod(len(data), WIRE)
        if left or not 0 < count <= MOST_VALUES:
            raise WireError(
                "An ElGamal key has 33 bytes for each value of a row; found"
                f" {len(data)} bytes."
            )
        try:
            points = curve.parsed(
                np.frombuffer(data, dtype=np.uint8).reshape(count, WIRE)
            )
        except NotAPoint as error:
            raise WireError(f"These bytes are no ElGamal key: {error}.") from None
        # of a row's first number, and of each value
        self._bases = np.concatenate([curve.base(1), points])
        self._data = data
        self.values = count
        self.id = fingerprint(data)

    def to_bytes(self) -> bytes:
        return self._data

    @refusing
    def read(self, x: Encrypted) -> Points:
        """The points of [rows, values] numbers, or fewer values, [rows, 1 + values,
        64], checked to be on the curve."""
        width = x.shape[1] if len(x.shape) == 2 else 0
        return _read(self, x, min(width, self.values))

    def sums_of(
        self,
        rows: Points,
        order: Places,
        starts: Places,
        values: Sequence[int],
        *,
        owner: str,
    ) -> Points:
        """For each group order[starts[i] : starts[i + 1]] of rows the sums of these
        values, [groups, 1 + values, 64], not blinded yet; of an empty group nothing."""
        columns = np.array([0, *(1 + value for value in values)])
        groups = len(starts) - 1

        def question(piece: slice) -> Sequence[Any]:
            bounds = starts[piece.start : piece.stop + 1]
            needed, places = _compact(order[bounds[0] : bounds[-1]], len(rows))
            return (
                rows[needed, columns[:, None]],
                np.array(columns.shape),
                places,
                bounds - bounds[0],
            )

        seconds = ADDING * len(columns) * len(order) / max(groups, 1)
        return _computed(curve.ADD, groups, seconds, question, owner).reshape(
            groups, len(columns), MEMORY
        )

    def blinded(
        self, points: Points, parts: Places, values: Sequence[int], *, owner: str
    ) -> bytes:
        """Sums of some points, to be sent, under a fresh r for each line; `parts` are
        [n, 1 + values, k] places of them, and -1 where there is nothing to add."""
        bases = self._bases[[0, *(1 + value for value in values)]]

        def question(piece: slice) -> Sequence[Any]:
            needed, places = _compact(parts[piece], len(points))
            return points[needed], np.array(parts.shape[1:]), places, bases

        seconds = ADDING * parts.shape[1] * (parts.shape[2] / 2 + curve.SCALAR)
        return _computed(curve.BLIND, len(parts), seconds, question, owner).tobytes()

    def written(self, blinded: bytes, shape: tuple[int, ...]) -> Encrypted:
        return wrap(self, shape, ROWS, LARGEST, blinded)


class ElGamalSecretKey:
    """Encrypts rows of whole numbers, and reads sums of them."""

    __slots__ = ("_x", "public")
    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = __getstate__ = stays

    def __init__(self, values: int) -> None:
        self._x = [1 + secrets.randbelow(ORDER - 1) for _ in range(values)]
        self.public = ElGamalPublicKey(
            curve.formatted(np.concatenate([curve.base(x) for x in self._x])).tobytes()
        )

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        """[rows, values] whole numbers, as many values as the key is for, or fewer."""
        flat = within(values, LARGEST, owner=owner, scheme=SCHEME)
        if (
            flat.dim() != 2
            or flat.shape[1] > self.public.values
            or not bool((flat == flat.round()).all())
        ):
            raise WireError(
                f"'{owner}' encrypts rows of up to {self.public.values} whole numbers"
                f" with ElGamal; found {list(flat.shape)}. Round them first."
            )
        rows = flat.to(torch.int64).numpy()
        distinct, index = np.unique(rows, return_inverse=True)
        points = curve.bases([value for value in distinct.tolist() if value])
        places = np.full(len(distinct), -1, dtype=np.int64)
        # 0 has no point, and adds nothing
        places[distinct != 0] = np.arange(len(points))
        # nothing to r G
        parts = np.pad(
            places[index].reshape(rows.shape), ((0, 0), (1, 0)), constant_values=-1
        )
        blinded = self.public.blinded(
            points, parts[..., None], range(rows.shape[1]), owner=owner
        )
        return self.public.written(blinded, tuple(flat.shape))

    def decrypt(self, x: Encrypted) -> Tensor:
        """Decrypt all values of each row."""
        return self.decrypt_sums(x, [range(min(x.shape[-1], self.public.values))])

    @refusing
    def decrypt_sums(
        self,
        x: Encrypted,
        blocks: Sequence[Sequence[int]],
        *,
        most: float = LARGEST,
        negative: Sequence[bool] = (),
    ) -> Tensor:
        """Sums of values, none larger than `most`. The lines come in blocks of equal
        size, each with sums of the values that `blocks` names; `negative` says for each
        value whether its sums may be far below 0."""
        width = len(blocks[0])
        most = min(most, LARGEST)
        points = _read(self.public, x, width)
        if len(points) % len(blocks):
            raise WireError(
                f"A ciphertext of {len(points)} lines cannot be of {len(blocks)} nodes."
            )
        size = len(points) // len(blocks)
        opened, zero = _opened(
            points, [[self._x[value] for value in block] for block in blocks], size
        )
        sums = np.zeros((len(points), width))
        for column, below in enumerate(negative or [True] * width):
            nonzero = ~zero[:, column]
            sums[nonzero, column] = logarithms(
                opened[nonzero, column], most, (1, -1) if below else (1,)
            )
        return torch.from_numpy(sums)


def _opened(
    points: Points, secret: Sequence[Sequence[int]], size: int
) -> tuple[Points, NDArray[np.bool_]]:
    """Of lines (r G, r X_1 + v_1 G, ..) the points v_j G, and where v_j is 0; so many
    lines have the same x_j each."""
    lines = len(points)
    width = len(secret[0])
    scalars = np.frombuffer(
        b"".join(curve.scalar_bytes(-x) for block in secret for x in block),
        dtype=np.uint8,
    )
    minus = np.repeat(scalars.reshape(len(secret), -1), size, axis=0).reshape(
        -1, curve.SCALAR
    )
    first = np.repeat(points[:, 0], width, axis=0)
    second = points[:, 1:].reshape(-1, MEMORY)
    answers = workers.spread(
        curve.work,
        curve.OPEN,
        len(first),
        OPENING,
        lambda piece: (first[piece], minus[piece], second[piece]),
    )
    return (
        _joined(answers).reshape(lines, width, MEMORY),
        _joined(answers, 1).reshape(lines, width) > 0,
    )


def logarithms(
    points: Points, most: float, signs: Sequence[int] = (1, -1)
) -> NDArray[np.float64]:
    """v of each v G with 0 < |v| <= most, by a table of small multiples and steps of
    its size (baby steps and giant steps); WireError where there is none. With signs
    (1,) none is far below 0."""
    table = _table(_table_size(most))
    step = 2 * table.reach + 1
    values, known = table.find(points)
    values[~known] = np.nan
    for number in range(1, int((most + table.reach) // step) + 1):
        for sign in signs:
            unknown = np.flatnonzero(np.isnan(values))
            if not len(unknown):
                return values
            moved, exact = curve.pair_sums(
                points[unknown], _giant(-sign * number * step)
            )
            small, known = table.find(moved)
            small[exact], known = 0.0, known | exact  # v is the step itself
            values[unknown[known]] = small[known] + sign * number * step
    if np.isnan(values).any():
        raise WireError(
            f"A sum under ElGamal is no whole number from {-most:.0f} to {most:.0f}, as"
            " it must be."
        )
    return values


class _Table:
    """1 G .. reach G, sorted by their first bytes, which v G and -v G have in common."""

    def __init__(self, reach: int) -> None:
        self.reach = reach
        points = curve.first_multiples(curve.base(1), reach)
        keys = points[:, :8].copy().view(np.uint64)[:, 0]
        self._order = np.argsort(keys)
        self._keys = keys[self._order]
        self._points = points[self._order]

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
    if (
        len(x.shape) != 2
        or x.shape[1] != values
        or len(body) != x.shape[0] * (1 + values) * WIRE
    ):
        raise WireError(
            f"A ciphertext of ElGamal says {list(x.shape)}, and rows of {values} values"
            " were expected."
        )
    count = len(body) // WIRE
    data = np.frombuffer(body, dtype=np.uint8).reshape(count, WIRE)
    try:
        points = _joined(
            workers.spread(
                curve.work, curve.PARSE, count, PARSING, lambda piece: (data[piece],)
            )
        )
    except workers.Wrong as wrong:
        raise WireError(
            "A ciphertext of ElGamal holds something else than points: point"
            f" {wrong.at} is not on the curve secp256k1."
        ) from None
    return points.reshape(x.shape[0], 1 + values, MEMORY)


def _compact(places: Places, count: int) -> tuple[Places, Places]:
    """Which of so many points are named, and where these are among them; -1 stays."""
    named = np.zeros(count + 1, dtype=np.bool_)
    named[places] = True
    named[-1] = False
    needed = np.flatnonzero(named)
    number = np.full(count + 1, -1, dtype=np.int64)
    number[needed] = np.arange(len(needed))
    return needed, np.ascontiguousarray(number[places])


def _computed(
    kind: bytes,
    count: int,
    seconds: float,
    question: Callable[[slice], Sequence[Any]],
    owner: str,
) -> NDArray[np.uint8]:
    """What processes made of points."""
    try:
        return _joined(workers.spread(curve.work, kind, count, seconds, question))
    except workers.Wrong:
        raise WireError(
            f"'{owner}' was sent points that cancel out, which no honest encryption"
            " makes."
        ) from None


def _joined(answers: Sequence[Sequence[Any]], part: int = 0) -> NDArray[np.uint8]:
    """A part of several answers, one after the other."""
    return np.concatenate(
        [np.frombuffer(answer[part], dtype=np.uint8) for answer in answers]
    )
