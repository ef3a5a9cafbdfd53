"""A linear model on joined columns sees who matters, and is scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Lasso

from colonnade.selection import lasso as module
from colonnade.selection.columns import standardised
from colonnade.selection.lasso import lasso


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_sums_of_absolute_coefficients(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, classes, 100)
    held = {"ada": labels[:, None] + random.normal(size=(100, 2)), "bob": random.normal(size=(100, 1))}
    monkeypatch.setattr(module, "PENALTIES", (0.01,))
    found = lasso(held, labels, seed=4)
    fitted = np.random.default_rng(4).permutation(100)[20:]
    x = standardised(np.concatenate([held["ada"], held["bob"]], axis=1))
    targets = [labels == 1] if classes == 2 else [labels == one for one in range(3)]
    coefficients = [np.abs(Lasso(alpha=0.01).fit(x[fitted], y[fitted].astype(float)).coef_) for y in targets]
    total = np.sum(coefficients, axis=0)
    assert found == pytest.approx({"ada": total[:2].sum(), "bob": total[2]}, abs=1e-3)
    assert found["ada"] > found["bob"]
