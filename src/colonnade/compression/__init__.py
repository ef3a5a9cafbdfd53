"""Codecs make a tensor small to send. Values are really packed; their bytes follow a
formula that the tests hold.

To add one, add a file and a name here. Importing this package tells receivers how to
read them (`core.release.CODECS`), and owners may name them in their rules. A codec sees
only what the mechanism let through, so it never costs privacy.
"""

from __future__ import annotations

from colonnade.compression.half import Half
from colonnade.compression.integers import Integers
from colonnade.compression.quantize import Quantize
from colonnade.compression.top_k import TopK
from colonnade.compression.vector_quantize import VectorQuantize
from colonnade.core.release import CODECS, Codec

__all__ = ["Half", "Integers", "Quantize", "TopK", "VectorQuantize"]

READERS: tuple[Codec, ...] = (
    Half(),
    Integers(0.0, 1.0, 2),
    Quantize(),
    TopK(),
    VectorQuantize(),
)
CODECS.update({codec.name: codec for codec in READERS})
