"""Which participants are worth training with, before anybody trains: VF-PS and the
selections it is compared with.

selection = select_here({"clinic": x1, "lab": x2, "bank": x3}, labels, keep=2)      # all parties in this process
selection.chosen, selection.scores, selection.cost, selection.learned

`leader` says how it works across parties.
"""

from typing import TYPE_CHECKING

from colonnade.first_use import on_first_use
from colonnade.settings.selection import SelectionSettings

if TYPE_CHECKING:
    from colonnade.selection.choosing import METHODS
    from colonnade.selection.in_process import information_here, select_here
    from colonnade.selection.result import REVEALS, Cost, Selection
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        "choosing METHODS",
        "in_process information_here select_here",
        "result REVEALS Cost Selection",
    )

__all__ = [
    "METHODS",
    "REVEALS",
    "Cost",
    "Selection",
    "SelectionSettings",
    "information_here",
    "select_here",
]
