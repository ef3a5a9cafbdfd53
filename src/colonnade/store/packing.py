"""Plain values and arrays as one string of bytes: a line of JSON, then the arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import StoreError

Arrays = Mapping[str, NDArray[np.int64]]


def to_json(value: Any) -> str:
    """The one text of a plain value: the same value always gives the same text.

    NaN and infinities are refused, since not every reader of JSON knows them.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def pack(plain: Any, arrays: Arrays) -> bytes:
    """Write a plain value, and arrays of whole numbers in as few bytes as they fit."""
    narrow = {name: _narrowed(array) for name, array in arrays.items()}
    listed = [[name, array.dtype.str, len(array)] for name, array in narrow.items()]
    head = to_json({"plain": plain, "arrays": listed})
    return b"".join(
        [head.encode(), b"\n", *(array.tobytes() for array in narrow.values())]
    )


def unpack(data: bytes) -> tuple[Any, dict[str, NDArray[np.int64]]]:
    """Read what `pack` wrote."""
    line, _, rest = data.partition(b"\n")
    arrays: dict[str, NDArray[np.int64]] = {}
    try:
        head = json.loads(line)
        start = 0
        for name, kind, length in head["arrays"]:
            array = np.frombuffer(rest, dtype=kind, count=length, offset=start)
            arrays[name] = array.astype(np.int64)
            start += array.nbytes
        return head["plain"], arrays
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"What was packed cannot be read: {error}.") from None


def _narrowed(array: NDArray[np.int64]) -> NDArray[Any]:
    """The array in the smallest integer type that has room for its values."""
    lowest = int(array.min(initial=0))
    highest = int(array.max(initial=0))
    kind = np.result_type(np.min_scalar_type(lowest), np.min_scalar_type(highest))
    return array.astype(kind if np.issubdtype(kind, np.integer) else np.int64)
