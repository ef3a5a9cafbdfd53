"""What VIMADMM and VIMADMM-J share: a pending batch is used once, and z and lambda
follow their rows."""

from __future__ import annotations

import pytest
import torch
from tests.algorithms.reference import z_by_lbfgs
from tests.conformance.toy import TASKS, Task, cohorts, federation, sequential
from torch import Generator

from colonnade.algorithms import vimadmm, vimadmm_joint
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.algorithms.embedding import AdmmFeatureOwner, AdmmLabelOwner, Embed
from colonnade.core.party import Refused

both = pytest.mark.parametrize(
    "algorithm",
    [vimadmm.ALGORITHM, vimadmm_joint.ALGORITHM],
    ids=["vimadmm", "vimadmm_joint"],
)


@both
def test_both_are_made_of_it(algorithm: AnyAlgorithm) -> None:
    assert issubclass(algorithm.feature_owner, AdmmFeatureOwner)
    assert issubclass(algorithm.label_owner, AdmmLabelOwner)


@both
def test_what_was_sent_is_what_left_and_serves_once(algorithm: AnyAlgorithm) -> None:
    toy = federation(algorithm)
    replies = toy.peers.ask(Embed("train/0/0"))
    party = toy.parties["ada"]
    with pytest.raises(
        Refused, match="variables came for batch train/0/1, but train/0/0 is pending"
    ):
        party.sent("train/0/1")
    sent, x = party.sent("train/0/0")
    assert torch.equal(sent, replies["ada"].values.tensor)
    assert torch.equal(x, party.x("train/0/0"))
    with pytest.raises(Refused, match="but None is pending"):
        party.sent("train/0/0")


@both
@pytest.mark.parametrize("transport", [sequential, cohorts])
def test_rows_to_be_scored_are_never_pending(
    algorithm: AnyAlgorithm, transport: object
) -> None:
    toy = federation(algorithm, transport)  # type: ignore[arg-type]
    toy.peers.ask(Embed("test[0:20]"))
    for party in [*toy.parties.values(), *(cohort.twin for cohort in toy.cohorts())]:
        with pytest.raises(Refused, match="but None is pending"):
            party.sent("test[0:20]")


@both
@pytest.mark.parametrize("task", TASKS)
def test_z_and_lambda_are_those_of_the_rows(
    algorithm: AnyAlgorithm, task: Task
) -> None:
    """Twice the same rows: the second z starts from the first lambda (Eq. 6, 7 and 17,
    18, by SciPy)."""
    toy = federation(algorithm, task=task, dtype=torch.float64)
    driver, rows, rho = toy.driver, toy.batches.rows("train/0/0"), toy.driver.config.rho
    o = torch.randn(
        len(rows),
        driver.loss.outputs,
        generator=Generator().manual_seed(0),
        dtype=torch.float64,
    )
    duals = torch.zeros_like(o)
    driver.arithmetic = driver.split  # z in the place of r
    for _ in range(2):
        z = z_by_lbfgs(task, o, duals, driver.labels[rows], rho)
        duals = duals + rho * (o - z)
        told, mine, _ = driver.advance("train/0/0", o)
        assert torch.allclose(mine, z, rtol=0, atol=1e-5)
        assert torch.allclose(driver.duals[rows], duals, rtol=0, atol=1e-5)
        assert driver.loss_of(told) == pytest.approx(
            float(driver.loss(o, driver.labels[rows]))
        )
    untouched = torch.ones(len(driver.duals), dtype=torch.bool).index_fill(
        0, rows, False
    )
    assert not driver.duals[untouched].any()
