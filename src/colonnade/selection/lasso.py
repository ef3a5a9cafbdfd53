"""LASSO, the paper's baseline: a linear model on all columns, joined in one place, that sets many coefficients to zero.

It is a centralized baseline: whoever fits it sees every column. A participant's score is the sum of the absolute
coefficients of its columns, over all classes, or for a label that is a number. The penalty is from the paper's grid, by
the error on a fifth of the rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

from colonnade.selection.columns import standardised
from colonnade.selection.knn_mi import Numbers, Whole

PENALTIES = (1e-4, 1e-3, 1e-2)


def lasso(features: Mapping[str, Numbers], labels: Whole | Numbers, *, seed: int = 0) -> dict[str, float]:
    """One linear model per class (a single one for two classes, or for a label that is a number), on standardised
    columns. A model that is not quite at its optimum after 2000 rounds ranks as well, so nobody is warned of it."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import Lasso

    joined = standardised(np.concatenate(list(features.values()), axis=1))
    if np.issubdtype(labels.dtype, np.floating):
        targets = standardised(labels[:, None].astype(np.float64))
    else:
        classes = np.unique(labels)
        targets = (labels[:, None] == (classes[1:] if len(classes) == 2 else classes)).astype(np.float64)
    order = np.random.default_rng(seed).permutation(len(joined))
    held, fitted = order[: len(order) // 5], order[len(order) // 5 :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        models = [Lasso(alpha=alpha, max_iter=2000).fit(joined[fitted], targets[fitted]) for alpha in PENALTIES]
    errors = [np.mean((m.predict(joined[held]).reshape(len(held), -1) - targets[held]) ** 2) for m in models]
    weights = np.abs(np.atleast_2d(models[int(np.argmin(errors))].coef_)).sum(0)
    ends = np.cumsum([columns.shape[1] for columns in features.values()])
    return {name: float(part.sum()) for name, part in zip(features, np.split(weights, ends[:-1]), strict=True)}
