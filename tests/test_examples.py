"""The examples run and do what they say."""

from __future__ import annotations

from examples import regression_with_own_models


def test_regression_with_own_models_explains_some_variance() -> None:
    assert regression_with_own_models.main()["r2"] > 0.3
