"""Batches that whoever knows an id finds by itself: a row's place follows from its id,
and not from who else is there.

    train/3/17     training rows whose number of epoch 3 falls into the 17th of so many equal ranges
    test[2/8]      test rows whose number falls into the third of eight equal ranges

The agreed seed gives each id a number below 2^63, and each epoch makes another one of
it. So a party that holds some of a label owner's rows knows which of its rows are in a
batch, in which order, and nothing about the others of the batch. Where partners know a
row by different keys, no id is theirs alone: the label owner tells each the numbers of
its rows. Batches are about equally large, not exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

TOP = 63  # numbers are below 2^63
GOLDEN, FIRST, SECOND = (
    c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def numbers_of(ids: Iterable[str], seed: int, salt: str = "") -> Tensor:
    """The number that the seed gives each id; another one than that by which rows are
    divided. With a `salt` that others do not know, it tells nobody the id."""
    key = bytes.fromhex(salt)
    digests = (
        hashlib.blake2b(
            f"{seed}/batch/{row_id}".encode(), digest_size=8, key=key
        ).digest()
        for row_id in ids
    )
    numbers = np.frombuffer(b"".join(digests), dtype="<u8") >> np.uint64(1)
    return torch.from_numpy(numbers.astype(np.int64))


def of_epoch(numbers: Tensor, epoch: int) -> Tensor:
    """Each row's number in one epoch (splitmix64, in numbers that wrap around)."""
    step = (GOLDEN * (epoch + 1)) % 2**64
    x = numbers + (step - 2**64 if step >= 2**63 else step)
    x = (x ^ _right(x, 30)) * FIRST
    x = (x ^ _right(x, 27)) * SECOND
    return _right(x ^ _right(x, 31), 1)


def _right(x: Tensor, bits: int) -> Tensor:
    """A shift that fills up with zeros."""
    kept: int = 2 ** (64 - bits) - 1
    return (x >> bits).bitwise_and(kept)


def bounds(ascending: Tensor, number: int, count: int) -> tuple[int, int]:
    """Where the rows of one of `count` equal ranges begin and end, their numbers being
    in order."""
    edges = torch.tensor(
        [(number << TOP) // count, min(((number + 1) << TOP) // count, 2**TOP - 1)]
    )
    start, stop = torch.searchsorted(ascending, edges).tolist()
    return start, len(ascending) if number + 1 == count else stop
