"""What every organisation was promised: spent so far, planned before a run, or read from a run directory."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from colonnade.algorithms import find
from colonnade.core import Batches, DpEvent, checkpoint
from colonnade.federation.rules import LABELS, from_columns
from colonnade.privacy import Account
from colonnade.privacy.calibrate import planned
from colonnade.privacy.report import Guarantee, for_columns, for_labels, nothing

if TYPE_CHECKING:
    from colonnade.federation.federation import Federation
    from colonnade.federation.run_directory import RunDirectory

LEAKS = "what it sends as the label owner follows its own columns as they are"
FOLLOWS = "what it sends follows the labels"


def guarantees(federation: Federation) -> list[Guarantee]:
    """What was spent so far, party by party."""
    return _all(federation, federation.accounts)


def plan(federation: Federation) -> list[Guarantee]:
    """What a whole run will have spent: every epoch, its validation, and the test at the end."""
    accounts = {}
    for name, held in federation.accounts.items():
        account = Account(name, federation.batches, federation.holdings.ids.tolist(), held.budget)
        outbox, width = federation.seats[name].outbox, federation.driver.widths[name]
        for split, times in planned(federation.settings.train.epochs).items():
            for release in from_columns(federation.algorithm.REVEALS) if split in federation.batches.splits else ():
                mechanism = outbox.rule(release, split).mechanism
                _, event = mechanism.apply(torch.zeros(1, width), torch.Generator())
                account.expect(release, split, times, event)
        accounts[name] = account
    return _all(federation, accounts)


def _all(federation: Federation, accounts: dict[str, Account]) -> list[Guarantee]:
    parties = [(name, set(held.roles())) for name, held in federation.holdings.parties.items()]
    seeded = federation.settings.engine.noise == "seeded"
    return _told(parties, accounts, federation.drawn, federation.algorithm.REVEALS, seeded)


def of_run(run: RunDirectory) -> list[Guarantee]:
    """From the parties' own folders: the last checkpoint, and what was released since."""
    settings, mark = run.settings(), run.mark()
    parties, accounts, drawn = [], {}, None
    for folder in sorted((run.path / "parties").iterdir()):
        name = folder.name
        state = checkpoint.read(run._checkpoint(name, mark))
        own = settings.parties.get(name)
        parties.append((name, {role for role in ("features", "labels") if role in state}))
        if "drawn" in state and own is not None:
            epsilon = own.outbox[LABELS]["mechanism"]["epsilon"]
            drawn = DpEvent("randomized-response", {"epsilon": float(epsilon), "classes": _classes(folder)})
        if "meter" in state["seat"]:
            nobody = Batches({}, batch_size=1, epochs=1, seed=0)
            accounts[name] = Account(name, nobody, (), own.limit(name) if own is not None else None)
            accounts[name].load_state(state["seat"]["meter"])
            accounts[name].replay(folder / "spent.journal")
    return _told(parties, accounts, drawn, find(settings.algorithm).REVEALS, settings.engine.noise == "seeded")


def _classes(folder: Path) -> float:
    about = json.loads((folder / "columns.json").read_text(encoding="utf-8"))
    return float(len(about["labels"]["classes"]))


def _told(
    parties: Iterable[tuple[str, Collection[str]]],
    accounts: dict[str, Account],
    drawn: DpEvent | None,
    reveals: Collection[str],
    seeded: bool,
) -> list[Guarantee]:
    columns = from_columns(reveals)
    driven = [name for name in reveals if name not in columns]
    found = []
    for party, roles in parties:
        if "labels" in roles:
            found.append(
                nothing(party, "labels", driven, FOLLOWS) if drawn is None else for_labels(party, drawn, driven)
            )
            if "features" in roles:
                found.append(nothing(party, "columns", driven, LEAKS))
        elif party in accounts:
            found.append(for_columns(party, accounts[party], seeded=seeded))
        else:
            found.append(nothing(party, "columns", columns))
    return found
