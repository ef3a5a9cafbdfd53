"""The packaged networks map rows of their shape to [rows, width]."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from colonnade.errors import ConfigError
from colonnade.models import cnn, initialised, linear, mlp


def linears(model: nn.Module) -> list[tuple[int, int]]:
    return [
        (part.in_features, part.out_features)
        for part in model.modules()
        if isinstance(part, nn.Linear)
    ]


@pytest.mark.parametrize("shape", [(1,), (56,), (7, 28), (3, 8, 8), (2, 3, 4, 5)])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("width", [1, 60])
def test_flat_networks_take_rows_of_any_shape(
    shape: tuple[int, ...], rows: int, width: int
) -> None:
    for model in (
        mlp(shape, width=width),
        mlp(shape, hidden=[], width=width),
        linear(shape, width=width),
    ):
        assert model(torch.randn(rows, *shape)).shape == (rows, width)


@pytest.mark.parametrize(
    "shape",
    [(28, 28), (7, 28), (1, 1), (1, 9), (1, 28, 28), (3, 32, 16), (3, 1, 1), (3, 2, 5)],
)
@pytest.mark.parametrize("channels", [(4,), (4, 8, 8, 16), (2,) * 7])
def test_a_cnn_takes_pictures_of_any_size(
    shape: tuple[int, ...], channels: tuple[int, ...]
) -> None:
    model = cnn(shape, channels=channels, width=11)
    assert model(torch.randn(3, *shape)).shape == (3, 11)
    assert [
        p.out_channels for p in model.modules() if isinstance(p, nn.Conv2d)
    ] == list(channels)


def test_a_cnn_ends_as_asked() -> None:
    x = 100 * torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert cnn((3, 8, 8), ending="tanh")(x).abs().max() <= 1
    assert cnn((3, 8, 8))(x).min() < 0 <= cnn((3, 8, 8), ending="relu")(x).min()
    with pytest.raises(
        ConfigError,
        match="one of none, relu, leaky_relu, elu, tanh; found 'sigmoid'",
    ):
        cnn((3, 8, 8), ending="sigmoid")


def test_a_cnn_pools_as_asked() -> None:
    kinds = {
        pool: [type(part) for part in cnn((3, 16, 16), pool=pool).modules()]
        for pool in ("average", "max")
    }
    assert kinds["average"].count(nn.AvgPool2d) == kinds["max"].count(nn.MaxPool2d) == 4
    with pytest.raises(
        ConfigError, match="'cnn': pool must be one of average, max; found 'min'"
    ):
        cnn((3, 16, 16), pool="min")


@pytest.mark.parametrize("shape", [(5,), (), (2, 3, 4, 5)])
def test_a_cnn_needs_pictures(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ConfigError, match=r"'cnn' needs rows of \[height, width\] or .*; found \("
    ):
        cnn(shape)


def test_the_defaults_are_vim_s() -> None:
    assert linears(mlp((56,))) == [(56, 120), (120, 60)]
    assert linears(linear((56,))) == [(56, 60)]
    convolutions = [
        part for part in cnn((3, 32, 16)).modules() if isinstance(part, nn.Conv2d)
    ]
    assert [part.out_channels for part in convolutions] == [32, 64, 64, 128]


def test_an_mlp_has_a_relu_after_every_layer_the_last_one_too() -> None:
    model = mlp((3,), hidden=[4, 5], width=6)
    assert linears(model) == [(3, 4), (4, 5), (5, 6)]
    kinds = [type(part) for part in model.children()]
    assert kinds == [nn.Linear, nn.ReLU] * 3
    assert bool((model(torch.randn(50, 3)) >= 0).all())


@pytest.mark.parametrize(
    ("name", "kind"), [("relu", nn.ReLU), ("elu", nn.ELU), ("tanh", nn.Tanh)]
)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_an_mlp_has_the_activation_and_dropout_it_was_given_after_every_layer(
    name: str, kind: type[nn.Module], dropout: float
) -> None:
    model = mlp((3,), hidden=[4], width=6, activation=name, dropout=dropout)
    assert [type(part) for part in model.children()] == [
        nn.Linear,
        kind,
        *[nn.Dropout] * bool(dropout),
    ] * 2
    assert {part.p for part in model.modules() if isinstance(part, nn.Dropout)} <= {
        dropout
    }


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_an_mlp_may_end_with_a_linear_layer(dropout: float) -> None:
    models = [
        mlp((3,), hidden=[4], width=6, dropout=dropout, ending=ending)
        for ending in ("same", "none")
    ]
    whole, ends = ([type(layer) for layer in model.children()] for model in models)
    assert ends == whole[: 4 if dropout else 3]
    assert ends[-1] is nn.Linear


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"ending": "tanh"},
            "'mlp': ending must be one of same, none; found 'tanh'",
        ),
        (
            {"activation": "sine"},
            "activation must be one of relu, leaky_relu, elu, tanh; found 'sine'",
        ),
        ({"dropout": 1.0}, "from 0 up to, but not including, 1; found 1.0"),
        ({"dropout": -0.1}, "found -0.1"),
        ({"dropout": "half"}, "found 'half'"),
        ({"dropout": math.nan}, "found nan"),
        ({"dropout": True}, "found True"),
    ],
)
def test_an_mlp_refuses_other_words_and_numbers(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        mlp((3,), **settings)


def test_a_linear_model_is_linear() -> None:
    model = linear((2, 3))
    a = torch.randn(1, 2, 3)
    b = torch.randn(1, 2, 3)
    zero = torch.zeros(1, 2, 3)
    assert torch.allclose(model(a + b) + model(zero), model(a) + model(b), atol=1e-6)


@pytest.mark.parametrize("make", [mlp, cnn, linear])
def test_rows_do_not_see_each_other(make: type[nn.Module]) -> None:
    model = make((4, 6))
    x = torch.randn(5, 4, 6)
    alone = torch.cat([model(x[i : i + 1]) for i in range(5)])
    assert torch.allclose(model(x), alone, atol=1e-6)


@pytest.mark.parametrize("make", [mlp, cnn, linear])
def test_every_parameter_learns(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = make((4, 6))
    torch.autograd.backward(model(torch.randn(64, 4, 6)).square().sum())
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())


def test_a_flattened_picture_is_read_row_by_row() -> None:
    torch.manual_seed(0)
    flat = linear((12,))
    square = linear((3, 4))
    square.load_state_dict(
        {name.replace("0.", "1."): value for name, value in flat.state_dict().items()}
    )
    x = torch.randn(2, 3, 4)
    assert torch.equal(square(x), flat(x.reshape(2, math.prod((3, 4)))))


# Modules made from a seed


def made(seed: int | Generator) -> Tensor:
    with initialised(seed):
        return nn.Linear(3, 2).weight.detach()


def test_the_seed_alone_decides() -> None:
    before = torch.random.get_rng_state()
    first = made(1)
    again = made(1)
    other = made(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_generator_in_the_place_of_the_seed_gives_weights_from_where_it_stands() -> (
    None
):
    generator = Generator().manual_seed(1)
    assert torch.equal(made(generator), made(1))
    assert torch.equal(made(generator), made(1)), "and it still stands there"
    torch.rand(1, generator=generator)
    assert not torch.equal(made(generator), made(1))


def test_threads_that_make_models_at_once_do_not_disturb_each_other() -> None:
    def weights(seed: int) -> torch.Tensor:
        with initialised(seed):
            return torch.cat([nn.Linear(40, 40).weight.detach() for _ in range(20)])

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(weights, range(12)))
    assert all(torch.equal(one, weights(seed)) for seed, one in enumerate(found))
