"""A party whose rule clips what it releases follows its own gradient: through the clip.
So it trains as a party does whose model ends with that clip, and which releases
everything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.algorithms.several import made
from tests.conformance.battery import STEPS, WITH_MODELS
from tests.conformance.toy import NAMES, TRANSPORTS, federation
from torch import Tensor, nn

from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import Rule
from colonnade.privacy import Gaussian
from colonnade.privacy.gaussian import clip_rows

CLIP = 0.3
BY_GRADIENTS = [
    name
    for name, one in WITH_MODELS.items()
    if not name.startswith("vimadmm") and not one.config.converges
]
"""ADMM's parties minimise an objective of their own, of the embedding before it is
clipped (VIM, Section 4)."""


class Clipped(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return clip_rows(self.model(x), CLIP)


@pytest.mark.parametrize(
    "algorithm", [WITH_MODELS[name] for name in BY_GRADIENTS], ids=BY_GRADIENTS
)
@pytest.mark.parametrize("transport", ["by reference", "cohorts"])
def test_a_clip_on_the_way_out_is_a_last_layer(
    algorithm: AnyAlgorithm, transport: str
) -> None:
    released = next(iter(algorithm.releases))
    rules = {released: Rule(Gaussian(CLIP, sigma=0.0))}
    ruled = federation(
        algorithm, TRANSPORTS[transport], dtype=torch.float64, rules=rules
    )
    modelled = federation(
        algorithm, dtype=torch.float64, wrap_model=dict.fromkeys(NAMES, Clipped)
    )
    free = federation(algorithm, dtype=torch.float64)
    losses = torch.tensor(ruled.run(STEPS))
    torch.testing.assert_close(
        losses, torch.tensor(modelled.run(STEPS)), rtol=1e-9, atol=0.0
    )
    assert not torch.allclose(losses, torch.tensor(free.run(STEPS)), rtol=1e-3), (
        "nothing was clipped"
    )
    ruled.states()  # from a cohort back to its members
    for name in ruled.parties:
        mine, theirs = (
            list(toy.parties[name].model.parameters()) for toy in (ruled, modelled)
        )
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)


def test_and_at_a_data_owner_of_several_label_owners() -> None:
    several: dict[str, Any] = {"rows": {"abel": 40, "bea": 40}}
    ruled = made(
        rules={"heart": {"embedding": Rule(Gaussian(CLIP, sigma=0.0))}}, **several
    )
    modelled = made(
        wrap_model=lambda model, organisation: (
            Clipped(model) if organisation.name == "heart" else model
        ),
        **several,
    )
    losses = torch.tensor(ruled.run())
    torch.testing.assert_close(
        losses, torch.tensor(modelled.run()), rtol=1e-9, atol=0.0
    )
    assert not torch.allclose(losses, torch.tensor(made(**several).run()), rtol=1e-3), (
        "nothing was clipped"
    )
    for name in ruled.data_owners:
        mine, theirs = (
            list(toy.data_owners[name].model.parameters()) for toy in (ruled, modelled)
        )
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)
