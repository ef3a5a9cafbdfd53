"""What an organisation's rows were released with over all its runs: one budget, however many runs others start.

runs/account            what all runs spent together, as of the last one that was saved
runs/.lock              held while a run counts, so that no two spend the same budget
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from colonnade.core import checkpoint
from colonnade.errors import ConfigError
from colonnade.privacy import Account

ACCOUNT, JOURNAL = "account", "spent.journal"
"""What all runs spent together, in the organisation's folder of runs; and what one spent since it was last saved."""


class Purse:
    """Of one organisation, while it takes part in a run."""

    def __init__(self, owner: str, runs: Path, run: str, accounts: Mapping[str, Account]) -> None:
        self.owner, self.runs, self.run, self.accounts = owner, runs, run, accounts
        self._lock: IO[str] | None = self._alone() if accounts else None

    def keep(self, folder: Callable[[str], Path]) -> None:
        """Go on where the last run ended, and write down what is spent from here on."""
        for name, account in self.accounts.items():
            self._carry_over(account)
            account.keep(folder(name) / JOURNAL)

    def save(self) -> None:
        """Before a checkpoint: between the two, a crash would count twice, never not at all."""
        for account in self.accounts.values():
            checkpoint.write(self.runs / ACCOUNT, {"run": self.run, "meter": account.state()})

    def leave(self) -> None:
        """Another run may begin."""
        for account in self.accounts.values():
            account.leave()
        if self._lock is not None:
            self._lock.close()

    def _carry_over(self, account: Account) -> None:
        if not (self.runs / ACCOUNT).exists():
            return
        before, agreed = checkpoint.read(self.runs / ACCOUNT), (account.rows, account.batch_size)
        account.load_state(before["meter"])
        account.rows, account.batch_size = agreed
        if before["run"] != self.run:
            account.replay(self.runs / str(before["run"]) / "parties" / self.owner / JOURNAL)

    def _alone(self) -> IO[str]:
        import fcntl

        self.runs.mkdir(parents=True, exist_ok=True)
        lock = (self.runs / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"'{self.owner}' takes part in another run, and counts its budget for one at a time. Wait for its end."
            ) from None
        return lock
