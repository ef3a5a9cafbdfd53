"""What every mechanism must do. A mechanism joins by a line in MECHANISMS."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor

from colonnade.core import NON_PRIVATE, DpEvent, Mechanism, Outbox, Plain, Rule
from colonnade.privacy import Binomial, Gaussian, NoiseOnly

MECHANISMS: list[Mechanism] = [
    Plain(),
    Gaussian(clip=math.inf, sigma=0.0),
    Gaussian(clip=0.5, sigma=0.0),
    Gaussian(clip=0.5, sigma=2.0),
    NoiseOnly(clip=0.5, sigma=2.0),
    Binomial(levels=2, trials=0),
    Binomial(levels=16, trials=100, p=0.3, low=-2.0, high=3.0),
]

every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
every_shape = pytest.mark.parametrize(
    "shape", [(1, 6), (40, 6), (0, 6), (40, 1)], ids=str
)


def random(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=Generator().manual_seed(3)).to(dtype)


@every_mechanism
@every_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_and_type_stay(
    mechanism: Mechanism, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    safe, _ = mechanism.apply(random(shape, dtype), Generator().manual_seed(0))
    assert safe.shape == shape
    assert safe.dtype == dtype
    assert torch.isfinite(safe).all()


@every_mechanism
@every_shape
def test_the_private_tensor_is_never_changed(
    mechanism: Mechanism, shape: tuple[int, ...]
) -> None:
    private = random(shape)
    kept = private.clone()
    version = private._version
    mechanism.apply(private, Generator().manual_seed(0))
    assert torch.equal(private, kept)
    assert private._version == version


@every_mechanism
def test_it_is_a_function_of_the_tensor_and_the_generators_state(
    mechanism: Mechanism,
) -> None:
    before = torch.random.get_rng_state()
    generator = Generator().manual_seed(5)
    state = generator.get_state()
    one, event = mechanism.apply(random((40, 6)), generator)
    generator.set_state(state)
    other, same = mechanism.apply(random((40, 6)), generator)
    assert torch.equal(one, other)
    assert event == same
    assert torch.equal(before, torch.random.get_rng_state()), (
        "it drew global random numbers"
    )


@every_mechanism
def test_it_says_what_it_cost(mechanism: Mechanism) -> None:
    _, event = mechanism.apply(random((40, 6)), Generator().manual_seed(0))
    assert isinstance(event, DpEvent)
    assert event.kind
    assert all(
        isinstance(key, str) and isinstance(value, float)
        for key, value in event.parameters.items()
    )


@every_mechanism
def test_the_cost_does_not_depend_on_the_data(mechanism: Mechanism) -> None:
    events = [
        mechanism.apply(random((40, 6)) * scale, Generator().manual_seed(0))[1]
        for scale in (0.0, 1.0, 1e6)
    ]
    assert events[0] == events[1] == events[2]


@every_mechanism
def test_what_leaves_the_outbox_shares_no_memory_and_no_graph(
    mechanism: Mechanism,
) -> None:
    outbox = Outbox("ada", Generator().manual_seed(0), {"x": Rule(mechanism)})
    private = random((4, 3)).requires_grad_()
    released = outbox.release(private * 1.0, "x")
    assert not released.tensor.requires_grad
    values = random((4, 3))
    released = outbox.release(values, "x")
    kept = released.tensor.clone()
    values.add_(1.0)
    assert torch.equal(released.tensor, kept)
    assert (
        released.receipt.event == mechanism.apply(values, Generator().manual_seed(0))[1]
    )


def test_plain_is_the_tensor_itself_and_says_non_private() -> None:
    tensor = random((4, 3))
    safe, event = Plain().apply(tensor, Generator())
    assert torch.equal(safe, tensor)
    assert event == NON_PRIVATE
    assert event.kind == "non-private"
