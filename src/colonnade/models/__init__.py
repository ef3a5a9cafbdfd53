"""Local models by short name or import path, initialised from their owner's own seed.

Any `nn.Module` that maps rows to `[rows, width]` will do. `build` makes a feature
owner's model and `build_head` a label owner's, from the description in a settings file:

    build({"name": "mlp", "hidden": [120]}, shape=(56,), seed=0, owner="bank")

What always holds: a model is the same for the same description, shape and seed. No
global random number is used or changed. No code is imported that the owner did not
allow. A description that cannot be followed is a `ConfigError` that names the owner.

The modules: `networks` (mlp, cnn, ...), `building` (from a description to a model),
`randomness` (initial weights and dropout), and `encoders` (models that learn without
labels).
"""

from __future__ import annotations

from colonnade.models.building import (
    HEADS,
    MAPS,
    MODELS,
    build,
    build_head,
)
from colonnade.models.networks import cnn, convolution, identity, linear, mlp
from colonnade.models.randomness import initialised, seeded

__all__ = [
    "HEADS",
    "MAPS",
    "MODELS",
    "build",
    "build_head",
    "cnn",
    "convolution",
    "identity",
    "initialised",
    "linear",
    "mlp",
    "seeded",
]
