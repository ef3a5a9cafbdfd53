"""A progress bar for what takes long: on a terminal, unless who runs this wants none, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Literal


class _Wish:
    hidden = False


def hide(quiet: bool) -> bool:
    """Show no bars from here on, or show them again; gives back what it was told."""
    _Wish.hidden = quiet
    return quiet


@contextlib.contextmanager
def progress(name: str, total: int, *, unit: Literal["bytes", "items"]) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that the yielded function moves on; a total of 0 means that it is not known."""
    with _bar(name, total, unit) as move:
        yield lambda size: move(size, None, None)


@contextlib.contextmanager
def watched(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left, for what tells how much is done, and of how much."""
    with _bar(name, 0, "share") as move:
        yield lambda done, total: move(None, done, total)


@contextlib.contextmanager
def _bar(
    name: str, total: int, unit: Literal["bytes", "items", "share"]
) -> Iterator[Callable[[int | None, int | None, int | None], None]]:
    """What moves it takes by how much, or how much is done and of how much."""
    if not sys.stderr.isatty() or _Wish.hidden:
        yield lambda _advance, _done, _total: None
        return
    from rich import progress as rich
    from rich.console import Console

    counts: dict[str, tuple[rich.ProgressColumn, ...]] = {
        "bytes": (rich.DownloadColumn(), rich.TransferSpeedColumn()),
        "items": (rich.MofNCompleteColumn(), rich.TimeRemainingColumn()),
        "share": (rich.TaskProgressColumn(), rich.TimeRemainingColumn(compact=True)),
    }
    parts = (rich.TextColumn("{task.description}"), rich.BarColumn(), *counts[unit])
    with rich.Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total or None)
        yield lambda advance, done, of: bar.update(task, advance=advance, completed=done, total=of)
