"""Labels are read by equations, so on these algorithms every label is right, and not nearly every one."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.listening import EPOCH, accuracy, heard, late, squared
from tests.conformance.toy import Task

from colonnade.algorithms import compressed_vfl, fdml, vimadmm, vimadmm_joint
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.attacks.label_attacks import follow_duals, from_logit_gradients, from_residuals, from_targets, read
from colonnade.core import Transcript
from colonnade.evaluate import wilson

ADMM = pytest.mark.parametrize("algorithm", [vimadmm.ALGORITHM, vimadmm_joint.ALGORITHM])
CLASSES: dict[Task, int] = {"classes": 3, "binary": 2}
BOTH = pytest.mark.parametrize("task", CLASSES)


@BOTH
@pytest.mark.parametrize("steps", [1, 2 * EPOCH])
def test_fdml_tells_every_label_at_any_time(task: Task, steps: int) -> None:
    toy, transcript, own = heard(fdml.ALGORITHM, steps, task)
    guess = from_logit_gradients(transcript, own)
    assert len(guess.rows) == 32 * steps
    assert guess.named
    assert torch.equal(guess.labels, toy.driver.labels[guess.rows])


@ADMM
@BOTH
@pytest.mark.parametrize("steps", [1, EPOCH, 2 * EPOCH])
def test_who_listens_to_admm_from_the_first_round_on_knows_every_label(
    algorithm: AnyAlgorithm, task: Task, steps: int
) -> None:
    toy, transcript, own = heard(algorithm, steps, task)
    guess = from_residuals(transcript, own)
    assert len(guess.rows) == 32 * min(steps, EPOCH)
    assert torch.equal(guess.labels, toy.driver.labels[guess.rows])


@ADMM
def test_the_duals_themselves_are_found(algorithm: AnyAlgorithm) -> None:
    toy, transcript, own = heard(algorithm, 2 * EPOCH)
    rows, duals = follow_duals(transcript, own)
    torch.testing.assert_close(duals, toy.driver.duals[rows], atol=2e-6, rtol=0)
    probabilities = duals + torch.nn.functional.one_hot(toy.driver.labels[rows], 3)
    assert (probabilities > -5e-6).all()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(rows)), atol=1e-5, rtol=0)
    assert ((duals < 0).sum(1) == 1).all()


@ADMM
def test_who_listens_later_is_wrong_by_half_the_old_dual_and_then_by_a_quarter(algorithm: AnyAlgorithm) -> None:
    toy, transcript, own = heard(algorithm, EPOCH, epochs=3)
    missed, before = len(transcript.seen), toy.driver.duals.clone()
    for share in (0.5, 0.25):
        toy.run(EPOCH)
        rows, duals = follow_duals(late(transcript, missed), own)
        torch.testing.assert_close(duals, toy.driver.duals[rows] - share * before[rows], atol=5e-6, rtol=0)


def test_where_a_dual_did_not_change_one_message_is_enough() -> None:
    """rho r = lambda_old - 2 lambda is -lambda there, whose only positive entry is the label."""
    p = torch.softmax(torch.randn(500, 4, generator=torch.Generator().manual_seed(0)), -1)
    labels = torch.randint(4, (500,), generator=torch.Generator().manual_seed(1))
    dual = p - torch.nn.functional.one_hot(labels, 4)
    assert torch.equal(read(-(dual - 2 * dual) / 2, 4), labels)


@pytest.mark.parametrize(
    ("algorithm", "noise"),
    [(fdml.ALGORITHM, "gradient"), (vimadmm.ALGORITHM, "residual"), (vimadmm_joint.ALGORITHM, "residual")],
)
def test_under_noise_it_is_a_guess(algorithm: AnyAlgorithm, noise: str) -> None:
    toy, transcript, own = heard(algorithm, EPOCH, noise=noise, config=algorithm.config(learning_rate=1e-12))
    guess = (from_logit_gradients if algorithm is fdml.ALGORITHM else from_residuals)(transcript, own)
    low, high = wilson(round(accuracy(toy, guess) * len(guess.rows)), len(guess.rows), z=3.3)
    assert low < 1 / 3 < high


def test_numbers_are_told_up_to_scale_while_the_model_knows_nothing() -> None:
    toy, transcript, own = heard(fdml.ALGORITHM, 1, "regression")
    guess = from_logit_gradients(transcript, own)
    outputs = toy.driver.labels[guess.rows] - guess.labels * len(guess.rows)  # y + |B| g = o
    assert float(outputs.std()) < float(toy.driver.labels.std())
    assert squared(guess.labels, toy.driver.labels[guess.rows]) > 0.5
    toy, transcript, own = heard(vimadmm.ALGORITHM, 1, "regression")
    rows, duals = follow_duals(transcript, own)
    torch.testing.assert_close(duals, toy.driver.duals[rows], atol=1e-5, rtol=1e-5)


def test_labels_that_are_sent_are_known(recwarn: pytest.WarningsRecorder) -> None:
    toy, transcript, own = heard(compressed_vfl.ALGORITHM, 1)
    guess = from_targets(transcript, own)
    assert len(guess.rows) == 160
    assert torch.equal(guess.labels, toy.driver.labels[guess.rows])


def test_an_empty_transcript_tells_nothing() -> None:
    _, _, own = heard(vimadmm.ALGORITHM, 1)
    for attack in (from_logit_gradients, from_residuals, from_targets):
        assert len(attack(Transcript("ada"), own).rows) == 0
