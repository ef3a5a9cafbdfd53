"""A linear model on joined columns sees who matters, and is scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from colonnade.selection import methods as module
from colonnade.selection.methods import lasso
from colonnade.selection.neighbours import standardised


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


def test_a_label_that_is_a_number_has_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    held = {"ada": random.normal(size=(100, 2)), "bob": random.normal(size=(100, 1))}
    y = 50 * held["ada"][:, 1] + random.normal(size=100)
    monkeypatch.setattr(module, "PENALTIES", (0.01,))
    fitted = np.random.default_rng(4).permutation(100)[20:]
    x = standardised(np.concatenate([held["ada"], held["bob"]], axis=1))
    expected = np.abs(Lasso(alpha=0.01).fit(x[fitted], standardised(y[:, None])[fitted, 0]).coef_)
    assert lasso(held, y, seed=4) == pytest.approx({"ada": expected[:2].sum(), "bob": expected[2]}, abs=1e-3)


def test_nobody_is_warned_of_a_model_that_did_not_converge(recwarn: pytest.WarningsRecorder) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 30))
    y = (x.sum(1) > 0).astype(np.int64)
    with pytest.warns(ConvergenceWarning):
        Lasso(alpha=1e-4, max_iter=2).fit(x, y)
    copies = x[:, :1] + 1e-7 * random.normal(size=(40, 200))
    lasso({"ada": np.concatenate([x, copies], axis=1), "bob": x[:, :2]}, y)
    assert not recwarn.list
