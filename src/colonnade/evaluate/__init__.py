"""Measuring how good predictions are, and what scores and classes are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {
    "majority": "largest class",
    "auc": "AUC",
    "f1": "F1",
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "MAE",
}


def metric(name: str) -> str:
    """A score's name as people write it."""
    return NAMES.get(name, name)


def class_name(name: object) -> str:
    """A class's name; in quotes where it begins or ends with white space, which nobody
    would see."""
    text = str(name)
    return text if text and text == text.strip() else repr(text)


POSITIVE_BY = {
    "setting": "as [data] positive says",
    "rarer": "the rarer one of the training rows ([data] positive names another)",
    "order": "the second of the two in order ([data] positive names another)",
}
"""Why one of two classes is the positive one."""


def about_positive(summary: Mapping[str, Any]) -> str:
    """A sentence on the class that precision, recall and F1 of a run are about; "" where
    there is none."""
    positive = summary.get("positive")
    if not positive:
        return ""
    if "class" in positive:
        name = class_name(positive["class"])
        return f"Precision, recall and F1 are about the class {name}."
    why = POSITIVE_BY.get(positive["by"], "one of the two classes")
    return f"Precision, recall and F1 are about {why}."


def wilson(right: float, of: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of the share `right` of so many rows (Wilson, 1927)."""
    share = right / of
    spread = z * z / of
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * (share * (1 - share) / of + spread / (4 * of)) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)
