"""Noise that nobody can draw again."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Generator

from colonnade.core.chance import Secret, Source, normal, secret_generator, uniform

SOURCES: list[Source] = [Secret(), Generator().manual_seed(3)]
each_source = pytest.mark.parametrize("source", SOURCES, ids=["secret", "seeded"])


@each_source
def test_numbers_are_uniform_and_normal_and_of_each_other_independent(
    source: Source,
) -> None:
    assert (
        kstest(uniform((200, 100), source).flatten().numpy(), "uniform").pvalue > 1e-5
    )
    drawn = normal((100_000,), source)
    assert drawn.dtype == torch.float64
    assert kstest(drawn.numpy(), "norm").pvalue > 1e-5
    # the two that come of one radius and one angle
    pairs = torch.stack([drawn[:50_000], drawn[50_000:]])
    for values in (pairs, pairs.square(), pairs.abs()):
        assert abs(float(torch.corrcoef(values)[0, 1])) < 0.03


@each_source
@pytest.mark.parametrize("shape", [(), (0, 4), (1,), (3, 5), (2, 3, 3)])
def test_shapes_even_odd_and_empty(source: Source, shape: tuple[int, ...]) -> None:
    assert normal(shape, source).shape == uniform(shape, source).shape == shape


def test_ends_are_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logarithm of 0 would be no number."""
    for byte in (b"\x00", b"\xff"):
        monkeypatch.setattr(os, "urandom", lambda count, byte=byte: byte * count)
        (value,) = Secret().uniform((1,))
        assert 0 < value < 1
        assert torch.isfinite(normal((3,), Secret())).all()


def test_there_is_no_state_to_copy_or_to_work_out() -> None:
    secret = Secret()
    assert not torch.equal(
        uniform((40,), secret), uniform((40,), copy.deepcopy(secret))
    )
    assert vars(secret) == {}


def test_why_a_torch_generator_protects_nobody() -> None:
    """Its numbers are linear in its state over two elements: what 624 words drew tells
    all that come after."""
    source = Generator().manual_seed(5)
    drawn = (
        torch.empty(624, dtype=torch.int64)
        .random_(-(2**63), None, generator=source)
        .numpy()
        .view(np.uint64)
    )
    words = (
        np.stack([drawn >> np.uint64(32), drawn & np.uint64(2**32 - 1)], axis=1)
        .flatten()
        .astype(np.uint32)
    )
    twister = np.random.MT19937()
    told = twister.state
    told["state"] = {
        "key": np.array(
            [_untempered(int(word)) for word in words[:624]], dtype=np.uint32
        ),
        "pos": 624,
    }
    twister.state = told
    assert (twister.random_raw(624) == words[624:]).all()


def _untempered(y: int) -> int:
    y ^= y >> 18
    y ^= (y << 15) & 0xEFC60000
    x = y
    for _ in range(5):
        x = y ^ ((x << 7) & 0x9D2C5680)
    z = x
    for _ in range(3):
        z = x ^ (z >> 11)
    return z & 0xFFFFFFFF


def test_a_secret_generator_begins_with_what_the_system_gives_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were only its seed secret, torch would take 32 bits of that, and 2^32 models can
    be tried."""
    short, long = (Generator().manual_seed(seed) for seed in (7, 7 + 2**32))
    assert torch.equal(torch.rand(5, generator=short), torch.rand(5, generator=long)), (
        "torch has not changed"
    )
    words = np.random.default_rng(1).integers(0, 2**32, 624, dtype=np.uint32)
    given = {8: b"\x01" * 8, 4 * 624: words.tobytes()}
    monkeypatch.setattr(os, "urandom", given.__getitem__)
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    expected = (twister.random_raw(2000) & (2**24 - 1)) * 2.0**-24
    assert torch.rand(2000, generator=secret_generator()).tolist() == expected.tolist()


def test_no_two_secret_generators_draw_the_same() -> None:
    one = secret_generator()
    other = secret_generator()
    assert one.initial_seed() != other.initial_seed()
    assert not torch.equal(torch.rand(8, generator=one), torch.rand(8, generator=other))
    again = Generator()
    again.set_state(one.get_state())
    assert torch.equal(
        torch.randn(700, generator=one), torch.randn(700, generator=again)
    ), "and it can be saved"
    assert again.initial_seed() == one.initial_seed()
