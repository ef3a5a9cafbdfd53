"""Measuring how good predictions are, and what the scores are called."""

from __future__ import annotations

NAMES = {"majority": "largest class", "auc": "AUC", "f1": "F1", "r2": "R²", "rmse": "RMSE", "mae": "MAE"}


def metric(name: str) -> str:
    """A score's name as people write it."""
    return NAMES.get(name, name)
