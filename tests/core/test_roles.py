"""Feature owners introduce themselves, label owners check that all agreed to the same
rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from colonnade.core import Batches, Envelope, Organisation, files, roles
from colonnade.core.roles import Introduce, Introduction
from colonnade.errors import ConfigError
from colonnade.optim.losses import CrossEntropy


def batches(seed: int = 0, rows: int = 10) -> Batches:
    splits = {"train": torch.arange(rows - 4), "test": torch.arange(rows - 4, rows)}
    return Batches(splits, batch_size=4, epochs=2, seed=seed)


def feature_owner(
    model: nn.Module, features: Tensor, name: str = "bank", seed: int = 0
) -> roles.FeatureOwner:
    owner = roles.FeatureOwner(
        Organisation.at(name, batches(seed)), features, model, None
    )
    owner.optimizer = torch.optim.SGD(owner.model.parameters(), 0.1, momentum=0.9)
    return owner


def label_owner(rows: int = 10, seed: int = 0) -> roles.LabelOwner:
    return roles.LabelOwner(
        Organisation.at("shop", batches(seed)),
        torch.arange(rows),
        CrossEntropy(10),
        None,
    )


def introduced(owner: roles.FeatureOwner) -> Introduction:
    return owner.handle(Envelope("shop", 1, Introduce()))


@pytest.mark.parametrize("width", [1, 3, 60])
def test_a_card_says_width_rows_and_what_was_agreed(width: int) -> None:
    card = introduced(feature_owner(nn.Linear(5, width), torch.randn(10, 5)))
    assert card == Introduction((width,), 10, batches().fingerprint())


def test_introducing_oneself_trains_nothing() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    introduced(feature_owner(model, torch.randn(10, 5)))
    assert all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )


def test_meeting_gives_the_widths_in_party_order() -> None:
    owners = {
        name: feature_owner(nn.Linear(5, w), torch.randn(10, 5), name)
        for name, w in (("b", 3), ("a", 2))
    }
    driver = label_owner()
    driver.meet({name: introduced(owner) for name, owner in owners.items()})
    assert list(driver.widths.items()) == [("b", 3), ("a", 2)]


def test_parties_that_agreed_on_other_batches_are_refused() -> None:
    cards = {
        "bank": introduced(feature_owner(nn.Linear(5, 3), torch.randn(10, 5), seed=1))
    }
    with pytest.raises(ConfigError) as caught:
        label_owner().meet(cards)
    text = str(caught.value)
    assert "'bank' and 'shop' do not agree on the rows" in text
    assert batches(1).fingerprint() in text
    assert batches(0).fingerprint() in text


def test_parties_with_another_number_of_rows_are_refused() -> None:
    cards = {"bank": introduced(feature_owner(nn.Linear(5, 3), torch.randn(11, 5)))}
    with pytest.raises(
        ConfigError,
        match=r"'bank' and 'shop' .*: 11 rows with .* there, 10 with .* here",
    ):
        label_owner().meet(cards)


def test_it_is_the_party_that_differs_which_is_named() -> None:
    good = Introduction((3,), 10, batches().fingerprint())
    with pytest.raises(ConfigError, match=r"^'clinic' and 'shop'"):
        label_owner().meet({"bank": good, "clinic": Introduction((3,), 10, "0" * 16)})


@pytest.mark.parametrize(
    ("batch", "training"),
    [
        ("train/0/0", True),
        ("test[0:2]", False),
        ("train/1/1", True),
        ("train[0:2]", False),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_the_model_s_mode_follows_the_batch_s_purpose(
    batch: str, training: bool, before: bool
) -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5))
    owner = feature_owner(model.train(before), torch.randn(10, 5))
    assert owner.training(batch) is training
    assert all(part.training is training for part in model.modules())


def test_owners_look_up_the_same_rows() -> None:
    features = torch.arange(10.0)[:, None]
    owner = feature_owner(nn.Linear(1, 1), features)
    driver = label_owner()
    for batch in [*batches(), *batches().chunks("test", 3)]:
        assert torch.equal(owner.x(batch.name)[:, 0].long(), driver.y(batch.name))


def test_columns_may_have_their_rows_on_another_axis() -> None:
    owner = feature_owner(nn.Linear(5, 3), torch.randn(10, 5))
    stacked = feature_owner(nn.Linear(5, 3), torch.stack([owner.features] * 2))
    stacked.row_axis = 1
    assert torch.equal(stacked.x("train/0/0")[1], owner.x("train/0/0"))
    assert introduced(stacked).rows == 10


def test_a_feature_owner_continues_bit_equal_from_a_checkpoint(tmp_path: Path) -> None:
    def step(owner: roles.FeatureOwner) -> None:
        assert owner.optimizer is not None
        owner.optimizer.zero_grad()
        torch.autograd.backward(owner.model(owner.features).square().mean())
        owner.optimizer.step()

    features = torch.randn(10, 5)
    one, other = (feature_owner(nn.Linear(5, 3), features) for _ in range(2))
    step(one)
    files.write_state(tmp_path / "c", one.state())
    other.load_state(files.read_state(tmp_path / "c"))
    step(one)
    step(other)
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )
