"""Private set intersection: which rows all parties have in common, and one order for
them, without showing ids.

ids = Ids.of("clinic", [frame["patient"]], settings)
owner = IdOwner(organisation, ids, settings, among=["clinic", "lab"])         # at every party
alignment = align(owner, peers)                                               # at one of them, which drives
owner.common_rows                                                             # its own common rows, in the agreed order

`intersection` says how it works and who learns what. `helper` is another protocol, for
millions of ids: a neutral organisation compares keyed hashes.
"""

from typing import TYPE_CHECKING

from colonnade.first_use import on_first_use
from colonnade.settings.alignment import AlignmentSettings, AllowanceSettings

if TYPE_CHECKING:
    from colonnade.alignment.helper import Helper, align_by_helper
    from colonnade.alignment.id_owner import IdOwner
    from colonnade.alignment.ids import Ids
    from colonnade.alignment.in_process import REVEALS, Aligned, align_here
    from colonnade.alignment.intersection import Alignment, Watch, align
    from colonnade.alignment.keyed import KeyedIds
    from colonnade.settings.alignment import AlignmentSettings, AllowanceSettings
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        "helper Helper align_by_helper",
        "id_owner IdOwner",
        "ids Ids",
        "in_process REVEALS Aligned align_here",
        "intersection Alignment Watch align",
        "keyed KeyedIds",
    )

__all__ = [
    "REVEALS",
    "Aligned",
    "Alignment",
    "AlignmentSettings",
    "AllowanceSettings",
    "Helper",
    "IdOwner",
    "Ids",
    "KeyedIds",
    "Watch",
    "align",
    "align_by_helper",
    "align_here",
]
