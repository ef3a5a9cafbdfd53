"""A small federation in memory, and what the batteries compare: who joins here is put
through every battery.

An algorithm joins by being in `ALGORITHMS`; where its defaults are slow on a toy, it
gets a line in `SETTINGS`. Where a setting changes what it exchanges, that `variant`
joins beside it (`battery`). A transport joins by a line in `TRANSPORTS`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor, nn

from colonnade.algorithms import encrypted_columns
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import (
    Batches,
    Organisation,
    Party,
    Peers,
    Rule,
    State,
    Transport,
    roles,
)
from colonnade.core.batches import seed_for
from colonnade.models import build
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared
from colonnade.transport import (
    Cohort,
    Cohorts,
    Faulty,
    InProcess,
    Recording,
    Retrying,
    groups,
)

Wrap = Callable[[Mapping[str, Party]], Transport]
Task = Literal["classes", "binary", "regression"]

TASKS: tuple[Task, ...] = ("classes", "binary", "regression")
LOSSES: dict[Task, Loss] = {
    "classes": CrossEntropy(3),
    "binary": Logistic(),
    "regression": Squared(),
}
SETTINGS: dict[str, dict[str, Any]] = {
    # encrypted: tests/algorithms/test_vfedcce*.py
    "vfedcce": {"mode": "plaintext", "learning_rate": 0.01},
    # 0.3 with momentum is too fast for the toy's regression
    "vimsgd": {"learning_rate": 0.1},
    "vimadmm": {"local_steps": 3},
    "vimadmm_joint": {"local_steps": 3},
    "boosted_trees": {
        "encryption": "none",
        "learning_rate": 0.3,
        "min_rows": 1,
        "depth": 3,
    },
    "compressed_vfl": {"local_steps": 2, "learning_rate": 0.1, "momentum": 0.5},
    "one_shot": {"estimator": "logistic"},  # trees: tests/algorithms/test_one_shot.py
}
ALSO: dict[str, list[dict[str, Any]]] = {
    "vfedcce": [
        {"mode": mode, "scheme": "plain"}
        for mode in ("encrypted-coefficients", "encrypted-jacobian")
    ],
    "boosted_trees": [
        {"encryption": "elgamal", "row_share": 0.5, "depth": 2, "bins": 4},
        {"encryption": "elgamal", "nodes": "hidden", "depth": 2, "bins": 4},
    ],
    "knn": [{"aggregation": "plain"}],
    "logistic_regression": [{"encryption": "bfv"}],
}
"""Settings under which an algorithm asks and releases what it does not under the
others."""
NAMES = ("ada", "bob", "cyd", "dan")
ROWS = 240
TRAIN = 160
BATCH = 32


def sequential(parties: Mapping[str, Party]) -> Transport:
    return InProcess(parties, parallel="never")


def cohorts(parties: Mapping[str, Party]) -> Transport:
    return Cohorts(
        InProcess(parties, parallel="never"),
        [Cohort(group) for group in groups(parties)],
    )


TRANSPORTS: dict[str, Wrap] = {
    "by reference": sequential,
    "through bytes": lambda parties: InProcess(
        parties, parallel="never", through_bytes=True
    ),
    "threads": lambda parties: InProcess(parties, parallel="always"),
    "threads, through bytes": lambda parties: InProcess(
        parties, parallel="always", through_bytes=True
    ),
    "auto": InProcess,
    "recording": lambda parties: Recording(sequential(parties)),
    "faulty, without faults": lambda parties: Faulty(sequential(parties), []),
    "retrying": lambda parties: Retrying(sequential(parties)),
    "cohorts": cohorts,
}
STACKS = {"cohorts"}
"""The transports that may round differently: they add up in another order."""


@dataclass
class Toy:
    """A federation that has met: drive it with `run`, look at it with `states`."""

    algorithm: AnyAlgorithm
    driver: Any
    peers: Peers
    batches: Batches
    parties: dict[str, Any]
    transport: Any

    def run(self, steps: int | None = None) -> list[float]:
        """Train for so many steps more, or to the end; the losses."""
        training = self.algorithm.steps(self.driver, self.peers, self.batches)
        return [step.loss for step in islice(training, steps)]

    def predict(self, split: str = "test") -> Tensor:
        chunks = self.batches.chunks(split, 50)
        return torch.cat(
            [self.algorithm.predict(self.driver, self.peers, rows) for rows in chunks]
        )

    def truth(self, split: str = "test") -> Tensor:
        labels: Tensor = self.driver.labels[self.batches.splits[split]]
        return labels

    def untrained(self) -> float:
        """The loss on training rows of outputs that are all 0."""
        truth = self.truth("train")
        return float(
            self.driver.loss(torch.zeros(len(truth), self.driver.loss.outputs), truth)
        )

    def cohorts(self) -> list[Cohort]:
        transport = self.transport
        while not isinstance(transport, Cohorts) and hasattr(transport, "inner"):
            transport = transport.inner
        return list(getattr(transport, "cohorts", []))

    def states(self) -> dict[str, State]:
        """A copy of what every party must remember, the driver's included."""
        for cohort in self.cohorts():
            cohort.settle()
        everyone = self.parties | {"the driver": self.driver}
        return {name: copy.deepcopy(party.state()) for name, party in everyone.items()}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def data(columns: int, task: Task, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows whose label a linear map of all columns gives, so that no party can tell it
    alone."""
    generator = torch.Generator().manual_seed(seed_for(seed, "toy"))
    x = torch.randn(ROWS, columns, generator=generator, dtype=torch.float64)
    score = x @ torch.randn(columns, 3, generator=generator, dtype=torch.float64)
    labels = {
        "classes": score.argmax(-1),
        "binary": (score[:, 0] > 0).long(),
        "regression": score[:, 0] / 2,
    }
    return x, labels[task]


VARIED: dict[AnyAlgorithm, dict[str, Any]] = {}


def variant(algorithm: AnyAlgorithm, **settings: Any) -> AnyAlgorithm:
    """The same algorithm under other settings than its defaults, as a record that every
    test can take for it."""
    other = dataclasses.replace(algorithm)
    VARIED[other] = settings
    return other


def module_of(algorithm: AnyAlgorithm) -> str:
    """The name of an algorithm's file, whatever its variant."""
    return str(algorithm.config.name)


def can(algorithm: AnyAlgorithm, task: Task) -> bool:
    """Whether the algorithm is for such labels."""
    return (
        "regression" if task == "regression" else "classification"
    ) in algorithm.tasks


def config_for(algorithm: AnyAlgorithm, **settings: Any) -> Any:
    usual = SETTINGS.get(module_of(algorithm), {})
    return algorithm.config(**(usual | VARIED.get(algorithm, {}) | settings))


def federation(
    algorithm: AnyAlgorithm,
    transport: Wrap = sequential,
    *,
    columns: Sequence[int] = (4, 4, 4),
    task: Task = "classes",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    epochs: int | None = None,
    config: Any = None,
    wrap_model: Mapping[str, Callable[[nn.Module], nn.Module]] | None = None,
    rules: Mapping[str, Rule] | None = None,
    driver: str = "label owner",
) -> Toy:
    """One party per entry of `columns`; equal entries make parties that can be stacked.

    Where `driver` is the name of a party, both roles belong to that organisation and
    share its seat.
    """
    config = config or config_for(algorithm)
    x, labels = data(sum(columns), task, seed)
    order = torch.arange(ROWS)
    splits = {
        "train": order[:TRAIN],
        "validation": order[TRAIN : TRAIN + 20],
        "test": order[TRAIN + 20 :],
    }
    size = algorithm.batch_size(BATCH, TRAIN)
    epochs = epochs or 2 * TRAIN // BATCH // (TRAIN // size)  # as many steps for all
    batches = Batches(splits, batch_size=size, epochs=epochs, seed=seed)
    names = NAMES[: len(columns)]
    organisations = {
        name: Organisation.at(name, batches, seed=seed, rules=rules)
        for name in dict.fromkeys([*names, driver])
    }
    with default_dtype(dtype):
        parties: dict[str, Any] = {}
        for name, part in zip(
            names, torch.split(x.to(dtype), list(columns), dim=1), strict=True
        ):
            spec = {"name": "mlp", "hidden": [16], "width": 8}
            model = build(
                spec, (part.shape[1],), seed=seed_for(seed, name, "model"), owner=name
            )
            outputs = LOSSES[task].outputs
            head = seed_for(seed, name, "head")
            own = name == driver
            model = algorithm.complete(
                model, part[:1], outputs, seed=head, config=config, own=own
            )
            if wrap_model and name in wrap_model:
                model = wrap_model[name](model)
            parties[name] = algorithm.feature_owner(
                organisations[name], part.contiguous(), model, config
            )
        y = labels.to(dtype) if task == "regression" else labels
        leader = algorithm.label_owner(organisations[driver], y, LOSSES[task], config)
        carrier = transport(parties)
        peers = leader.peers = Peers(driver, parties, carrier, leader.ledger)
        # a toy has few rows
        with patch.object(encrypted_columns, "ROWS_FOR_A_NUMBER", 1):
            leader.meet(peers.ask(roles.Introduce()))
    return Toy(algorithm, leader, peers, batches, parties, carrier)


def flat(state: Any, path: str = "") -> dict[str, Any]:
    """Path -> tensor or scalar."""
    if isinstance(state, dict):
        return {
            key: leaf
            for k, item in state.items()
            for key, leaf in flat(item, f"{path}/{k}").items()
        }
    if isinstance(state, (list, tuple)):
        return {
            key: leaf
            for k, item in enumerate(state)
            for key, leaf in flat(item, f"{path}/{k}").items()
        }
    return {path: state}


def assert_bit_equal(one: Any, other: Any) -> None:
    mine = flat(one)
    theirs = flat(other)
    assert mine.keys() == theirs.keys()
    for path, value in mine.items():
        if isinstance(value, Tensor):
            assert value.dtype == theirs[path].dtype, path
            assert torch.equal(value, theirs[path]), path
        else:
            assert value == theirs[path], path


def difference(one: Any, other: Any) -> float:
    """The largest relative difference of two tensors at the same place, as ||a - b|| /
    ||a||; scalars must be equal."""
    mine = flat(one)
    theirs = flat(other)
    assert mine.keys() == theirs.keys()
    largest = 0.0
    for path, value in mine.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            a = value.double()
            b = theirs[path].double()
            assert a.shape == b.shape, path
            largest = max(largest, float((a - b).norm() / a.norm().clamp_min(1e-12)))
        else:
            assert_bit_equal(value, theirs[path])
    return largest
