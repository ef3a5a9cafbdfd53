"""One VIMADMM epoch at the paper's MNIST sizes: the federation against a plain loop of the same maths.

14 parties, 56-120-60 local models, batches of 1024, 20 local steps. The plain loop holds everything in one place:
no parties, messages, outboxes or ledgers; modules, autograd and optimizers per party. Without MNIST at hand,
random pictures of the same shape are used and the line says so; only the time is of interest here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade import datasets, models
from colonnade.benchmark import Result, race
from colonnade.core.party import seed_for
from colonnade.datasets.labels import Labels
from colonnade.errors import DataError
from colonnade.federation import Federation, Settings
from colonnade.federation.holdings import Holding, Holdings
from colonnade.optim.losses import CrossEntropy
from colonnade.optim.proximal import z_update

PARTIES, ROUNDS = 14, 53


def run(quick: bool) -> list[Result]:
    holdings, source = _holdings()
    results = [*_against_plain(holdings, source, 2 if quick else 3), _cohorts(quick)]
    return results + (_gpu(holdings, source) if torch.cuda.is_available() else [])


def _settings(**engine: Any) -> Settings:
    tables = {
        "algorithm": {"name": "vimadmm"},
        "model": {"name": "mlp", "hidden": [120], "width": 60},
        "train": {"epochs": 1000, "batch_size": 1024, "early_stop": False},
        "federation": engine,
    }
    return Settings.from_mapping(tables)


def _holdings() -> tuple[Holdings, str]:
    try:
        rows = datasets.load("mnist", offline=True).train
        x, y, source = torch.from_numpy(rows.array()).float(), torch.from_numpy(rows.y), "MNIST"
        x = (x - x.mean()) / x.std()
    except DataError:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(60_000, 28, 28, generator=generator), torch.randint(10, (60_000,), generator=generator)
        source = "random pictures of MNIST's shape"
    strips = datasets.image_strips(x[:54_000], PARTIES)
    parties = {name: Holding(strip) for name, strip in strips.items()} | {"server": Holding(labels=y[:54_000])}
    ids = np.arange(54_000).astype(np.str_)
    encoder = Labels("server", "classification", tuple(range(10)))
    return Holdings(parties, ids, {"train": torch.arange(54_000)}, "server", encoder), source


def _federation(holdings: Holdings, **engine: Any) -> Federation:
    copies = {name: dataclasses.replace(held) for name, held in holdings.parties.items()}
    return Federation(_settings(**engine), dataclasses.replace(holdings, parties=copies))


def _against_plain(holdings: Holdings, source: str, turns: int) -> list[Result]:
    rounds = 3
    plain = _steps(_plain_loop(holdings, torch.device("cpu")), rounds)
    ours = _steps(_federation(holdings, device="cpu").train(), rounds)
    threads = _steps(_federation(holdings, device="cpu", cohort="off").train(), rounds)
    alone = _steps(_federation(holdings, device="cpu", cohort="off", threads="never").train(), rounds)
    best = race({"plain": plain, "ours": ours, "threads": threads, "alone": alone}, turns=turns)
    seconds = {name: value * ROUNDS / rounds for name, value in best.items()}
    ratio = seconds["ours"] / seconds["plain"]
    return [
        Result(
            f"VIMADMM epoch, CPU, {source}",
            f"{seconds['ours']:.1f} s = {ratio:.2f} x",
            f"a plain loop of the same maths: {seconds['plain']:.1f} s",
            "≤ 1.15 x",
            ratio <= 1.15,
            seconds | {"ratio": ratio},
        ),
        Result(
            "the same, party by party",
            f"{seconds['threads']:.1f} s in threads, {seconds['alone']:.1f} s in turn",
            f"as a cohort (chosen here by itself): {seconds['ours']:.1f} s",
        ),
    ]


def _cohorts(quick: bool) -> Result:
    """Small batches, many parties: where a cohort pays on a CPU."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2048, 28, 28, generator=generator), torch.randint(10, (2048,), generator=generator)
    parties = {name: Holding(part) for name, part in datasets.image_strips(x, PARTIES).items()}
    encoder = Labels("server", "classification", tuple(range(10)))
    ids = np.arange(2048).astype(np.str_)
    holdings = Holdings(parties | {"server": Holding(labels=y)}, ids, {"train": torch.arange(2048)}, "server", encoder)
    small = dataclasses.replace(_settings().train, batch_size=32)
    modes = {"cohort": {"cohort": "on"}, "threads": {"cohort": "off"}, "alone": {"cohort": "off", "threads": "never"}}
    runners = {
        name: _steps(Federation(dataclasses.replace(_settings(device="cpu", **mode), train=small), holdings).train(), 5)
        for name, mode in modes.items()
    }
    best = {name: value / 5 * 1e3 for name, value in race(runners, turns=3 if quick else 10).items()}
    ratio = best["cohort"] / best["alone"]
    against = f"party by party: {best['alone']:.1f} ms; in threads: {best['threads']:.1f} ms"
    return Result("VIMADMM round, CPU, batches of 32, as a cohort", f"{best['cohort']:.1f} ms = {ratio:.2f} x", against)


