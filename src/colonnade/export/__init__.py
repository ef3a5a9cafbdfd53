"""A trained model's pieces, each for its own organisation, to be run without Colonnade;
and a card that says what they are. Nothing of one organisation is in another's folder.
"""

from __future__ import annotations

from colonnade.export.write import export

__all__ = ["export"]
