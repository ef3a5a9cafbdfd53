"""What every organisation was promised: spent so far, planned before a run, or read
from a run directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from colonnade.algorithms import find
from colonnade.algorithms.algorithm import Crossing
from colonnade.core import NON_PRIVATE, Agreed, Batches, DpEvent, files, roles
from colonnade.errors import CheckpointError
from colonnade.federation.organisation import epochs_of
from colonnade.federation.rules import planned
from colonnade.privacy import Account
from colonnade.privacy.accounting import costs_nothing
from colonnade.privacy.report import (
    Guarantee,
    Release,
    describe,
    for_columns,
    for_labels,
    nothing,
)
from colonnade.runs.layout import COLUMNS, PARTIES, STORE
from colonnade.runs.run_directory import RunDirectory, Trained
from colonnade.settings.federation_file import Settings
from colonnade.settings.sections import LABELS
from colonnade.store import SiteStore

LEAKS = "what it sends as the label owner follows its own columns as they are"
FOLLOWS = "what it sends follows the labels"
FOLLOWING = " that follows the protocol"
"""Of who opens something under a mask: with a key or ciphertexts made for it, one that
does not reads behind that, and no account counts it."""
ADDED = "its own columns are added in without noise"
KEPT = "nothing that it sends follows the labels; predictions do"


def guarantees(
    trained: Trained, accounts: Mapping[str, Account] | None = None
) -> list[Guarantee]:
    """List what was spent so far, party by party; or, with other `accounts`, what they
    count."""
    parties = [
        (name, organisation.roles.keys())
        for name, organisation in trained.organisations.items()
    ]
    labelled = {
        name: organisation.roles.get("labels")
        for name, organisation in trained.organisations.items()
    }
    drawn = {
        n: role.drawn
        for n, role in labelled.items()
        if isinstance(role, roles.LabelOwner) and role.drawn
    }
    return _promised(
        parties,
        trained.accounts if accounts is None else accounts,
        drawn,
        trained.settings,
    )


def planned_releases(federation: Any, party: str = "") -> list[tuple[Agreed, str, int]]:
    """Count how often a run releases the rows of each label owner's splits; of a party,
    those that it holds."""
    settings = federation.settings
    times = planned(federation.algorithm.passes(settings.train.epochs)) | {
        "train": epochs_of(settings)
    }
    agreed = federation.agreed_apart.get(party, federation.agreed)
    alone = [Agreed({name: (agreed[name], agreed.orders[name])}) for name in agreed]
    return [
        (batches, split, n)
        for batches in alone
        for split, n in times.items()
        if split in batches.splits
    ]


def of_run(run: RunDirectory) -> list[Guarantee]:
    """Read from the parties' own folders what was promised: the last checkpoint, and
    what was released since."""
    settings = run.settings()
    mark = run.mark()
    parties = []
    accounts = {}
    drawn = {}
    folders = sorted((run.path / PARTIES).glob("*"))
    if not folders:
        raise CheckpointError(
            f"{run.path} has no party's folder under parties/. Restore it from where it"
            " was trained."
        )
    for folder in folders:
        name = folder.name
        state = files.read_state(run._checkpoint(name, mark))
        own = settings.parties.get(name)
        parties.append(
            (name, {role for role in ("features", "labels") if role in state})
        )
        labelled = settings.label_owners.get(name, own)
        if "drawn" in {**state, **state.get("labels", {})} and labelled is not None:
            given = labelled.outbox[LABELS]["mechanism"]
            classes = files.read_json(folder / COLUMNS)["labels"]["classes"]
            about = {"epsilon": float(given["epsilon"]), "classes": float(len(classes))}
            stages = {"stages": 2.0} if given["name"] == "two_stage" else {}
            drawn[name] = DpEvent("randomized-response", about | stages)
        if state["seat"].get("meter"):
            nobody = Batches({}, batch_size=1, epochs=1, seed=0)
            budget = own.budget if own is not None else None
            accounts[name] = Account(name, nobody, (), budget)
            accounts[name].load_state(state["seat"]["meter"])
            is_part = run.part() is not None
            of_site = run.path.parent / STORE  # for all runs of a site
            place = of_site if is_part and of_site.exists() else folder / STORE
            accounts[name].look_at(SiteStore.peek(place, name))
    return _promised(parties, accounts, drawn, settings)


def _promised(
    parties: Iterable[tuple[str, Collection[str]]],
    accounts: Mapping[str, Account],
    drawn: Mapping[str, DpEvent],
    settings: Settings,
) -> list[Guarantee]:
    algorithm = find(settings.algorithm)
    owners = 1  # that may know one row: of a named data set, each is dealt to one
    if settings.data.dataset is None:
        owners = max(len(settings.label_owners), 1)
    columns, driven = algorithm.crosses(settings.config)
    seeded = settings.engine.noise == "seeded"
    masked = any(event.kind.startswith("blinded") for event in columns.values())
    reader = algorithm.reader + FOLLOWING * masked
    hidden = [
        Release(name, describe(event), None)
        for name, event in columns.items()
        if costs_nothing(event)
    ]
    promises = []
    for party, plays in parties:
        if "labels" in plays:
            event = drawn.get(party)
            why = FOLLOWS if driven else KEPT
            promised = (
                None if event is None else for_labels(party, event, driven, owners)
            )
            promises.append(promised or nothing(party, "labels", driven, why))
            if "features" in plays:
                promises.append(
                    nothing(party, "columns", driven, LEAKS if driven else ADDED)
                )
        elif party in accounts:
            promise = for_columns(party, accounts[party], seeded=seeded, reader=reader)
            counted = {release.release for release in promise.releases}
            rest = [release for release in hidden if release.release not in counted]
            notes = (*promise.notes, *([algorithm.covers] if algorithm.covers else []))
            releases = (
                *(_as_sent(release, columns) for release in promise.releases),
                *rest,
            )
            promises.append(
                dataclasses.replace(promise, releases=releases, notes=notes)
            )
        elif "features" in plays:
            promises.append(nothing(party, "columns", columns))
    return promises


def _as_sent(release: Release, columns: Crossing) -> Release:
    """Add what became of a release after the mechanism, such as a mask that leaves only
    the sum to be read."""
    event = columns.get(release.release, NON_PRIVATE)
    if event == NON_PRIVATE or costs_nothing(event):
        return release
    after = describe(event)
    plain = release.mechanism == describe(NON_PRIVATE)
    return dataclasses.replace(
        release, mechanism=after if plain else f"{release.mechanism}; {after}"
    )
