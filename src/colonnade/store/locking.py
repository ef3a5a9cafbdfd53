"""The lock that lets one process at a time write to a store.

SQLite locks its own files, and that is not enough: its locks are lost when the same
process opens and closes the file a second time, or forks, and when a folder is renamed
while it is in use. So there is a file of its own that nothing else opens. It is locked
for the time of one transaction, so that a service and a training run of one
organisation can work at the same time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from colonnade.errors import StoreError
from colonnade.store.disk import inode_of

LONGEST_WAIT = 60.0
"""Seconds. A transaction takes milliseconds, and a checkpoint of a large store seconds."""

PAUSE = 0.0005
"""Seconds between two tries for a lock that another process has."""


class LockFile:
    """A file that one process at a time holds.

    Args:
        path: The file, which must be there.
        owner: The organisation's name, for errors.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self.owner = owner
        try:
            self._file = path.open("r+b", buffering=0)
        except OSError as error:
            raise StoreError(
                f"{path}, the lock of the store of '{owner}', cannot be opened:"
                f" {error.strerror}. A store is made only by an explicit command; if"
                " this file alone is gone, end all processes that use the store, and"
                " recover it."
            ) from None

        self._inode = inode_of(path)

    def is_same_file(self) -> bool:
        """Whether the file is still the one that was opened."""
        return inode_of(self.path) == self._inode

    def close(self) -> None:
        """Give the file up."""
        self._file.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for the time of the block; wait for it where it is taken."""
        give_up = time.monotonic() + LONGEST_WAIT
        descriptor = self._file.fileno()
        while not self._try(descriptor):
            if time.monotonic() > give_up:
                raise StoreError(
                    f"Another process has held {self.path} for {LONGEST_WAIT:g} s, the"
                    f" lock of the store of '{self.owner}'. End that process."
                )
            time.sleep(PAUSE)
        try:
            yield
        finally:
            _unlock(descriptor)

    def check_excludes(self) -> None:
        """Refuse a place whose locks keep nobody out, as on some network drives.

        A second descriptor of the same file must not get the lock while the first one
        has it.
        """
        with self.held():
            second = os.open(self.path, os.O_RDWR)
            try:
                excludes = not self._try(second)
            finally:
                os.close(second)
        if not excludes:
            raise StoreError(
                f"{self.path.parent} is on a file system whose locks keep nobody out,"
                f" so two processes could spend one budget of '{self.owner}'. Keep the"
                " store on a local disk."
            )

    def _try(self, descriptor: int) -> bool:
        try:
            return _try_lock(descriptor)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be locked: {error.strerror}. Two processes could"
                f" spend one budget of '{self.owner}'. Keep the store on a local disk."
            ) from None


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        """Lock the file's first byte, unless another process has it."""
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        """Lock the file, unless another descriptor has it.

        `flock` and not `lockf`: a lock of `lockf` is lost when the process closes
        another descriptor of the same file.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
