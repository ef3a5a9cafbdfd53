"""What algorithms share: embeddings of a batch by name, and a step with the gradient
that comes back."""

from __future__ import annotations

import ast
import inspect
import sys

import pytest
import torch
from tests.conformance.toy import federation
from torch import nn

from colonnade.algorithms import ALGORITHMS, embedding, splitnn
from colonnade.algorithms.algorithm import LocalInputs
from colonnade.core import Organisation
from colonnade.errors import BoundaryError, PartyError


def test_who_only_embeds_takes_no_gradient() -> None:
    assert embedding.Descend not in embedding.FeatureOwner.served()
    toy = federation(splitnn.ALGORITHM)
    party = toy.parties["ada"]
    only = embedding.FeatureOwner(
        Organisation.at("ada", toy.batches),
        party.features,
        nn.Linear(4, 2),
        splitnn.Config(),
    )
    only.answer(embedding.Embed("train/0/0"))
    gradient = toy.driver.outbox.release(torch.zeros(32, 2), "gradient", "train/0/0")
    with pytest.raises(BoundaryError, match=r"does not serve embedding\.Descend"):
        only.answer(embedding.Descend("train/0/0", gradient))


def test_a_gradient_is_for_the_batch_that_was_embedded_and_used_once() -> None:
    toy = federation(splitnn.ALGORITHM)
    ask = toy.peers["ada"].ask
    gradient = toy.driver.outbox.release(torch.zeros(32, 8), "gradient", "train/0/0")
    ask(embedding.Embed("train/0/0"))
    with pytest.raises(
        PartyError,
        match="a gradient came for batch train/0/1, but train/0/0 is pending",
    ):
        ask(embedding.Descend("train/0/1", gradient))
    ask(embedding.Descend("train/0/0", gradient))
    with pytest.raises(PartyError, match="but None is pending"):
        ask(embedding.Descend("train/0/0", gradient))


def test_whole_models_end_in_logits_or_in_log_odds() -> None:
    x = torch.randn(5, 6)
    logits = embedding.with_head(
        nn.Linear(6, 4), LocalInputs(x[:1], 4, 3, splitnn.Config())
    )
    odds = embedding.with_log_odds(
        nn.Linear(6, 4), LocalInputs(x[:1], 4, 3, splitnn.Config())
    )
    assert isinstance(odds, nn.Sequential)
    assert logits(x).shape == (5, 3)
    z = odds[:-1](x)
    assert torch.equal(odds(x), z[:, 1:] - z[:, :1])
    one = LocalInputs(x[:1], 4, 1, splitnn.Config())
    assert embedding.with_log_odds(nn.Linear(6, 4), one)(x).shape == (5, 1)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_algorithm_is_made_of_another(name: str) -> None:
    """Neither imports: whatever two have in common is in a file that is no algorithm."""
    ALGORITHMS.find(name)  # it is imported
    source = inspect.getsource(sys.modules[f"colonnade.algorithms.{name}"])
    imported = {
        word
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("colonnade.algorithms")
        for word in [
            (node.module or "").rpartition(".")[2],
            *(alias.name for alias in node.names),
        ]
    }
    assert not imported & (set(ALGORITHMS) - {name})
