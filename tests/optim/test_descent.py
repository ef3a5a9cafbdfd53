"""Gradients that are written out are autograd's, steps by them are the optimizer's own,
and any other model still trains."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from colonnade.models import linear, mlp
from colonnade.optim.buffers import LARGEST_KEPT_BYTES, Buffers, ThreadBuffers
from colonnade.optim.chains import Chain
from colonnade.optim.descent import Descent
from colonnade.optim.execution import Captured, call_compiled, compiled
from colonnade.optim.written_out import squared_error_gradients, squared_error_steps
from colonnade.transport.cohort import Stacked

ROWS = 37
OUTPUTS = 3
RHO = 1.7
CPU = torch.device("cpu")

Makes = Callable[[], nn.Module]
Shape = tuple[int, ...]


def tied() -> nn.Module:
    """Two layers that share a weight."""
    first = nn.Linear(4, 4)
    second = nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


def frozen() -> nn.Module:
    """A model whose first layer is not trained."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6))
    model[0].requires_grad_(False)
    return model


def hooked() -> nn.Module:
    """A model with a hook that changes what it computes."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    model[1].register_forward_hook(lambda module, args, output: 2 * output)
    return model


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 6))


def sigmoid_last() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.Sigmoid())


def linear_twice() -> nn.Module:
    """Two linear layers without an activation, and layers that do nothing."""
    return nn.Sequential(nn.Linear(5, 7), nn.Identity(), nn.Linear(7, 6), nn.Identity())


def sequences() -> nn.Module:
    """A model that reads several lines of numbers for each row."""
    return nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Flatten(-2), nn.Linear(6, 6))


def nested() -> nn.Module:
    inner = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    return nn.Sequential(inner, nn.Linear(5, 6))


class Doubled(nn.Linear):
    """A linear layer with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Skipping(nn.Sequential):
    """A sequence with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + nn.Sequential(*self)(x)
        return result


CHAINS: dict[str, tuple[Shape, Makes]] = {
    "mlp": ((5,), lambda: mlp((5,), hidden=(7, 4), width=6)),
    "mlp of pictures": ((2, 3), lambda: mlp((2, 3), hidden=(7,), width=6)),
    "linear": ((5,), lambda: linear((5,), width=6)),
    "no bias": ((5,), without_bias),
    "sigmoid last": ((5,), sigmoid_last),
    "linear twice": ((5,), linear_twice),
}
OTHERS: dict[str, tuple[Shape, Makes]] = {
    "gelu": ((4,), lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU())),
    "two activations": (
        (4,),
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.ReLU()),
    ),
    "activation first": ((4,), lambda: nn.Sequential(nn.Tanh(), nn.Linear(4, 6))),
    "sequences": ((3, 4), sequences),
    "nested": ((4,), nested),
    "layer norm": ((4,), lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6))),
    "bare layer": ((4,), lambda: nn.Linear(4, 6)),
    "own layer": ((4,), lambda: nn.Sequential(Doubled(4, 6), nn.ReLU())),
    "own forward": ((4,), lambda: Skipping(nn.Linear(4, 4), nn.Tanh())),
    "tied": ((4,), tied),
    "frozen": ((4,), frozen),
    "hook": ((4,), hooked),
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
        stack = () if parties is None else (parties,)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            models = [make().to(dtype) for _ in range(parties or 1)]
            self.model = models[0] if parties is None else Stacked(models)
            self.x = torch.randn(*stack, ROWS, *shape, dtype=dtype)
            width = self.model(self.x).shape[-1]
            self.head: Tensor | None = None
            if head:
                self.head = torch.randn(*stack, width, OUTPUTS, dtype=dtype)
                width = OUTPUTS
            self.target = torch.randn(*stack, ROWS, width, dtype=dtype)

    def backward(self, model: nn.Module) -> None:
        """Compute the gradients by autograd."""
        outputs = model(self.x)
        error = (outputs if self.head is None else outputs @ self.head) - self.target
        torch.autograd.backward(RHO / 2 * error.square().sum() / ROWS)

    def descend(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int
    ) -> None:
        """Take steps by what is tested."""
        descent = Descent(model, optimizer)
        descent.towards(steps, self.x, self.target, rho=RHO, head=self.head)

    def loop(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int
    ) -> None:
        """Take the same steps by a plain loop over autograd's gradients."""
        for _ in range(steps):
            optimizer.zero_grad()
            self.backward(model)
            optimizer.step()

    def chain(self, model: nn.Module | None = None) -> Chain | None:
        model = model or self.model
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        return Descent(model, torch.optim.SGD(trained, 0.1)).chain_for(self.x)


