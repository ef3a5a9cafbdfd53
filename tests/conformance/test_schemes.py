"""The laws of every encryption scheme. A scheme joins by a line in
`encryption.SCHEMES`."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from colonnade.core import Encrypted, Envelope, Message, Outbox
from colonnade.core.cipher import Ciphertext
from colonnade.core.wire import decode, encode
from colonnade.encryption import (
    SCHEMES,
    USES,
    PublicKey,
    SecretKey,
    make_keys,
    read_public_key,
)
from colonnade.errors import (
    BoundaryError,
    ColonnadeError,
    ConfigError,
    DataError,
    WireError,
)

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
every_use = pytest.mark.parametrize("use", USES)
LIMIT = 50.0
FLOAT64 = 1e-12


class Crossing(Message):
    value: Ciphertext


def keys(scheme: str, use: str = "sums", number: int = 0) -> SecretKey:
    """Keys that are made once, since that takes long. Another number is another key."""
    return cached_keys(scheme, use, number)


@functools.cache
def cached_keys(scheme: str, use: str, number: int) -> SecretKey:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of "plain"
        return make_keys(scheme, use=use, limit=LIMIT)


def remote(scheme: str, use: str = "sums") -> PublicKey:
    """The public key as another party has it."""
    return read_public_key(
        keys(scheme, use).public.to_bytes(), scheme=scheme, use=use, limit=LIMIT
    )


def random(*shape: int, seed: int = 0) -> Tensor:
    """Numbers from -LIMIT to LIMIT."""
    generator = Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1) * LIMIT


def largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


@every_scheme
@every_use
@pytest.mark.parametrize(
    "shape", [(0,), (1,), (3, 2), (9000,), (2, 9000), (0, 4), ()], ids=str
)
def test_what_was_encrypted_is_decrypted(
    scheme: str, use: str, shape: tuple[int, ...]
) -> None:
    x = random(*shape)
    public = remote(scheme, use)
    encrypted = public.encrypt(x, owner="ada")
    assert (encrypted.scheme, encrypted.key, encrypted.shape) == (
        scheme,
        keys(scheme, use).public.id,
        shape,
    )
    back = keys(scheme, use).decrypt(encrypted)
    assert back.shape == shape
    assert back.dtype == torch.float64
    assert largest(back - x) <= public.error


@every_scheme
@settings(max_examples=15)
@given(st.lists(st.floats(-LIMIT, LIMIT), max_size=12), st.integers(1, 5))
def test_a_sum_over_parties_is_off_by_no_more_than_the_scheme_says(
    scheme: str, values: list[float], parties: int
) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    public = remote(scheme)
    parts = [x / (k + 1) for k in range(parties)]
    encrypted = [
        public.encrypt(part, owner=f"party {k}") for k, part in enumerate(parts)
    ]
    before = [part.data for part in encrypted]
    total = keys(scheme).decrypt(public.add(*encrypted))
    assert (
        largest(total - torch.stack(parts).sum(0)) <= parties * public.error + FLOAT64
    )
    assert [part.data for part in encrypted] == before


@every_scheme
def test_sums_of_groups_are_the_sums_of_each(scheme: str) -> None:
    public = remote(scheme)
    parts = [random(5000, seed=seed) for seed in range(4)]
    encrypted = [public.encrypt(part, owner="ada") for part in parts]
    groups = [[0, 1], [3], [2, 0, 3], [0, 1, 2, 3]]
    for group, total in zip(groups, public.add_groups(encrypted, groups), strict=True):
        expected = torch.stack([parts[at] for at in group]).sum(0)
        assert (
            largest(keys(scheme).decrypt(total) - expected)
            <= len(group) * public.error + FLOAT64
        )
        assert total.bound == public.add(*(encrypted[at] for at in group)).bound


@every_scheme
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (7, 9000), (40, 3)])
def test_a_vector_times_a_matrix(scheme: str, rows: int, columns: int) -> None:
    x = random(rows) / LIMIT
    matrix = random(rows, columns, seed=1) / 20
    matrix[0] = 0
    public = remote(scheme, "products")
    secret = keys(scheme, "products")
    product = public.product(public.encrypt(x, owner="ada"), matrix, owner="bob")
    assert product.shape == (columns,)
    error = public.product_error(matrix)
    assert error < 2e-3
    assert largest(secret.decrypt(product) - x @ matrix) <= error
    blinded, mask = public.blind(product)
    assert (
        largest(public.unblind(secret.open_blinded(blinded), mask) - x @ matrix)
        <= error
    )


@every_scheme
def test_weighted_rows_add_up(scheme: str) -> None:
    w = random(6) / LIMIT
    rows = random(6, 9000, seed=1)
    w[2] = 0.0
    public = remote(scheme, "combinations")
    total = keys(scheme, "combinations").decrypt(
        public.combine(w, public.encrypt(rows, owner="ada"), owner="bob")
    )
    assert largest(total - w @ rows) <= public.error * (
        w.abs().sum() + len(w) * LIMIT + 1
    )


@every_scheme
def test_it_crosses_as_bytes_and_can_be_computed_with_there(scheme: str) -> None:
    x = random(7)
    outbox = Outbox("ada", Generator().manual_seed(0))
    sent = outbox.encrypt(x, "distances", "train/0/0", key=remote(scheme))
    got: Crossing = decode(encode(Envelope("ada", 1, Crossing(sent)))).message
    assert got.value.encrypted == sent.encrypted
    assert got.value.receipt == sent.receipt
    doubled = remote(scheme).add(got.value.encrypted, got.value.encrypted)
    assert (
        largest(keys(scheme).decrypt(doubled) - 2 * x) <= 2 * keys(scheme).public.error
    )


@every_scheme
def test_another_key_is_noticed_and_named(scheme: str) -> None:
    mine = keys(scheme)
    other = keys(scheme, number=1)
    assert mine.public.id != other.public.id
    encrypted = mine.public.encrypt(random(3), owner="ada")
    for use in (
        lambda: other.decrypt(encrypted),
        lambda: other.public.add(
            other.public.encrypt(random(3), owner="bob"), encrypted
        ),
        lambda: keys("ckks" if scheme != "ckks" else "bfv").decrypt(encrypted),
    ):
        with pytest.raises(WireError, match=mine.public.id):
            use()


@every_scheme
@pytest.mark.parametrize(
    "damage",
    [
        lambda x: dataclasses.replace(x, data=x.data[:-1]),
        lambda x: dataclasses.replace(
            x, data=x.data[:40] + bytes([x.data[40] ^ 1]) + x.data[41:]
        ),
        lambda x: dataclasses.replace(x, data=b""),
        lambda x: dataclasses.replace(x, shape=(4,)),
        lambda x: dataclasses.replace(x, bound=1.0),
        lambda x: dataclasses.replace(x, layout="opened"),
        lambda x: dataclasses.replace(x, hides="blinded"),
    ],
    ids=["cut", "one bit", "empty", "shape", "bound", "layout", "hides"],
)
def test_damage_is_noticed(
    scheme: str, damage: Callable[[Encrypted], Encrypted]
) -> None:
    bad = damage(keys(scheme).public.encrypt(random(6), owner="ada"))
    with pytest.raises(WireError):
        keys(scheme).decrypt(bad)
    with pytest.raises(WireError):
        remote(scheme).add(bad, bad)


@every_scheme
@pytest.mark.parametrize("value", [LIMIT * 1.001, -1e30, math.nan, math.inf])
def test_a_value_out_of_range_is_refused_not_told_and_never_a_wrong_number(
    scheme: str, value: float
) -> None:
    x = random(5)
    x[3] = value
    with pytest.raises(
        DataError, match=r"'ada' has a value that it cannot encrypt: .* from -50 to 50"
    ) as refused:
        remote(scheme).encrypt(x, owner="ada")
    assert f"{value:g}" not in str(refused.value)


@every_scheme
def test_what_could_overflow_is_refused_before_it_does(scheme: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sums = make_keys(scheme, limit=keys(scheme).public.capacity / 2)
        with pytest.raises(DataError, match="A value could reach"):
            make_keys(scheme, limit=keys(scheme).public.capacity * 2)
    full = torch.full((3,), sums.public.limit, dtype=torch.float64)
    one = sums.public.encrypt(full, owner="ada")
    assert largest(sums.decrypt(sums.public.add(one, one)) - 2 * full) <= 1e-4
    with pytest.raises(DataError, match="The sum could reach"):
        sums.public.add(one, one, one)
    public = remote(scheme, "products")
    with pytest.raises(
        DataError, match="'bob' cannot multiply by a column of a matrix"
    ):
        public.product(
            public.encrypt(random(2), owner="ada"),
            torch.full((2, 2), public.capacity),
            owner="bob",
        )


@every_scheme
def test_keys_are_for_one_use_and_say_so(scheme: str) -> None:
    x = remote(scheme).encrypt(random(2), owner="ada")
    if scheme != "plain":
        with pytest.raises(
            ConfigError, match=r'made for "products"; these were made for "sums"'
        ):
            remote(scheme).product(x, random(2, 1), owner="bob")
        with pytest.raises(ConfigError, match=r'make_keys\(".*", use="combinations"\)'):
            remote(scheme).combine(random(2), x, owner="bob")


@every_scheme
def test_what_has_the_wrong_shape_is_refused(scheme: str) -> None:
    public = remote(scheme, "products")
    x = public.encrypt(random(3), owner="ada")
    with pytest.raises(WireError, match="cannot be added"):
        public.add(x, public.encrypt(random(4), owner="ada"))
    with pytest.raises(WireError, match="do not fit a matrix with 4 rows"):
        public.product(x, random(4, 2), owner="bob")
    rows = remote(scheme, "combinations")
    with pytest.raises(WireError, match="5 weights do not fit 2"):
        rows.combine(random(5), rows.encrypt(random(2, 3), owner="ada"), owner="bob")


@every_scheme
@every_use
def test_a_secret_key_stays(scheme: str, use: str) -> None:
    secret = keys(scheme, use)
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(BoundaryError, match="does not leave the process"):
            leave(secret)
    assert not any(
        hasattr(secret, name) for name in ("to_bytes", "__dict__", "serialize", "save")
    )
    assert "secret" not in str(vars(type(secret.public)).keys())


@every_scheme
@every_use
def test_public_keys_cross_and_hostile_ones_are_refused(scheme: str, use: str) -> None:
    data = keys(scheme, use).public.to_bytes()
    again = read_public_key(data, scheme=scheme, use=use)
    assert (again.id, again.use, again.limit) == (
        keys(scheme, use).public.id,
        use,
        LIMIT,
    )
    assert again.to_bytes() == data
    for bad in (
        b"",
        b"\0" * 40,
        data[:-3],
        data[:60],
        b"x" + data,
        data.replace(use.encode(), b"others"[: len(use)]),
    ):
        with pytest.raises(ColonnadeError):
            read_public_key(bad, scheme=scheme, use=use)


@every_scheme
def test_only_the_result_of_a_product_can_be_blinded_and_only_a_blinded_one_opened(
    scheme: str,
) -> None:
    public = remote(scheme, "products")
    secret = keys(scheme, "products")
    x = public.encrypt(random(3), owner="ada")
    with pytest.raises(WireError):
        secret.open_blinded(x)
    if scheme != "plain":
        with pytest.raises(WireError):
            public.blind(x)
