"""The control of an experiment with noise."""

from __future__ import annotations

import torch
from torch import Generator

from colonnade.core.receipt import PUBLIC
from colonnade.core.release import Outbox, Rule
from colonnade.privacy import Budget, Gaussian, NoiseOnly
from colonnade.privacy.accounting import key_of, known_batch


def test_it_is_the_gaussian_s_noise_without_the_row() -> None:
    x = torch.randn(50, 6, generator=Generator().manual_seed(0))
    alone, event = NoiseOnly(0.5, 2.0).apply(x, Generator().manual_seed(1))
    with_row, _ = Gaussian(0.5, 2.0).apply(x, Generator().manual_seed(1))
    torch.testing.assert_close(with_row - alone, Gaussian(0.5, 0.0).bounded(x))
    assert torch.equal(alone, NoiseOnly(0.5, 2.0).apply(9 * x, Generator().manual_seed(1))[0])
    assert event == PUBLIC


def test_it_costs_no_row_anything_and_its_owner_trains_through_the_clip() -> None:
    assert known_batch({key_of(PUBLIC): 10}, Budget(epsilon=1.0).relation, 1e-5) == 0.0
    outbox, x = Outbox("ada", Generator(), {"x": Rule(NoiseOnly(0.5, 2.0))}), torch.full((2, 4), 9.0)
    assert torch.equal(outbox.bounded(x, "x"), Gaussian(0.5, 0.0).bounded(x))