def distance(found: Tensor, expected: Tensor) -> float:
    """The distance of two tensors in units of the expected one's norm."""
    size = expected.detach().norm().clamp_min(1e-30)
    return float((found - expected).detach().norm() / size)


def assert_equal_parameters(found: nn.Module, expected: nn.Module) -> None:
    pairs = zip(found.parameters(), expected.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("parties", [None, 3])
@pytest.mark.parametrize("kind", CHAINS)
def test_gradients_are_autograds(kind: str, parties: int | None, head: bool) -> None:
    problem = Problem(kind, parties=parties, head=head)
    problem.backward(problem.model)
    expected = [parameter.grad for parameter in problem.model.parameters()]
    chain = problem.chain()
    assert chain is not None
    tensors = chain.tensors_for(problem.x, Buffers(), Buffers())
    error = torch.empty_like(problem.target)
    for _ in range(2):  # the second time into buffers that were used
        with torch.no_grad():
            squared_error_gradients(
                tensors, problem.target, RHO / ROWS, problem.head, error
            )
        found = chain.flat.each(chain.flat.gradients)
        for gradient, autograds in zip(found, expected, strict=True):
            assert autograds is not None
            assert distance(gradient, autograds) <= 1e-13


@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-12)]
)
@pytest.mark.parametrize("parties", [None, 3])
@pytest.mark.parametrize("settings", SGD | ADAM)
@pytest.mark.parametrize("kind", ["mlp of pictures", "no bias"])
def test_steps_and_the_optimizers_state_are_the_plain_loops(
    kind: str, settings: str, parties: int | None, dtype: torch.dtype, near: float
) -> None:
    problem = Problem(kind, dtype, parties=parties)
    start = copy.deepcopy(problem.model)
    model = copy.deepcopy(problem.model)
    optimizer = optimizer_of(settings, model)
    looped = copy.deepcopy(problem.model)
    loop_optimizer = optimizer_of(settings, looped)
    for steps in (20, 1, 2):  # later calls go on with the same momentum
        problem.descend(model, optimizer, steps)
        problem.loop(looped, loop_optimizer, steps)
    for found, expected, before in zip(
        model.parameters(), looped.parameters(), start.parameters(), strict=True
    ):
        assert distance(found, expected) <= near
        assert distance(found, before) > 0.01
    state = optimizer.state_dict()
    loop_state = loop_optimizer.state_dict()
    assert state["param_groups"] == loop_state["param_groups"]
    assert state["state"].keys() == loop_state["state"].keys()
    for number, expected_state in loop_state["state"].items():
        assert state["state"][number].keys() == expected_state.keys()
        for name, value in expected_state.items():
            assert distance(state["state"][number][name], value) <= near


@pytest.mark.parametrize(
    ("first", "second"), [("descend", "loop"), ("loop", "descend")]
)
def test_either_way_goes_on_from_the_others_checkpoint(first: str, second: str) -> None:
    problem = Problem("mlp")
    model = copy.deepcopy(problem.model)
    optimizer = optimizer_of("momentum", model)
    getattr(problem, first)(model, optimizer, 5)
    resumed = copy.deepcopy(problem.model)
    resumed_optimizer = optimizer_of("momentum", resumed)
    resumed.load_state_dict(model.state_dict())
    resumed_optimizer.load_state_dict(optimizer.state_dict())
    getattr(problem, second)(resumed, resumed_optimizer, 5)

    looped = copy.deepcopy(problem.model)
    problem.loop(looped, optimizer_of("momentum", looped), 10)
    for found, expected in zip(resumed.parameters(), looped.parameters(), strict=True):
        assert distance(found, expected) <= 1e-12


