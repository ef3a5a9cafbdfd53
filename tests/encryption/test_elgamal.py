"""Additive ElGamal: sums are exact and leave blinded, and bytes that are no points are
refused."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade.algorithms.tree_equations import NO_COLUMNS
from colonnade.algorithms.tree_growing import Growing, SealedSlopes
from colonnade.core import workers
from colonnade.core.cipher import Encrypted
from colonnade.encryption import elgamal
from colonnade.encryption import points as curve
from colonnade.encryption.elgamal import (
    LARGEST_SUM,
    ElGamalPublicKey,
    ElGamalSecretKey,
    logarithms,
)
from colonnade.encryption.points import NOTHING, NotAPoint
from colonnade.encryption.scheme import unwrap, wrap
from colonnade.errors import BoundaryError, DataError, WireError


@cache
def key() -> ElGamalSecretKey:
    return ElGamalSecretKey(2)


def public() -> ElGamalPublicKey:
    """The public key as another party has it."""
    return ElGamalPublicKey(key().public.to_bytes())


def rows(*values: tuple[int, int]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 2)


def summed(encrypted: Encrypted, groups: list[list[int]]) -> Encrypted:
    """Add up groups of rows, and blind the sums, as a party with columns does."""
    points = public().read(encrypted)
    order = np.array([row for group in groups for row in group], dtype=np.int64)
    ends = np.cumsum([len(group) for group in groups])
    starts = np.concatenate([[0], ends]).astype(np.int64)
    sums = public().group_sums(points, order, starts, (0, 1), owner="lab")
    is_filled = np.diff(starts)[:, None] > 0
    own_places = np.arange(3 * len(groups)).reshape(-1, 3)
    places = np.where(is_filled, own_places, NOTHING)[:, :, None]
    lines = public().blind(sums.reshape(-1, 64), places, (0, 1), owner="lab")
    return public().wrap_lines(lines, (len(groups), 2))


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-(2**20), 2**20), st.integers(0, 2**20)), max_size=8)
)
def test_what_was_encrypted_is_decrypted(values: list[tuple[int, int]]) -> None:
    found = key().decrypt(key().encrypt(rows(*values), owner="bank"))
    assert torch.equal(found, rows(*values))


def test_sums_of_groups_are_exact_and_none_is_the_same_twice() -> None:
    values = rows((5, 1), (-7, 200), (127, 255), (0, 0), (-127, 3))
    encrypted = key().encrypt(values, owner="bank")
    groups = [[0, 1], [2, 4], [], [3], [0, 1, 2, 3, 4]]
    one = summed(encrypted, groups)
    other = summed(encrypted, groups)
    expected = torch.stack([values[group].sum(0) for group in groups])
    for made in (one, other):
        assert torch.equal(key().decrypt_sums(made, [(0, 1)]), expected)
    points = []
    for made in (one, other):
        body = unwrap(key().public, made)
        points += [body[at : at + 33] for at in range(0, len(body), 33)]
    assert len(set(points)) == len(points)


def test_who_knows_every_r_cannot_tell_which_rows_a_sum_is_of() -> None:
    """Without blinding, the first point of a sum is the sum of its rows' first points.

    The maker of the rows knows these.
    """
    encrypted = key().encrypt(rows((1, 1), (2, 2)), owner="bank")
    first = public().read(encrypted)[:, 0]
    total = curve.row_sums(first, np.arange(len(first))[None, :]).points
    sent = summed(encrypted, [[0, 1]])
    assert curve.compress(total).tobytes() not in sent.data


@settings(max_examples=30, deadline=None)
@given(st.integers(-(2**25), 2**25).filter(bool))
def test_a_logarithm_is_found_wherever_it_lies(value: int) -> None:
    assert logarithms(curve.base_multiple(value), 2.0**25).tolist() == [value]


def test_a_value_beyond_what_it_may_be_is_refused() -> None:
    with pytest.raises(WireError, match="no whole number from -1000 to 1000"):
        logarithms(curve.base_multiple(10**6), 1000)


def test_fixed_multiples_are_the_librarys() -> None:
    scalars = [1, 2, 255, 256, 257, curve.ORDER - 1, 2**255 + 12345]
    scalars += [curve.DIGIT_SHIFT, curve.DIGIT_SHIFT + 1]
    expected = [curve.base_multiple(scalar) for scalar in scalars]
    assert np.array_equal(curve.base_multiples(scalars), np.concatenate(expected))


def test_what_is_no_point_is_refused() -> None:
    encrypted = key().encrypt(rows((1, 1), (2, 2)), owner="bank")
    body = unwrap(key().public, encrypted)
    for bad in (b"\x00" * 33, b"\x05" + body[1:33], b"\x02" + b"\xff" * 32):
        spoilt = wrap(key().public, (2, 2), "rows", LARGEST_SUM, bad + body[33:])
        with pytest.raises(
            WireError, match="something else than points: point 0 is not on the curve"
        ):
            public().read(spoilt)
    with pytest.raises(NotAPoint):
        curve.decompress(np.zeros((1, 33), dtype=np.uint8))


def test_points_that_cancel_out_name_who_was_sent_them() -> None:
    """A label owner that sends r and -r would make sums without bytes."""
    first = public().read(key().encrypt(rows((3, 3)), owner="bank"))
    minus = np.frombuffer(curve.scalar_bytes(-1) * 3, np.uint8).reshape(-1, 32)
    negative = curve.multiply(first.reshape(-1, 64), minus).reshape(first.shape)
    rows_ = np.concatenate([first, negative])
    with pytest.raises(WireError, match="'lab' was sent points that cancel out"):
        public().group_sums(
            rows_, np.array([0, 1]), np.array([0, 2]), (0, 1), owner="lab"
        )


@pytest.mark.parametrize(
    ("places", "starts"),
    [
        ([0, 2], [0, 2]),
        ([0, -1], [0, 2]),
        ([0, 2**60], [0, 2]),
        ([0, 1], [0, 3]),
        ([0, 1], [-1, 2]),
        ([0, 1], [2, 0]),
    ],
)
def test_no_memory_is_read_but_that_of_points(
    places: list[int], starts: list[int]
) -> None:
    points = np.concatenate([curve.base_multiple(1), curve.base_multiple(2)])
    with pytest.raises(IndexError, match="points that are not there"):
        curve.group_sums(points, np.array(places), np.array(starts))
    for short in (np.zeros((2, 63), np.uint8), np.zeros(64, np.uint8), points[:, :33]):
        with pytest.raises(AssertionError):
            curve.multiply(short, np.ones((len(short), 32), np.uint8))
        with pytest.raises(AssertionError):
            curve.decompress(short[:, :-1] if short.ndim == 2 else short)


def test_an_empty_sum_is_not_added() -> None:
    """It has no bytes, and the library ends a process that is given it."""
    with pytest.raises(IndexError, match="what is no point"):
        curve.blind(
            curve.zeros(1), np.zeros((1, 1, 1), np.int64), curve.base_multiple(1)
        )


@pytest.mark.parametrize("count", [0, 1, 8, 41])
def test_processes_change_nothing(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines, blocks of lines, and groups, some of them empty, are cut into pieces."""
    alone = of_many(count)
    monkeypatch.setattr(workers, "START", 1e-9)
    monkeypatch.setattr(workers, "GRAIN", 4 * elgamal.SECONDS_TO_ADD)
    monkeypatch.setattr(workers, "cores", lambda: 3)
    monkeypatch.setattr(workers, "POOL", workers.Pool())
    together = of_many(count)
    assert sum(map(len, workers.POOL.idle.values())) > 0 or not count
    workers.POOL.end()
    assert all(map(np.array_equal, alone, together))


