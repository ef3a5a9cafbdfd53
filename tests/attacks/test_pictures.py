"""PSNR and SSIM are their formulas: closed forms, and loops over every window."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.attacks.scores import psnr, ssim


def pictures(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(2, *shape, generator=Generator().manual_seed(seed))


def by_hand(x: NDArray[np.float64], y: NDArray[np.float64], span: float) -> float:
    """Wang et al. (2004), Equation 13, in loops."""
    tall, wide = (min(11, n if n % 2 else n - 1) for n in x.shape)
    i, j = np.mgrid[: max(tall, 1), : max(wide, 1)]
    weights = np.exp(-((i - tall // 2) ** 2 + (j - wide // 2) ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    c1 = (0.01 * span) ** 2
    c2 = (0.03 * span) ** 2
    found = []
    for top in range(x.shape[0] - tall + 1):
        for left in range(x.shape[1] - wide + 1):
            a, b = (p[top : top + tall, left : left + wide] for p in (x, y))
            ma = (weights * a).sum()
            mb = (weights * b).sum()
            va = (weights * (a - ma) ** 2).sum()
            vb = (weights * (b - mb) ** 2).sum()
            together = (weights * (a - ma) * (b - mb)).sum()
            found.append(
                (2 * ma * mb + c1)
                * (2 * together + c2)
                / ((ma**2 + mb**2 + c1) * (va + vb + c2))
            )
    return float(np.mean(found))


def test_psnr_of_a_constant_difference() -> None:
    x = pictures(4, 5)
    torch.testing.assert_close(
        psnr(x, x + 0.1, 1.0), torch.full((2,), 20.0).double(), atol=1e-4, rtol=0
    )
    assert float(psnr(x, x + 5.1, 255.0)[0]) == pytest.approx(
        20 * math.log10(255 / 5.1), abs=1e-3
    )
    assert float(psnr(x, x, 1.0)[0]) > 200


@pytest.mark.parametrize("shape", [(28, 28), (7, 28), (2, 28), (1, 5), (12, 11)])
def test_ssim_is_the_mean_over_all_windows(shape: tuple[int, int]) -> None:
    x = pictures(*shape)
    y = pictures(*shape, seed=1)
    for a, b, found in zip(
        x.double().numpy(), y.double().numpy(), ssim(x, y, 1.0), strict=True
    ):
        assert float(found) == pytest.approx(by_hand(a, b, 1.0), abs=1e-9)


def test_ssim_of_equals_is_one_and_it_is_symmetric() -> None:
    x = pictures(3, 14, 14)
    y = pictures(3, 14, 14, seed=1)
    torch.testing.assert_close(ssim(x, x, 1.0), torch.ones(2).double())
    torch.testing.assert_close(ssim(x, y, 1.0), ssim(y, x, 1.0))
    assert (ssim(x, y, 1.0) < 0.5).all()
    torch.testing.assert_close(
        ssim(x * 255, y * 255, 255.0), ssim(x, y, 1.0), atol=1e-6, rtol=1e-5
    )


def test_ssim_of_flat_pictures_has_a_closed_form() -> None:
    x = torch.full((1, 16, 16), 0.2)
    y = torch.full((1, 16, 16), 0.8)
    assert float(ssim(x, y, 1.0)) == pytest.approx(
        (2 * 0.16 + 1e-4) / (0.04 + 0.64 + 1e-4), abs=1e-6
    )


def test_channels_count_alike() -> None:
    x = pictures(3, 14, 14)
    y = pictures(3, 14, 14, seed=1)
    planes = torch.stack([ssim(x[:, c], y[:, c], 1.0) for c in range(3)])
    torch.testing.assert_close(ssim(x, y, 1.0), planes.mean(0))
