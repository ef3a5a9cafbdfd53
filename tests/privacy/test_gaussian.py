"""The Gaussian mechanism: rows clipped, noise of the stated size, and nothing promised
without noise. The control of an experiment with noise.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from colonnade.core import NON_PRIVATE, Plain
from colonnade.core.outbox import Outbox
from colonnade.core.receipt import PUBLIC
from colonnade.core.release import Rule
from colonnade.errors import ConfigError
from colonnade.privacy import Budget, Gaussian, NoiseOnly
from colonnade.privacy.accounting import key_of, known_batch
from colonnade.privacy.gaussian import FINENESS, clip_rows


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(50, 6), (50, 3, 2, 2), (50,)], ids=str)
def test_without_noise_and_bound_it_is_plain_bit_for_bit(
    shape: tuple[int, ...],
) -> None:
    x = torch.randn(shape, generator=generator())
    source = generator(1)
    before = source.get_state()
    safe, event = Gaussian(clip=math.inf, sigma=0.0).apply(x, source)
    plain, same = Plain().apply(x, source)
    assert torch.equal(safe, plain)
    assert event == same == NON_PRIVATE
    # so whatever is drawn next is the same, too
    assert torch.equal(before, source.get_state())


@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.floats(1e-3, 1e6))
def test_clipping_shortens_rows_and_never_turns_them(
    seed: int, clip: float, scale: float
) -> None:
    x = torch.randn(9, 5, generator=generator(seed), dtype=torch.float64) * scale
    clipped = clip_rows(x, clip)
    before = x.norm(dim=1)
    after = clipped.norm(dim=1)
    assert (after <= before * (1 + 1e-12)).all()
    assert (after <= clip * (1 + 1e-12)).all()
    assert torch.equal(clipped[before <= clip], x[before <= clip])
    long = before > clip
    torch.testing.assert_close(clipped[long], x[long] / before[long, None] * clip)


def test_clipping_is_differentiated_through_and_a_row_of_zeros_as_well() -> None:
    x = torch.randn(6, 5, generator=generator(), dtype=torch.float64) * torch.tensor(
        [[0.1], [0.2], [1], [2], [9], [0]]
    )
    assert torch.autograd.gradcheck(
        lambda h: Gaussian(0.7, sigma=0.0).bounded(h), x.requires_grad_()
    )
    (slope,) = torch.autograd.grad(clip_rows(x, 0.7).sum(), x)
    assert torch.equal(slope[5], torch.ones(5, dtype=torch.float64))


def test_a_row_is_all_behind_the_first_axis() -> None:
    x = torch.randn(8, 3, 4, 4, generator=generator())
    torch.testing.assert_close(
        clip_rows(x, 0.5).flatten(1), clip_rows(x.flatten(1), 0.5)
    )
    assert clip_rows(torch.tensor([3.0, -0.1, 0.0]), 1.0).tolist() == pytest.approx(
        [1.0, -0.1, 0.0]
    )


def test_values_that_are_no_numbers_do_not_leave() -> None:
    x = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [1e30, 1e30], [0.3, 0.4]])
    safe = clip_rows(x, 1.0)
    assert torch.isfinite(safe).all()
    assert (safe.norm(dim=1) <= 1 + 1e-6).all()
    assert torch.equal(safe[3], x[3])


@pytest.mark.parametrize(("clip", "sigma"), [(0.5, 2.0), (3.0, 0.1)])
def test_the_noise_is_normal_with_deviation_sigma_times_clip(
    clip: float, sigma: float
) -> None:
    from scipy.stats import kstest

    x = torch.randn(20_000, 4, generator=generator()) * 10
    safe, event = Gaussian(clip, sigma).apply(x, generator(2))
    noise = (safe - clip_rows(x, clip)).flatten().double().numpy()
    assert kstest(noise / (sigma * clip), "norm").pvalue > 1e-4
    assert event.kind == "gaussian"
    assert dict(event.parameters) == {"noise_multiplier": sigma, "clip": clip}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("clip", "sigma"), [(0.5, 2.0), (3.0, 0.1), (0.013, 7.7)])
def test_the_same_numbers_can_leave_whatever_the_row(
    clip: float, sigma: float, dtype: torch.dtype
) -> None:
    """Multiples of one step, exactly, around every row; so the last bits tell of none."""
    step = 2.0 ** (math.floor(math.log2(sigma * clip)) - FINENESS)
    for scale in (0.0, 1e-3, 1.0, 1e5):
        x = scale * torch.randn(500, 6, generator=generator(), dtype=dtype)
        multiples = Gaussian(clip, sigma).apply(x, generator(2))[0].double() / step
        assert torch.equal(multiples, multiples.round())
        assert (multiples % 2).mean() == pytest.approx(0.5, abs=0.05)


def test_clipping_alone_promises_nothing() -> None:
    safe, event = Gaussian(clip=1.0, sigma=0.0).apply(
        torch.full((2, 4), 9.0), generator()
    )
    assert event == NON_PRIVATE
    assert safe.norm(dim=1).tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("clip", "sigma", "message"),
    [
        (0.0, 1.0, "clip must be a number above 0"),
        (-1.0, 1.0, "clip must be"),
        (math.nan, 1.0, "clip must be"),
        ("1", 1.0, "clip must be"),
        (True, 1.0, "clip must be"),
        (1.0, -0.1, "sigma must be a number, 0 or more"),
        (1.0, math.inf, "sigma must be"),
        (1.0, "auto", "sigma must be"),
        (math.inf, 1.0, "clip must be finite"),
    ],
)
def test_bad_settings_are_refused(clip: float, sigma: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Gaussian(clip, sigma)


def test_it_is_the_gaussian_s_noise_without_the_row() -> None:
    x = torch.randn(50, 6, generator=Generator().manual_seed(0))
    alone, event = NoiseOnly(0.5, 2.0).apply(x, Generator().manual_seed(1))
    with_row, _ = Gaussian(0.5, 2.0).apply(x, Generator().manual_seed(1))
    torch.testing.assert_close(with_row - alone, Gaussian(0.5, 0.0).bounded(x))
    assert torch.equal(
        alone, NoiseOnly(0.5, 2.0).apply(9 * x, Generator().manual_seed(1))[0]
    )
    assert event == PUBLIC


def test_it_costs_no_row_anything_and_its_owner_trains_through_the_clip() -> None:
    assert known_batch({key_of(PUBLIC): 10}, Budget(epsilon=1.0).relation, 1e-5) == 0.0
    outbox = Outbox("ada", Generator(), {"x": Rule(NoiseOnly(0.5, 2.0))})
    x = torch.full((2, 4), 9.0)
    assert torch.equal(outbox.bounded(x, "x"), Gaussian(0.5, 0.0).bounded(x))
