"""Saved and loaded mid-run, every algorithm continues as if it had not been (8 of
"Definition of done")."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.conformance.battery import (
    STEPS,
    Gaussian,
    every_algorithm,
    every_algorithm_with_optimizers,
    every_task,
    ruled,
)
from tests.conformance.toy import (
    TRANSPORTS,
    Task,
    Toy,
    Wrap,
    assert_bit_equal,
    cohorts,
    config_for,
    difference,
    federation,
    sequential,
)

from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import Rule
from colonnade.core.files import read_state, write_state


def save(toy: Toy, folder: Path) -> None:
    toy.states()  # hands a cohort's state back
    for name, party in (toy.parties | {"the driver": toy.driver}).items():
        own = party.organisation.state()
        write_state(
            folder / name,
            {"role": party.state(), "seat": own, "done": toy.batches.done},
        )


def load(toy: Toy, folder: Path) -> None:
    for name, party in (toy.parties | {"the driver": toy.driver}).items():
        saved = read_state(folder / name)
        party.load_state(saved["role"])
        party.organisation.load_state(saved["seat"])
        toy.batches.done = saved["done"]
    for cohort in toy.cohorts():
        cohort.restack()


@every_task
@pytest.mark.parametrize("transport", ["through bytes", "cohorts"])
@pytest.mark.parametrize("after", [1, 5])
def test_saved_and_loaded_it_continues_bit_equal(
    algorithm: AnyAlgorithm, task: Task, transport: str, after: int, tmp_path: Path
) -> None:
    whole, second = (
        federation(algorithm, TRANSPORTS[transport], task=task) for _ in range(2)
    )
    expected = whole.run(after)
    save(whole, tmp_path)  # and goes on as if it had not been saved
    expected += whole.run(STEPS - after)
    load(second, tmp_path)
    assert second.run(STEPS - after) == expected[after:]
    assert_bit_equal(whole.states(), second.states())
    assert {
        n: p.organisation.state()["seat"]["released"] for n, p in whole.parties.items()
    } == {
        n: p.organisation.state()["seat"]["released"] for n, p in second.parties.items()
    }


@every_algorithm
def test_noise_continues_where_it_stood(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    rule = Rule(Gaussian(0.3, 1.0))
    whole, first, second = (ruled(algorithm, rule) for _ in range(3))
    expected = whole.run(5)
    first.run(3)
    save(first, tmp_path)
    load(second, tmp_path)
    assert second.run(2) == expected[3:]
    assert_bit_equal(whole.states(), second.states())


@every_algorithm_with_optimizers
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("saved_from", "continued_in"), [(cohorts, sequential), (sequential, cohorts)]
)
def test_a_checkpoint_does_not_know_whether_it_was_stacked(
    algorithm: AnyAlgorithm,
    optimizer: str,
    saved_from: Wrap,
    continued_in: Wrap,
    tmp_path: Path,
) -> None:
    config = config_for(algorithm, optimizer=optimizer, learning_rate=0.02)
    whole, first, second = (
        federation(algorithm, wrap, dtype=torch.float64, config=config)
        for wrap in (sequential, saved_from, continued_in)
    )
    whole.run(STEPS)
    first.run(3)
    save(first, tmp_path)
    load(second, tmp_path)
    second.run(STEPS - 3)
    assert difference(whole.states(), second.states()) <= 1e-6
