"""Server optimizers: the listing's steps by hand, torch.optim.Adam where the two
coincide, purity, refusals."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from colonnade.errors import ConfigError
from colonnade.optim.server import (
    SERVER_OPTIMIZERS,
    FedAdam,
    FedAvg,
    FedDemonAdam,
    FedYogi,
    mean,
)
from colonnade.settings.schema import checked

ADAPTIVE = ("fedadam", "fedyogi", "feddemonadam")
READINGS: tuple[Any, ...] = ("momentum", "delta")


def single(value: float) -> dict[str, Tensor]:
    return {"w": torch.tensor([value], dtype=torch.float64)}


def changes(rounds: int, size: int = 5) -> list[dict[str, Tensor]]:
    """A model of two tensors, and what label owners change in it, round by round."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (size, 2), "b": (size,)}
    return [
        {
            name: torch.randn(shape, generator=generator, dtype=torch.float64) / 10
            for name, shape in shapes.items()
        }
        for _ in range(rounds)
    ]


def follow(
    optimizer: Any, start: dict[str, Tensor], deltas: list[dict[str, Tensor]]
) -> dict[str, Tensor]:
    weights = start
    state = optimizer.init(start)
    for number, delta in enumerate(deltas, 1):
        weights, state = optimizer.update(state, weights, delta, number)
    return weights


def by_hand(
    name: str, reading: str, start: float, deltas: list[float], demon: str = "original"
) -> float:
    """The listing in scalars, with Table 2's settings and R rounds."""
    rate = 1e-3
    beta1 = 0.9
    beta2 = 0.99
    tau = 1e-3
    rounds = 10
    w = start
    m = 0.0
    v = 0.0
    beta = beta1
    for r, t in enumerate(deltas, 1):
        if name == "feddemonadam":
            beta = beta if demon == "literal" else beta1
            beta = beta * (1 - r / rounds) / ((1 - beta) + beta * (1 - r / rounds))
            m = beta * m + t
        else:
            m = beta * m + (1 - beta) * t
        square = m * m if reading == "momentum" else t * t
        if name == "fedyogi":
            v -= (1 - beta2) * square * ((v > square) - (v < square))
        else:
            v = beta2 * v + (1 - beta2) * square
        w += math.sqrt(1 - beta2**r) / (1 - beta**r) * rate * m / (math.sqrt(v) + tau)
    return w


def settings(name: str, reading: str) -> dict[str, Any]:
    return {"second_moment": reading} | (
        {"rounds": 10} if name == "feddemonadam" else {}
    )


DELTAS = [0.03, -0.02, 0.05, 0.0, -0.001, 0.04, 0.002, -0.03, 0.001, 0.02]


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("name", ADAPTIVE)
def test_ten_rounds_are_the_listing_in_scalars(name: str, reading: str) -> None:
    found = follow(
        SERVER_OPTIMIZERS[name](**settings(name, reading)),
        single(0.5),
        [single(d) for d in DELTAS],
    )
    assert found["w"].item() == pytest.approx(
        by_hand(name, reading, 0.5, DELTAS), rel=1e-12
    )


def test_line_2_of_demon_read_literally_overwrites_beta_every_round() -> None:
    demon = FedDemonAdam(rounds=100, beta1=0.9, demon="literal")
    beta = 0.9
    for r in range(1, 101):
        left = 1 - r / 100
        beta = beta * left / ((1 - beta) + beta * left)
        assert demon.momentum(r) == pytest.approx(beta, rel=1e-9, abs=1e-300)
        assert demon.momentum(r) <= FedDemonAdam(rounds=100, beta1=0.9).momentum(r)
    assert demon.momentum(100) == demon.momentum(130) == 0
    literal = FedDemonAdam(rounds=10, demon="literal")
    found = follow(literal, single(0.5), [single(d) for d in DELTAS])["w"].item()
    assert found == pytest.approx(
        by_hand("feddemonadam", "momentum", 0.5, DELTAS, "literal"), rel=1e-12
    )
    assert found != pytest.approx(
        by_hand("feddemonadam", "momentum", 0.5, DELTAS), rel=1e-6
    )


