"""The control of an experiment with noise: the noise of the Gaussian mechanism, and nothing of the row.

Nothing can be learned from what leaves, so what is still learned comes from elsewhere: the label owner's own columns,
and the labels in what it sends down. A result with noise is worth what it scores above this one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from colonnade.core.chance import Source
from colonnade.core.receipt import PUBLIC, DpEvent
from colonnade.privacy.gaussian import Gaussian


@dataclass(frozen=True, slots=True)
class NoiseOnly:
    """N(0, sigma^2 C^2) whatever the row is. The owner trains as it would with `Gaussian`."""

    clip: float
    sigma: float

    def __post_init__(self) -> None:
        Gaussian(self.clip, self.sigma)  # refuses what makes no sense

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        noise, _ = Gaussian(self.clip, self.sigma).apply(torch.zeros_like(tensor), source)
        return noise, PUBLIC

    def bounded(self, tensor: Tensor) -> Tensor:
        return Gaussian(self.clip, self.sigma).bounded(tensor)
