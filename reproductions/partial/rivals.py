"""Rows that not everybody holds: what else could be done with them, on the sets and
with the shares of `partial.py`.

task sampling: LASER-VFL's objective (Valdeira, Wang and Chi, ICLR 2025,
arXiv:2410.22564). Every party has a head on the mean of embeddings, and for each head
and each number of parties a subset is drawn from those who hold the row. Every party
needs the labels, so it is computed in one place; the label owner's head is scored.

trees: boosted trees, where rows that a party lacks go to the side of its splits that
was learned for them.

pretrained: any subset with [train] pretrain, each party's model beginning with what it
learned from the columns of all its rows, also those that nobody else knows.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.evaluate.metrics import measure
from colonnade.federation import Federation, Settings
from colonnade.reproduction import Study
from colonnade.reproduction.cells import script_of
from colonnade.reproduction.expected import Plan
from colonnade.rows.holdings import Holdings

EPOCHS = 15
PATIENCE = 4
BATCH = 512
RATE = 0.002
TREES = {"name": "boosted_trees", "encryption": "none"}


def cells(plan: Plan) -> list[str]:
    sets = ("mnist",) if plan.short else ("bank", "credit", "mnist")
    shares = (10,) if plan.short else (5, 100)
    kinds = (
        ("task sampling", "pretrained")
        if plan.short
        else ("task sampling", "trees", "pretrained")
    )
    there = [
        name
        for name in sets
        if name != "credit" or _partial(plan).credit_file("guest").exists()
    ]
    every = [
        (name, kind, share) for name in there for kind in kinds for share in shares
    ]
    left_out = [
        ("mnist", "trees", 5),
        ("mnist", "trees", 100),
        *((name, "pretrained", 100) for name in sets),
    ]
    chosen = [one for one in every if one not in left_out]
    return [
        f"{name}, {kind}, {share} %, seed {seed}"
        for name, kind, share in chosen
        for seed in plan.seeds
    ]


def run(study: Study, cell: str) -> None:
    partial = _partial(study.plan)
    name, kind, share, words = cell.split(", ")
    seed = int(words.removeprefix("seed "))
    holdings = partial.held(study.settings(), name, seed)
    away = partial.lacked(holdings, int(share.removesuffix(" %")) / 100, seed)
    if kind == "task sampling":
        present, alone = task_sampling(holdings, away, seed, max(study.plan.epochs))
    else:
        federation = trained(
            study, kind, dataclasses.replace(holdings, away=away), seed
        )
        present = partial.score(federation)
        alone = partial.score(federation, alone=True)
    study.record(f"{name}, {share}, {kind}", present)
    study.record(f"{name}, {share}, {kind}, partners absent", alone)


def trained(study: Study, kind: str, holdings: Holdings, seed: int) -> Federation:
    tables = study.settings().to_mapping()
    tables["data"] |= {"rows": "label_owner"}
    tables["train"] |= {"epochs": max(study.plan.epochs), "early_stop": True}
    if kind == "trees":
        tables["algorithm"] = TREES
        tables["train"] |= {"epochs": 100, "patience": 10}
    if kind == "pretrained":
        tables["train"] |= {"pretrain": EPOCHS}
    federation = study.federation(Settings.from_mapping(tables), seed, holdings)
    federation.fit(watch=None)
    return federation


def task_sampling(
    holdings: Holdings, away: Mapping[str, Tensor], seed: int, epochs: int
) -> tuple[float, float]:
    """The score of the label owner's head on test rows, with everybody, and alone."""
    names = list(holdings.columns)
    labels = holdings.labelled.labels
    loss = holdings.loss
    own = names.index(holdings.label_owner)
    count = len(names)
    x = [holdings.columns[name].features for name in names]
    every = torch.ones(len(labels), dtype=torch.bool)
    held = torch.stack([~away[name] if name in away else every for name in names], 1)
    torch.manual_seed(seed)
    drawn = random.Random(seed)
    bodies = nn.ModuleList(
        nn.Sequential(
            nn.Linear(one.shape[1], 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh()
        )
        for one in x
    )
    heads = nn.ModuleList(nn.Linear(32, loss.outputs) for _ in x)
    both = nn.ModuleList([bodies, heads])
    optimizer = torch.optim.Adam(both.parameters(), RATE, weight_decay=0.001)

    def outputs(rows: Tensor, mask: Tensor) -> Tensor:
        h = torch.stack(
            [body(one[rows]) for body, one in zip(bodies, x, strict=True)], 1
        )
        found: Tensor = heads[own](
            (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        )
        return found

    def objective(rows: Tensor) -> Tensor:
        """Of rows that the same parties hold: of each head and size one subset, for as
        many as there are."""
        there = held[rows[0]].nonzero().flatten().tolist()
        h = {k: bodies[k](x[k][rows]) for k in there}
        total = torch.zeros(())
        for head in there:
            for size in range(1, len(there) + 1):
                subset = [
                    head,
                    *drawn.sample([k for k in there if k != head], size - 1),
                ]
                out = heads[head](torch.stack([h[k] for k in subset]).sum(0) / size)
                total = (
                    total
                    + loss(out, labels[rows])
                    * math.comb(len(there) - 1, size - 1)
                    / size
                )
        return total

    best = math.inf
    kept = copy.deepcopy(both.state_dict())
    worse = 0
    train, validation, test = (
        holdings.splits[split] for split in ("train", "validation", "test")
    )
    for _ in range(epochs):
        for rows in train[torch.randperm(len(train))].split(BATCH):
            codes = (held[rows].long() * 2 ** torch.arange(count)).sum(1)
            parts = [rows[codes == code] for code in codes.unique().tolist()]
            optimizer.zero_grad()
            torch.stack(
                [objective(part) * len(part) / len(rows) for part in parts]
            ).sum().backward()
            optimizer.step()
        with torch.no_grad():
            now = float(
                loss(outputs(validation, held[validation].float()), labels[validation])
            )
        best, kept, worse = (
            (now, copy.deepcopy(both.state_dict()), 0)
            if now < best
            else (best, kept, worse + 1)
        )
        if worse == PATIENCE:
            break
    both.load_state_dict(kept)
    alone = torch.zeros(len(test), count)
    alone[:, own] = 1.0
    with torch.no_grad():
        found = [
            measure(loss, outputs(test, mask), labels[test])
            for mask in (held[test].float(), alone)
        ]
    present, absent = (one.get("auc", one["accuracy"]) for one in found)
    return present, absent


def _partial(plan: Plan) -> Any:
    """The script whose sets and shares these are."""
    assert plan.script is not None
    return script_of(
        dataclasses.replace(plan, script=Path(plan.script).with_name("partial.py"))
    )
