"""M equal modules as one."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from colonnade.models import build
from colonnade.transport.cohort import (
    Stacked,
    alike,
    better_abreast,
    share_memory,
    slice_,
    stack,
    unstack,
    why_not_stackable,
)

ROWS = 5
M = 3


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Skipping(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x[..., :4] + nn.Sequential(*self)(x)
        return result


class Gated(nn.Module):
    """A module of somebody's own: a product, a bare parameter, a norm, an activation as
    a function."""

    def __init__(self, inputs: int = 6, width: int = 4) -> None:
        super().__init__()
        self.left = nn.Linear(inputs, width)
        self.right = nn.Linear(inputs, width, bias=False)
        self.scale = nn.Parameter(torch.rand(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = (
            self.norm(torch.sigmoid(self.left(x)) * self.right(x)) * self.scale
        )
        return result


def shape_of(kind: str) -> tuple[int, ...]:
    return {
        "cnn": (8, 6),
        "cnn with channels": (2, 8, 6),
        "mlp of pictures": (3, 4),
        "sequence": (3, 4),
    }.get(kind, (6,))


def model(kind: str, seed: int) -> nn.Module:
    specs = {
        "mlp": {"name": "mlp", "hidden": [7], "width": 4},
        "mlp of pictures": {"name": "mlp", "hidden": [7], "width": 4},
        "linear": {"name": "linear", "width": 4},
        "cnn": {"name": "cnn", "channels": [3, 4], "width": 4},
        "cnn with channels": {"name": "cnn", "channels": [3], "width": 4},
    }
    if kind in specs:
        return build(specs[kind], shape_of(kind), seed=seed, owner="ada")
    made: dict[str, Callable[[], nn.Module]] = {
        "own module": Gated,
        "own layer": lambda: nn.Sequential(Doubled(6, 4), nn.ReLU()),
        "own forward": lambda: Skipping(nn.Linear(6, 4), nn.Tanh()),
        "hook": watched,
        "no bias": lambda: nn.Sequential(
            nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 4, bias=False)
        ),
        "softmax": lambda: nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=1)),
        "nested": lambda: nn.Sequential(
            nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 4)
        ),
        "sequence": lambda: nn.Sequential(
            nn.Linear(4, 5), nn.ReLU(), nn.Flatten(-2), nn.Linear(15, 4)
        ),
        "partly frozen": lambda: freeze(
            nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
        ),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return made[kind]()


def watched() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    module[0].register_forward_hook(lambda part, args, output: 2 * output)
    return module


def freeze(module: nn.Sequential) -> nn.Sequential:
    module[0].requires_grad_(False)
    return module


KINDS = (
    "mlp",
    "mlp of pictures",
    "linear",
    "cnn",
    "cnn with channels",
    "own module",
    "no bias",
    "softmax",
    "nested",
    "sequence",
    "partly frozen",
    "own layer",
    "own forward",
    "hook",
)
every_kind = pytest.mark.parametrize("kind", KINDS)


def three(kind: str) -> tuple[list[nn.Module], Stacked, Tensor]:
    modules = [model(kind, seed).double() for seed in range(M)]
    x = torch.randn(
        M,
        ROWS,
        *shape_of(kind),
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    return modules, Stacked(modules), x


@every_kind
def test_each_slice_goes_through_its_own_module(kind: str) -> None:
    modules, stacked, x = three(kind)
    expected = torch.stack(
        [module(part) for module, part in zip(modules, x, strict=True)]
    )
    assert torch.allclose(stacked(x), expected, rtol=1e-12, atol=1e-12)
    assert stacked(x).shape == (M, ROWS, 4)
    assert torch.allclose(stacked(x[:, :1]), expected[:, :1], rtol=1e-12, atol=1e-12)


@every_kind
def test_gradients_are_the_modules_own(kind: str) -> None:
    modules, stacked, x = three(kind)
    weights = torch.linspace(-1, 1, M * ROWS * 4, dtype=torch.float64).reshape(
        M, ROWS, 4
    )
    torch.autograd.backward((stacked(x) * weights).square().sum())
    for k, module in enumerate(modules):
        torch.autograd.backward((module(x[k]) * weights[k]).square().sum())
        mine = dict(stacked.one.named_parameters())
        for name, parameter in module.named_parameters():
            found = mine[name].grad
            if parameter.grad is None:
                assert found is None
                assert not mine[name].requires_grad
            else:
                assert found is not None
                assert torch.allclose(found[k], parameter.grad, rtol=1e-10, atol=1e-12)


@every_kind
def test_its_state_dict_has_the_modules_names_with_the_count_in_front(
    kind: str,
) -> None:
    modules, stacked, x = three(kind)
    theirs = modules[0].state_dict()
    mine = stacked.state_dict()
    assert list(mine) == list(theirs)
    assert all(
        mine[name].shape == (M, *tensor.shape) for name, tensor in theirs.items()
    )
    others = [model(kind, seed + 10).double() for seed in range(M)]
    stacked.load_state_dict(stack([module.state_dict() for module in others]))
    expected = torch.stack(
        [module(part) for module, part in zip(others, x, strict=True)]
    )
    assert torch.allclose(stacked(x), expected, rtol=1e-12, atol=1e-12)
    for module, state in zip(others, unstack(stacked.state_dict(), M), strict=True):
        assert all(
            torch.equal(state[name], tensor)
            for name, tensor in module.state_dict().items()
        )


def test_the_modules_it_was_made_of_stay_apart() -> None:
    modules, stacked, x = three("mlp")
    before = [copy.deepcopy(module.state_dict()) for module in modules]
    for parameter in stacked.parameters():
        parameter.data.zero_()
    for module, state in zip(modules, before, strict=True):
        assert all(
            torch.equal(tensor, state[name])
            for name, tensor in module.state_dict().items()
        )
    assert stacked(x).abs().max() == 0


def test_chains_of_linear_layers_need_no_vmap_and_the_rest_do() -> None:
    assert [kind for kind in KINDS if three(kind)[1]._chain] == [
        "mlp",
        "mlp of pictures",
        "linear",
        "no bias",
        "sequence",
        "partly frozen",
    ]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)
        self.two.weight = self.one.weight


class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "buffers"),
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1)), "random numbers"),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Dropout2d(0.1)), "random numbers"),
        (nn.Sequential(nn.Linear(3, 3), nn.AlphaDropout(0.1)), "random numbers"),
        (Tied(), "two places"),
        (Single(), "single number"),
    ],
    ids=[
        "batch norm",
        "dropout",
        "dropout2d",
        "alpha dropout",
        "tied",
        "single number",
    ],
)
def test_what_cannot_be_stacked_says_why(module: nn.Module, reason: str) -> None:
    assert reason in str(why_not_stackable(module))


@every_kind
def test_what_can_be_stacked_has_no_reason_against_it(kind: str) -> None:
    assert why_not_stackable(model(kind, 0)) is None


def state(k: float, step: float = 3.0) -> dict[str, object]:
    return {
        "w": torch.full((2, 2), k),
        "steps": torch.tensor(step),
        "groups": [{"rate": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}],
        "none": None,
        0: {"buffer": torch.tensor([k])},  # type: ignore[dict-item]
    }


def test_unstacking_undoes_stacking() -> None:
    states = [state(1.0), state(2.0), state(3.0)]
    whole = stack(states)
    assert whole["w"].shape == (3, 2, 2)
    assert whole["steps"].dim() == 0
    for k, back in enumerate(unstack(whole, 3)):
        assert back.keys() == states[k].keys()
        assert torch.equal(back["w"], torch.full((2, 2), k + 1.0))
        assert torch.equal(back[0]["buffer"], torch.tensor([k + 1.0]))  # type: ignore[index]
        assert back["groups"] == states[k]["groups"]
        assert back["none"] is None


def test_what_was_sliced_shares_no_memory() -> None:
    whole = stack([state(1.0), state(2.0)])
    part = slice_(whole, 0)
    part["w"].zero_()
    part["steps"].zero_()
    assert float(whole["w"].sum()) == 12
    assert float(whole["steps"]) == 3


def test_states_are_alike_when_nothing_is_lost_by_stacking() -> None:
    assert alike([state(1.0), state(2.0)])
    assert not alike([state(1.0, step=3.0), state(2.0, step=4.0)])
    assert not alike([state(1.0), state(1.0) | {"none": torch.zeros(1)}])
    assert not alike([state(1.0), state(1.0) | {"w": torch.zeros(3)}])
    assert not alike([state(1.0), state(1.0) | {"more": 1}])
    assert not alike([state(1.0), state(1.0) | {"groups": []}])
    assert not alike(
        [
            state(1.0),
            state(1.0)
            | {"groups": [{"rate": 0.2, "betas": (0.9, 0.99), "params": [0, 1]}]},
        ]
    )


def test_a_module_that_shares_its_stack_s_memory_keeps_being_its_own() -> None:
    """What is loaded into it is in the stack, and the other way round."""
    modules = [nn.Linear(4, 2) for _ in range(3)]
    whole = Stacked(modules)
    share_memory(whole, modules)
    modules[1].load_state_dict({"weight": torch.ones(2, 4), "bias": torch.zeros(2)})
    weight = dict(whole.named_parameters())["one.weight"]
    assert torch.equal(weight[1], torch.ones(2, 4))
    assert not torch.equal(weight[0], torch.ones(2, 4))
    with torch.no_grad():
        weight.zero_()
    assert not any(module.weight.any() for module in modules)


def test_only_wide_convolutions_on_a_gpu_are_better_abreast() -> None:
    assert not better_abreast(nn.Conv2d(2, 3, 3))
    if torch.cuda.is_available():
        assert better_abreast(nn.Conv2d(2, 3, 3).cuda())
        assert not better_abreast(nn.Conv2d(1, 3, 3).cuda())
