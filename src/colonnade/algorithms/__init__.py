"""The algorithms, each one file that reads like its paper's box. To add one, add a file and a line here.

An algorithm is a module with `Config`, its messages, `FeatureOwner`, `LabelOwner`, `train`, `predict`, and `REVEALS`:
for each name that it releases under, in words, what the receiver learns.
"""

from __future__ import annotations

from types import ModuleType

from colonnade.algorithms import splitnn, vimadmm
from colonnade.core.checks import did_you_mean
from colonnade.errors import ConfigError

__all__ = ["ALGORITHMS", "find", "splitnn", "vimadmm"]

ALGORITHMS: dict[str, ModuleType] = {
    "splitnn": splitnn,
    "vimadmm": vimadmm,
}


def find(name: str) -> ModuleType:
    """The algorithm of that name."""
    if name not in ALGORITHMS:
        hint = did_you_mean(name, list(ALGORITHMS))
        raise ConfigError(f"There is no algorithm {name!r}{hint}; there are {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[name]
