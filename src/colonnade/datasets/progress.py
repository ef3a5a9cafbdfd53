"""A progress bar for what takes long, on a terminal only, and unless the user wants
none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal


class _Wish:
    hidden = False


def hide(quiet: bool) -> bool:
    """Show no bars from here on, or show them again; gives `quiet` back, as a callback
    of an option must."""
    _Wish.hidden = quiet
    return quiet


@contextlib.contextmanager
def progress(
    name: str, total: int, *, unit: Literal["bytes", "items"]
) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that the yielded function moves; a total of 0 means that
    it is not known."""
    with _bar(name, total, unit) as update:
        yield lambda size: update(advance=size)


@contextlib.contextmanager
def watched(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left; the yielded function takes how much is done, and of how
    much."""
    with _bar(name, 0, "share") as update:
        yield lambda done, total: update(completed=done, total=total)


@contextlib.contextmanager
def _bar(
    name: str, total: int, unit: Literal["bytes", "items", "share"]
) -> Iterator[Callable[..., None]]:
    """Give a function that moves the bar, as rich's `update` does: by `advance`, or by
    `completed` of a `total`."""
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
