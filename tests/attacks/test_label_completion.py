"""A party that was sent the label owner's weights has a model that tells labels."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.attacks.listening import accuracy, heard
from torch import nn

from colonnade.algorithms import compressed_vfl, vimadmm
from colonnade.attacks.label_attacks import from_head, from_model, labels_of, outputs
from colonnade.core import Transcript

pytestmark = pytest.mark.filterwarnings("ignore:compressed_vfl")


def test_a_share_of_the_logits_tells_labels_once_the_model_is_trained() -> None:
    toy, transcript, own = heard(vimadmm.ALGORITHM, 60, columns=(9, 3))
    ada = toy.parties["ada"]
    own = dataclasses.replace(own, model=ada.model, columns=ada.features)
    late = Transcript("ada", transcript.seen[-10:])
    guess = from_head(late, own)
    assert torch.equal(guess.labels, (ada.model(ada.features[guess.rows]) @ late.tensors("head")[0]).argmax(-1))
    majority = float(toy.driver.labels.bincount().max()) / len(toy.driver.labels)
    assert accuracy(toy, guess) > majority + 0.05


@pytest.mark.parametrize("hidden", [0, 6])
def test_with_what_the_others_sent_it_has_the_joint_outputs(hidden: int) -> None:
    config = compressed_vfl.Config(local_steps=2, learning_rate=0.1, head_hidden=hidden)
    toy, transcript, own = heard(compressed_vfl.ALGORITHM, 1, columns=(4, 3, 5), config=config)
    fresh = heard(compressed_vfl.ALGORITHM, 0, columns=(4, 3, 5), config=config)[0]
    own = dataclasses.replace(own, model=fresh.parties["ada"].model, columns=toy.parties["ada"].features)
    guess = from_model(transcript, own)
    assert torch.equal(guess.rows, toy.batches.rows("train/0/0"))
    h = {name: party.model(party.features[guess.rows]) for name, party in fresh.parties.items()}
    assert torch.equal(guess.labels, fresh.driver.outputs(h).argmax(-1))
    without = Transcript("ada", [seen for seen in transcript if seen.batch == "train/0/0"])
    assert len(from_model(without, own).rows) == 0, "whose inputs are whose was not known"
    assert len(from_model(without, dataclasses.replace(own, begun=transcript)).rows) == 32


def test_without_weights_or_a_model_there_is_nothing() -> None:
    _, transcript, own = heard(vimadmm.ALGORITHM, 1)
    assert len(from_head(transcript, own).rows) == 0
    fitted = dataclasses.replace(own, model=nn.Linear(4, 5), columns=torch.zeros(240, 4))
    assert len(from_head(transcript, fitted).rows) == 0, "of another width"
    assert len(from_head(Transcript("ada"), fitted).rows) == 0


def test_outputs_mean_labels() -> None:
    logits = torch.tensor([[0.1, 2.0], [3.0, -1.0]])
    assert labels_of(logits, 2).tolist() == [1, 0]
    assert labels_of(logits[:, :1] - 1, 2).tolist() == [0, 1]
    assert labels_of(logits, 0).tolist() == pytest.approx([0.1, 3.0])
    x, layers = torch.randn(3, 4), [torch.randn(5, 4), torch.randn(5), torch.randn(2, 5), torch.randn(2)]
    assert torch.allclose(outputs(x, layers), (x @ layers[0].T + layers[1]).relu() @ layers[2].T + layers[3])
