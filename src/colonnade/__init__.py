"""Colonnade trains one model over columns that belong to different organisations, without moving the columns.

    import colonnade

    federation = colonnade.Federation.from_frames(
        {"clinic": clinic, "lab": lab}, id="patient", label="diagnosis", settings={"train": {"epochs": 5}}
    )
    federation.fit()
    federation.evaluate("test")

Names are imported on first use, so that `import colonnade` is quick and the core needs torch and numpy alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from colonnade.version import __version__

if TYPE_CHECKING:
    from colonnade.algorithms import ALGORITHMS
    from colonnade.errors import ColonnadeError
    from colonnade.federation import Federation, Outcome, Predictions, Settings, load

__all__ = ["ALGORITHMS", "ColonnadeError", "Federation", "Outcome", "Predictions", "Settings", "__version__", "load"]

_HOME = {
    "ALGORITHMS": "colonnade.algorithms",
    "ColonnadeError": "colonnade.errors",
    "Federation": "colonnade.federation",
    "Outcome": "colonnade.federation",
    "Predictions": "colonnade.federation",
    "Settings": "colonnade.federation",
    "load": "colonnade.federation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """What a notebook offers to complete."""
    return sorted(__all__)
