"""The algorithms, each one file that reads like its paper's box. To add one, add a file and its name here.

A file has `Config`, its messages, its roles, `train` and `predict`, and ends in its record, `ALGORITHM`, which says
everything about it that others need to know (`algorithm.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module

import torch
from torch import Generator, Tensor, nn

from colonnade.algorithms.algorithm import Algorithm, AnyAlgorithm, Kind, LocalInputs, Release, as_it_is
from colonnade.core.checks import check_named
from colonnade.errors import ConfigError
from colonnade.models import initialised

__all__ = ["ALGORITHMS", "DEFAULT", "Algorithm", "Kind", "Release", "check_missing", "complete", "find", "nested_names"]


class Records(MutableMapping[str, AnyAlgorithm]):
    """Algorithms by name. The file of one is imported when it is asked for: a run needs one of them."""

    def __init__(self, *names: str) -> None:
        self._found: dict[str, AnyAlgorithm | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> AnyAlgorithm:
        found = self._found[name]
        if found is None:
            record: AnyAlgorithm = import_module(f"{__name__}.{name}").ALGORITHM
            found = self._found[name] = record
        return found

    def __setitem__(self, name: str, record: AnyAlgorithm) -> None:
        self._found[name] = record

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


ALGORITHMS = Records(
    *("splitnn", "vafl", "fdml", "vimsgd", "vimadmm", "vimadmm_joint", "compressed_vfl", "vfedcce", "boosted_trees"),
    *("logistic_regression", "knn", "one_shot", "multi_vfl"),
)
DEFAULT = "vimadmm"
"""What is trained where nobody chose."""


def find(name: str) -> AnyAlgorithm:
    """The algorithm of that name."""
    check_named("algorithm", name, list(ALGORITHMS))
    return ALGORITHMS[name]


def nested_names() -> list[str]:
    """The names of those with several label owners."""
    return [name for name, algorithm in ALGORITHMS.items() if algorithm.nested is not None]


def check_missing(name: str, config: object, on_missing: str) -> None:
    """Raise unless the algorithm can do what is asked when a party does not answer."""
    allowed = {"fail", "wait", *find(name).missing(config)}
    if on_missing not in allowed:
        words = ", ".join(f'"{word}"' for word in ("fail", "wait", "stale", "skip") if word in allowed)
        raise ConfigError(
            f"[federation] on_missing = {on_missing!r} cannot be used with {name} and its settings: its maths needs an "
            f"answer of every party. It allows {words}."
        )


def check_can_lack(name: str, config: object, asked: str) -> None:
    """Raise unless the algorithm can learn from a row without the part of a party that lacks it, or is left out."""
    if not find(name).can_lack(config):
        able = [other for other, one in ALGORITHMS.items() if one.can_lack(one.config())]
        raise ConfigError(
            f"{asked} cannot be used with {name} and its settings: its maths needs every party's part of every row. "
            f"{find(name).lacking or 'It has no value that stands for nothing.'} Those that can: "
            f"{', '.join(able)}."
        )


def complete(
    algorithm: AnyAlgorithm,
    model: nn.Module,
    row: Tensor,
    outputs: int,
    *,
    seed: int | Generator,
    config: object = None,
    own: bool = False,
) -> nn.Module:
    """A party's model as the algorithm needs it: as it is, or with a head for so many outputs; `row` is one input.
    Without a `config` it is the algorithm's default; `own` says that the party's organisation holds the labels."""
    if algorithm.local_model is None:
        return nn.Flatten()
    if algorithm.local_model is as_it_is:
        return model
    training = model.training
    with torch.no_grad():
        width = model.eval()(row).shape[-1]
    with initialised(seed):
        whole = algorithm.local_model(
            model, LocalInputs(row, width, outputs, algorithm.config() if config is None else config, own)
        )
    return whole.train(training)
