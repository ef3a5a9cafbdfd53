"""The Gaussian mechanism of VIM (arXiv:2207.10226, Section 4): every row clipped to C,
plus N(0, sigma^2 C^2).

A row is everything behind the first axis: an embedding, or a feature map of one
picture. Released values are rounded: not every number can be drawn as noise, so the
last bits of the sum could tell which row was in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from colonnade.core.chance import Source, normal
from colonnade.core.receipt import NON_PRIVATE, PUBLIC, DpEvent
from colonnade.errors import ConfigError

KIND = "gaussian"
FINENESS = 18
"""Values leave as multiples of 2^-18 of the noise's size, to a power of two: float32
holds these exactly."""


@dataclass(frozen=True, slots=True)
class Gaussian:
    """sigma is the noise multiplier, in units of C; with sigma = 0 rows are clipped and
    nothing is promised."""

    clip: float
    sigma: float

    def __post_init__(self) -> None:
        if not _is_number(self.clip) or not self.clip > 0:
            raise ConfigError(
                "gaussian.clip must be a number above 0 (inf with sigma = 0); found"
                f" {self.clip!r}."
            )
        if not _is_number(self.sigma) or not 0 <= self.sigma < math.inf:
            raise ConfigError(
                f"gaussian.sigma must be a number, 0 or more; found {self.sigma!r}."
            )
        if self.sigma and math.isinf(self.clip):
            raise ConfigError(
                "gaussian.clip must be finite when there is noise; found inf with"
                f" sigma {self.sigma!r}."
            )

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        clipped = self.bounded(tensor)
        if not self.sigma:
            return clipped, NON_PRIVATE
        scale = self.sigma * self.clip
        noisy = clipped.double() + scale * normal(tensor.shape, source).to(
            tensor.device
        )
        step = 2.0 ** (math.floor(math.log2(scale)) - FINENESS)
        event = DpEvent(
            KIND, {"noise_multiplier": float(self.sigma), "clip": float(self.clip)}
        )
        return (noisy / step).round().mul(step).to(tensor.dtype), event

    def bounded(self, tensor: Tensor) -> Tensor:
        return tensor if math.isinf(self.clip) else clip_rows(tensor, self.clip)


def clip_rows(tensor: Tensor, clip: float) -> Tensor:
    """Every row scaled down to an L2 norm of at most `clip`. What is not finite would
    betray its row, and is 0."""
    finite = torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)
    norms = rows_of(finite).norm(dim=1)
    scale = torch.full_like(norms, clip) / norms.clamp_min(clip)
    clipped: Tensor = finite * scale.reshape([-1] + [1] * (tensor.dim() - 1))
    return clipped


def rows_of(tensor: Tensor) -> Tensor:
    """The tensor as a matrix with one row per row of data."""
    return tensor.flatten(1) if tensor.dim() > 1 else tensor.reshape(-1, 1)


def _is_number(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and not math.isnan(value)
    )


@dataclass(frozen=True, slots=True)
class NoiseOnly:
    """The control of an experiment with noise: N(0, sigma^2 C^2) whatever the row is.
    The owner trains as it would with `Gaussian`, and its releases tell nothing; so what
    is still learned comes from the label owner's own columns, and the labels in what it
    sends back. A result with noise is worth what it scores above this."""

    clip: float
    sigma: float

    def __post_init__(self) -> None:
        Gaussian(self.clip, self.sigma)  # refuses what makes no sense

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        noise, _ = Gaussian(self.clip, self.sigma).apply(
            torch.zeros_like(tensor), source
        )
        return noise, PUBLIC

    def bounded(self, tensor: Tensor) -> Tensor:
        return Gaussian(self.clip, self.sigma).bounded(tensor)
