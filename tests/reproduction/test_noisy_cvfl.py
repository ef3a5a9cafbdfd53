"""The scripts of Noisy C-VFL and of VIM under noise, on the digits that come with
scikit-learn: four strips of 2 x 8.

The laws that the full runs rest on: bytes as the codecs' formulas say, an attack that
works where nothing defends and not through noise, a control whose uploads carry
nothing, and bounds for things that are measured at all.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
import torch
from reproductions.noisy_cvfl import accuracy, inversion, rates
from reproductions.vim import dp
from tests.compression.tensors import generator, trip

from colonnade import reproduction
from colonnade.algorithms.embedding import Embed
from colonnade.attacks.inversion import PICTURE, Defence, invert, total_variation
from colonnade.compression import Quantize, VectorQuantize
from colonnade.federation import Federation, Settings
from colonnade.rows.holdings import Holdings
from colonnade.rows.public import from_dataset

ROWS = 128
WIDTH = 64
PARTIES = 4
CLASSES = 10
pytestmark = pytest.mark.filterwarnings("ignore:compressed_vfl")


@pytest.fixture(scope="module")
def digits() -> Holdings:
    tables = {
        "data": {
            "dataset": "digits",
            "split": "strips",
            "parts": PARTIES,
            "validation": 0.0,
            "test": 0.2,
        }
    }
    return from_dataset(Settings.from_mapping(tables))


def study(name: str, epochs: int) -> reproduction.Study:
    return reproduction.Study(
        dataclasses.replace(
            reproduction.plan(name).shortened(), seeds=(0,), epochs=(epochs,)
        )
    )


def bits(count: int) -> int:
    return math.ceil(math.log2(count))


def bytes_of(name: str) -> int:
    """Of a row of embeddings, by the formulas in the README."""
    family, *rest = re.findall(r"[a-z-]+|[\d.]+", name.replace("Bin", ""))
    match family, [float(one) for one in rest]:
        case "none", _:
            return 4 * WIDTH
        case "top-k", [keep]:
            return (k := round(keep * WIDTH)) * 4 + math.ceil(k * bits(WIDTH) / 8)
        case "scalar", [levels]:
            return math.ceil(WIDTH * bits(int(levels)) / 8)
        case "vector", [points]:
            return math.ceil(WIDTH / 2 * bits(int(points)) / 8)
        case "noisy", [levels, trials, _]:
            return math.ceil(WIDTH * bits(int(levels + trials)) / 8)
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("values", "scalar", "vector"),
    [("relu", 0.0136, 0.0212), ("uniform", 0.0272, 0.0303)],
)
def test_at_equal_bytes_pairs_of_64_points_are_further_off_than_8_levels(
    values: str, scalar: float, vector: float
) -> None:
    drawn = generator()
    shape = (2000, WIDTH)
    x = (
        torch.randn(shape, generator=drawn).relu()
        if values == "relu"
        else 4 * torch.rand(shape, generator=drawn)
    )
    (levels, by_levels), (pairs, by_pairs) = (
        trip(Quantize(8, 0.0, 4.0), x),
        trip(VectorQuantize(64, 0.0, 4.0), x),
    )
    assert len(levels.data) == len(pairs.data)
    assert float((by_levels - x).square().mean()) == pytest.approx(scalar, abs=1e-4)
    assert float((by_pairs - x).square().mean()) == pytest.approx(vector, abs=1e-4)


@pytest.mark.parametrize("name", accuracy.codecs(0.0, 4.0))
def test_a_round_takes_the_bytes_that_the_formulas_say(
    name: str, digits: Holdings
) -> None:
    plan = reproduction.plan("cvfl-accuracy").shortened()
    rule = accuracy.codecs(0.0, 4.0)[name]
    federation = Federation(
        accuracy.settings(plan.config, plan, digits, rule, 1), digits
    )
    next(federation.train())
    up = PARTIES * ROWS * bytes_of(name)
    weights = PARTIES * WIDTH * CLASSES + CLASSES
    assert accuracy.traffic(federation) == (
        up,
        (PARTIES - 1) * up + PARTIES * weights * (1 if rule else 4),
    )


@pytest.mark.long
def test_pictures_are_rebuilt_without_a_defence_and_not_through_noise(
    digits: Holdings,
) -> None:
    short = study("cvfl-inversion", 1)
    size = inversion.Size(None, 32, 100, 0)
    path = short.plan.folder / "configs" / "mnist.toml"
    judge = inversion.Judge(digits, path, size)
    for name in ("no defence", "top-k 0.12", "noisy 8 levels"):
        changed = inversion.Changed(inversion.defences(0.0, 4.0)[name], {})
        federation = inversion._trained(short, name, path, digits, changed, 0)
        for one in inversion._attacked(federation, name, size):
            assert one.original.shape == one.guess.shape == (32, 8, 8)
            inversion._score(short, one, judge)
    found = {what: one.mean for what, one in short.measured.items()}
    assert found["no defence: SSIM"] > 0.9
    for attacker in ("N p known", "N p unknown"):
        assert found[f"noisy 8 levels, {attacker}: SSIM"] < 0.6
    # and not the share of the first class
    assert math.isnan(judge.sees(torch.full((32, 8, 8), math.nan)))
    # what was left out is not zero: who knows that rebuilds more
    assert (
        found["top-k 0.12, zeros as gaps: SSIM"]
        > found["top-k 0.12, zeros as values: SSIM"]
    )


def test_who_knows_the_levels_asks_only_for_the_right_cells() -> None:
    """Somewhere in its cell a value costs nothing, so the prior decides: the guess is
    smoother, and still fits."""
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(16, 16, bias=False)
    torch.nn.init.orthogonal_(layer.weight, generator=generator)
    model = torch.nn.Sequential(torch.nn.Flatten(), layer)
    pictures = torch.randn(8, 4, 4, generator=generator)
    level = 1.0
    h = (model(pictures).detach() / level).round() * level
    attack = dataclasses.replace(PICTURE, weight=0.01, steps=400)
    values, cells = (
        invert(h, model, (4, 4), attack, Defence(within=half))
        for half in (0.0, level / 2)
    )
    assert (model(cells) - h).abs().max() < 1.1 * level / 2
    assert (total_variation(cells) < total_variation(values)).all()


@pytest.mark.parametrize(
    "name",
    [
        "VIMADMM",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in dp.METHODS
            if name != "VIMADMM"
        ),
    ],
)
def test_parties_learn_the_labels_though_they_upload_noise_alone(
    name: str, digits: Holdings
) -> None:
    short = study("vim-dp", 8)
    method = dp.METHODS[name]
    if "learning_rate" in method.algorithm:  # few rows: Table 3's rates are too high
        method = method._replace(algorithm={**method.algorithm, "learning_rate": 0.05})
    alone = dp.settings(
        short, digits, method, dp.Run("noise alone", "noise_only", method.sigma)
    )
    federation = short.train("alone", alone, 0, digits)
    outbox = federation.organisations["client_01"].outbox
    upload = next(rule for rule in outbox.rules if "." not in rule)
    ones = torch.ones(4, 10)
    # seeded, so that a reproduction can be repeated
    assert isinstance(outbox.noise, torch.Generator)
    state = outbox.noise.get_state()
    noise = outbox.release(ones, upload, "train/0/0").tensor
    outbox.noise.set_state(state)
    assert torch.equal(outbox.release(9 * ones, upload, "train/0/0").tensor, noise)
    assert torch.equal(outbox.release(ones, upload, "test[0:4]").tensor, ones)
    if name != "VAFL":  # it learns nothing so, on MNIST either
        assert short.measured["alone, epoch 8"].mean > 2 / CLASSES
    assert dp.protected(federation) < 2 / CLASSES


def test_test_rows_are_asked_for_as_in_training(digits: Holdings) -> None:
    """What an attacker gets of test rows is packed by the same rule."""
    plan = reproduction.plan("cvfl-accuracy").shortened()
    rule = accuracy.codecs(0.0, 4.0)["scalar 2"]
    federation = Federation(
        accuracy.settings(plan.config, plan, digits, rule, 1), digits
    )
    values, *_ = (
        reply.values.tensor
        for reply in federation.peers.ask(Embed("test[0:32]")).values()
    )
    assert set(torch.unique(values).tolist()) <= {0.0, 4.0}


def test_a_rate_is_chosen_by_validation_rows_for_each_data_set_and_q() -> None:
    """Test rows have no say, what diverged in one seed is not chosen, and a rate that
    is not there is waited for."""
    found = reproduction.Study(reproduction.plan("cvfl-rates"))
    for data, q, rate, seed in rates.table(found.plan).values():
        best = rate == {1: 0.1, 5: 0.05, 10: 0.02}[q]
        diverged = rate == 0.2 and seed == 1
        found.record(
            f"{data}, Q {q}, rate {rate:g}: validation",
            math.nan if diverged else 0.9 * (rate == 0.2) or best * 0.8,
        )
        found.record(f"{data}, Q {q}, rate {rate:g}: test", 0.5)
    del found.measured["mnist, Q 5, rate 1: validation"]
    rates.finish(found)
    chosen = {
        what: one.mean
        for what, one in found.measured.items()
        if "by validation rows" in what
    }
    wanted = {
        (data, q): rate
        for data in rates.RATES
        for q, rate in ((1, 0.1), (5, 0.05), (10, 0.02))
    }
    del wanted["mnist", 5]
    assert chosen == {
        f"{data}, Q {q}: rate by validation rows": rate
        for (data, q), rate in wanted.items()
    }


def test_a_run_has_the_rate_that_it_is_asked_to_try(digits: Holdings) -> None:
    plan = reproduction.plan("cvfl-rates").shortened()
    config = plan.folder / "configs" / "mnist.toml"
    assert (
        accuracy.settings(config, plan, digits, {}, 5, 0.7).config.learning_rate == 0.7
    )
    assert accuracy.settings(config, plan, digits, {}, 5).config.learning_rate == 0.05


@pytest.mark.parametrize("paper", ["noisy_cvfl", "vim"])
def test_bounds_are_for_things_that_are_measured(paper: str) -> None:
    path = Path(inversion.__file__).parents[1] / paper / "expected.json"
    for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
        if name not in ("cvfl-accuracy", "cvfl-inversion", "vim-dp"):
            continue
        for what in entry["figures"]:
            assert any(re.fullmatch(pattern, what) for pattern in PATTERNS[name]), what


CODECS = "|".join(re.escape(name) for name in accuracy.codecs(0.0, 1.0))
DEFENCES = "|".join(re.escape(name) for name in inversion.defences(0.0, 1.0))
ATTACKERS = ", N p (un)?known|, zeros as (values|gaps)|, levels as (values|cells)"
PATTERNS = {
    "cvfl-accuracy": [
        rf"(mnist|cifar10|modelnet10), Q (1|5|10), ({CODECS}): (accuracy|accuracy"
        r" lost|sent)"
    ],
    "cvfl-inversion": [
        rf"(mnist|cifar10|modelnet10), ({DEFENCES}|depth [1-4](,"
        rf" Bin\(\d+\))?)({ATTACKERS})?: "
        r"(SSIM|PSNR|class seen|accuracy)"
    ],
    "vim-dp": [
        rf"({'|'.join(dp.METHODS)}), (Table 3|noise alone|no noise), epoch (1|2|5|10)"
    ],
}
