"""A party's own model, and what noise needs of it."""

from __future__ import annotations

import pytest
import torch
from tests.federation import small_multi
from tests.federation.small import federation, learned_of, quick, tensors
from torch import Generator, Tensor, nn

from colonnade import models
from colonnade.algorithms import ALGORITHMS
from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.federation.local_model import mixes_rows, models_told
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


TRAINED = [
    name
    for name, algorithm in ALGORITHMS.items()
    if algorithm.nested is None and models_told(Settings.from_mapping({"algorithm": {"name": name}}), ["lab"])
]
PLAIN = {"vfedcce": {"mode": "plaintext"}}
SECRET = {"clinic": {"models": "secret"}, "lab": {"models": "secret"}}


@pytest.mark.parametrize("algorithm", TRAINED)
def test_what_a_party_with_secret_models_draws_does_not_follow_from_the_agreed_seed(algorithm: str) -> None:
    """Weights, heads, random numbers: what the seed decides otherwise, it decides no more."""

    def drawn(seed: int, parties: dict[str, dict[str, str]]) -> dict[str, Tensor]:
        tables = quick(federation={"seed": seed}, parties=parties)
        return learned_of(federation(settings={**tables, "algorithm": {"name": algorithm, **PLAIN.get(algorithm, {})}}))

    one, other, again = drawn(0, {}), drawn(1, {}), drawn(0, {})
    by_seed = {place for place in one if not torch.equal(one[place], other[place])}
    assert all(torch.equal(one[place], again[place]) for place in one), "in one process the seed repeats a run"
    assert {"clinic/seat/generator", "lab/seat/generator"} < by_seed
    first, second = drawn(0, SECRET), drawn(0, SECRET)
    same = {place for place in by_seed if torch.equal(first[place], second[place])}
    assert same == set()
    mixed = drawn(0, {"lab": {"models": "secret"}})
    assert {place.partition("/")[0] for place in by_seed if not torch.equal(one[place], mixed[place])} == {"lab"}


def test_so_it_is_with_several_label_owners() -> None:
    def drawn(**owners: list[dict[str, str]]) -> dict[str, Tensor]:
        found = small_multi.federation({**small_multi.QUICK, **owners})
        return {place: t for party in found.seats for place, t in tensors(found.state_of(party), party)}

    secret = {
        "label_owners": [{"name": name, "models": "secret"} for name in small_multi.LABELS],
        "data_owners": [{"name": name, "models": "secret"} for name in small_multi.COLUMNS],
    }
    first, second, one, again = drawn(**secret), drawn(**secret), drawn(), drawn()
    assert all(torch.equal(one[place], again[place]) for place in one)
    weights = [
        place for place in first if place.endswith(("weight", "generator")) and "aggregation_server" not in place
    ]
    assert {place.partition("/")[0] for place in weights} == {*small_multi.LABELS, *small_multi.COLUMNS}
    assert not any(torch.equal(first[place], second[place]) for place in weights)


def test_a_summary_says_whose_weights_follow_from_the_seed() -> None:
    found = federation(settings=quick(parties={"lab": {"models": "secret"}}))
    assert found.fit().summary["models"] == {"clinic": "seeded", "lab": "secret"}
    assert models_told(Settings.from_mapping({"algorithm": {"name": "knn"}}), ["lab"]) == {}, "it has none"
