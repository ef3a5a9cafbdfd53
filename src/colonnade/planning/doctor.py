"""Whether this installation works: each check does the thing itself, not only an import.

`examine` gives a `Check` per line: ok, failed (with the cure), or absent (an extra that is not installed).
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from colonnade.planning import trials
from colonnade.planning.installation import NAME, in_range, packages

LEAST_DISK, LEAST_MEMORY = 1 << 30, 1 << 30
LEAST_FILES = 256
"""Open files: a run keeps a few per party."""


class Trouble(Exception):  # noqa: N818 - what a check found
    """What is wrong, and the cure."""

    def __init__(self, found: str, cure: str) -> None:
        super().__init__(found)
        self.found, self.cure = found, cure


@dataclass(frozen=True)
class Check:
    """One line."""

    name: str
    state: Literal["ok", "failed", "absent"]
    found: str
    cure: str = ""
    required: bool = True

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> Iterator[Check]:
    """All checks, one after the other; what any of them raises becomes its line."""
    yield _checked("python", python)
    yield _checked("libraries", libraries)
    for name in ("cpu", *trials.gpus()):
        yield _checked(f"torch on {name}", partial(trials.training_step, name), cure="Reinstall torch.")
    yield _checked("federation", trials.federation, cure=f'Reinstall: pip install --force-reinstall "{NAME}".')
    yield _checked("command", command, required=False)
    yield _checked("cache folder", cache, required=False)
    yield _checked("data folder", data, required=False)
    yield _checked("disk", disk, required=False)
    yield _checked("memory", memory, required=False)
    yield _checked("processor", processor, required=False)
    yield _checked("open files", open_files, required=False)
    yield _checked("clock", clock)
    for extra, trial in EXTRAS.items():
        yield from _extra(extra, trial)


def healthy(checks: list[Check]) -> bool:
    """Whether all that is required works."""
    return not any(check.state == "failed" and check.required for check in checks)


def python() -> str:
    wanted, version = metadata.metadata(NAME)["Requires-Python"], platform.python_version()
    if not in_range(version, str(wanted)):
        raise Trouble(f"{version}, and {wanted} is needed", "Install a newer Python and make a new environment.")
    return f"{version} at {sys.executable}"


def libraries() -> str:
    needed = [one for one in packages() if not one.extra]
    wrong = [f"{one.name} {one.found or 'is missing'} ({one.wanted} is needed)" for one in needed if not one.fits]
    if wrong:
        raise Trouble("; ".join(wrong), f'pip install --upgrade "{NAME}"')
    return ", ".join(f"{one.name} {one.found}" for one in needed)


def command() -> str:
    """The entry point is installed, and the shell finds this one."""
    points = metadata.distribution(NAME).entry_points
    if not any(point.name == NAME and point.group == "console_scripts" for point in points):
        raise Trouble("the package has no command", f'pip install --force-reinstall "{NAME}"')
    found = shutil.which(NAME)
    beside = Path(sys.executable).with_name(NAME)
    if found is None:
        raise Trouble(
            f"the shell does not find `{NAME}`", f'Call {beside}, or add its folder to PATH: "{beside.parent}".'
        )
    if beside.exists() and Path(found).resolve() != beside.resolve():
        raise Trouble(
            f"the shell finds {found}, of another installation", f"Activate this environment, or call {beside}."
        )
    return found


def cache() -> str:
    from colonnade.datasets.download import cache_folder

    return _writable(cache_folder(), "Set XDG_CACHE_HOME to a folder that you may write to.")


def data() -> str:
    named = os.environ.get("COLONNADE_DATA")
    if not named:
        return "COLONNADE_DATA is not set: public data sets are downloaded once, into the cache folder"
    folder = Path(named).expanduser()
    if not folder.is_dir() or not os.access(folder, os.R_OK):
        raise Trouble(f"COLONNADE_DATA is {named}, which is no readable folder", "Correct it, or unset it.")
    return f"COLONNADE_DATA is {folder}"


def _writable(folder: Path, cure: str) -> str:
    """Tried on the nearest folder that exists; nothing is left behind."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"colonnade")
    except OSError as error:
        raise Trouble(f"{there} cannot be written to: {error.strerror}", cure) from None
    return f"{folder}" if there == folder else f"{folder}, to be made when it is needed"


