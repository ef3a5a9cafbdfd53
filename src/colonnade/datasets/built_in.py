"""The data sets that come with scikit-learn."""

from __future__ import annotations

import numpy as np

from colonnade.datasets.dataset import Parts, Rows

__all__ = ["built_in_breast_cancer", "built_in_digits"]


def built_in_breast_cancer() -> Parts:
    """Wisconsin Diagnostic: 30 measurements."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    columns = {str(name): data.data[:, at].copy() for at, name in enumerate(data.feature_names)}
    return Rows(columns, data.target.astype(np.int64)), None


def built_in_digits() -> Parts:
    """8 x 8 digits with 17 grey levels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return Rows(data.images.astype(np.uint8), data.target.astype(np.int64)), None
