"""What an organisation's rows were released with over all its runs: one budget, however many runs others start.

runs/account            what all runs spent together, as of the last one that was saved
runs/.lock              held while a run counts, so that no two spend the same budget
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from colonnade.core import checkpoint
from colonnade.core.lock import hold
from colonnade.errors import ConfigError
from colonnade.privacy import Account

ACCOUNT, JOURNAL = "account", "spent.journal"
"""What all runs spent together, in the organisation's folder of runs; and what one spent since it was last saved."""
NO_RUNS = (ACCOUNT, "refused.jsonl", "failed.json")
"""What else lies in that folder: whoever starts a run chooses its name, and must not write over these."""


class Purse:
    """Of one organisation, while it takes part in a run."""

    def __init__(self, owner: str, runs: Path, run: str, accounts: Mapping[str, Account], ids: str = "exact") -> None:
        if run in NO_RUNS:
            raise ConfigError(f"A run cannot be called {run!r}, which '{owner}' keeps beside its runs. Rename it.")
        self.owner, self.runs, self.run, self.accounts, self.ids = owner, runs, run, accounts, ids
        self._lock: IO[str] | None = self._alone() if accounts else None

    def keep(self, folder: Callable[[str], Path]) -> None:
        """Go on where the last run ended, and write down what is spent from here on."""
        for name, account in self.accounts.items():
            self._carry_over(account)
            account.keep(folder(name) / JOURNAL)

    def save(self) -> None:
        """Before a checkpoint: between the two, a crash would count twice, never not at all."""
        if self.accounts and self._lock is None:
            raise ConfigError(f"'{self.owner}' has left the run {self.run!r}, and counts for others now. Resume it.")
        for account in self.accounts.values():
            about = {"run": self.run, "ids": self.ids, "meter": account.state()}
            checkpoint.write(self.runs / ACCOUNT, about)

    def settle(self) -> None:
        """What all runs spent together, without a checkpoint of this one."""
        self.save()
        for account in self.accounts.values():
            account.settled()

    @contextmanager
    def held(self) -> Iterator[None]:
        """What must succeed for the organisation to take part: else another run may begin."""
        try:
            yield
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Another run may begin, and what rows pay there is not known here: this one releases nothing any more. Its
        accounts find their journals begun anew, and refuse to go on."""
        if self._lock is None:
            return
        kept = {name: account.journal for name, account in self.accounts.items() if account.journal is not None}
        if any(journal.size for journal in kept.values()):
            self.settle()
        for name, account in self.accounts.items():
            if name in kept:
                kept[name].clear()
            account.leave()
        self._lock.close()
        self._lock = None

    def _carry_over(self, account: Account) -> None:
        if not checkpoint.exists(self.runs / ACCOUNT):
            return
        before, agreed = checkpoint.read(self.runs / ACCOUNT), (account.rows, account.batch_size)
        counted = before.get("ids", "exact")  # by what rows are known to it: else each would begin anew
        if counted != self.ids:
            raise ConfigError(
                f"'{self.owner}' counts what its rows paid by {counted} ids, and [alignment] ids is {self.ids!r} now: "
                f'they would begin anew. Agree on ids = "{counted}" again; to let them, keep runs in another folder.'
            )
        account.load_state(before["meter"])
        account.rows, account.batch_size = agreed
        if before["run"] != self.run:
            account.replay(self.runs / str(before["run"]) / "parties" / self.owner / JOURNAL)

    def _alone(self) -> IO[str]:
        rule = f"'{self.owner}' takes part in another run, and counts its budget for one at a time. Wait for its end."
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            return hold(self.runs / ".lock", rule)
        except OSError as error:
            raise ConfigError(
                f"'{self.owner}' counts its budget in {self.runs}, which takes no lock: {error.strerror}. Make it so."
            ) from None


def spent_before(owner: str, runs: Path, account: Account, ids: str) -> float | None:
    """What the row that paid most has paid over all runs so far; None before the first. Nothing is written."""
    if not checkpoint.exists(runs / ACCOUNT):
        return None
    Purse(owner, runs, "", {}, ids)._carry_over(account)
    return account.worst
