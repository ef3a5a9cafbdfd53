"""Colonnade trains one model over columns that belong to different organisations,
without moving the columns.

    import colonnade

    federation = colonnade.Federation.from_frames(
        {"clinic": clinic, "lab": lab}, id="patient", label="diagnosis", settings={"train": {"epochs": 5}}
    )
    federation.fit()
    federation.evaluate("test")

Names are imported on first use, so that `import colonnade` is quick and the core needs
torch and numpy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from colonnade.first_use import on_first_use
from colonnade.version import __version__

if TYPE_CHECKING:
    from colonnade.algorithms import ALGORITHMS
    from colonnade.errors import ColonnadeError
    from colonnade.federation import Federation, Outcome, Predictions, Settings, load
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        "algorithms ALGORITHMS",
        "errors ColonnadeError",
        "federation Federation Outcome Predictions Settings load",
    )

__all__ = [
    "ALGORITHMS",
    "ColonnadeError",
    "Federation",
    "Outcome",
    "Predictions",
    "Settings",
    "__version__",
    "load",
]
