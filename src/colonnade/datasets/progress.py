"""A progress bar for what takes long: on a terminal, unless who runs this wants none, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
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
    with _bar(name, total, unit) as update:
        yield lambda size: update(advance=size)


@contextlib.contextmanager
def watched(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left, for what tells how much is done, and of how much."""
    with _bar(name, 0, "share") as update:
        yield lambda done, total: update(completed=done, total=total)


@contextlib.contextmanager
def _bar(name: str, total: int, unit: Literal["bytes", "items", "share"]) -> Iterator[Callable[..., None]]:
    """What moves it, as rich does: `advance`, or what is `completed` of a `total`."""
    if not sys.stderr.isatty() or _Wish.hidden:
        yield lambda **_: None
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
        yield partial(bar.update, bar.add_task(name, total=total or None))
