"""Shares add up to the sum exactly, and say nothing by themselves. Shares that do not
belong together are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Generator, Tensor

from colonnade.core import Envelope, Message, Outbox, Packed, Released
from colonnade.core.party import Refused
from colonnade.core.release import CODECS
from colonnade.core.wire import decode, encode
from colonnade.encryption.masks import (
    LIMIT,
    MOST_PARTIES,
    SCALE,
    SHARES,
    Masks,
    one_round,
    open_sum,
)
from colonnade.errors import BoundaryError


class MaskedValues(Message):
    values: Released


def agreed(count: int) -> dict[str, Masks]:
    """Parties that agreed on keys: "p0", "p1", and so on."""
    parties = {f"p{number}": Masks(f"p{number}") for number in range(count)}
    keys = {name: masks.public_key() for name, masks in parties.items()}
    for masks in parties.values():
        masks.agree(keys)
    return parties


def shares_of(
    parties: dict[str, Masks], values: Sequence[Tensor], batch: str = "train/0/0"
) -> dict[str, Tensor]:
    each = zip(parties.items(), values, strict=True)
    return {
        name: SHARES.decode(masks.share(value, batch)) for (name, masks), value in each
    }


def random(
    count: int,
    shape: tuple[int, ...],
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    generator = Generator().manual_seed(count)
    return [
        (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)
        for _ in range(count)
    ]


def assert_uniform(elements: NDArray[np.int64]) -> None:
    """A test that fails once in 10^6 where elements of the ring are uniform."""
    shares_of_ring = (elements.astype(np.float64) + 2.0**63) / 2.0**64
    assert stats.kstest(shares_of_ring, "uniform").pvalue > 1e-6


# The sum


@pytest.mark.parametrize("count", [2, 3, 4, 14])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sum_of_the_shares_is_the_sum_of_the_values(
    count: int, scale: float, dtype: torch.dtype
) -> None:
    """Each party adds half a unit of the fixed point, and float64 rounds once."""
    parties = agreed(count)
    values = random(count, (33, 7), scale, dtype)
    total = open_sum(shares_of(parties, values), parties)
    exact = torch.stack([v.double() for v in values]).sum(0)
    assert (
        float((total - exact).abs().max())
        <= count * 0.5 / SCALE + 1e-15 * count * scale * 8
    )
    assert total.dtype == torch.float64


@given(
    st.lists(
        st.floats(-LIMIT, LIMIT, width=32).filter(lambda v: v == 0 or abs(v) >= 2**-8),
        min_size=3,
        max_size=3,
    )
)
@settings(max_examples=50)
def test_what_float32_says_above_a_256th_is_summed_without_any_error(
    values: list[float],
) -> None:
    parties = agreed(3)
    total = open_sum(
        shares_of(parties, [torch.tensor([value]) for value in values]), parties
    )
    exact = sum(int(value * SCALE) for value in values)
    assert total.item() == exact / SCALE


def test_the_largest_values_of_the_most_parties_do_not_wrap_around() -> None:
    assert MOST_PARTIES * LIMIT * SCALE < 2**63 <= (MOST_PARTIES + 1) * LIMIT * SCALE
    for value in (LIMIT, -LIMIT):
        parties = agreed(14)
        total = open_sum(shares_of(parties, [torch.full((3,), value)] * 14), parties)
        assert total.tolist() == [14 * value] * 3


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 4), (5, 1), (3, 5, 7)], ids=str)
def test_any_shape_and_layout(shape: tuple[int, ...]) -> None:
    parties = agreed(3)
    values = random(3, shape)
    total = open_sum(
        shares_of(
            parties, [value.T if value.dim() == 2 else value for value in values]
        ),
        parties,
    )
    expected = torch.stack(values).double().sum(0)
    assert torch.allclose(
        total, expected.T if len(shape) == 2 else expected, rtol=0, atol=2 / SCALE
    )


def test_two_parties_masks_are_each_others_negative() -> None:
    parties = agreed(2)
    values = [torch.full((9,), 1.5), torch.full((9,), -0.25)]
    shares = shares_of(parties, values)
    masks = [
        share - (value.double() * SCALE).long()
        for share, value in zip(shares.values(), values, strict=True)
    ]
    assert torch.equal(masks[0], -masks[1])
    assert (masks[0].abs() > 2**40).all()


# One share says nothing


@pytest.mark.parametrize("value", [0.0, 1.0, -1000.0])
def test_a_share_of_a_constant_is_uniform_over_the_ring(value: float) -> None:
    """The highest and lowest byte are uniform, and so is the whole number.

    A right mask fails each test once in 10^6.
    """
    share = shares_of(agreed(3), [torch.full((200_000,), value)] * 3)["p1"].numpy()
    for byte in (share >> 56 & 0xFF, share & 0xFF):
        assert stats.chisquare(np.bincount(byte, minlength=256)).pvalue > 1e-6
    assert_uniform(share)
    assert len(np.unique(share)) == len(share)


def test_a_share_does_not_correlate_with_its_values_nor_with_another_share() -> None:
    values = random(3, (100_000,))
    shares = shares_of(agreed(3), values)
    columns = [
        values[0].numpy(),
        *(share.double().numpy() for share in shares.values()),
    ]
    # three shares are not independent of each other: they have a sum
    correlation = np.corrcoef(columns[:3])
    assert np.abs(correlation - np.eye(3)).max() < 5 / np.sqrt(100_000)


def test_all_but_one_of_the_shares_are_still_noise() -> None:
    """A party that lacks one share cannot tell the sum of the others."""
    parties = agreed(4)
    values = random(4, (20_000,))
    shares = shares_of(parties, values)
    partial = (shares["p0"] + shares["p1"] + shares["p2"]).numpy()
    assert_uniform(partial)


# No mask is used twice


def test_every_share_has_a_round_of_its_own_and_other_masks() -> None:
    """A mask used twice would show the difference of two values."""
    masks = agreed(2)["p0"]
    value = torch.zeros(1000)
    packed = [masks.share(value, "test[0:9]") for _ in range(5)]
    assert [p.settings["round"] for p in packed] == [1, 2, 3, 4, 5]
    assert len({p.data for p in packed}) == 5
    first, second = (SHARES.decode(p) for p in packed[:2])
    assert (first != second).all()


def test_new_keys_give_other_masks_for_the_same_round() -> None:
    masks = Masks("p0")
    seen = set()
    for _ in range(3):
        other = Masks("p1")
        keys = {"p0": masks.public_key(), "p1": other.public_key()}
        masks.agree(keys)
        packed = masks.share(torch.zeros(8), "b")
        assert packed.settings["round"] == 1
        seen.add(packed.data)
    assert len(seen) == 3


def test_a_private_key_serves_once_so_old_public_keys_bring_no_old_masks_back() -> None:
    one = Masks("p0")
    other = Masks("p1")
    keys = {"p0": one.public_key(), "p1": other.public_key()}
    one.agree(keys)
    one.share(torch.zeros(1), "b")
    with pytest.raises(Refused, match="ask it for a public key first"):
        one.agree(keys)
    with pytest.raises(Refused, match="'p0' has not agreed on keys"):
        one.share(torch.zeros(1), "b")


# What does not belong together


def test_a_missing_and_an_unknown_share_are_named() -> None:
    parties = agreed(3)
    shares = shares_of(parties, random(3, (4,)))
    missing = {name: share for name, share in shares.items() if name != "p1"}
    with pytest.raises(
        BoundaryError, match="exactly 'p0', 'p1', 'p2': the share of 'p1' is missing"
    ):
        open_sum(missing, parties)
    with pytest.raises(BoundaryError, match="'eve' did not agree on keys"):
        open_sum({**shares, "eve": shares["p0"]}, parties)
    with pytest.raises(BoundaryError, match="those who agreed"):
        open_sum({}, ())


def test_shares_of_other_rounds_rows_batches_or_keys_are_refused() -> None:
    parties = agreed(3)
    values = random(3, (50,))
    first = shares_of(parties, values)
    second = shares_of(parties, values)
    strangers = shares_of(agreed(3), values)
    elsewhere = {
        name: SHARES.decode(masks.share(v, name))
        for (name, masks), v in zip(parties.items(), values, strict=True)
    }
    for wrong in (
        {**first, "p1": second["p1"]},
        {**first, "p1": strangers["p1"]},
        {**first, "p1": first["p1"].flip(0)},
        elsewhere,
    ):
        with pytest.raises(BoundaryError, match="do not add up: masks are left over"):
            open_sum(wrong, parties)


def test_numbers_that_nobody_masked_are_refused() -> None:
    shares = shares_of(agreed(2), random(2, (4,)))
    with pytest.raises(BoundaryError, match=r"'p1' sent torch\.float32"):
        open_sum({"p0": shares["p0"], "p1": torch.zeros(4)}, ("p0", "p1"))


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), 1.0001 * LIMIT, -1e30]
)
def test_a_value_that_no_sum_could_hold_is_refused_and_not_told(value: float) -> None:
    masks = agreed(2)["p1"]
    values = torch.zeros(3, 2)
    values[2, 1] = value
    with pytest.raises(Refused) as caught:
        masks.share(values, "b")
    assert "'p1' has a value that does not fit" in str(caught.value)
    assert "from -1048576 to 1048576" in str(caught.value)
    assert str(float(values[2, 1])) not in str(caught.value)  # the text travels
    assert masks.share(torch.zeros(1), "b").settings["round"] == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "2 to 2047 parties"),
        ({"p1": "00" * 32}, "public key of 'p1' is not an X25519 key"),
        ({"p1": "zz"}, "public key of 'p1' is not an X25519 key: 'zz'"),
        ({"p1": ""}, "is not an X25519 key"),
        ({f"p{k}": f"{k:064x}" for k in range(1, 2048)}, "found 2048 parties"),
        ({"p1": "ab" * 32, "p2": "ab" * 32}, "keys of their own"),
    ],
)
def test_keys_that_nobody_can_agree_on_are_refused_and_nothing_is_released(
    keys: dict[str, str], message: str
) -> None:
    masks = Masks("p0")
    with pytest.raises(Refused, match=message):
        masks.agree({"p0": masks.public_key(), **keys})
    with pytest.raises(Refused, match="releases nothing unmasked"):
        masks.share(torch.zeros(1), "b")


def test_the_order_in_which_the_keys_are_told_does_not_matter() -> None:
    parties = {name: Masks(name) for name in ("b", "a", "c")}
    keys = {name: masks.public_key() for name, masks in parties.items()}
    for name, masks in parties.items():
        masks.agree({name: keys[name], **dict(reversed(keys.items()))})
    assert (
        open_sum(shares_of(parties, [torch.ones(9)] * 3), parties).tolist() == [3.0] * 9
    )


def test_parties_that_were_told_different_keys_get_no_sum() -> None:
    parties = {name: Masks(name) for name in ("p0", "p1")}
    keys = {name: masks.public_key() for name, masks in parties.items()}
    parties["p0"].agree(keys)
    parties["p1"].agree({**keys, "eve": Masks("eve").public_key()})
    with pytest.raises(BoundaryError, match="do not add up"):
        open_sum(shares_of(parties, [torch.zeros(50)] * 2), parties)


# Through an outbox and the wire


def released(masks: Masks, value: Tensor) -> Released:
    outbox = Outbox(masks.owner, Generator())
    outbox.seal("logits", masks)
    return outbox.release(value, "logits", "train/0/0")


def test_shares_cross_the_wire_as_they_are_and_tell_their_round() -> None:
    parties = agreed(3)
    values = random(3, (6, 2))
    sent = {
        n: released(masks, v)
        for (n, masks), v in zip(parties.items(), values, strict=True)
    }
    frames = {
        name: encode(Envelope(name, 1, MaskedValues(share)))
        for name, share in sent.items()
    }
    got = {name: decode(frame).message.values for name, frame in frames.items()}
    assert all(
        share.receipt.codec == "masked" and share.receipt.bytes == 8 * 12
        for share in got.values()
    )
    assert all(torch.equal(got[name].tensor, sent[name].tensor) for name in parties)
    total = open_sum(one_round(got, parties), parties)
    assert torch.allclose(
        total, torch.stack(values).double().sum(0), rtol=0, atol=2 / SCALE
    )


def test_a_look_at_the_rounds_comes_before_the_sum() -> None:
    parties = agreed(2)
    parties["p0"].share(torch.zeros(1), "train/0/0")
    with pytest.raises(
        BoundaryError, match="shares of one round; found 'p0' 2, 'p1' 1"
    ):
        one_round(
            {name: released(masks, torch.zeros(1)) for name, masks in parties.items()},
            parties,
        )
    with pytest.raises(BoundaryError, match="the share of 'p1' is missing"):
        one_round({"p0": released(parties["p0"], torch.zeros(1))}, parties)


@pytest.mark.parametrize(
    "packed",
    [
        Packed("masked", b"", (1 << 40,), "int64"),
        Packed("masked", b"12345678", (2,), "int64"),
        Packed("masked", b"1234", (1,), "float32"),
    ],
)
def test_bytes_that_are_no_share_are_refused_before_memory_is_taken(
    packed: Packed,
) -> None:
    with pytest.raises(BoundaryError, match="A share of shape"):
        CODECS["masked"].decode(packed)


def test_a_collector_cannot_mask() -> None:
    with pytest.raises(BoundaryError, match="Only a party that agreed on keys"):
        CODECS["masked"].encode(torch.zeros(1), Generator())
