"""A progress bar for what takes long: on a terminal, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Literal

__all__ = ["progress"]


@contextlib.contextmanager
def progress(name: str, total: int, *, unit: Literal["bytes", "items"]) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that the yielded function moves on; a total of 0 means that it is not known."""
    if not sys.stderr.isatty():
        yield lambda _size: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts: tuple[ProgressColumn, ...] = (MofNCompleteColumn(), TimeRemainingColumn())
    if unit == "bytes":
        counts = (DownloadColumn(), TransferSpeedColumn())
    parts = (TextColumn("{task.description}"), BarColumn(), *counts)
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total or None)
        yield lambda size: bar.advance(task, size)