def of_many(count: int) -> list[np.ndarray]:
    """Everything that is computed in pieces: decrypted rows, and sums in groups."""
    values = torch.tensor(
        [[row - 5, row % 3] for row in range(count)], dtype=torch.float64
    ).reshape(-1, 2)
    encrypted = key().encrypt(values, owner="bank")
    ones = np.concatenate(
        [curve.base_multiple(1)] * 3 * count or [curve.zeros(0)]
    ).reshape(-1, 3, 64)
    starts = np.array([0, *(min(at * at, count) for at in range(9))])
    sums = public().group_sums(
        ones, np.arange(min(64, count)), starts, (0, 1), owner="lab"
    )
    found = [key().decrypt(encrypted).numpy(), sums, public().read(encrypted)[:0]]
    assert np.array_equal(found[0], values.numpy())
    if count % 2 == 0:
        found.append(key().decrypt_sums(encrypted, [(0, 1), (0, 1)]).numpy())
        assert np.array_equal(found[-1], values.numpy())
    return found


def test_where_nothing_was_divided_nothing_is_sent() -> None:
    slopes = SealedSlopes(
        public().read(key().encrypt(rows((1, 1)), owner="bank")), public(), "lab"
    )
    begun = Growing.begin(
        "train/0/0",
        0,
        slopes,
        np.arange(1),
        np.zeros((0, 1), np.uint8),
        NO_COLUMNS,
        NO_COLUMNS.candidates(),
        1,
    )
    assert slopes.sums(begun.divided(np.zeros((1, 1), np.uint8))).shape == (0, 2)


def test_who_sent_what_cannot_be_read_is_named() -> None:
    encrypted = key().encrypt(rows((1, 1)), owner="bank")
    wide = wrap(
        key().public, (1, 5), "rows", LARGEST_SUM, unwrap(key().public, encrypted) * 2
    )
    spoilt = wrap(key().public, (1, 2), "rows", LARGEST_SUM, b"\0" * 99)
    for bad in (wide, spoilt):
        for read in (public().read, key().decrypt):
            with pytest.raises(WireError, match="was sent by 'mallory'"):
                read(dataclasses.replace(bad, sender="mallory"))


def test_what_has_another_size_key_or_checksum_is_refused() -> None:
    encrypted = key().encrypt(rows((1, 1)), owner="bank")
    with pytest.raises(WireError, match="cannot be used with"):
        ElGamalSecretKey(2).public.read(encrypted)
    with pytest.raises(WireError, match="damaged"):
        public().read(
            Encrypted(
                "elgamal",
                encrypted.key,
                (1, 2),
                "rows",
                LARGEST_SUM,
                encrypted.data + b"0",
            )
        )
    lying = wrap(
        key().public, (7, 2), "rows", LARGEST_SUM, unwrap(key().public, encrypted)
    )
    with pytest.raises(
        WireError, match=r"says \[7, 2\], and rows of 2 values were expected"
    ):
        public().read(lying)
    for bad in (b"", b"\x02" * 32, b"\x00" * 66):
        with pytest.raises(WireError):
            ElGamalPublicKey(bad)


def test_only_whole_numbers_are_encrypted() -> None:
    with pytest.raises(WireError, match="Round them first"):
        key().encrypt(rows((1, 1)) + 0.5, owner="bank")
    with pytest.raises(DataError, match="'bank' has a value that it cannot encrypt"):
        key().encrypt(rows((1, 1)) * 2.0**40, owner="bank")


def test_a_secret_key_stays() -> None:
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(BoundaryError, match="does not leave the process"):
            leave(key())
    assert not any(hasattr(key(), name) for name in ("to_bytes", "__dict__"))