def _gpu(holdings: Holdings, source: str) -> list[Result]:
    stacked = _steps(_federation(holdings, device="cuda").train(), ROUNDS)
    alone = _steps(_federation(holdings, device="cuda", cohort="off").train(), ROUNDS)
    plain = _steps(_plain_loop(holdings, torch.device("cuda")), ROUNDS)
    best = race({"stacked": stacked, "alone": alone, "plain": plain}, turns=3)
    return [
        Result(
            f"VIMADMM epoch, {torch.cuda.get_device_name()}, {source}",
            f"{best['stacked']:.3f} s stacked",
            f"party by party: {best['alone']:.2f} s; a plain loop: {best['plain']:.2f} s",
            "≤ 0.6 s",
            best["stacked"] <= 0.6,
            best,
        )
    ]


def _steps(training: Iterator[Any], count: int) -> Callable[[], None]:
    def go() -> None:
        for _ in range(count):
            next(training)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return go


def _plain_loop(holdings: Holdings, device: torch.device) -> Iterator[float]:
    """Algorithm 1 as one would write it in a notebook."""
    rho, rate, decay, steps = 2.0, 0.05, 0.001, 20
    x = [held.features.to(device) for held in holdings.parties.values() if held.features is not None]
    labels = holdings.parties["server"].labels
    assert labels is not None
    y, loss_of = labels.to(device), CrossEntropy(10)
    nets = [
        models.build({"name": "mlp"}, (2, 28), seed=seed_for(0, str(k)), owner=str(k)).to(device) for k in range(len(x))
    ]
    optimizers = [torch.optim.SGD(net.parameters(), rate, momentum=0.9, weight_decay=decay) for net in nets]
    W = [((torch.rand(60, 10) * 2 - 1) / 60**0.5).to(device) for _ in nets]
    duals = torch.zeros(len(y), 10, device=device)
    while True:
        order = torch.randperm(len(y), device=device)
        for rows in order.split(1024):  # type: ignore[no-untyped-call]
            batch = [features[rows] for features in x]
            with torch.no_grad():
                h = [net(part) for net, part in zip(nets, batch, strict=True)]
                own: list[Tensor] = [h_k @ W_k for h_k, W_k in zip(h, W, strict=True)]
                o = torch.stack(own).sum(0)
                z = z_update(loss_of, o, duals[rows], y[rows], rho)
                duals[rows] = duals[rows] + rho * (o - z)
                pull = duals[rows] + rho * (o - z)
                W = [W_k - rate * (h_k.T @ pull / len(rows) + decay * W_k) for h_k, W_k in zip(h, W, strict=True)]
                r = z - o - duals[rows] / rho
            for net, optimizer, part, own_k, W_k in zip(nets, optimizers, batch, own, W, strict=True):
                for _ in range(steps):
                    local = rho / 2 * (net(part) @ W_k - r - own_k).square().sum() / len(rows)
                    optimizer.zero_grad()
                    local.backward()
                    optimizer.step()
            yield float(loss_of(o, y[rows]))
