"""How alike two pictures are: PSNR, and SSIM with the standard Gaussian window of Wang et al. (2004)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d

WINDOW, SIGMA, K1, K2 = 11, 1.5, 0.01, 0.03


def psnr(original: Tensor, other: Tensor, span: float) -> Tensor:
    """Per picture 10 log10(span^2 / mean squared error), in decibels; `span` is white minus black."""
    error = (original - other).flatten(1).double().square().mean(1)
    return 10 * torch.log10(span**2 / error.clamp_min(1e-30))


def ssim(original: Tensor, other: Tensor, span: float) -> Tensor:
    """Per picture [height, width] or [channels, height, width] the mean over all places of the window, cropped to the
    picture where it is smaller than the window."""
    x, y = (_planes(p) for p in (original, other))
    (_, channels, height, width), c1, c2 = x.shape, (K1 * span) ** 2, (K2 * span) ** 2
    window = torch.outer(_gaussian(height), _gaussian(width))[None, None]

    def mean(values: Tensor) -> Tensor:
        return conv2d(values.flatten(0, 1)[:, None], window)

    mx, my = mean(x), mean(y)
    vx, vy, vxy = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    at = (2 * mx * my + c1) * (2 * vxy + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    by_picture: Tensor = at.flatten(1).mean(1).reshape(-1, channels).mean(1)
    return by_picture


def _planes(pictures: Tensor) -> Tensor:
    return (pictures if pictures.dim() == 4 else pictures[:, None]).double()


def _gaussian(length: int) -> Tensor:
    """Eleven weights that add up to 1, or the largest odd number that fits."""
    size = min(WINDOW, length - (length + 1) % 2)
    offsets = torch.arange(size, dtype=torch.float64) - size // 2
    weights = torch.exp(-offsets.square() / (2 * SIGMA**2))
    return weights / weights.sum()
