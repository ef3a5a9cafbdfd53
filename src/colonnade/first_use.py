"""Names of a package, and libraries, that are imported when they are first used: so
importing a package costs nothing, and a library is needed only where it is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any


def on_first_use(
    package: str, *homes: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`. Each of `homes` is a module of the
    package and the names in it, or a module alone."""
    lines = [line.split() for line in homes]
    home = {name: module for module, *names in lines for name in names or [module]}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{home[name]}")
        return module if name == home[name] else getattr(module, name)

    return load, lambda: sorted(home)


class _Library:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    import pandas as pandas
    import pyarrow as pyarrow
    from pyarrow import parquet as parquet
    from scipy import special as special
    from scipy import stats as stats
else:
    pandas = _Library("pandas")
    pyarrow = _Library("pyarrow")
    parquet = _Library("pyarrow.parquet")
    special = _Library("scipy.special")
    stats = _Library("scipy.stats")
