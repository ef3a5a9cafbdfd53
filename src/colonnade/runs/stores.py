"""Where an organisation's store lies (`colonnade.store`), and who makes it.

    runs/store/                  between sites: one store for all runs of an organisation
    runs.anchor/                 its anchor, beside the folder of runs
    parties/<name>/store/        on one machine: one store for each party of each run
    parties/<name>/store.anchor/

A site's store is made once, by `colonnade site init`. A run on one machine makes its
parties' stores when it begins. Nothing else makes one: where one is missing, it may have
been lost, and the budget with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from colonnade.runs.layout import (
    DRAINING,
    FAILURE,
    REFUSED,
    SITE_LOG,
    STORE,
)
from colonnade.store import (
    Item,
    Recovery,
    SiteStore,
    Witness,
    Word,
    is_file_name,
    recover,
)

BESIDE = (STORE, REFUSED, FAILURE, DRAINING)
A_RUN = (
    "run's name has letters, digits, '-', '_' and '.', and is none of a file that lies"
    " beside runs, nor of a device such as CON"
)
ANCHOR_ENDING = ".anchor"
FOLDER_MODE = 0o700


def is_run(name: str) -> bool:
    """Whether a run can be called so: whoever starts one chooses its name, and must not
    take the place of a file."""
    return (
        is_file_name(name)
        and name.lower() not in BESIDE
        and not name.lower().startswith((SITE_LOG, REFUSED))
    )


def make_site_store(
    owner: str, runs: Path, column: str, anchor: Path | None = None
) -> None:
    """Make the store of an organisation's site.

    Args:
        owner: The organisation.
        runs: Its folder of runs.
        column: The column of its table that says who somebody is, for good.
        anchor: Where the store's anchor is to lie; by default beside the runs.
    """
    runs.mkdir(parents=True, exist_ok=True)
    runs.chmod(FOLDER_MODE)  # what lies in runs is their owner's alone
    folder, anchor = _of_site(runs, anchor)
    with SiteStore.create(folder, owner, anchor=anchor) as store:
        store.numbers_of([], column, Word.FIRST_CONTACT)


def open_site_store(owner: str, runs: Path, anchor: Path | None = None) -> SiteStore:
    """Open the store of an organisation's site."""
    folder, anchor = _of_site(runs, anchor)
    return SiteStore.open(folder, owner, anchor=anchor)


def has_site_store(runs: Path, anchor: Path | None = None) -> bool:
    """Whether there is a store, or was one."""
    return any(place.exists() for place in _of_site(runs, anchor))


def make_run_store(owner: str, party: Path, column: str) -> SiteStore:
    """Make the store of a party whose run begins on this machine.

    What is released stays on the machine, so it need not be forced onto the disk at
    once.
    """
    with SiteStore.create(party / STORE, owner) as store:
        store.numbers_of([], column, Word.FIRST_CONTACT)
    return open_run_store(owner, party)


def open_run_store(owner: str, party: Path) -> SiteStore:
    """Open the store of a party of a run on this machine."""
    return SiteStore.open(party / STORE, owner, is_forced=False)


def copy_site_store(runs: Path, party: Path) -> None:
    """Copy a site's store, where it has one, into a party's folder of a run: the copy
    of a simulated run that goes on in one process counts there by itself."""
    folder, anchor = _of_site(runs)
    if not folder.exists():
        return
    for source, target in (
        (folder, party / STORE),
        (anchor, party / (STORE + ANCHOR_ENDING)),
    ):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)


def peek_site_store(owner: str, runs: Path) -> SiteStore | None:
    """What the store of a site says, for a report. None where there is no store."""
    folder, _ = _of_site(runs)
    return SiteStore.peek(folder, owner) if folder.exists() else None


def recover_site_store(
    owner: str,
    runs: Path,
    dearest: Item,
    *,
    anchor: Path | None = None,
    backup: Path | None = None,
    witnesses: Sequence[Witness] = (),
    missing: int | None = None,
    new_key: bool = False,
    trust_unsigned: bool = False,
) -> Recovery:
    """Let the store of a site go on after a loss (`colonnade.store.recover`)."""
    folder, anchor = _of_site(runs, anchor)
    return recover(
        folder,
        owner,
        dearest,
        anchor=anchor,
        backup=backup,
        witnesses=witnesses,
        missing=missing,
        new_key=new_key,
        trust_unsigned=trust_unsigned,
    )


def _of_site(runs: Path, anchor: Path | None = None) -> tuple[Path, Path]:
    """The folder of a site's store, and its anchor."""
    return runs / STORE, anchor or runs.with_name(runs.name + ANCHOR_ENDING)
