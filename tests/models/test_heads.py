"""Label owners' models give one output per class for what data owners send, joined."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from colonnade.errors import ConfigError
from colonnade.models import HEADS, MAPS, build, build_head
from colonnade.models.networks import cnn_head, linear_head, mlp_head


def kinds(model: nn.Module) -> list[str]:
    return [type(part).__name__ for part in model.children()]


@pytest.mark.parametrize("name", HEADS)
def test_a_name_alone_will_do(name: str) -> None:
    model = build_head(name, (6, 8, 9), 4, seed=0, owner="clinic")
    assert model(torch.randn(5, 6, 8, 9)).shape == (5, 4)
    again, other = (
        build_head(name, (6, 8, 9), 4, seed=seed, owner="clinic") for seed in (0, 1)
    )
    assert all(
        map(torch.equal, model.state_dict().values(), again.state_dict().values())
    )
    assert not all(
        map(torch.equal, model.state_dict().values(), other.state_dict().values())
    )


def test_the_last_layer_has_no_activation() -> None:
    assert kinds(linear_head((7,), 3)) == ["Linear"]
    assert kinds(mlp_head((7,), 3, hidden=(5, 4))) == [
        "Linear",
        "ReLU",
        "Linear",
        "ReLU",
        "Linear",
    ]
    assert kinds(mlp_head((2, 7), 3, hidden=())) == ["Flatten", "Linear"]


@pytest.mark.parametrize(
    ("pool", "inputs"), [(1, 32 * 28 * 28), (2, 32 * 14 * 14), (3, 32 * 9 * 9)]
)
def test_multi_vfl_s_label_owner_is_one_convolution_and_two_linear_layers(
    pool: int, inputs: int
) -> None:
    model = cnn_head((32, 28, 28), 10, pool=pool)
    pooled = ["MaxPool2d"] if pool > 1 else []
    assert kinds(model) == [
        "Conv2d",
        "ReLU",
        *pooled,
        "Flatten",
        "Linear",
        "ReLU",
        "Linear",
    ]
    assert [
        part.in_features for part in model.children() if isinstance(part, nn.Linear)
    ] == [inputs, 128]
    assert model(torch.randn(2, 32, 28, 28)).shape == (2, 10)


def test_multi_vfl_s_data_owner_keeps_the_picture_s_size() -> None:
    assert list(MAPS) == ["convolution"]
    for shape in ((7, 28), (1, 7, 28)):
        model = build("convolution", shape, seed=0, owner="clinic")
        out = model(torch.randn(3, *shape))
        assert out.shape == (3, 32, 7, 28)
        assert (out >= 0).all()
    narrow = build({"name": "convolution", "channels": 5}, (3, 4, 4), seed=0, owner="x")
    assert narrow(torch.randn(2, 3, 4, 4)).shape == (2, 5, 4, 4)


@pytest.mark.parametrize(
    ("name", "shape", "settings", "rule"),
    [
        ("cnn", (8,), {}, "needs feature maps"),
        (
            "cnn",
            (4, 5, 6),
            {"pool": 0},
            "pool must be a whole number, 1 or more; found 0",
        ),
        ("cnn", (4, 5, 6), {"pool": 6}, "pools 5 x 6 by 1 to 5; found 6"),
        ("mpl", (8,), {}, "did you mean 'mlp'.*Use one of linear, mlp, cnn"),
        (
            "mlp",
            (8,),
            {"hiden": [3]},
            r"no setting 'hiden' \(did you mean 'hidden'\?\)\. It knows: hidden\.",
        ),
        (
            "cnn",
            (4, 5, 6),
            {"hidden": [3]},
            r"'clinic': hidden must be a whole number, 1 or more; found \[3\]",
        ),
        ("linear", (8,), {"outputs": 3}, "has no setting 'outputs'. It knows: none"),
    ],
)
def test_what_cannot_be_made_is_refused(
    name: str, shape: tuple[int, ...], settings: dict[str, int], rule: str
) -> None:
    with pytest.raises(ConfigError, match=rule):
        build_head({"name": name, **settings}, shape, 3, seed=0, owner="clinic")


def test_a_convolution_needs_a_picture() -> None:
    with pytest.raises(ConfigError, match="'convolution' needs rows of"):
        build("convolution", (8,), seed=0, owner="clinic")
