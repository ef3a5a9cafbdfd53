"""Private set intersection: which rows all parties have in common, and one order for them, without showing ids.

ids = Ids.of("clinic", [frame["patient"]], settings)
owner = IdOwner(organisation, ids, settings, among=["clinic", "lab"])         # at every party
found = align(owner, peers)                                                   # at one of them, which drives
owner.common_rows                                                             # its own common rows, in the agreed order

`intersection` says how it works and who learns what. Needs the package coincurve: pip install "colonnade[crypto]".
"""

from colonnade.alignment.id_owner import REVEALS, IdOwner
from colonnade.alignment.ids import Ids
from colonnade.alignment.in_process import Aligned, align_here
from colonnade.alignment.intersection import Alignment, Watch, align
from colonnade.alignment.settings import AlignmentSettings, AllowanceSettings

__all__ = [
    "REVEALS",
    "Aligned",
    "Alignment",
    "AlignmentSettings",
    "AllowanceSettings",
    "IdOwner",
    "Ids",
    "Watch",
    "align",
    "align_here",
]
