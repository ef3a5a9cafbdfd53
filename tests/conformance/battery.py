"""What the batteries for algorithms share: whom they run on, for how long, and releases
under one rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from tests.conformance.toy import TASKS, Toy, Wrap, can, federation, sequential, variant
from torch import Tensor

from colonnade.algorithms import ALGORITHMS, logistic_regression, vafl, vimadmm_joint
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import DpEvent, Rule
from colonnade.core.chance import Source, normal

STEPS = 7  # of 5 batches an epoch: into the second epoch

VARIANTS = {
    "vafl in turns": variant(vafl.ALGORITHM, schedule="turns"),
    "vimadmm_joint, secure": variant(vimadmm_joint.ALGORITHM, aggregation="secure"),
    "logistic_regression, secure": variant(
        logistic_regression.ALGORITHM, aggregation="secure"
    ),
}
EVERY = {
    name: algorithm
    for name, algorithm in {**ALGORITHMS, **VARIANTS}.items()
    if algorithm.nested is None and algorithm.trains
}
"""Those with one label owner that train: of the others, their own tests hold what
applies to them."""
ALONE = {"vafl in turns"}
"""Those that ask their parties one at a time, so that no cohort ever answers as one."""
WITH_MODELS = {
    name: algorithm
    for name, algorithm in EVERY.items()
    if algorithm.local_model is not None
}
"""Those whose parties have torch models, which may fail or end in a clip."""
WITH_OPTIMIZERS = {
    name: algorithm
    for name, algorithm in EVERY.items()
    if "optimizer" in algorithm.config.model_fields
}
STACKABLE = {
    name: algorithm for name, algorithm in EVERY.items() if algorithm.stackable
}
TOGETHER = {"vimadmm_joint, secure", "logistic_regression, secure"}
"""Those that one party alone would not make: a secure sum of one hides nothing."""
STACKED = {
    name: algorithm for name, algorithm in STACKABLE.items() if name not in ALONE
}

every_algorithm = pytest.mark.parametrize("algorithm", EVERY.values(), ids=EVERY)
every_algorithm_that_stacks = pytest.mark.parametrize(
    "algorithm", STACKED.values(), ids=STACKED
)
every_algorithm_with_models = pytest.mark.parametrize(
    "algorithm", WITH_MODELS.values(), ids=WITH_MODELS
)
every_algorithm_with_optimizers = pytest.mark.parametrize(
    "algorithm", WITH_OPTIMIZERS.values(), ids=WITH_OPTIMIZERS
)


def in_long_runs(value: Any) -> ParameterSet:
    """One more value of a parameter, in `make test-all`: it says again what the others
    say."""
    return pytest.param(value, marks=pytest.mark.long)


def by_task(algorithms: Mapping[str, AnyAlgorithm]) -> pytest.MarkDecorator:
    """Each algorithm with each task that it is for; two classes in `make test-all`:
    most other tests have them."""
    each = [
        (f"{name}-{task}", one, task)
        for name, one in algorithms.items()
        for task in TASKS
        if can(one, task)
    ]
    marks = {"binary": [pytest.mark.long]}
    return pytest.mark.parametrize(
        ("algorithm", "task"),
        [
            pytest.param(one, task, id=name, marks=marks.get(task, []))
            for name, one, task in each
        ],
    )


every_task = by_task(EVERY)
every_task_that_stacks = by_task(STACKABLE)


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Clip each row to `clip` and add N(0, (sigma clip)^2)."""

    sigma: float
    clip: float

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        norms = tensor.norm(dim=-1, keepdim=True)
        clipped = tensor * (self.clip / norms.clamp_min(1e-12)).clamp_max(1.0)
        noise = normal(tensor.shape, source).to(tensor.dtype)
        scale = self.sigma * self.clip if self.sigma else 0.0
        return clipped + scale * noise, DpEvent(
            "gaussian", {"noise_multiplier": self.sigma}
        )


class Everything(dict[str, Rule]):
    """One rule for every release, whatever it is called."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule

    def get(self, name: str, default: Any = None) -> Rule:
        return self.rule


def ruled(algorithm: AnyAlgorithm, rule: Rule, transport: Wrap = sequential) -> Toy:
    """A federation whose feature owners release everything under one rule."""
    toy = federation(algorithm, transport)
    for party in toy.parties.values():
        party.outbox.rules = Everything(rule)
    return toy
