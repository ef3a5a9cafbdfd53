"""Copies that are trained at once end where they end alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from colonnade.algorithms import multi_vfl
from colonnade.algorithms.multi_vfl_copies import Copy
from colonnade.algorithms.multi_vfl_stacks import Abreast, Copies, Stack, at_once, several
from colonnade.models import build, build_head

K, ROWS = 3, 5
CONFIG = multi_vfl.Config(learning_rate=0.05)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def of(model: nn.Module, device: str) -> list[Copy]:
    """K copies of a model, each moved a little so that no two are the same."""
    copies = [Copy(model.double().to(device), CONFIG) for _ in range(K)]
    for number, one in enumerate(copies):
        one.restart(model)
        with torch.no_grad():
            for parameter in one.model.parameters():
                parameter.mul_(1 + 0.1 * number)
    return copies


def same(mine: list[Copy], theirs: list[Copy]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def random(*shape: int, device: str = "cpu") -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [Stack, Abreast])
def test_data_owners_copies(kind: type[Stack] | type[Abreast], device: str) -> None:
    alone = of(build("convolution", (4, 6), seed=0, owner="x"), device)
    members = copy.deepcopy(alone)
    together: Copies = kind(members)
    x = random(K, ROWS, 4, 6, device=device)
    for one in members:
        one.open = True
    for turn in range(3):
        gradient = random(K, ROWS, 32, 4, 6, device=device) * (turn + 1)
        h = torch.stack([one.embed(x[k], "b") for k, one in enumerate(alone)])
        torch.testing.assert_close(together.outputs(x), h)
        for k, one in enumerate(alone):
            one.descend(gradient[k])
        if turn == 1:
            together.step(x, gradient)
        else:
            torch.testing.assert_close(together.embed(x, "b"), h)
            together.descend(gradient)
    same(members, alone)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [Stack, Abreast])
def test_label_owners_copies(kind: type[Stack] | type[Abreast], device: str) -> None:
    alone = of(build_head("cnn", (2, 6, 4), 3, seed=0, owner="x"), device)
    members = copy.deepcopy(alone)
    together: Copies = kind(members)
    h = [random(K, ROWS, 2, 2, 4, device=device), random(K, ROWS, 2, 4, 4, device=device)]
    y = torch.randint(3, (K, ROWS), generator=torch.Generator().manual_seed(1)).to(device)
    for _ in range(3):
        losses, gradients = together.learn(h, y, cross_entropy, -2)
        for k, one in enumerate(alone):
            loss, mine = one.learn([part[k] for part in h], y[k], cross_entropy, -2)
            torch.testing.assert_close(losses[k], loss)
            for a, b in zip(gradients, mine, strict=True):
                torch.testing.assert_close(a[k], b)
    same(members, alone)


@pytest.mark.parametrize("kind", [Stack, Abreast])
def test_all_begin_a_round_from_the_same_weights(kind: type[Stack] | type[Abreast]) -> None:
    model = build("mlp", (4,), seed=0, owner="x")
    members = of(model, "cpu")
    kind(members).restart(model)
    for one in members:
        assert all(map(torch.equal, one.model.parameters(), model.parameters()))


def test_a_member_of_a_stack_keeps_being_its_own() -> None:
    """Its parameters are views: what is loaded into it is in the stack, and the other way round."""
    members = of(build("linear", (4,), seed=0, owner="x"), "cpu")
    stack = Stack(members)
    with torch.no_grad():
        members[1].model.load_state_dict({"0.weight": torch.ones(60, 4), "0.bias": torch.zeros(60)})
    parameters = dict(stack.model.named_parameters())
    assert torch.equal(parameters["one.0.weight"][1], torch.ones(60, 4).double())
    assert not torch.equal(parameters["one.0.weight"][0], torch.ones(60, 4).double())


def test_on_a_cpu_everything_is_stacked() -> None:
    assert isinstance(several(of(build_head("cnn", (2, 6, 4), 3, seed=0, owner="x"), "cpu")), Stack)
    assert at_once([lambda: 1, lambda: 2], torch.device("cpu")) == [1, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_wide_convolutions_go_abreast() -> None:
    assert isinstance(several(of(build_head("cnn", (2, 6, 4), 3, seed=0, owner="x"), "cuda")), Abreast)
    assert isinstance(several(of(build("convolution", (4, 6), seed=0, owner="x"), "cuda")), Stack)
