"""What tells labels: equations, by which all are right and not nearly all; the
directions of gradients, which rows of one label share as far as the model treats them
alike; and the label owner's weights, where a party was sent them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.attacks.listening import EPOCH, accuracy, heard, late, scored, squared
from tests.conformance.toy import Task
from torch import nn

from colonnade.algorithms import (
    compressed_vfl,
    fdml,
    splitnn,
    vafl,
    vimadmm,
    vimadmm_joint,
    vimsgd,
)
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.attacks.label_attacks import (
    by_direction,
    by_norm,
    follow_duals,
    from_head,
    from_logit_gradients,
    from_model,
    from_residuals,
    from_targets,
    main_directions,
    nearness_to_groups,
    outputs,
)
from colonnade.attacks.received import Guess, labels_said, suspicion
from colonnade.core import Transcript
from colonnade.evaluate import wilson

pytestmark = pytest.mark.filterwarnings("ignore:compressed_vfl")
ADMM = pytest.mark.parametrize(
    "algorithm", [vimadmm.ALGORITHM, vimadmm_joint.ALGORITHM]
)
CLASSES: dict[Task, int] = {"classes": 3, "binary": 2}
SPLIT = pytest.mark.parametrize(
    "algorithm", [splitnn.ALGORITHM, vimsgd.ALGORITHM, vafl.ALGORITHM]
)
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
    torch.testing.assert_close(
        probabilities.sum(1), torch.ones(len(rows)), atol=1e-5, rtol=0
    )
    assert ((duals < 0).sum(1) == 1).all()


@ADMM
def test_who_listens_later_is_wrong_by_half_the_old_dual_and_then_by_a_quarter(
    algorithm: AnyAlgorithm,
) -> None:
    toy, transcript, own = heard(algorithm, EPOCH, epochs=3)
    missed = len(transcript.seen)
    before = toy.driver.duals.clone()
    for share in (0.5, 0.25):
        toy.run(EPOCH)
        rows, duals = follow_duals(late(transcript, missed), own)
        torch.testing.assert_close(
            duals, toy.driver.duals[rows] - share * before[rows], atol=5e-6, rtol=0
        )


def test_where_a_dual_did_not_change_one_message_is_enough() -> None:
    """rho r = lambda_old - 2 lambda is -lambda there, whose only positive entry is the
    label."""
    p = torch.softmax(
        torch.randn(500, 4, generator=torch.Generator().manual_seed(0)), -1
    )
    labels = torch.randint(4, (500,), generator=torch.Generator().manual_seed(1))
    dual = p - torch.nn.functional.one_hot(labels, 4)
    assert torch.equal(labels_said(suspicion((dual - 2 * dual) / 2, 4)), labels)


@pytest.mark.parametrize(
    ("algorithm", "noise"),
    [
        (fdml.ALGORITHM, "gradient"),
        (vimadmm.ALGORITHM, "residual"),
        (vimadmm_joint.ALGORITHM, "residual"),
    ],
)
def test_under_noise_it_is_a_guess(algorithm: AnyAlgorithm, noise: str) -> None:
    toy, transcript, own = heard(
        algorithm, EPOCH, noise=noise, config=algorithm.config(learning_rate=1e-12)
    )
    guess = (from_logit_gradients if algorithm is fdml.ALGORITHM else from_residuals)(
        transcript, own
    )
    low, high = wilson(
        round(accuracy(toy, guess) * len(guess.rows)), len(guess.rows), z=3.3
    )
    assert low < 1 / 3 < high


def test_numbers_are_told_up_to_scale_while_the_model_knows_nothing() -> None:
    toy, transcript, own = heard(fdml.ALGORITHM, 1, "regression")
    guess = from_logit_gradients(transcript, own)
    # y + |B| g = o
    outputs = toy.driver.labels[guess.rows] - guess.labels * len(guess.rows)
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
    equations = (from_logit_gradients, from_residuals, from_targets)
    directions = (by_direction, by_norm)
    for algorithm, attacks in (
        (vimadmm.ALGORITHM, equations),
        (splitnn.ALGORITHM, directions),
    ):
        _, _, own = heard(algorithm, 1)
        assert all(len(attack(Transcript("ada"), own).rows) == 0 for attack in attacks)


@SPLIT
def test_directions_tell_three_classes_apart(algorithm: AnyAlgorithm) -> None:
    toy, transcript, own = heard(algorithm)
    guess = by_direction(transcript, own)
    assert not guess.named
    assert accuracy(toy, guess) > 0.95
    again = by_direction(transcript, own)
    assert torch.equal(guess.labels, again.labels)


@SPLIT
def test_two_classes_lie_on_two_sides_of_zero(algorithm: AnyAlgorithm) -> None:
    """With one logit every row's gradient is a multiple of the same vector, with the
    sign of p - y."""
    toy, transcript, own = heard(algorithm, 1, "binary")
    assert accuracy(toy, by_direction(transcript, own), 2) == 1.0


def test_a_hidden_layer_in_the_head_does_not_hide_labels() -> None:
    toy, transcript, own = heard(
        splitnn.ALGORITHM, config=splitnn.Config(head_hidden=16)
    )
    found = scored(toy, by_direction(transcript, own))
    assert found.low is not None
    assert found.low > found.baseline + 0.1


@SPLIT
def test_under_noise_directions_are_a_guess(algorithm: AnyAlgorithm) -> None:
    toy, transcript, own = heard(
        algorithm, noise="gradient", config=algorithm.config(learning_rate=1e-12)
    )
    found = scored(toy, by_direction(transcript, own))
    assert found.low is not None
    assert found.low <= found.baseline


def test_longer_gradients_are_the_rarer_class() -> None:
    """A model that says 0.1 for everybody: |p - y| is 0.9 for the rare class and 0.1
    for the other."""
    toy, transcript, own = heard(splitnn.ALGORITHM, 1, "binary")
    with torch.no_grad():
        toy.driver.model.weight.mul_(1e-4)
        toy.driver.model.bias.fill_(torch.logit(torch.tensor(0.1)))
    transcript.seen.clear()
    toy.run(1)
    guess = by_norm(transcript, own)
    assert accuracy(toy, guess, 2) == 1.0


def test_numbers_lie_along_one_direction() -> None:
    toy, transcript, own = heard(splitnn.ALGORITHM, 1, "regression")
    guess = by_direction(transcript, own)
    assert squared(guess.labels, toy.driver.labels[guess.rows]) > 0.5


def test_few_dimensions_hold_all_of_a_low_rank_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = (
        torch.randn(50, 3, generator=generator).double()
        @ torch.randn(3, 9, generator=generator).double()
    )
    small = main_directions(rows, 3)
    torch.testing.assert_close(small @ small.T, rows @ rows.T)


def test_fewer_different_points_than_groups_are_fewer_groups() -> None:
    nearness = nearness_to_groups(torch.tensor([[0.0], [0.0], [1.0]]), 3)
    assert nearness.shape == (3, 3)
    assert len(set(nearness.argmax(1).tolist())) == 2


def test_a_share_of_the_logits_tells_labels_once_the_model_is_trained() -> None:
    toy, transcript, own = heard(vimadmm.ALGORITHM, 60, columns=(9, 3))
    ada = toy.parties["ada"]
    own = dataclasses.replace(own, model=ada.model, columns=ada.features)
    late = Transcript("ada", transcript.seen[-10:])
    guess = from_head(late, own)
    assert torch.equal(
        guess.labels,
        (ada.model(ada.features[guess.rows]) @ late.tensors("head")[0]).argmax(-1),
    )
    majority = float(toy.driver.labels.bincount().max()) / len(toy.driver.labels)
    assert accuracy(toy, guess) > majority + 0.05


@pytest.mark.parametrize("hidden", [0, 6])
def test_with_what_the_others_sent_it_has_the_joint_outputs(hidden: int) -> None:
    config = compressed_vfl.Config(local_steps=2, learning_rate=0.1, head_hidden=hidden)
    toy, transcript, own = heard(
        compressed_vfl.ALGORITHM, 1, columns=(4, 3, 5), config=config
    )
    fresh = heard(compressed_vfl.ALGORITHM, 0, columns=(4, 3, 5), config=config)[0]
    own = dataclasses.replace(
        own, model=fresh.parties["ada"].model, columns=toy.parties["ada"].features
    )
    guess = from_model(transcript, own)
    assert torch.equal(guess.rows, toy.batches.rows("train/0/0"))
    h = {
        name: party.model(party.features[guess.rows])
        for name, party in fresh.parties.items()
    }
    assert torch.equal(guess.labels, fresh.driver.outputs(h).argmax(-1))
    without = Transcript(
        "ada", [seen for seen in transcript if seen.batch == "train/0/0"]
    )
    assert len(from_model(without, own).rows) == 0, (
        "whose inputs are whose was not known"
    )
    assert (
        len(from_model(without, dataclasses.replace(own, begun=transcript)).rows) == 32
    )


def test_without_weights_or_a_model_there_is_nothing() -> None:
    _, transcript, own = heard(vimadmm.ALGORITHM, 1)
    assert len(from_head(transcript, own).rows) == 0
    fitted = dataclasses.replace(
        own, model=nn.Linear(4, 5), columns=torch.zeros(240, 4)
    )
    assert len(from_head(transcript, fitted).rows) == 0, "of another width"
    assert len(from_head(Transcript("ada"), fitted).rows) == 0


def test_outputs_mean_labels() -> None:
    logits = torch.tensor([[0.1, 2.0], [3.0, -1.0]])
    assert labels_said(suspicion(logits, 2)).tolist() == [1, 0]
    assert labels_said(suspicion(logits[:, :1] - 1, 2)).tolist() == [0, 1]
    assert labels_said(suspicion(logits[:, :1], 0)).tolist() == pytest.approx([0.1, 3])
    x = torch.randn(3, 4)
    layers = [torch.randn(5, 4), torch.randn(5), torch.randn(2, 5), torch.randn(2)]
    assert torch.allclose(
        outputs(x, layers),
        (x @ layers[0].T + layers[1]).relu() @ layers[2].T + layers[3],
    )


def test_a_row_that_was_heard_of_twice_is_one_row() -> None:
    rows = torch.tensor([5, 3, 5])
    guess = Guess(rows, torch.tensor([[1.0], [2.0], [4.0]]), named=True).by_row()
    assert guess.rows.tolist() == [3, 5]
    assert guess.scores[:, 0].tolist() == [2.0, 2.5]


@pytest.mark.parametrize("classes", [2, 4])
def test_ranks_say_what_scores_say_and_nothing_of_their_size(classes: int) -> None:
    outputs = torch.randn(50, classes, generator=torch.Generator().manual_seed(0))
    guess = Guess(torch.arange(50), suspicion(outputs, classes), named=True)
    ranked = guess.ranked()
    assert torch.equal(ranked.labels, guess.labels)
    for column in range(classes):
        order = guess.scores[:, column].argsort()
        assert torch.equal(ranked.scores[:, column].argsort(), order)
    larger = Guess(guess.rows, (guess.scores * 3).exp(), named=True)
    assert torch.equal(larger.ranked().scores, ranked.scores)
