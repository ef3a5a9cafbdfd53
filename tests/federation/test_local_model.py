"""A party's own model, and what noise needs of it."""

from __future__ import annotations

import pytest
import torch
from tests.federation.small import federation, quick
from torch import Generator, Tensor, nn

from colonnade import models
from colonnade.errors import ConfigError
from colonnade.federation.local_model import mixes_rows
from colonnade.models import seeded

NOISE = {"lab": {"outbox": {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 5.0}}}}}


class Ranked(nn.Module):
    """No statistics are kept, and rows still depend on each other."""

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(0)


def batch_normalised(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    ("model", "mixes"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU()), True),
        (nn.Sequential(nn.Linear(6, 4), Ranked()), True),
        (nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.ReLU()), False),
        (nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4)), False),
    ],
    ids=["BatchNorm", "softmax over rows", "LayerNorm", "Dropout"],
)
def test_rows_that_change_each_other_are_found_and_nothing_else_is_changed(model: nn.Module, mixes: bool) -> None:
    generator = Generator().manual_seed(1)
    model = seeded(model, generator, owner="lab")
    before, drawn = [value.clone() for value in model.state_dict().values()], generator.get_state()
    assert mixes_rows(model, torch.randn(50, 6, generator=Generator().manual_seed(0)), generator) is mixes
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert torch.equal(drawn, generator.get_state())


def test_noise_is_refused_where_it_would_not_cover_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.MODELS, "normalised", batch_normalised)
    settings = quick() | {"model": {"name": "normalised"}}
    federation(settings=settings)
    with pytest.raises(ConfigError, match=r"The model of 'lab' lets the rows of a batch change each other.*GroupNorm"):
        federation(settings=settings | {"parties": NOISE})
