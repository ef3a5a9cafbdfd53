"""What every organisation was promised: spent so far, planned before a run, or read from a run directory."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from colonnade.algorithms import find
from colonnade.algorithms.algorithm import AnyAlgorithm, Crossing
from colonnade.core import NON_PRIVATE, Agreed, Batches, DpEvent, Plain, checkpoint
from colonnade.errors import CheckpointError
from colonnade.privacy import Account
from colonnade.privacy.accounting import costs_nothing
from colonnade.privacy.report import Guarantee, Release, describe, for_columns, for_labels, nothing
from colonnade.runs.budget_over_runs import JOURNAL
from colonnade.settings.rules import LABELS

if TYPE_CHECKING:
    from colonnade.federation.federation import Federation
    from colonnade.federation.multi import MultiFederation
    from colonnade.runs.run_directory import RunDirectory
    from colonnade.settings.federation_file import Settings

LEAKS = "what it sends as the label owner follows its own columns as they are"
FOLLOWS = "what it sends follows the labels"
ADDED = "its own columns are added in without noise"
KEPT = "nothing that it sends follows the labels; predictions do"


def guarantees(federation: Federation | MultiFederation) -> list[Guarantee]:
    """What was spent so far, party by party."""
    return _all(federation, federation.accounts)


def plan(federation: Federation | MultiFederation) -> list[Guarantee]:
    """What a whole run will have spent: every epoch, its validation, and the test at the end."""
    return _all(federation, {name: expected(federation, name, federation.planned()) for name in federation.accounts})


def expected(
    federation: Federation | MultiFederation, party: str, planned: Iterable[tuple[Batches | Agreed, str, int]]
) -> Account:
    """What a party's rows will have paid once those of each split are released so often."""
    algorithm = federation.algorithm
    columns, _ = algorithm.crosses(federation.settings.config)
    sent = columns if algorithm.sends is None else algorithm.sends(federation.driver, party)
    always, trains = algorithm.from_columns, algorithm.trains
    held = federation.accounts[party]
    account = Account(party, held.batches, federation.holdings.ids.tolist(), held.budget)
    outbox, row = federation.seats[party].outbox, torch.zeros(1, federation.widths[party])
    for batches, split, times in planned:
        account.batches = batches
        for release, event in columns.items() if times else ():
            mechanism = outbox.rule(release, split).mechanism
            if release not in sent:
                continue
            if release in always:
                account.expect(release, split, times, mechanism.apply(row, torch.Generator())[1])
            elif (split == "train" or not trains) and not (isinstance(mechanism, Plain) and costs_nothing(event)):
                account.expect(release, split, times, NON_PRIVATE)
    return account


def _all(federation: Federation | MultiFederation, accounts: dict[str, Account]) -> list[Guarantee]:
    parties = [(name, set(federation.holdings.roles(name))) for name in federation.holdings.names]
    seeded = federation.settings.engine.noise == "seeded"
    told = federation.algorithm.crosses(federation.settings.config)
    owners = _who_may_share_rows(federation.settings)
    return _told(parties, accounts, federation.drawn_by, told, seeded, federation.algorithm, owners)


def of_run(run: RunDirectory) -> list[Guarantee]:
    """From the parties' own folders: the last checkpoint, and what was released since."""
    settings, mark = run.settings(), run.mark()
    parties, accounts, drawn = [], {}, {}
    folders = sorted((run.path / "parties").glob("*"))
    if not folders:
        raise CheckpointError(f"{run.path} has no party's folder under parties/. Restore it from where it was trained.")
    for folder in folders:
        name = folder.name
        state = checkpoint.read(run._checkpoint(name, mark))
        own = settings.parties.get(name)
        parties.append((name, {role for role in ("features", "labels") if role in state}))
        labelled = settings.label_owners.get(name, own)
        if "drawn" in state and labelled is not None:
            epsilon = labelled.outbox[LABELS]["mechanism"]["epsilon"]
            drawn[name] = DpEvent("randomized-response", {"epsilon": float(epsilon), "classes": _classes(folder)})
        if "meter" in state["seat"]:
            nobody = Batches({}, batch_size=1, epochs=1, seed=0)
            budget = own.limit(name, settings.section) if own is not None else None
            accounts[name] = Account(name, nobody, (), budget)
            accounts[name].load_state(state["seat"]["meter"])
            journal = run.path.parent / JOURNAL  # of all runs of a site
            own_folder = run.part() is None or not journal.exists()
            accounts[name].replay(folder / JOURNAL if own_folder else journal, ids=settings.alignment.ids)
    algorithm = find(settings.algorithm)
    told = algorithm.crosses(settings.config)
    seeded, owners = settings.engine.noise == "seeded", _who_may_share_rows(settings)
    return _told(parties, accounts, drawn, told, seeded, algorithm, owners)


def _who_may_share_rows(settings: Settings) -> int:
    """How many label owners may know one row; of a named data set, rows are dealt to one each."""
    return max(len(settings.label_owners), 1) if settings.data.dataset is None else 1


def _classes(folder: Path) -> float:
    about = json.loads((folder / "columns.json").read_text(encoding="utf-8"))
    return float(len(about["labels"]["classes"]))


def _told(
    parties: Iterable[tuple[str, Collection[str]]],
    accounts: dict[str, Account],
    drawn: Mapping[str, DpEvent],
    crossing: tuple[Crossing, Crossing],
    seeded: bool,
    algorithm: AnyAlgorithm,
    owners: int,
) -> list[Guarantee]:
    columns, driven = crossing
    hidden = [Release(name, describe(event), None) for name, event in columns.items() if costs_nothing(event)]
    found = []
    for party, roles in parties:
        if "labels" in roles:
            event = drawn.get(party)
            why = FOLLOWS if driven else KEPT
            promised = None if event is None else for_labels(party, event, driven, owners)
            found.append(promised or nothing(party, "labels", driven, why))
            if "features" in roles:
                found.append(nothing(party, "columns", driven, LEAKS if driven else ADDED))
        elif party in accounts:
            told = for_columns(party, accounts[party], seeded=seeded, reader=algorithm.reader)
            counted = {one.release for one in told.releases}
            rest = [one for one in hidden if one.release not in counted]
            notes = (*told.notes, *([algorithm.covers] if algorithm.covers else []))
            releases = (*(_as_sent(one, columns) for one in told.releases), *rest)
            found.append(dataclasses.replace(told, releases=releases, notes=notes))
        elif "features" in roles:
            found.append(nothing(party, "columns", columns))
    return found


def _as_sent(one: Release, columns: Crossing) -> Release:
    """With what became of it after the mechanism, such as a mask that leaves only the sum to be read."""
    event = columns.get(one.release, NON_PRIVATE)
    if event == NON_PRIVATE or costs_nothing(event):
        return one
    plain = one.mechanism == describe(NON_PRIVATE)
    return dataclasses.replace(one, mechanism=describe(event) if plain else f"{one.mechanism}; {describe(event)}")
