"""Who decrypts tells an order and nothing else, and opens sums of several participants
only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from colonnade.core import Batches, Ciphertext, Organisation, Released
from colonnade.encryption import read_public_key
from colonnade.errors import PartyError
from colonnade.selection.sorting import (
    CAPACITY,
    AskPublicKey,
    Further,
    KeyServer,
    Orders,
    Sort,
    limit,
    packs,
)

NOTHING = Batches({}, batch_size=1, epochs=1, seed=0)
SEAT = Organisation.at("aggregation", NOTHING)


def numbers(*values: int) -> Released:
    return SEAT.outbox.release(torch.tensor(values, dtype=torch.int32), "candidates")


def server() -> KeyServer:
    return KeyServer(Organisation.at("keys", NOTHING), most=4)


def total(keys: KeyServer, *parts: list[float]) -> Ciphertext:
    public = read_public_key(
        keys.answer(AskPublicKey()).public,
        scheme=keys.sorter.secret.public.scheme,
        use="sums",
    )
    return SEAT.outbox.pass_on(
        public.add(
            *(
                public.encrypt(torch.tensor(part, dtype=torch.float64), owner="x")
                for part in parts
            )
        ),
        "total",
    )


def test_it_sorts_each_querys_candidates() -> None:
    keys = server()
    sums = total(keys, [3.0, 1.0, 2.0, 9.0, 8.0], [1.0, 1.0, -5.0, 0.0, 0.0])
    found = keys.answer(Sort(0, sums, numbers(3, 2), 2)).order
    assert found.tensor.tolist() == [[2, 1], [1, 0]]
    assert found.tensor.dtype == torch.int32
    rest = keys.answer(Further(0, numbers(0), 2, 5)).order
    assert rest.tensor.tolist() == [[0]]
    assert keys.sorter.operations == {"decryptions": 1}
    assert found.receipt.name == "order"


def test_groups_are_kept_apart_until_the_next_queries() -> None:
    keys = server()
    for group, values in enumerate(([1.0, 2.0], [2.0, 1.0])):
        keys.answer(Sort(group, total(keys, values, values), numbers(2), 1))
    assert [
        keys.answer(Further(g, numbers(0), 1, 2)).order.tensor.tolist() for g in (0, 1)
    ] == [[[1]], [[0]]]
    keys.answer(Sort(0, total(keys, [1.0], [1.0]), numbers(1), 1))
    with pytest.raises(
        PartyError, match="it has sorted nothing of group 1, so there is no more of it"
    ):
        keys.answer(Further(1, numbers(0), 0, 1))


def test_a_single_participants_distances_are_not_opened() -> None:
    keys = server()
    with pytest.raises(
        PartyError, match="it sorts sums of 2 or more participants, and this is of 1"
    ):
        keys.answer(Sort(0, total(keys, [1.0, 2.0]), numbers(2), 1))


def test_what_differs_by_less_than_the_noise_is_tied() -> None:
    noisy = np.array([1.0 + 2e-6, 0.5, 1.0, 1.0 + 1e-6])
    assert Orders(noisy, np.array([4], np.int32), 3e-6).part(0, 4).tolist() == [
        [1, 0, 2, 3]
    ]
    assert Orders(noisy, np.array([4], np.int32)).part(0, 4).tolist() == [[1, 2, 3, 0]]


def test_opened_values_are_the_sum_within_the_noise_that_is_told() -> None:
    keys = server()
    values, noise = keys.sorter.open(total(keys, [1.5, 2.0], [2.0, -7.25]))
    assert values == pytest.approx([3.5, -5.25], abs=noise)
    assert 0 < noise < 1e-4


def test_packs_are_the_ciphertexts_that_are_sent() -> None:
    from colonnade.encryption import make_keys
    from colonnade.encryption.scheme import split_parts

    for scheme in ("ckks", "bfv"):
        public = make_keys(scheme, limit=1.0).public
        for size in (1, 4096, 4097, 9000):
            encrypted = public.encrypt(torch.zeros(size), owner="x")
            assert packs(encrypted) == len(split_parts(encrypted.data[8:]))


def test_so_many_values_fit_into_a_sum() -> None:
    for scheme, capacity in CAPACITY.items():
        for most in range(2, 70):
            assert (
                sum([limit(scheme, most)] * most)
                <= capacity
                < 4 * sum([limit(scheme, most)] * most)
            )
