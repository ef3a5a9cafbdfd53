"""Names of a package that are imported when they are first used, so that importing the package costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def on_first_use(package: str, *homes: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`. Each of `homes` is a module of the package and the names in it, or a
    module alone."""
    lines = [line.split() for line in homes]
    home = {name: module for module, *names in lines for name in names or [module]}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{home[name]}")
        return module if name == home[name] else getattr(module, name)

    return load, lambda: sorted(home)
