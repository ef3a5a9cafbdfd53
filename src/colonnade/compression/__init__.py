"""Codecs, which make a tensor small to send.

To read any codec's tensors, import this package: it puts the codecs into
`core.release.CODECS`, where a receiver looks them up by name. An owner names one in its
own rules, and a sender uses it like this:

    packed = Quantize(levels=16).encode(tensor, generator)
    tensor = CODECS[packed.codec].decode(packed)

What always holds: numbers are really packed, and their bytes follow the formula in the
codec's module. A codec sees only what the owner's mechanism let through, so it never
costs privacy. Bytes from a stranger are decoded or refused with a WireError, and
nothing large is allocated before their length fits their shape.

To add a codec, add a module and a line to `READERS`.
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
"""One codec of each kind. A tensor carries the settings that it is decoded with."""

CODECS.update({codec.name: codec for codec in READERS})
