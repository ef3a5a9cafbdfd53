"""Rows of one label have gradients of one direction, as far as the model treats them alike."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.listening import accuracy, heard, squared

from colonnade.algorithms import splitnn, vafl, vimsgd
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.attacks.label_attacks import by_direction, by_norm, groups, main_directions
from colonnade.attacks.scores import score_labels
from colonnade.core import Transcript

SPLIT = pytest.mark.parametrize("algorithm", [splitnn.ALGORITHM, vimsgd.ALGORITHM, vafl.ALGORITHM])


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
    """With one logit every row's gradient is a multiple of the same vector, with the sign of p - y."""
    toy, transcript, own = heard(algorithm, 1, "binary")
    assert accuracy(toy, by_direction(transcript, own), 2) == 1.0


def test_a_hidden_layer_in_the_head_does_not_hide_labels() -> None:
    toy, transcript, own = heard(splitnn.ALGORITHM, config=splitnn.Config(head_hidden=16))
    guess = by_direction(transcript, own)
    found = score_labels(guess.labels, toy.driver.labels[guess.rows], 3, named=False)
    assert found.low > found.baseline + 0.1


@SPLIT
def test_under_noise_it_is_a_guess(algorithm: AnyAlgorithm) -> None:
    toy, transcript, own = heard(algorithm, noise="gradient", config=algorithm.config(learning_rate=1e-12))
    guess = by_direction(transcript, own)
    found = score_labels(guess.labels, toy.driver.labels[guess.rows], 3, named=False)
    assert found.low <= found.baseline


def test_longer_gradients_are_the_rarer_class() -> None:
    """A model that says 0.1 for everybody: |p - y| is 0.9 for the rare class and 0.1 for the other."""
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
    rows = torch.randn(50, 3, generator=generator).double() @ torch.randn(3, 9, generator=generator).double()
    small = main_directions(rows, 3)
    torch.testing.assert_close(small @ small.T, rows @ rows.T)


def test_fewer_different_points_than_groups_are_fewer_groups() -> None:
    assert groups(torch.tensor([[0.0], [0.0], [1.0]]), 3).unique().numel() == 2  # type: ignore[no-untyped-call]


def test_an_empty_transcript_tells_nothing() -> None:
    _, _, own = heard(splitnn.ALGORITHM, 1)
    assert len(by_direction(Transcript("ada"), own).rows) == len(by_norm(Transcript("ada"), own).rows) == 0
