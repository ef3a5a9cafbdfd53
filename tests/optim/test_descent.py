"""Gradients written out are autograd's, steps on them are the optimizer's own, and any
other model still trains."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from colonnade.models import linear, mlp
from colonnade.optim.descent import (
    ACTIVATIONS,
    Buffers,
    Captured,
    Descent,
    Flat,
    Scratch,
    compiled,
    kept_by,
    layers_of,
)
from colonnade.optim.written_out import Layers, squared_gradients, squared_steps
from colonnade.transport.cohort import Stacked

ROWS = 37
OUTPUTS = 3
RHO = 1.7


def tied() -> nn.Module:
    one = nn.Linear(4, 4)
    two = nn.Linear(4, 4)
    two.weight = one.weight
    return nn.Sequential(one, nn.ReLU(), two)


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6))
    model[0].requires_grad_(False)
    return model


def watched() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    model[1].register_forward_hook(lambda module, args, output: 2 * output)
    return model


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Skipping(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + nn.Sequential(*self)(x)
        return result


CHAINS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "mlp": ((5,), lambda: mlp((5,), hidden=(7, 4), width=6)),
    "mlp of pictures": ((2, 3), lambda: mlp((2, 3), hidden=(7,), width=6)),
    "linear": ((5,), lambda: linear((5,), width=6)),
    "no bias": (
        (5,),
        lambda: nn.Sequential(nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 6)),
    ),
    "sigmoid last": (
        (5,),
        lambda: nn.Sequential(
            nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.Sigmoid()
        ),
    ),
    "linear twice": (
        (5,),
        lambda: nn.Sequential(
            nn.Linear(5, 7), nn.Identity(), nn.Linear(7, 6), nn.Identity()
        ),
    ),
}
OTHERS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "gelu": ((4,), lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU())),
    "two activations": (
        (4,),
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.ReLU()),
    ),
    "activation first": ((4,), lambda: nn.Sequential(nn.Tanh(), nn.Linear(4, 6))),
    "sequences": (
        (3, 4),
        lambda: nn.Sequential(
            nn.Linear(4, 2), nn.ReLU(), nn.Flatten(-2), nn.Linear(6, 6)
        ),
    ),
    "nested": (
        (4,),
        lambda: nn.Sequential(
            nn.Sequential(nn.Linear(4, 5), nn.ReLU()), nn.Linear(5, 6)
        ),
    ),
    "layer norm": ((4,), lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6))),
    "bare layer": ((4,), lambda: nn.Linear(4, 6)),
    "own layer": ((4,), lambda: nn.Sequential(Doubled(4, 6), nn.ReLU())),
    "own forward": ((4,), lambda: Skipping(nn.Linear(4, 4), nn.Tanh())),
    "tied": ((4,), tied),
    "frozen": ((4,), frozen),
    "hook": ((4,), watched),
}
SGD: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "decay": {"momentum": 0.9, "weight_decay": 0.05},
    "nesterov": {"momentum": 0.5, "nesterov": True, "weight_decay": 0.05},
    "fused": {"momentum": 0.9, "fused": True},
}

ADAM: dict[str, dict[str, Any]] = {
    "adam": {},
    "adam with decay": {"betas": (0.8, 0.99), "weight_decay": 0.05},
}


def optimizer_of(settings: str, model: nn.Module) -> torch.optim.Optimizer:
    if settings in ADAM:
        return torch.optim.Adam(model.parameters(), 0.02, **ADAM[settings])
    return torch.optim.SGD(model.parameters(), 0.02, **SGD[settings])


class Problem:
    """A model, its rows, and what f(x) W should be."""

    def __init__(
        self,
        kind: str,
        dtype: torch.dtype = torch.float64,
        *,
        parties: int | None = None,
        head: bool = True,
    ) -> None:
        shape, make = (CHAINS | OTHERS)[kind]
        ahead = () if parties is None else (parties,)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            models = [make().to(dtype) for _ in range(parties or 1)]
            self.model = models[0] if parties is None else Stacked(models)
            self.x = torch.randn(*ahead, ROWS, *shape, dtype=dtype)
            width = self.model(self.x).shape[-1]
            self.head = (
                torch.randn(*ahead, width, OUTPUTS, dtype=dtype) if head else None
            )
            self.target = torch.randn(
                *ahead, ROWS, OUTPUTS if head else width, dtype=dtype
            )

    def backward(self, model: nn.Module) -> None:
        outputs = model(self.x)
        error = (outputs if self.head is None else outputs @ self.head) - self.target
        torch.autograd.backward(RHO / 2 * error.square().sum() / ROWS)

    def descend(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int
    ) -> None:
        Descent(model, optimizer).towards(
            steps, self.x, self.target, rho=RHO, head=self.head
        )

    def step(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int
    ) -> None:
        """The plain loop."""
        for _ in range(steps):
            optimizer.zero_grad()
            self.backward(model)
            optimizer.step()

    def plain(self) -> tuple[Flat, Layers] | None:
        optimizer = torch.optim.SGD(
            [p for p in self.model.parameters() if p.requires_grad], 0.1
        )
        found = Descent(self.model, optimizer).plain(self.x)
        return (
            None
            if found is None
            else (found[0], found[1].over(found[2], Buffers(), Buffers()))
        )


def relative(mine: Tensor, theirs: Tensor) -> float:
    return float(
        (mine - theirs).detach().norm() / theirs.detach().norm().clamp_min(1e-30)
    )


shapes = pytest.mark.parametrize(
    ("parties", "head"), [(None, True), (None, False), (3, True), (3, False)]
)


@shapes
@pytest.mark.parametrize("kind", CHAINS)
def test_gradients_are_autograds(kind: str, parties: int | None, head: bool) -> None:
    problem = Problem(kind, parties=parties, head=head)
    problem.backward(problem.model)
    gradients = [parameter.grad for parameter in problem.model.parameters()]
    found = problem.plain()
    assert found is not None
    flat, layers = found
    for _ in range(2):  # the second in used buffers
        with torch.no_grad():
            squared_gradients(
                layers,
                problem.target,
                RHO / ROWS,
                problem.head,
                torch.empty_like(problem.target),
            )
        for mine, gradient in zip(flat.each(flat.gradients), gradients, strict=True):
            assert gradient is not None
            assert relative(mine, gradient) <= 1e-13


@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-12)]
)
@pytest.mark.parametrize("parties", [None, 3])
@pytest.mark.parametrize("settings", SGD | ADAM)
@pytest.mark.parametrize("kind", ["mlp of pictures", "no bias"])
def test_twenty_steps_are_the_plain_loops(
    kind: str, settings: str, parties: int | None, dtype: torch.dtype, near: float
) -> None:
    problem = Problem(kind, dtype, parties=parties)
    mine, theirs, start = (copy.deepcopy(problem.model) for _ in range(3))
    ours, plain = (optimizer_of(settings, model) for model in (mine, theirs))
    for steps in (20, 1, 2):  # more calls go on with the same momentum
        problem.descend(mine, ours, steps)
        problem.step(theirs, plain, steps)
    for p, q, before in zip(
        mine.parameters(), theirs.parameters(), start.parameters(), strict=True
    ):
        assert relative(p, q) <= near
        assert relative(p, before) > 0.01
    one = ours.state_dict()
    other = plain.state_dict()
    assert one["param_groups"] == other["param_groups"]
    assert one["state"].keys() == other["state"].keys()
    for number, state in other["state"].items():
        assert one["state"][number].keys() == state.keys()
        assert all(
            relative(one["state"][number][name], value) <= near
            for name, value in state.items()
        )


def test_either_way_goes_on_from_the_others_checkpoint() -> None:
    problem = Problem("mlp")
    ways = [problem.descend, problem.step]
    ends = []
    for before, after in ((0, 1), (1, 0), (1, 1)):
        models = [copy.deepcopy(problem.model) for _ in range(2)]
        first, second = (
            torch.optim.SGD(model.parameters(), 0.02, momentum=0.9) for model in models
        )
        ways[before](models[0], first, 5)
        models[1].load_state_dict(models[0].state_dict())
        second.load_state_dict(first.state_dict())
        ways[after](models[1], second, 5)
        ends.append(torch.cat([p.detach().flatten() for p in models[1].parameters()]))
    assert relative(ends[0], ends[2]) <= 1e-12
    assert relative(ends[1], ends[2]) <= 1e-12


@pytest.mark.parametrize("kind", OTHERS)
def test_any_other_model_goes_through_autograd(kind: str) -> None:
    problem = Problem(kind)
    assert problem.plain() is None
    mine = problem.model
    theirs = copy.deepcopy(problem.model)
    ours, plain = (
        torch.optim.SGD([p for p in m.parameters() if p.requires_grad], 0.02)
        for m in (mine, theirs)
    )
    problem.descend(mine, ours, 3)
    problem.step(theirs, plain, 3)
    assert all(
        torch.equal(p, q)
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True)
    )
    assert any(p.grad is not None for p in mine.parameters())


@pytest.mark.parametrize("kind", ["nested", "layer norm"])
def test_a_stack_of_other_models_is_no_chain(kind: str) -> None:
    assert Problem(kind, parties=2).plain() is None


def test_an_optimizer_of_only_some_parameters_moves_only_those() -> None:
    problem = Problem("mlp")
    mine = problem.model
    theirs = copy.deepcopy(problem.model)
    ours, plain = (
        torch.optim.SGD(list(model.parameters())[:2], 0.02) for model in (mine, theirs)
    )
    problem.descend(mine, ours, 3)
    problem.step(theirs, plain, 3)
    assert all(
        torch.equal(p, q)
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True)
    )


@pytest.mark.parametrize("settings", [{"amsgrad": True}, {"fused": True}])
def test_an_adam_that_does_more_goes_through_autograd(
    settings: dict[str, bool],
) -> None:
    problem = Problem("mlp")
    mine = problem.model
    theirs = copy.deepcopy(problem.model)
    ours, plain = (
        torch.optim.Adam(model.parameters(), 0.02, **settings)  # type: ignore[arg-type]
        for model in (mine, theirs)
    )
    assert kept_by(ours) is None
    problem.descend(mine, ours, 20)
    problem.step(theirs, plain, 20)
    assert all(
        torch.equal(p, q)
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True)
    )


@pytest.mark.parametrize("settings", ["decay", "adam with decay"])
@pytest.mark.parametrize("parties", [None, 3])
def test_compiled_or_as_it_stands_is_the_same_to_the_bit(
    settings: str, parties: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem("mlp of pictures", torch.float32, parties=parties)
    mine = problem.model
    theirs = copy.deepcopy(problem.model)
    ours, plain = (optimizer_of(settings, model) for model in (mine, theirs))
    assert isinstance(compiled(squared_steps), torch.jit.ScriptFunction)
    problem.descend(mine, ours, 7)
    monkeypatch.setattr(
        "colonnade.optim.descent._COMPILED", {squared_steps: squared_steps}
    )
    problem.descend(theirs, plain, 7)
    assert all(
        torch.equal(p, q)
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True)
    )


def test_where_nothing_can_be_compiled_it_runs_as_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(function: Callable[..., None]) -> Callable[..., None]:
        raise RuntimeError("not in this Python")

    monkeypatch.setattr(torch.jit, "script", refuse)
    assert compiled(squared_steps) is squared_steps


@pytest.mark.parametrize("kind", [*CHAINS, "gelu"])
@pytest.mark.parametrize("settings", ["plain", "nesterov", "adam"])
@pytest.mark.parametrize("parties", [None, 3])
def test_a_pass_and_its_step_are_autograds(
    kind: str, settings: str, parties: int | None
) -> None:
    """Also where something was made of the outputs, as a clip, and the gradient is of
    that."""
    problem = Problem(kind, parties=parties, head=False)
    mine = problem.model
    theirs = copy.deepcopy(problem.model)
    ours, plain = (optimizer_of(settings, model) for model in (mine, theirs))
    descent = Descent(mine, ours)
    for number in range(4):
        passed = descent.over(problem.x)
        outputs = theirs(problem.x)
        assert relative(passed.outputs, outputs) <= 1e-12
        clipped = [
            made if number % 2 else made / made.norm().clamp_min(1)
            for made in (passed.outputs, outputs)
        ]
        passed.step(clipped[0], problem.target)
        plain.zero_grad()
        torch.autograd.backward(clipped[1], problem.target)
        plain.step()
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert relative(p, q) <= 1e-10


def test_a_gradient_for_weights_that_are_gone_is_refused() -> None:
    problem = Problem("mlp", head=False)
    passed = Descent(
        problem.model, torch.optim.SGD(problem.model.parameters(), 0.1)
    ).over(problem.x)
    with torch.no_grad():
        next(problem.model.parameters()).zero_()
    with pytest.raises(RuntimeError, match="changed between a pass and its gradient"):
        passed.step(passed.outputs, problem.target)


def test_what_was_given_is_not_changed() -> None:
    for kind in CHAINS:
        problem = Problem(kind)
        given = [problem.x, problem.target, problem.head]
        copies = [tensor.clone() for tensor in given if tensor is not None]
        optimizer = torch.optim.SGD(problem.model.parameters(), 0.02)
        problem.descend(problem.model, optimizer, 3)
        assert all(
            torch.equal(a, b)
            for a, b in zip(copies, given, strict=True)
            if b is not None
        )


def test_a_chain_leaves_out_what_does_nothing() -> None:
    model = CHAINS["linear twice"][1]()
    assert [type(layer) for layer in layers_of(model) or []] == [nn.Linear, nn.Linear]
    assert {nn.ReLU, nn.Tanh, nn.Sigmoid} == set(ACTIVATIONS)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_it_is_captured_and_the_same() -> None:
    """Momenta live on between replays."""
    problem = Problem("mlp", parties=3)
    mine = problem.model.cuda()
    theirs = copy.deepcopy(problem.model).cuda()
    x = problem.x.cuda()
    target = problem.target.cuda()
    head = None if problem.head is None else problem.head.cuda()
    ours, plain = (
        torch.optim.SGD(m.parameters(), 0.02, momentum=0.9, weight_decay=0.01)
        for m in (mine, theirs)
    )
    descent = Descent(mine, ours)
    captured = Captured(
        lambda x, target: descent.towards(4, x, target, rho=2.0, head=head)
    )
    for number in range(5):
        captured(x + number, target)
        for _ in range(4):
            outputs = theirs(x + number)
            error = (outputs if head is None else outputs @ head) - target
            plain.zero_grad()
            torch.autograd.backward(2.0 / 2 * error.square().sum() / error.shape[-2])
            plain.step()
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-4, atol=1e-6)


def test_a_thread_uses_its_buffers_again_and_shares_them_with_nobody() -> None:
    like = torch.zeros(1)
    scratch = Scratch()
    first = scratch.take((3, 2), like)
    second = scratch.take((3, 2), like)
    assert first.data_ptr() != second.data_ptr()
    scratch.begin()
    assert scratch.take((3, 2), like).data_ptr() == first.data_ptr()
    assert scratch.take((5,), like).shape == (5,)  # another shape in its place
    scratch.begin()
    assert [tuple(scratch.take(shape, like).shape) for shape in ((3, 2), (5,))] == [
        (3, 2),
        (5,),
    ]
    assert scratch.take((1,), like.double()).dtype == torch.float64
    seen: list[int] = []
    thread = threading.Thread(
        target=lambda: seen.append(scratch.take((3, 2), like).data_ptr())
    )
    thread.start()
    thread.join()
    assert seen != [first.data_ptr()]


def test_large_buffers_are_not_kept() -> None:
    scratch = Scratch()
    scratch.take((Scratch.KEPT // 4 + 1,), torch.zeros(1))
    assert scratch.buffers == []


def test_problems_of_other_sizes_in_between_change_nothing() -> None:
    problem = Problem("mlp")
    other = Problem("linear twice")
    mine = problem.model
    theirs = copy.deepcopy(problem.model)
    ours, plain = (
        torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
        for model in (mine, theirs)
    )
    for _ in range(3):
        problem.descend(mine, ours, 2)
        other.descend(other.model, torch.optim.SGD(other.model.parameters(), 0.02), 2)
    problem.step(theirs, plain, 6)
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-5, atol=1e-7)
