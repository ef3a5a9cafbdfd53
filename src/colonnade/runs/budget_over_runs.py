"""What an organisation's rows were released with over all its runs: one budget, however
many runs others start.

    runs/spent.journal      every release of every run, written before it leaves (`privacy.journal`)
    runs/.lock              held while a run counts, so that no two spend the same budget

One journal holds what all runs spent. Which run is begun, resumed, broken off or
predicted with decides nothing: each reads the whole of it first and adds to its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from colonnade.core import files
from colonnade.core.files import hold
from colonnade.errors import ConfigError
from colonnade.privacy import Account
from colonnade.runs.layout import (
    ALIGNED,
    DRAINING,
    DRAWN,
    FAILURE,
    JOURNAL,
    ORDERS,
    PARTIES,
    REFUSED,
    SITE_LOG,
    USED,
)

RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
ACCOUNT = "account"
"""What all runs spent was kept in this file before there was one journal; it is not
read any more."""
BESIDE = (JOURNAL, ACCOUNT, REFUSED, FAILURE, ALIGNED, USED, DRAWN, ORDERS, DRAINING)
A_RUN = (
    "run's name has letters, digits, '-', '_' and '.', and is none of a file that lies"
    " beside runs"
)
SYNC_EVERY = 1.0
"""Seconds between two times that journals are forced onto the disk while all parties
train in one process: what was released is in its memory alone, and is lost with it."""


def is_run(name: str) -> bool:
    """Whether a run can be called so: whoever starts one chooses its name, and must not
    take the place of a file."""
    return (
        RUN.fullmatch(name) is not None
        and name.lower() not in BESIDE
        and not name.lower().startswith(SITE_LOG)
    )


class BudgetOverRuns:
    """The budget of one organisation, while it takes part in a run."""

    def __init__(
        self,
        owner: str,
        runs: Path,
        run: str,
        accounts: Mapping[str, Account],
        ids: str = "exact",
    ) -> None:
        if not is_run(run):
            raise ConfigError(
                f"'{owner}' keeps no run called {run!r}: a {A_RUN}. Rename it."
            )
        self.owner = owner
        self.runs = runs
        self.run = run
        self.accounts = accounts
        self.ids = ids
        self._lock: IO[str] | None = self._alone() if accounts else None

    def keep(self) -> None:
        """Go on from what all runs spent, and write down what is spent from here on."""
        for account in self.accounts.values():
            account.keep(_journal(self.runs), ids=self.ids, alone=True)

    def settle(self) -> None:
        """Shorten a journal that has grown, between two parts of a run."""
        for account in self.accounts.values():
            account.settled()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let another run begin where what is done in here fails: without it, the
        organisation cannot take part."""
        try:
            yield
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Let another run begin; this one releases nothing any more."""
        for account in self.accounts.values():
            account.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _alone(self) -> IO[str]:
        rule = (
            f"'{self.owner}' takes part in another run, and counts its budget for one"
            " at a time. Wait for its end."
        )
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            return hold(self.runs / ".lock", rule)
        except OSError as error:
            raise ConfigError(
                f"'{self.owner}' counts its budget in {self.runs}, which takes no lock:"
                f" {error.strerror}. Make it so."
            ) from None


def spent_before(runs: Path, account: Account, ids: str) -> float | None:
    """Tell what the row that paid most has paid over all runs so far; None before the
    first. Nothing is written."""
    journal = _journal(runs)
    if not journal.exists():
        return None
    account.replay(journal, ids=ids)
    return account.worst


def _journal(runs: Path) -> Path:
    """Give the one journal. It is refused where there is none and a budget was counted
    elsewhere, by an early version or in the folders of single runs, since its rows
    would begin anew."""
    journal = runs / JOURNAL
    account = [runs / ACCOUNT] if files.has_state(runs / ACCOUNT) else []
    if not journal.exists() and (
        counted := [*account, *runs.glob(f"*/{PARTIES}/*/{JOURNAL}")]
    ):
        raise ConfigError(
            f"What rows paid was counted in {counted[0]} and not in {journal}, which"
            " alone is read: they would begin anew. Put that file back, or go on as it"
            " was counted; to let them begin anew, keep runs in another folder."
        )
    return journal
