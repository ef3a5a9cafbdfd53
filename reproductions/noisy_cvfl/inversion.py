"""Model inversion against Compressed VFL: what an attacker with a party's weights makes of the embeddings of test rows.

Trains with each defence, asks for the embeddings of test rows as the label owner does, and inverts them (Eq. 10 to 14),
party by party; the parts are put together and compared with the original pictures. An independent classifier, trained
on the original pictures of training rows, says whether the class can still be seen. Then the same without a defence for
local models of one to four layers (Figure 1).

Noise has a mean of N p. One attacker subtracts it, as every party of the algorithm does; the other is not told it, as
the paper assumes (Section 4.4.1). With top-k, one takes the zeros for values (the paper's way); the other knows that
they were left out. With levels, one takes them for values, as the paper does; the other knows that they were rounded.
The paper does not give N and p: here the variance N p (1 - p) equals the number of levels.

`colonnade reproduce cvfl-inversion` runs it; `python reproductions/noisy_cvfl/inversion.py --out FOLDER` also draws.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from colonnade import models, reproduction
from colonnade.algorithms.splitnn import Embed
from colonnade.attacks.inversion import PICTURE, Defence, defence_of, invert
from colonnade.attacks.pictures import psnr, ssim
from colonnade.attacks.received import Received
from colonnade.core.release import Packed
from colonnade.errors import Diverged
from colonnade.federation import Federation, Settings
from colonnade.federation.holdings import Holdings, from_dataset
from colonnade.federation.run_directory import write_text
from colonnade.reproduction import Study

NAME = "cvfl-inversion"
RANGE = {"mnist": (0.0, 4.0), "cifar10": (-4.0, 4.0)}
DEEPER: dict[str, list[dict[str, Any]]] = {  # one to four layers with weights
    "mnist": [{"name": "mlp", "hidden": [128] * layers, "width": 128} for layers in range(4)],
    "cifar10": [{"name": "linear", "width": 128}]
    + [{"name": "cnn", "channels": [32, 64, 128][:layers], "width": 128, "pool": "max"} for layers in range(1, 4)],
}


class Size(NamedTuple):
    """How much of it is done."""

    rows: int | None  # training rows, in batches of 128; None: all, in the federation file's
    attacked: int
    steps: int
    looks: int  # epochs of the independent classifier


FULL, QUICK = Size(None, 200, 600, 8), Size(2048, 24, 200, 4)
SKIPPED = {"mnist": r"depth [23]", "cifar10": r"top-k 0.23|2 levels|depth \d"}  # in the quick version


class Rebuilt(NamedTuple):
    title: str
    original: Tensor
    guess: Tensor


def defences(low: float, high: float) -> dict[str, dict[str, Any]]:
    """The rule for embeddings, by name."""
    span = {"low": low, "high": high}
    made: dict[str, dict[str, Any]] = {"no defence": {}}
    made |= {f"top-k {keep}": {"codec": {"name": "top_k", "keep": keep}} for keep in (0.12, 0.23)}
    made |= {f"{k} levels": {"codec": {"name": "quantize", "levels": k, **span}} for k in (2, 8)}
    noise = {"name": "binomial", "levels": 8, "trials": 32, "p": 0.5, **span}
    return made | {"noisy 8 levels": {"mechanism": noise}}


def run(study: Study) -> list[Rebuilt]:
    """Everything; gives the pictures of the first seed."""
    size, shown = QUICK if study.plan.short else FULL, []
    for data in RANGE:
        path = study.plan.folder / "configs" / f"{data}.toml"
        holdings = from_dataset(Settings.from_toml(path))
        if size.rows is not None:
            holdings.splits["train"] = holdings.splits["train"][: size.rows]
            holdings.splits["test"] = holdings.splits["test"][:2000]
        judge = Judge(holdings, path, size)
        _no_attack(study, path, holdings, judge, size.attacked)
        kinds = {name: ("embedding", rule) for name, rule in defences(*RANGE[data]).items()}
        kinds |= {f"depth {layers}": ("model", model) for layers, model in enumerate(DEEPER[data], start=1)}
        for name, changed in kinds.items():
            if study.plan.short and re.fullmatch(SKIPPED[data], name):
                continue
            for seed in study.plan.seeds:
                try:
                    federation = _trained(study, f"{data}, {name}", path, holdings, changed, seed)
                except Diverged:
                    study.record(f"{data}, {name}: accuracy", float("nan"))
                    continue
                for one in _attacked(federation, f"{data}, {name}", size):
                    _score(study, one, judge)
                    shown += [one] if seed == study.plan.seeds[0] else []
    return shown


def _trained(
    study: Study, title: str, path: Path, holdings: Holdings, changed: tuple[str, dict[str, Any]], seed: int
) -> Federation:
    """With another rule for embeddings, or another local model."""
    (what, value), tables = changed, Settings.from_toml(path).to_mapping()
    tables["train"] |= {"epochs": max(study.plan.epochs)} | ({"batch_size": 128} if study.plan.short else {})
    owners = [name for name, held in holdings.parties.items() if held.features is not None]
    if study.plan.short and "channels" in tables["model"]:
        tables["model"]["channels"] = [8, 16]
    if what == "model":
        tables["model"] = value
    elif value:
        tables["parties"] = {name: {"outbox": {what: value}} for name in owners}
    federation = study.federation(Settings.from_mapping(tables, where=str(path)), seed, holdings)
    for step in federation.train():
        if study.watch is not None:
            study.watch(f"{title}, seed {seed}", step)
    study.record(f"{title}: accuracy", federation.evaluate("test")["accuracy"])
    return federation


def _attacked(federation: Federation, title: str, size: Size) -> Iterator[Rebuilt]:
    """What each attacker rebuilds of the whole pictures, from what the label owner receives for test rows."""
    batch = f"test[0:{size.attacked}]"
    rows = federation.batches.rows(batch)
    replies = federation.peers.ask(Embed(batch))
    guesses: dict[str, list[Tensor]] = {}
    for party, owner in federation.owners.items():
        released = replies[party].values
        seen = Received(rows, released.tensor, batch, released.receipt.event, released.receipt.codec)
        known, x = defence_of(seen), owner.features
        attack = dataclasses.replace(PICTURE, steps=size.steps, bounds=(float(x.min()), float(x.max())))
        for attacker, (h, defence) in _attackers(seen, known, released.packed).items():
            guess = invert(h, owner.model, tuple(x.shape[1:]), attack, defence)
            guesses.setdefault(attacker, []).append(guess.cpu())
    original = joined(federation.settings, [owner.features.cpu()[rows] for owner in federation.owners.values()])
    for attacker, parts in guesses.items():
        yield Rebuilt(f"{title}{attacker}", original, joined(federation.settings, parts))


def _attackers(seen: Received, known: Defence, packed: Packed | None) -> dict[str, tuple[Tensor, Defence]]:
    """By what they know."""
    if known.mean:
        unaware = dataclasses.replace(known, mean=0.0)
        return {", N p known": (seen.values, known), ", N p unknown": (seen.values + known.mean, unaware)}
    if packed is not None and packed.codec == "quantize":  # its range and levels travel along
        low, high, levels = (float(packed.settings[name] or 0) for name in ("low", "high", "levels"))
        half = (high - low) / (levels - 1) / 2
        return {", levels as values": (seen.values, known), ", levels as cells": (seen.values, Defence(within=half))}
    if known.sent is not None:
        return {", zeros as values": (seen.values, Defence()), ", zeros as gaps": (seen.values, known)}
    return {"": (seen.values, known)}


def joined(settings: Settings, parts: list[Tensor]) -> Tensor:
    """Strips below each other, quadrants two by two."""
    lines = parts if settings.data.split == "strips" else [torch.cat(parts[at : at + 2], dim=-1) for at in (0, 2)]
    return torch.cat(lines, dim=-2)


def whole(holdings: Holdings, path: Path, rows: Tensor) -> Tensor:
    features = (held.features for held in holdings.parties.values())
    return joined(Settings.from_toml(path), [x[rows] for x in features if x is not None])


class Judge:
    """The independent classifier: a small network on whole original pictures of training rows."""

    def __init__(self, holdings: Holdings, path: Path, size: Size) -> None:
        rows = holdings.splits["train"]
        labels = holdings.parties[holdings.label_owner].labels
        assert labels is not None
        x, y, self.truth = whole(holdings, path, rows), labels[rows], labels[holdings.splits["test"]]
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        channels = (32, 64, 128) if size.rows is None else (16, 32)
        spec = {"name": "cnn", "channels": channels, "width": 10, "pool": "max"}
        self.model = models.build(spec, tuple(x.shape[1:]), seed=1, owner="judge").to(self.device)
        optimizer = torch.optim.Adam(self.model.parameters(), 2e-3)
        generator = Generator().manual_seed(1)
        for _ in range(size.looks):
            for batch in torch.split(torch.randperm(len(x), generator=generator), 128):
                outputs = self.model(x[batch].to(self.device))
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(outputs, y[batch].to(self.device)))
                optimizer.step()

    @torch.no_grad()
    def sees(self, pictures: Tensor) -> float:
        """The share of these first test rows whose class it names."""
        named = self.model(pictures.to(self.device)).argmax(1).cpu()
        return float((named == self.truth[: len(named)]).double().mean())


def _no_attack(study: Study, path: Path, holdings: Holdings, judge: Judge, attacked: int) -> None:
    original = whole(holdings, path, holdings.splits["test"][:attacked])
    mean = whole(holdings, path, holdings.splits["train"]).mean(0).expand_as(original)
    for title, guess in (("the mean picture", mean), ("the original", original)):
        _score(study, Rebuilt(f"{path.stem}, {title}", original, guess), judge)


def _score(study: Study, one: Rebuilt, judge: Judge) -> None:
    span = float(one.original.max() - one.original.min())
    for what, likeness, unit in (("SSIM", ssim, ""), ("PSNR", psnr, "dB")):
        study.record(f"{one.title}: {what}", float(likeness(one.original, one.guess, span).mean()), unit)
    study.record(f"{one.title}: class seen", judge.sees(one.guess))


def draw(found: list[Rebuilt], out: Path, shown: int = 8) -> list[Path]:
    """One sheet per data set: originals on top, then a line of reconstructions per defence and attacker."""
    from matplotlib.figure import Figure

    out.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for data in dict.fromkeys(one.title.split(", ")[0] for one in found):
        mine = [one for one in found if one.title.startswith(data)]
        lines = [("original", mine[0].original)] + [(one.title.removeprefix(f"{data}, "), one.guess) for one in mine]
        low, high = float(mine[0].original.min()), float(mine[0].original.max())
        figure = Figure(figsize=(2.2 + 0.8 * shown, 0.85 * len(lines)), layout="constrained")
        grid = figure.subplots(len(lines), shown, squeeze=False)
        for (title, pictures), axes in zip(lines, grid, strict=True):
            for picture, place in zip(((pictures[:shown] - low) / (high - low)).clamp(0, 1), axes, strict=True):
                place.imshow(picture.permute(1, 2, 0) if picture.dim() == 3 else picture, cmap="gray", vmin=0, vmax=1)
                place.set(xticks=[], yticks=[])
                place.spines[:].set_visible(False)
            axes[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=9)
        paths.append(out / f"{NAME}-{data}.png")
        figure.savefig(fresh := paths[-1].with_suffix(".tmp"), format="png", dpi=110)
        fresh.replace(paths[-1])
    return paths


def main() -> None:
    words = argparse.ArgumentParser(description="Run cvfl-inversion and draw what was rebuilt.")
    words.add_argument("--out", type=Path, required=True, help="a folder for measured.json and the sheets")
    words.add_argument("--quick", action="store_true", help="a few minutes on two cores")
    given, plan = words.parse_args(), reproduction.plan(NAME)
    study = Study(plan.shortened() if given.quick else plan)
    print(*draw(run(study), given.out), sep="\n")
    told = json.dumps([one.to_json() for one in study.measured.values()], indent=2)
    write_text(given.out / "measured.json", told + "\n")


if __name__ == "__main__":
    main()
