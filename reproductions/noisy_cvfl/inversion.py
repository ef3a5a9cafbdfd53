"""Model inversion against Compressed VFL: what an attacker with a party's weights makes
of the embeddings of test rows.

Trains with each defence, asks for the embeddings of test rows as the label owner does,
and inverts them (Eq. 10 to 14), party by party; the parts are put together and compared
with the original pictures. An independent classifier, trained on the original pictures
of training rows, says whether the class can still be seen. Then the same without a
defence for local models of one to four layers (Figure 1); on ModelNet10, the paper's
own data, also with noise at every depth, once of the variance that the paper asks for
and twice with more, which is what a finite epsilon takes.

Noise has a mean of N p. One attacker subtracts it, as every party of the algorithm
does; the other is not told it, as the paper assumes (Section 4.4.1). With top-k, one
takes the zeros for values (the paper's way); the other knows that they were left out.
With levels, one takes them for values, as the paper does; the other knows that they
were rounded. The paper does not give N and p: here the variance N p (1 - p) equals the
number of levels.

A data set with a defence or a depth, and a seed, is a cell.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from colonnade import models
from colonnade.algorithms.embedding import Embed
from colonnade.attacks.inversion import PICTURE, Defence, defence_of, invert
from colonnade.attacks.received import Received
from colonnade.attacks.scores import psnr, ssim
from colonnade.core.release import Packed
from colonnade.errors import Diverged
from colonnade.federation import Federation, Settings
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.pictures import save
from colonnade.rows.holdings import Holdings
from colonnade.rows.public import from_dataset

RANGE = {"cifar10": (-1.0, 1.0), "mnist": (0.0, 4.0), "modelnet10": (0.0, 8.0)}
ONE_SEED = "cifar10"
NO_ATTACK = "no attack"
SHOWN = 8  # pictures on a sheet
DEEPER: dict[str, list[dict[str, Any]]] = {  # one to four layers with weights
    "mnist": [
        {"name": "mlp", "hidden": [128] * layers, "width": 128} for layers in range(4)
    ],
    "cifar10": (
        [{"name": "linear", "width": 128}]
        + [
            {
                "name": "cnn",
                "channels": [32, 64, 128][:layers],
                "width": 128,
                "pool": "max",
            }
            for layers in range(1, 4)
        ]
    ),
    "modelnet10": [
        {"name": "mlp", "hidden": [128] * layers, "width": 64} for layers in range(4)
    ],
}
TRIALS = (32, 2048, 32_768)
"""N with p = 1/2, of noise at every depth. For one release of a row of 64 values
epsilon is infinite, 13.0 and 2.5."""


class Size(NamedTuple):
    """How much of it is done."""

    # training rows, in batches of 128; None: all, in the federation file's
    rows: int | None
    attacked: int
    steps: int
    looks: int  # epochs of the independent classifier


FULL = Size(None, 200, 600, 8)
QUICK = Size(2048, 24, 200, 4)
SKIPPED = {  # in the quick version
    "mnist": r"depth [23]|.*Bin.*",
    "cifar10": r".*",
    "modelnet10": r"top-k .*|\d levels|noisy.*|depth [23].*|.*2048.*",
}


class Rebuilt(NamedTuple):
    title: str
    original: Tensor
    guess: Tensor


def defences(low: float, high: float) -> dict[str, dict[str, Any]]:
    """The rule for embeddings, by name."""
    span = {"low": low, "high": high}
    made: dict[str, dict[str, Any]] = {"no defence": {}}
    made |= {
        f"top-k {keep}": {"codec": {"name": "top_k", "keep": keep}}
        for keep in (0.12, 0.23)
    }
    made |= {
        f"{k} levels": {"codec": {"name": "quantize", "levels": k, **span}}
        for k in (2, 8)
    }
    return made | {"noisy 8 levels": binomial(32, low, high)}


def binomial(trials: int, low: float, high: float) -> dict[str, Any]:
    noise = {
        "name": "binomial",
        "levels": 8,
        "trials": trials,
        "p": 0.5,
        "low": low,
        "high": high,
    }
    return {"mechanism": noise}


class Changed(NamedTuple):
    """The rule for embeddings, and the local model; {}: as the federation file has it."""

    rule: dict[str, Any]
    model: dict[str, Any]


def kinds(data: str) -> dict[str, Changed]:
    """What is changed, by name."""
    made = {name: Changed(rule, {}) for name, rule in defences(*RANGE[data]).items()}
    depths = {
        f"depth {layers}": model for layers, model in enumerate(DEEPER[data], start=1)
    }
    made |= {depth: Changed({}, model) for depth, model in depths.items()}
    if data == "mnist":
        made["8 levels + Bin(32768)"] = Changed(binomial(32_768, *RANGE[data]), {})
    if data == "modelnet10":
        made |= {
            f"{depth}, Bin({trials})": Changed(binomial(trials, *RANGE[data]), model)
            for depth, model in depths.items()
            for trials in TRIALS
        }
    return made


def table(plan: Plan) -> dict[str, tuple[str, str, int]]:
    """Data set, kind and seed by the name of the cell: what takes longest first, and of
    that one seed alone."""
    runs = [(data, NO_ATTACK, plan.seeds[0]) for data in RANGE]
    runs += [
        (data, name, seed)
        for seed in plan.seeds
        for data in RANGE
        for name in kinds(data)
        if seed == plan.seeds[0] or data != ONE_SEED
    ]
    return {
        f"{data}, {name}, seed {seed}": (data, name, seed)
        for data, name, seed in runs
        if not (plan.short and re.fullmatch(SKIPPED[data], name))
    }


def cells(plan: Plan) -> list[str]:
    return list(table(plan))


@lru_cache(maxsize=2)
def judged(path: Path, size: Size) -> tuple[Holdings, Judge]:
    """The data, and who says whether a class can be seen."""
    holdings = from_dataset(Settings.from_toml(path))
    # ModelNet10's come class by class, and the first of them are attacked
    tests = holdings.splits["test"]
    holdings.splits["test"] = tests[
        torch.randperm(len(tests), generator=Generator().manual_seed(2))
    ]
    if size.rows is not None:
        holdings.splits["train"] = holdings.splits["train"][: size.rows]
        holdings.splits["test"] = holdings.splits["test"][:2000]
    return holdings, Judge(holdings, path, size)


def run(study: Study, cell: str) -> None:
    data, name, seed = table(study.plan)[cell]
    size = QUICK if study.plan.short else FULL
    path = study.plan.folder / "configs" / f"{data}.toml"
    holdings, judge = judged(path, size)
    if name == NO_ATTACK:
        for one in _unattacked(path, holdings, size.attacked):
            study.arrays[one.title] = shown(one.guess, one.original)
            _score(study, one, judge)
        return
    try:
        federation = _trained(
            study, f"{data}, {name}", path, holdings, kinds(data)[name], seed
        )
    except Diverged:
        study.record(f"{data}, {name}: accuracy", float("nan"))
        return
    for one in _attacked(federation, f"{data}, {name}", size):
        if seed == study.plan.seeds[0]:
            study.arrays[one.title] = shown(one.guess, one.original)
        _score(study, one, judge)


def _trained(
    study: Study,
    title: str,
    path: Path,
    holdings: Holdings,
    changed: Changed,
    seed: int,
) -> Federation:
    """With another rule for embeddings, or another local model, or both."""
    tables = Settings.from_toml(path).to_mapping()
    if study.plan.short:
        tables["train"] |= {"epochs": max(study.plan.epochs), "batch_size": 128}
    owners = [name for name, held in holdings.columns.items()]
    if study.plan.short and "channels" in tables["model"]:
        tables["model"]["channels"] = [8, 16]
    tables["model"] = changed.model or tables["model"]
    if changed.rule:
        tables["parties"] = {
            name: {"outbox": {"embedding": changed.rule}} for name in owners
        }
    federation = study.federation(
        Settings.from_mapping(tables, where=str(path)), seed, holdings
    )
    for step in federation.train():
        if study.watch is not None:
            study.watch(f"{title}, seed {seed}", step)
    study.record(f"{title}: accuracy", federation.evaluate("test")["accuracy"])
    return federation


def _attacked(federation: Federation, title: str, size: Size) -> Iterator[Rebuilt]:
    """What each attacker rebuilds of the whole pictures, from what the label owner
    receives for test rows."""
    batch = f"test[0:{size.attacked}]"
    rows = federation.agreed.one.rows(batch)
    replies = federation.peers.ask(Embed(batch))
    guesses: dict[str, list[Tensor]] = {}
    for party, owner in federation.owners.items():
        released = replies[party].values
        seen = Received(
            rows, released.tensor, batch, released.receipt.event, released.receipt.codec
        )
        known = defence_of(seen)
        x = owner.features
        attack = dataclasses.replace(
            PICTURE, steps=size.steps, bounds=(float(x.min()), float(x.max()))
        )
        for attacker, (h, defence) in _attackers(seen, known, released.packed).items():
            guess = invert(h, owner.model, tuple(x.shape[1:]), attack, defence)
            guesses.setdefault(attacker, []).append(guess.cpu())
    original = joined(
        federation.settings,
        [owner.features.cpu()[rows] for owner in federation.owners.values()],
    )
    for attacker, parts in guesses.items():
        yield Rebuilt(
            f"{title}{attacker}", original, joined(federation.settings, parts)
        )


def _attackers(
    seen: Received, known: Defence, packed: Packed | None
) -> dict[str, tuple[Tensor, Defence]]:
    """By what they know."""
    if known.mean:
        unaware = dataclasses.replace(known, mean=0.0)
        return {
            ", N p known": (seen.values, known),
            ", N p unknown": (seen.values + known.mean, unaware),
        }
    # its range and levels travel along
    if packed is not None and packed.codec == "quantize":
        low, high, levels = (
            float(packed.settings[name] or 0) for name in ("low", "high", "levels")
        )
        half = (high - low) / (levels - 1) / 2
        return {
            ", levels as values": (seen.values, known),
            ", levels as cells": (seen.values, Defence(within=half)),
        }
    if known.sent is not None:
        return {
            ", zeros as values": (seen.values, Defence()),
            ", zeros as gaps": (seen.values, known),
        }
    return {"": (seen.values, known)}


def joined(settings: Settings, parts: list[Tensor]) -> Tensor:
    """Strips and views below each other, quadrants two by two."""
    two = settings.data.split not in ("strips", "views")
    lines = [torch.cat(parts[at : at + 2], dim=-1) for at in (0, 2)] if two else parts
    return torch.cat(lines, dim=-2)


def whole(holdings: Holdings, path: Path, rows: Tensor) -> Tensor:
    return joined(
        Settings.from_toml(path),
        [held.features[rows] for held in holdings.columns.values()],
    )


class Judge:
    """The independent classifier: a small network on whole original pictures of
    training rows."""

    def __init__(self, holdings: Holdings, path: Path, size: Size) -> None:
        rows = holdings.splits["train"]
        labels = holdings.labelled.labels
        x = whole(holdings, path, rows)
        y = labels[rows]
        self.truth = labels[holdings.splits["test"]]
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        channels = (32, 64, 128) if size.rows is None else (16, 32)
        spec = {"name": "cnn", "channels": channels, "width": 10, "pool": "max"}
        self.model = models.build(spec, tuple(x.shape[1:]), seed=1, owner="judge").to(
            self.device
        )
        optimizer = torch.optim.Adam(self.model.parameters(), 2e-3)
        generator = Generator().manual_seed(1)
        x = x.to(self.device)
        y = y.to(self.device)
        orders = (
            torch.randperm(len(x), generator=generator) for _ in range(size.looks)
        )
        batches = [batch for order in orders for batch in torch.split(order, 128)]
        # every process has the same judge
        with torch.backends.cudnn.flags(deterministic=True):
            for batch in batches:
                outputs = self.model(x[batch])
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(outputs, y[batch]))
                optimizer.step()

    @torch.no_grad()
    def sees(self, pictures: Tensor) -> float:
        """The share of these first test rows whose class it names; of pictures that are
        no numbers it says nothing."""
        if not pictures.isfinite().all():
            return math.nan
        named = self.model(pictures.to(self.device)).argmax(1).cpu()
        return float((named == self.truth[: len(named)]).double().mean())


def _unattacked(path: Path, holdings: Holdings, attacked: int) -> Iterator[Rebuilt]:
    """The least and the most that there is to see."""
    original = whole(holdings, path, holdings.splits["test"][:attacked])
    mean = whole(holdings, path, holdings.splits["train"]).mean(0).expand_as(original)
    yield Rebuilt(f"{path.stem}, the mean picture", original, mean)
    yield Rebuilt(f"{path.stem}, the original", original, original)


def shown(pictures: Tensor, original: Tensor) -> NDArray[Any]:
    """The first few, as bytes: from the darkest to the brightest of the originals."""
    low = float(original.min())
    high = float(original.max())
    return (
        (255 * (pictures[:SHOWN] - low) / (high - low))
        .clamp(0, 255)
        .round()
        .byte()
        .cpu()
        .numpy()
    )


def _score(study: Study, one: Rebuilt, judge: Judge) -> None:
    span = float(one.original.max() - one.original.min())
    for what, likeness, unit in (("SSIM", ssim, ""), ("PSNR", psnr, "dB")):
        study.record(
            f"{one.title}: {what}",
            float(likeness(one.original, one.guess, span).mean()),
            unit,
        )
    study.record(f"{one.title}: class seen", judge.sees(one.guess))


def draw(study: Study, out: Path) -> list[Path]:
    """One sheet per data set: originals on top, then a line of reconstructions per
    defence and attacker."""
    from matplotlib.figure import Figure

    paths: list[Path] = []
    for data in RANGE:
        mine = {
            title: lines
            for title, lines in study.arrays.items()
            if title.startswith(f"{data}, ")
        }
        if not mine:
            continue
        titles = sorted(mine, key=lambda title: not title.endswith("the original"))
        figure = Figure(
            figsize=(2.2 + 0.8 * SHOWN, 0.85 * len(titles)), layout="constrained"
        )
        for title, axes in zip(
            titles, figure.subplots(len(titles), SHOWN, squeeze=False), strict=True
        ):
            for picture, place in zip(mine[title], axes, strict=True):
                place.imshow(
                    picture.transpose(1, 2, 0) if picture.ndim == 3 else picture,
                    cmap="gray",
                    vmin=0,
                    vmax=255,
                )
                place.set(xticks=[], yticks=[])
                place.spines[:].set_visible(False)
            name = title.removeprefix(f"{data}, ")
            axes[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        paths += save(figure, out / f"{study.plan.name}-{data}", ("png",))
    return paths