def test_the_first_step_in_numbers() -> None:
    """t = 0.2: FedAdam has m = 0.02, v = 4e-6 (m^2) or 4e-4 (t^2); the factor is
    sqrt(0.01) / 0.1 = 1."""
    reading: Any
    for reading, root in (("momentum", 0.002), ("delta", 0.02)):
        for kind in (FedAdam, FedYogi):  # Yogi's first step is Adam's
            found = follow(kind(second_moment=reading), single(1.0), [single(0.2)])[
                "w"
            ].item()
            assert found == pytest.approx(1 + 1e-3 * 0.02 / (root + 1e-3), rel=1e-12)
    # FedDemonAdam with R = 2: beta_1 = 0.45 / 0.55 = 9/11, m = 0.2, v = 4e-4; the
    # factor is 0.1 / (2/11)
    found = follow(FedDemonAdam(rounds=2), single(1.0), [single(0.2)])["w"].item()
    assert found == pytest.approx(1 + 0.55 * 1e-3 * 0.2 / (0.02 + 1e-3), rel=1e-12)


def test_yogi_forgets_slowly_where_adam_forgets_at_once() -> None:
    deltas = [single(1.0)] + [single(1e-3)] * 5
    states = {}
    for kind in (FedAdam, FedYogi):
        optimizer = kind(second_moment="delta", beta2=0.5)
        weights = single(0.0)
        state = optimizer.init(single(0.0))
        for number, delta in enumerate(deltas, 1):
            weights, state = optimizer.update(state, weights, delta, number)
        states[kind] = state["v.w"].item()
    assert states[FedAdam] == pytest.approx(0.5**6 + (1 - 0.5**5) * 1e-6)
    assert states[FedYogi] == pytest.approx(0.5 - 5 * 0.5e-6)


@pytest.mark.parametrize("weight", ["delta", "momentum"])
def test_fedadam_is_torchs_adam_on_minus_the_change(weight: Any) -> None:
    """They coincide where v holds squared changes: always in the reading "delta", and
    without momentum (b1 = 0, so that m = t) in both. PyTorch adds eps after the
    correction of v, the listing adds tau before it, so eps is tau / sqrt(1 - b2^r)
    here, another number in every round."""
    beta1 = 0.9 if weight == "delta" else 0.0
    beta2 = 0.99
    tau = 1e-3
    rate = 1e-2
    deltas = changes(8)
    start = {name: torch.ones_like(value) for name, value in deltas[0].items()}
    ours = follow(
        FedAdam(rate=rate, beta1=beta1, beta2=beta2, tau=tau, second_moment=weight),
        start,
        deltas,
    )
    theirs = {name: value.clone().requires_grad_() for name, value in start.items()}
    adam = torch.optim.Adam(theirs.values(), rate, betas=(beta1, beta2))
    for number, delta in enumerate(deltas, 1):
        adam.param_groups[0]["eps"] = tau / math.sqrt(1 - beta2**number)
        for name, value in theirs.items():
            value.grad = -delta[name]
        adam.step()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value.detach(), rtol=1e-12, atol=1e-14)


def test_the_two_readings_differ_where_there_is_momentum() -> None:
    deltas = changes(4)
    start = {name: torch.zeros_like(value) for name, value in deltas[0].items()}
    one, other = (
        follow(FedAdam(second_moment=reading), start, deltas)["a"]
        for reading in READINGS
    )
    assert (one - other).abs().max() > 1e-4


def test_demons_momentum_decays_from_beta1_to_none() -> None:
    demon = FedDemonAdam(rounds=100, beta1=0.9)
    rates = [demon.momentum(number) for number in range(101)]
    assert rates[0] == pytest.approx(0.9)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert rates[50] == pytest.approx(0.45 / 0.55)
    assert rates[100] == demon.momentum(130) == 0


def test_demons_last_round_moves_by_the_change_alone() -> None:
    """Without momentum m is t itself, whatever was remembered."""
    demon = FedDemonAdam(rounds=3, second_moment="delta")
    for remembered in (0.0, 7.0):
        state = {"m.w": single(remembered)["w"], "v.w": single(0.0)["w"]}
        moved, kept = demon.update(state, single(0.0), single(0.5), 3)
        assert kept["m.w"].item() == 0.5
        assert moved["w"].item() == pytest.approx(
            math.sqrt(1 - 0.99**3) * 1e-3 * 0.5 / (0.05 + 1e-3)
        )


