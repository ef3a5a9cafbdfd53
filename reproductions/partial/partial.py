"""Rows that not everybody holds: train on those that all hold, or on all of the label
owner's?

Every partner holds a share of the rows that are not test rows, at random, and all test
rows. Beside each other are

    standard     SplitNN on the rows that all hold; a partner that is absent at prediction is a vector of zeros
    any subset   FDML, a sum over those who hold a row, on all rows, with party dropout ([data] rows = "label_owner")
    alone        the label owner's columns, on all rows
    together     all columns in one place, on all rows

on the test rows, with all partners present, and with all of them absent. The defaults
of 30,000 credit cards as FATE cut them
(`fate_vertical/default_credit_hetero_{guest,host}.csv.gz` under COLONNADE_DATA; without
these files nothing of them is measured), bank marketing without `duration` in three
parties, and 4,000 of MNIST's pictures in two strips. The score is AUC, and accuracy on
MNIST.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade import datasets
from colonnade.federation import Federation, Settings
from colonnade.reproduction import Study
from colonnade.reproduction.expected import Plan
from colonnade.rows.holdings import Columns, Holdings, tables_of
from colonnade.rows.making import from_tables
from colonnade.rows.public import from_dataset

CREDIT = "fate_vertical/default_credit_hetero_{}.csv.gz"
BANK = {
    "bank": ["age", "job", "marital", "education", "default", "balance"],
    "lender": ["housing", "loan", "contact", "day", "month"],
    "agency": ["campaign", "pdays", "previous", "poutcome"],
}
SHARES = (5, 10, 30, 100)
PICTURES = 4000
TESTED = 2000
STANDARD = {
    "name": "splitnn",
    "optimizer": "adam",
    "learning_rate": 0.002,
    "head_hidden": 32,
}


def cells(plan: Plan) -> list[str]:
    sets = ("mnist",) if plan.short else ("bank", "credit", "mnist")
    shares = (10,) if plan.short else SHARES
    kinds = [*(f"{share} %" for share in shares), "whole"]
    there = [name for name in sets if name != "credit" or credit_file("guest").exists()]
    return [
        f"{name}, {kind}, seed {seed}"
        for name in there
        for seed in plan.seeds
        for kind in kinds
    ]


def run(study: Study, cell: str) -> None:
    name, kind, words = cell.split(", ")
    seed = int(words.removeprefix("seed "))
    holdings = held(study.settings(), name, seed)
    if kind == "whole":
        for title, columns in (
            ("alone", only(holdings)),
            ("together", in_one_place(holdings)),
        ):
            trained = fit(
                study, STANDARD, dataclasses.replace(holdings, columns=columns), seed
            )
            study.record(f"{name}, {title}", score(trained))
        return
    away = lacked(holdings, int(kind.removesuffix(" %")) / 100, seed)
    standard = fit(
        study, STANDARD, holdings.divided(lambda splits: common(splits, away)), seed
    )
    study.record(f"{name}, {kind}, standard", score(standard))
    study.record(
        f"{name}, {kind}, standard, partners absent", score(standard, alone=True)
    )
    any_subset = fit(
        study, {}, dataclasses.replace(holdings, away=away), seed, rows="label_owner"
    )
    study.record(f"{name}, {kind}, any subset", score(any_subset))
    study.record(
        f"{name}, {kind}, any subset, partners absent", score(any_subset, alone=True)
    )


def credit_file(who: str) -> Path:
    return Path(os.environ.get("COLONNADE_DATA", ".")) / CREDIT.format(who)


def held(settings: Settings, name: str, seed: int) -> Holdings:
    """Everybody holds everything."""
    import pandas as pd

    if name == "mnist":
        return pictures(settings, seed)
    if name == "credit":
        frames = {who: pd.read_csv(credit_file(who)) for who in ("guest", "host")}
        return of_frames(settings, frames, "y", seed)
    source = datasets.load("bank_marketing").train
    frame = source.frame()
    parts = {
        party: frame[columns].rename_axis("id").reset_index()
        for party, columns in BANK.items()
    }
    parts["bank"]["outcome"] = [("no", "yes")[int(label)] for label in source.y]
    return of_frames(settings, parts, "outcome", seed)


def of_frames(
    settings: Settings, frames: Mapping[str, Any], label: str, seed: int
) -> Holdings:
    tables = settings.to_mapping()
    tables["parties"] = {
        name: {"label": label} if label in frame else {}
        for name, frame in frames.items()
    }
    tables["federation"] |= {"seed": seed}
    whole = Settings.from_mapping(tables)
    return from_tables(whole, tables_of(whole, frames))


def pictures(settings: Settings, seed: int) -> Holdings:
    """Two strips of so many pictures; the first is the label owner's."""
    tables = settings.to_mapping()
    tables["data"] = {
        "dataset": "mnist",
        "split": "strips",
        "parts": 2,
        "labels_at": "client_01",
        "validation": 0.1,
    }
    tables["federation"] |= {"seed": seed}
    whole = from_dataset(Settings.from_mapping(tables))
    whole = dataclasses.replace(
        whole,
        columns={n: Columns(c.features.flatten(1)) for n, c in whole.columns.items()},
    )

    def fewer(splits: Mapping[str, Tensor]) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(seed)
        most = {"train": PICTURES, "validation": PICTURES // 4, "test": TESTED}
        drawn = {
            split: torch.randperm(len(rows), generator=random)[: most[split]]
            for split, rows in splits.items()
        }
        return {
            split: rows[drawn[split]].sort().values for split, rows in splits.items()
        }

    return whole.divided(fewer)


def lacked(holdings: Holdings, share: float, seed: int) -> dict[str, Tensor]:
    """Of each partner which rows it lacks: none of the test rows, and all but a share
    of the others."""
    random = torch.Generator().manual_seed(seed)
    found = {}
    for name in holdings.columns:
        if name != holdings.label_owner:
            mask = torch.rand(len(holdings.ids), generator=random) >= share
            mask[holdings.splits["test"]] = False
            found[name] = mask
    return {name: mask for name, mask in found.items() if bool(mask.any())}


def common(
    splits: Mapping[str, Tensor], away: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Only the rows that everybody holds."""
    if not away:
        return dict(splits)
    lacking = torch.stack(list(away.values())).any(0)
    return {split: rows[~lacking[rows]] for split, rows in splits.items()}


def only(holdings: Holdings) -> dict[str, Columns]:
    """The label owner's columns."""
    return {holdings.label_owner: holdings.columns[holdings.label_owner]}


def in_one_place(holdings: Holdings) -> dict[str, Columns]:
    """All columns, at the label owner."""
    every = torch.cat([held.features for held in holdings.columns.values()], dim=1)
    return {holdings.label_owner: Columns(every)}


def fit(
    study: Study,
    algorithm: Mapping[str, Any],
    holdings: Holdings,
    seed: int,
    rows: str = "common",
) -> Federation:
    """Trained until validation rows get no better."""
    tables = study.settings().to_mapping()
    dropout = {} if rows == "label_owner" else {"party_dropout": 0.0}
    size = max(
        32, min(tables["train"]["batch_size"], len(holdings.splits["train"]) // 8)
    )
    tables["algorithm"] = algorithm or tables["algorithm"]
    tables["train"] |= {
        "epochs": max(study.plan.epochs),
        "early_stop": True,
        "batch_size": size,
        **dropout,
    }
    tables["data"] |= {"rows": rows}
    federation = study.federation(Settings.from_mapping(tables), seed, holdings)
    federation.fit(watch=None)
    return federation


def score(federation: Federation, alone: bool = False) -> float:
    """On the test rows; `alone`, with no partner's answer."""
    owner = federation.holdings.label_owner
    partners = list(federation.owners)
    partners = [name for name in partners if name != owner]
    if not alone:
        found = federation.evaluate("test")
    elif federation.peers.presence is not None:
        found = federation.evaluate("test", without=partners)
    else:
        found = with_zeros(federation, partners)
    return found.get("auc", found["accuracy"])


def with_zeros(federation: Federation, partners: list[str]) -> dict[str, float]:
    """A head that reads all embeddings gets zeros in the place of the partners'."""
    outputs = federation.driver.outputs

    def without(h: Mapping[str, Tensor], *more: Any) -> Tensor:
        found: Tensor = outputs(
            {
                k: torch.zeros_like(one) if k in partners else one
                for k, one in h.items()
            },
            *more,
        )
        return found

    federation.driver.outputs = without
    try:
        return federation.evaluate("test")
    finally:
        federation.driver.outputs = outputs