def disk() -> str:
    from colonnade.core.mapped import folder

    places = {"here": Path.cwd(), "for large tables": Path(folder())}
    free = {what: shutil.disk_usage(place).free for what, place in places.items()}
    for what, left in free.items():
        if left < LEAST_DISK:
            raise Trouble(f"{_gb(left)} free {what} ({places[what]})", "Free some, or set TMPDIR to another disk.")
    return ", ".join(f"{_gb(left)} free {what}" for what, left in free.items())


def memory() -> str:
    try:
        pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        whole = os.sysconf("SC_PHYS_PAGES") * size
    except (ValueError, OSError, AttributeError):
        return "not known on this system"
    free = _available() or pages * size
    if free < LEAST_MEMORY:
        raise Trouble(f"{_gb(free)} of {_gb(whole)} free", "Close other programs; large tables are kept on disk.")
    return f"{_gb(free)} of {_gb(whole)} free"


def _available() -> int | None:
    """Linux counts what it can take back."""
    about = Path("/proc/meminfo")
    lines = about.read_text().splitlines() if about.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def processor() -> str:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    if threads > cores:
        raise Trouble(
            f"{cores} cores and {threads} threads of torch, which wait for each other",
            f"export OMP_NUM_THREADS={cores}",
        )
    return f"{cores} core{'s' if cores > 1 else ''}, {threads} thread{'s' if threads > 1 else ''} of torch"


def open_files() -> str:
    try:
        import resource
    except ImportError:
        return "no limit known on this system"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < LEAST_FILES:
        raise Trouble(f"at most {soft}", "ulimit -n 4096")
    return "no limit" if soft < 0 else f"at most {soft:,}"


def clock() -> str:
    """Calls are numbered from the clock, so one that went back would make new calls look old."""
    installed = Path(__file__).stat().st_mtime
    now = time.time()
    if now < installed - 86_400:
        raise Trouble(f"{time.ctime(now)}, before this was installed", "Set the system's clock.")
    before = time.time_ns()
    if not before <= time.time_ns():
        raise Trouble("it runs backwards", "Set the system's clock.")
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))


EXTRAS: dict[str, Callable[[], str] | None] = {
    "crypto": trials.cryptography,
    "privacy": trials.accounting,
    "flare": trials.flare,
    "plots": trials.drawing,
    "serve": None,
    "tracking": None,
}
"""What is tried of each; of None, versions are looked at alone: importing it takes longer than all the rest."""


def _extra(extra: str, trial: Callable[[], str] | None) -> Iterator[Check]:
    wanted = [one for one in packages() if one.extra == extra]
    install = f'pip install "{NAME}[{extra}]"'
    if not wanted:
        return
    if not any(one.found for one in wanted):
        needs = ", ".join(one.name for one in wanted)
        yield Check(f"extra {extra}", "absent", f"not installed ({needs})", install, required=False)
        return
    wrong = [f"{one.name} {one.found or 'is missing'} ({one.wanted} is needed)" for one in wanted if not one.fits]
    versions = ", ".join(f"{one.name} {one.found}" for one in wanted)
    if wrong:
        yield Check(f"extra {extra}", "failed", "; ".join(wrong), f"{install} --upgrade", required=False)
    elif trial is None:
        yield Check(f"extra {extra}", "ok", versions, required=False)
    else:
        yield _checked(
            f"extra {extra}", lambda: f"{versions}; {trial()}", required=False, cure=f"{install} --force-reinstall"
        )


def _checked(name: str, check: Callable[[], str], *, required: bool = True, cure: str = "") -> Check:
    try:
        return Check(name, "ok", check(), required=required)
    except Trouble as trouble:
        return Check(name, "failed", trouble.found, trouble.cure, required)
    except Exception as error:  # whatever a broken library does
        found = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        return Check(name, "failed", found, cure, required)


def _gb(count: float) -> str:
    return f"{count / 1e9:,.1f} GB"