def test_fedavg_at_a_rate_of_one_is_the_mean_of_the_clients_weights() -> None:
    clients = changes(3)
    start = changes(4)[-1]
    rows = [10, 30, 60]
    delta = mean(
        [{name: client[name] - start[name] for name in start} for client in clients],
        rows,
    )
    moved = follow(FedAvg(), start, [delta])
    half = follow(FedAvg(rate=0.5), start, [delta])
    for name in start:
        wanted = sum(
            share * client[name]
            for share, client in zip((0.1, 0.3, 0.6), clients, strict=True)
        )
        torch.testing.assert_close(moved[name], wanted)
        torch.testing.assert_close(half[name], (wanted + start[name]) / 2)


def test_a_mean_with_equal_weights_is_the_plain_mean() -> None:
    clients = changes(5)
    for weights in ([1] * 5, [5000] * 5):
        for name, value in mean(clients, weights).items():
            torch.testing.assert_close(
                value, torch.stack([client[name] for client in clients]).mean(0)
            )


@pytest.mark.parametrize("name", list(SERVER_OPTIMIZERS))
def test_nothing_given_is_changed_and_the_same_comes_back_twice(name: str) -> None:
    optimizer = SERVER_OPTIMIZERS[name]()
    weights, delta = changes(2)
    _, state = optimizer.update(optimizer.init(weights), weights, delta, 1)
    given = [state, weights, delta]
    before = [{key: value.clone() for key, value in one.items()} for one in given]
    first = optimizer.update(state, weights, delta, 2)
    second = optimizer.update(state, weights, delta, 2)
    for one, kept in zip(given, before, strict=True):
        assert all(torch.equal(one[key], kept[key]) for key in kept)
    for one, again in zip(first, second, strict=True):
        assert one.keys() == again.keys()
        assert all(torch.equal(one[key], again[key]) for key in one)
        assert not {value.data_ptr() for value in one.values()} & {
            v.data_ptr() for g in given for v in g.values()
        }
    mean([weights, delta], [1, 2])
    assert all(torch.equal(weights[key], before[1][key]) for key in weights)


@pytest.mark.parametrize("name", list(SERVER_OPTIMIZERS))
def test_single_precision_stays_single(name: str) -> None:
    weights = {"w": torch.ones(3)}
    moved = follow(
        SERVER_OPTIMIZERS[name](), weights, [{"w": torch.full((3,), 0.1)}] * 2
    )
    assert moved["w"].dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("fedavg", {"rate": 0}),
        ("fedadam", {"rate": -1e-3}),
        ("fedadam", {"beta1": 1.0}),
        ("fedyogi", {"beta2": 1.5}),
        ("fedyogi", {"tau": 0.0}),
        ("feddemonadam", {"rounds": 0}),
        ("feddemonadam", {"rounds": 1.5}),
        ("feddemonadam", {"demon": "both"}),
        ("fedadam", {"second_moment": "both"}),
        ("fedadam", {"tau": float("nan")}),
        ("fedavg", {"beta1": 0.9}),
    ],
)
def test_bad_settings_are_refused(name: str, bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        checked(SERVER_OPTIMIZERS[name], bad, whose="[algorithm]")


@pytest.mark.parametrize("name", list(SERVER_OPTIMIZERS))
def test_a_change_that_does_not_fit_the_weights_is_refused(name: str) -> None:
    optimizer = SERVER_OPTIMIZERS[name]()
    state = optimizer.init(single(1.0))
    with pytest.raises(ConfigError, match="from 1; found 0"):
        optimizer.update(state, single(1.0), single(1.0), 0)
    with pytest.raises(ConfigError, match="differ in other, w"):
        optimizer.update(state, single(1.0), {"other": torch.zeros(1)}, 1)
    with pytest.raises(ConfigError, match=r"shape \(1,\); found a change of \(2,\)"):
        optimizer.update(state, single(1.0), {"w": torch.zeros(2)}, 1)


def test_means_that_are_none_are_refused() -> None:
    one = single(1.0)
    with pytest.raises(ConfigError, match="found 0 weights for 0 updates"):
        mean([], [])
    with pytest.raises(ConfigError, match="found 1 weights for 2 updates"):
        mean([one, one], [1])
    for weights in ([0, 0], [1, -1], [1, math.nan], [1, math.inf]):
        with pytest.raises(ConfigError, match="0 or more and not all 0"):
            mean([one, one], weights)
    with pytest.raises(ConfigError, match=r"update 1 .* differ in v, w"):
        mean([one, {"v": torch.zeros(1)}], [1, 1])
    with pytest.raises(ConfigError, match="Leave counters out"):
        mean([{"n": torch.tensor([1])}], [1])