@pytest.mark.parametrize("kind", OTHERS)
def test_any_other_model_goes_through_autograd(kind: str) -> None:
    problem = Problem(kind)
    assert problem.chain() is None
    model = problem.model
    looped = copy.deepcopy(model)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    loop_trained = [weight for weight in looped.parameters() if weight.requires_grad]
    problem.descend(model, torch.optim.SGD(trained, 0.02), 3)
    problem.loop(looped, torch.optim.SGD(loop_trained, 0.02), 3)
    assert_equal_parameters(model, looped)
    assert any(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize("kind", ["nested", "layer norm"])
def test_a_stack_of_other_models_is_no_chain(kind: str) -> None:
    assert Problem(kind, parties=2).chain() is None


def test_an_optimizer_of_only_some_parameters_moves_only_those() -> None:
    problem = Problem("mlp")
    model = problem.model
    looped = copy.deepcopy(model)
    optimizer = torch.optim.SGD(list(model.parameters())[:2], 0.02)
    loop_optimizer = torch.optim.SGD(list(looped.parameters())[:2], 0.02)
    problem.descend(model, optimizer, 3)
    problem.loop(looped, loop_optimizer, 3)
    assert_equal_parameters(model, looped)


@pytest.mark.parametrize("setting", ["amsgrad", "fused"])
def test_an_adam_that_does_more_goes_through_autograd(setting: str) -> None:
    problem = Problem("mlp")
    model = problem.model
    looped = copy.deepcopy(model)
    settings: dict[str, Any] = {setting: True}
    optimizer = torch.optim.Adam(model.parameters(), 0.02, **settings)
    loop_optimizer = torch.optim.Adam(looped.parameters(), 0.02, **settings)
    assert Descent(model, optimizer).chain_for(problem.x) is None
    problem.descend(model, optimizer, 20)
    problem.loop(looped, loop_optimizer, 20)
    assert_equal_parameters(model, looped)


def test_steps_that_move_the_last_parameter_first() -> None:
    """Each half of a step moves its parameters by gradients at where all are then."""
    problem = Problem("mlp", head=False)
    model = problem.model
    looped = copy.deepcopy(model)
    descent = Descent(model, torch.optim.SGD(model.parameters(), 0.02))
    descent.towards_last_first(3, problem.x, problem.target, rho=RHO)
    *others, last = looped.parameters()
    for _ in range(3):
        for moved in ([last], others):
            problem.loop(looped, torch.optim.SGD(moved, 0.02), 1)
            looped.zero_grad()
    assert_equal_parameters(model, looped)


@pytest.mark.parametrize("settings", ["decay", "adam with decay"])
@pytest.mark.parametrize("parties", [None, 3])
def test_compiled_and_interpreted_steps_are_the_same_to_the_bit(
    settings: str, parties: int | None
) -> None:
    assert isinstance(compiled(squared_error_steps), torch.jit.ScriptFunction)
    ends: list[Tensor] = []
    for device in (CPU, torch.device("meta")):  # only a CPU's calls are compiled
        problem = Problem("mlp of pictures", torch.float32, parties=parties)
        optimizer = optimizer_of(settings, problem.model)
        chain = Descent(problem.model, optimizer).chain_for(problem.x)
        assert chain is not None
        tensors = chain.tensors_for(problem.x, Buffers(), Buffers())
        vectors = chain.flat.vectors()
        error = torch.empty_like(problem.target)
        with torch.no_grad():
            call_compiled(
                squared_error_steps,
                *(tensors, vectors, 7, 0),
                *(problem.target, RHO / ROWS, problem.head, error),
                device=device,
            )
        ends.append(chain.flat.values)
    assert torch.equal(*ends)


def test_a_function_that_cannot_be_compiled_runs_as_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(function: Callable[..., None]) -> Callable[..., None]:
        raise RuntimeError("not in this Python")

    monkeypatch.setattr(torch.jit, "script", refuse)
    assert compiled(squared_error_steps) is squared_error_steps


@pytest.mark.parametrize("kind", [*CHAINS, "gelu"])
@pytest.mark.parametrize("settings", ["plain", "nesterov", "adam"])
@pytest.mark.parametrize("parties", [None, 3])
def test_a_pass_and_its_step_are_autograds(
    kind: str, settings: str, parties: int | None
) -> None:
    """Also where the outputs were clipped, and the gradient is by the clipped ones."""
    problem = Problem(kind, parties=parties, head=False)
    model = problem.model
    looped = copy.deepcopy(model)
    descent = Descent(model, optimizer_of(settings, model))
    loop_optimizer = optimizer_of(settings, looped)
    for number in range(4):
        batch_pass = descent.over(problem.x)
        result = batch_pass.outputs
        expected = looped(problem.x)
        assert distance(result, expected) <= 1e-12
        if number % 2 == 0:
            result = result / result.norm().clamp_min(1)
            expected = expected / expected.norm().clamp_min(1)
        batch_pass.step(result, problem.target)
        loop_optimizer.zero_grad()
        torch.autograd.backward(expected, problem.target)
        loop_optimizer.step()
    for found, wanted in zip(model.parameters(), looped.parameters(), strict=True):
        assert distance(found, wanted) <= 1e-10


def test_a_gradient_for_weights_that_are_gone_is_refused() -> None:
    problem = Problem("mlp", head=False)
    descent = Descent(problem.model, optimizer_of("plain", problem.model))
    batch_pass = descent.over(problem.x)
    with torch.no_grad():
        next(problem.model.parameters()).zero_()
    with pytest.raises(RuntimeError, match="changed between a pass and its gradient"):
        batch_pass.step(batch_pass.outputs, problem.target)


@pytest.mark.parametrize("kind", CHAINS)
def test_arguments_are_not_changed(kind: str) -> None:
    problem = Problem(kind)
    assert problem.head is not None
    arguments = [problem.x, problem.target, problem.head]
    copies = [tensor.clone() for tensor in arguments]
    problem.descend(problem.model, optimizer_of("plain", problem.model), 3)
    assert all(map(torch.equal, arguments, copies))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_steps_that_a_gpu_replays_are_the_same() -> None:
    """Momenta live on between replays."""
    problem = Problem("mlp", parties=3)
    assert problem.head is not None
    problem.x = problem.x.cuda()
    problem.target = problem.target.cuda()
    problem.head = problem.head.cuda()
    model = problem.model.cuda()
    looped = copy.deepcopy(model)
    descent = Descent(model, optimizer_of("decay", model))
    loop_optimizer = optimizer_of("decay", looped)

    def steps(x: Tensor, target: Tensor) -> None:
        descent.towards(4, x, target, rho=RHO, head=problem.head)

    captured = Captured(steps)
    for _ in range(5):
        problem.x = problem.x + 1
        captured(problem.x, problem.target)
        problem.loop(looped, loop_optimizer, 4)
    for found, expected in zip(model.parameters(), looped.parameters(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_thread_uses_its_buffers_again_and_shares_them_with_nobody() -> None:
    like = torch.zeros(1)
    buffers = ThreadBuffers()
    first = buffers.take((3, 2), like)
    assert buffers.take((3, 2), like).data_ptr() != first.data_ptr()
    buffers.begin()
    assert buffers.take((3, 2), like).data_ptr() == first.data_ptr()
    assert buffers.take((5,), like).shape == (5,)  # another shape in the second place
    buffers.begin()
    shapes = [(3, 2), (5,)]
    assert [tuple(buffers.take(shape, like).shape) for shape in shapes] == shapes
    assert buffers.take((1,), like.double()).dtype == torch.float64

    addresses: list[int] = []
    thread = threading.Thread(
        target=lambda: addresses.append(buffers.take((3, 2), like).data_ptr())
    )
    thread.start()
    thread.join()
    assert addresses != [first.data_ptr()]


def test_a_large_buffer_is_given_back() -> None:
    buffers = Buffers()
    like = torch.zeros(1)
    shape = (LARGEST_KEPT_BYTES // 4 + 1,)
    first = buffers.take(shape, like)
    buffers.begin()
    assert buffers.take(shape, like).data_ptr() != first.data_ptr()


def test_problems_of_other_sizes_in_between_change_nothing() -> None:
    problem = Problem("mlp")
    other = Problem("linear twice")
    model = problem.model
    looped = copy.deepcopy(model)
    optimizer = optimizer_of("momentum", model)
    for _ in range(3):
        problem.descend(model, optimizer, 2)
        other.descend(other.model, optimizer_of("plain", other.model), 2)
    problem.loop(looped, optimizer_of("momentum", looped), 6)
    for found, expected in zip(model.parameters(), looped.parameters(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7)
