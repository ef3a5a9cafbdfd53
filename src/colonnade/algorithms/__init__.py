"""The algorithms, each one file that reads like its paper's box. To add one, add a file and a line here.

An algorithm is a module with `Config`, its messages, `FeatureOwner`, `LabelOwner`, `train`, `predict`, and `REVEALS`:
for each name that it releases under, in words, what the receiver learns. Where parties hold whole models instead of
parts of one, it also has `local_model`, which puts a head on a party's model; where its settings decide what crosses
and whether it can be read, `crossing(config)`; where it can go on without a party's answer, `missing(config)`: whether
with the party's last one for the same rows ("stale"), or leaving the party out of a batch ("skip"). One that trains
nothing has `TRAINS = False`; where parties release different things, `sends(driver, party)` has those of one party;
where noise does not protect every row, `COVERS` says which.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Generator, Tensor, nn

from colonnade.algorithms import (
    compressed_vfl,
    fdml,
    knn,
    multi_vfl,
    splitnn,
    vafl,
    vfedcce,
    vimadmm,
    vimadmm_joint,
    vimsgd,
)
from colonnade.core.checks import did_you_mean
from colonnade.errors import ConfigError
from colonnade.models import initialised

__all__ = [
    "ALGORITHMS",
    "NESTED",
    "allowed_without",
    "check_missing",
    "complete",
    "compressed_vfl",
    "fdml",
    "find",
    "knn",
    "multi_vfl",
    "splitnn",
    "vafl",
    "vfedcce",
    "vimadmm",
    "vimadmm_joint",
    "vimsgd",
]

ALGORITHMS: dict[str, ModuleType] = {
    "splitnn": splitnn,
    "vafl": vafl,
    "fdml": fdml,
    "vimsgd": vimsgd,
    "vimadmm": vimadmm,
    "vimadmm_joint": vimadmm_joint,
    "compressed_vfl": compressed_vfl,
    "vfedcce": vfedcce,
    "knn": knn,
}

NESTED: dict[str, ModuleType] = {"multi_vfl": multi_vfl}
"""Those with several label owners: a server drives them, and each of them drives the data owners. They have
`DataOwner`, `LabelOwner` and `AggregationServer`, and their `train` yields a round at a time."""


def find(name: str) -> ModuleType:
    """The algorithm of that name."""
    known = ALGORITHMS | NESTED
    if name not in known:
        hint = did_you_mean(name, list(known))
        raise ConfigError(f"There is no algorithm {name!r}{hint}; there are {', '.join(known)}.")
    return known[name]


def passes(algorithm: ModuleType, epochs: int) -> int:
    """How often training goes over its rows: in every epoch, or never where nothing is trained."""
    return epochs if getattr(algorithm, "TRAINS", True) else 0


def allowed_without(algorithm: ModuleType, config: Any) -> frozenset[str]:
    """What may stand in for a party that does not answer: its last answer ("stale"), nothing ("skip"), or neither."""
    return frozenset(algorithm.missing(config)) if hasattr(algorithm, "missing") else frozenset()


def check_missing(name: str, config: Any, on_missing: str) -> None:
    """Raise unless the algorithm can do what is asked when a party does not answer."""
    allowed = {"fail", "wait"} | allowed_without(find(name), config)
    if on_missing not in allowed:
        words = ", ".join(f'"{word}"' for word in ("fail", "wait", "stale", "skip") if word in allowed)
        raise ConfigError(
            f"[federation] on_missing = {on_missing!r} cannot be used with {name} and its settings: its maths needs an "
            f"answer of every party. It allows {words}."
        )


def complete(algorithm: ModuleType, model: nn.Module, row: Tensor, outputs: int, *, seed: int | Generator) -> nn.Module:
    """A party's model as the algorithm needs it: as it is, or with a head for so many outputs; `row` is one input."""
    if not hasattr(algorithm, "local_model"):
        return model
    training = model.training
    with torch.no_grad():
        width = model.eval()(row).shape[-1]
    with initialised(seed):
        whole: nn.Module = algorithm.local_model(model, width, outputs)
    return whole.train(training)
