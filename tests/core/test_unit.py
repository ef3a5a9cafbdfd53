"""Labels that are numbers leave their own unit for training, and come back to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colonnade.core.unit import Unit, learned_unit

POSITIVE = st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=20, unique=True)


@given(POSITIVE, st.booleans())
def test_what_is_trained_on_comes_back(values: list[float], is_log: bool) -> None:
    labels = np.array(values)
    unit = learned_unit(labels, is_log=is_log)
    if unit.scale == 0:  # numbers so close that their logarithms are the same
        return
    trained = unit.trained(labels)
    back = unit.own(torch.from_numpy(trained)).numpy()
    np.testing.assert_allclose(back, labels, rtol=1e-9, atol=1e-9 * labels.max())


@pytest.mark.parametrize("is_log", [False, True])
def test_training_labels_have_mean_zero_and_variance_one(is_log: bool) -> None:
    labels = np.exp(np.random.default_rng(0).normal(size=500))
    trained = learned_unit(labels, is_log=is_log).trained(labels)
    assert trained.mean() == pytest.approx(0, abs=1e-9)
    assert trained.std() == pytest.approx(1)


def test_a_prediction_far_beyond_all_labels_is_still_a_number() -> None:
    far = Unit(mean=3.0, scale=2.0, is_log=True).own(torch.tensor([1e6, -1e6]))
    assert torch.isfinite(far).all()
