"""Whether this installation works.

`examine` gives a `Check` per line: ok, failed (with the cure), or absent (an extra that
is not installed). Each check uses the thing, not only imports it, says in words what it
did, and raises where the result is wrong.
"""

from __future__ import annotations

import io
import math
import operator
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import NormalDist
from typing import Literal

from colonnade.installation import NAME, hint

TOLERANCE = 1e-3


def gpus() -> list[str]:
    """The devices besides the CPU that torch knows."""
    import torch

    return (
        [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )


def training_step(device: str) -> str:
    """Compare one gradient step of least squares with the one computed by hand."""
    import torch

    x = torch.tensor([[1.0], [2.0]], device=device)
    y = torch.tensor([[3.0], [5.0]], device=device)
    w = torch.zeros(1, 1, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    torch.autograd.backward((x @ w - y).square().mean())
    optimizer.step()
    _same(w.item(), 0.1 * 2 * (3 + 10) / 2, "a training step")
    name = (
        torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else f"torch {torch.__version__}"
    )
    return f"{name}, a training step is right"


def federation() -> str:
    """Two parties train a batch and send frames of bytes."""
    import numpy as np
    import pandas as pd

    from colonnade.federation import Federation

    x = np.random.default_rng(0).normal(size=(40, 2))
    frames = {
        "one": pd.DataFrame(
            {"id": range(40), "a": x[:, 0], "y": (x.sum(1) > 0).astype(int)}
        ),
        "two": pd.DataFrame({"id": range(40), "b": x[:, 1]}),
    }
    settings = {
        "model": {"name": "linear", "width": 2},
        "federation": {"device": "cpu", "through_bytes": True},
    }
    trained = Federation.from_frames(frames, id="id", label="y", settings=settings)
    step = next(iter(trained.train()))
    sent = sum(book.total("out") for book in trained.ledgers.values())
    if not math.isfinite(step.loss) or not sent:
        raise ArithmeticError(f"loss {step.loss}, {sent} bytes sent")
    return f"two parties trained a batch and sent {sent:,} bytes"


def cryptography() -> str:
    """Add and decrypt ciphertexts of both schemes, agree on masks, and intersect two
    sets of ids."""
    import torch
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from colonnade.alignment import Ids, align_here
    from colonnade.encryption import make_keys

    x = torch.tensor([1.5, -2.25])
    for scheme in ("ckks", "bfv"):
        secret = make_keys(scheme, use="sums", limit=16.0)
        encrypted = secret.public.encrypt(x, owner="doctor")
        decrypted = secret.decrypt(secret.public.add(encrypted, encrypted))
        for value, right in zip(decrypted.tolist(), (2 * x).tolist(), strict=True):
            _same(value, right, f"{scheme}'s sum")
    a = X25519PrivateKey.generate()
    b = X25519PrivateKey.generate()
    if a.exchange(b.public_key()) != b.exchange(a.public_key()):
        raise ArithmeticError("two parties agreed on different keys")
    common = align_here(
        {"one": Ids.of("one", [["a", "b"]]), "two": Ids.of("two", [["b", "c"]])}
    ).found.common
    if common != 1:
        raise ArithmeticError(
            f"two sets of ids have 1 in common, and {common} were found"
        )
    return "sums under encryption, key agreement and private set intersection are right"


def accounting() -> str:
    """Hold epsilon of a Gaussian whose mean moves by one deviation to the formula it
    solves (Balle and Wang, 2018)."""
    from colonnade.privacy.accounting import gaussian_epsilon

    delta = 1e-5
    below = NormalDist().cdf
    epsilon = gaussian_epsilon(1.0, delta)
    _same(
        below(0.5 - epsilon) - math.exp(epsilon) * below(-0.5 - epsilon),
        delta,
        "delta",
        TOLERANCE * delta,
    )
    return f"epsilon of a known case is right ({epsilon:.4f})"


def flare() -> str:
    import nvflare.collab  # noqa: F401

    return "importable"


def drawing() -> str:
    from matplotlib.figure import Figure

    picture = io.BytesIO()
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1])
    figure.savefig(picture, format="svg")
    if b"</svg>" not in picture.getvalue():
        raise ValueError("the picture is cut off")
    return "a picture was drawn"


def _same(
    value: float, right: float, quantity: str, tolerance: float = TOLERANCE
) -> None:
    if not abs(value - right) <= tolerance:
        raise ArithmeticError(f"{quantity} should be {right:g} and is {value:g}")


REQUIREMENT = re.compile(
    r"([A-Za-z0-9._-]+)\s*([^;]*)(?:;.*extra\s*==\s*['\"]([^'\"]+)['\"])?"
)
SPECIFIER = re.compile(r"(>=|<=|<|>|==|!=)\s*([0-9][0-9.]*)")
SIGNS = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Package:
    """A package that is needed always, or for an extra."""

    name: str
    wanted: str  # such as >=0.6,<0.7
    extra: str = ""

    @property
    def installed(self) -> str | None:
        """The version that is installed."""
        try:
            return metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return None

    @property
    def fits(self) -> bool:
        return self.installed is not None and in_range(self.installed, self.wanted)


def packages() -> list[Package]:
    """All requirements of the installed distribution."""
    matches = [REQUIREMENT.match(text) for text in metadata.requires(NAME) or ()]
    return [
        Package(m[1], m[2].strip(" ()"), m[3] or "") for m in matches if m is not None
    ]


def in_range(version: str, wanted: str) -> bool:
    """Whether a version such as 2.13.0 lies in a range such as >=2.8,<3; what follows
    its numbers is ignored."""
    return all(
        SIGNS[sign](_numbers(version), _numbers(bound))
        for sign, bound in SPECIFIER.findall(wanted)
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version without zeros at its end: 2.8.0 is 2.8."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, re.sub(r"(\.0)+$", "", match[0]).split("."))) if match else ()


LEAST_DISK = 1 << 30
LEAST_MEMORY = 1 << 30
LEAST_FILES = 256
"""Open files: a run keeps a few per party."""


class Trouble(Exception):  # noqa: N818 - what a check found
    """What is wrong, and the cure."""

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.cure = cure


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report."""

    name: str
    state: Literal["ok", "failed", "absent"]
    found: str
    cure: str = ""
    required: bool = True


def examine() -> Iterator[Check]:
    """Do all checks, one after the other; an error in one becomes its line."""
    yield _checked("python", python)
    yield _checked("libraries", libraries)
    for name in ("cpu", *gpus()):
        yield _checked(
            f"torch on {name}", partial(training_step, name), cure="Reinstall torch."
        )
    yield _checked(
        "federation",
        federation,
        cure=f"{hint()} --force-reinstall",
    )
    yield _checked("cryptography", cryptography, cure=f"{hint()} --force-reinstall")
    yield _checked("accounting", accounting, cure=f"{hint()} --force-reinstall")
    advised = {
        "command": command,
        "cache folder": cache,
        "data folder": data,
        "disk": disk,
        "memory": memory,
    }
    advised |= {"processor": processor, "open files": open_files}
    for name, check in advised.items():
        yield _checked(name, check, required=False)
    yield _checked("clock", clock)
    for extra, trial in EXTRAS.items():
        yield from _extra(extra, trial)


def healthy(checks: list[Check]) -> bool:
    """Whether all that is required works."""
    return not any(check.state == "failed" and check.required for check in checks)


def python() -> str:
    wanted = metadata.metadata(NAME)["Requires-Python"]
    version = platform.python_version()
    if not in_range(version, str(wanted)):
        raise Trouble(
            f"{version}, and {wanted} is needed",
            "Install a newer Python and make a new environment.",
        )
    return f"{version} at {sys.executable}"


def libraries() -> str:
    needed = [package for package in packages() if not package.extra]
    if wrong := _unfit(needed):
        raise Trouble(wrong, f"{hint()} --upgrade")
    return ", ".join(f"{package.name} {package.installed}" for package in needed)


def _unfit(needed: list[Package]) -> str:
    unfit = (package for package in needed if not package.fits)
    return "; ".join(
        f"{lib.name} {lib.installed or 'is missing'} ({lib.wanted} is needed)"
        for lib in unfit
    )


def command() -> str:
    """Check that the entry point is installed, and that the shell finds this one."""
    points = metadata.distribution(NAME).entry_points
    if not any(
        point.name == NAME and point.group == "console_scripts" for point in points
    ):
        raise Trouble("the package has no command", f"{hint()} --force-reinstall")
    path = shutil.which(NAME)
    beside = Path(sys.executable).with_name(NAME)
    if path is None:
        cure = f'Call {beside}, or add its folder to PATH: "{beside.parent}".'
        raise Trouble(f"the shell does not find `{NAME}`", cure)
    if beside.exists() and Path(path).resolve() != beside.resolve():
        cure = f"Activate this environment, or call {beside}."
        raise Trouble(f"the shell finds {path}, of another installation", cure)
    return path


def cache() -> str:
    """Write to the nearest folder that exists, and leave nothing behind."""
    from colonnade.datasets.download import cache_folder

    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"colonnade")
    except OSError as error:
        cure = "Set XDG_CACHE_HOME to a folder that you may write to."
        raise Trouble(
            f"{existing} cannot be written to: {error.strerror}", cure
        ) from None
    return (
        f"{folder}" if existing == folder else f"{folder}, to be made when it is needed"
    )


def data() -> str:
    named = os.environ.get("COLONNADE_DATA")
    if not named:
        return (
            "COLONNADE_DATA is not set: public data sets are downloaded once, into the"
            " cache folder"
        )
    folder = Path(named).expanduser()
    if not folder.is_dir() or not os.access(folder, os.R_OK):
        raise Trouble(
            f"COLONNADE_DATA is {named}, which is no readable folder",
            "Correct it, or unset it.",
        )
    return f"COLONNADE_DATA is {folder}"


def disk() -> str:
    from colonnade.core.files import mapped_folder

    places = {"here": Path.cwd(), "for large tables": Path(mapped_folder())}
    free = {place: shutil.disk_usage(path).free for place, path in places.items()}
    for place, size in free.items():
        if size < LEAST_DISK:
            raise Trouble(
                f"{_gb(size)} free {place} ({places[place]})",
                "Free some, or set TMPDIR to another disk.",
            )
    return ", ".join(f"{_gb(size)} free {place}" for place, size in free.items())


def memory() -> str:
    try:
        pages = os.sysconf("SC_AVPHYS_PAGES")
        size = os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * size
    except (ValueError, OSError, AttributeError):
        return "not known on this system"
    meminfo = Path("/proc/meminfo")  # of Linux, which counts what it can take back
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    available = (
        int(line.split()[1]) * 1024
        for line in lines
        if line.startswith("MemAvailable:")
    )
    free = next(available, None) or pages * size
    if free < LEAST_MEMORY:
        raise Trouble(
            f"{_gb(free)} of {_gb(total)} free",
            "Close other programs; large tables are kept on disk.",
        )
    return f"{_gb(free)} of {_gb(total)} free"


def processor() -> str:
    import torch

    cores = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
    threads = torch.get_num_threads()
    if threads > cores:
        many = (
            f"{cores} cores and {threads} threads of torch, which wait for each other"
        )
        raise Trouble(many, f"export OMP_NUM_THREADS={cores}")
    return (
        f"{cores} core{'s' if cores > 1 else ''}, {threads}"
        f" thread{'s' if threads > 1 else ''} of torch"
    )


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
    """Check that the clock does not run back: calls are numbered from it, and new ones
    would look old."""
    installed = Path(__file__).stat().st_mtime
    now = time.time()
    if now < installed - 86_400:
        raise Trouble(
            f"{time.ctime(now)}, before this was installed", "Set the system's clock."
        )
    before = time.time_ns()
    if not before <= time.time_ns():
        raise Trouble("it runs backwards", "Set the system's clock.")
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))


EXTRAS: dict[str, Callable[[], str] | None] = {
    "flare": flare,
    "plots": drawing,
    "tracking": None,
}
"""The check of each extra; None: only versions are checked, since importing it takes
longer than all the rest."""


def _extra(extra: str, trial: Callable[[], str] | None) -> Iterator[Check]:
    wanted = [package for package in packages() if package.extra == extra]
    name = f"extra {extra}"
    install = hint(extra)
    if not wanted:
        return
    if not any(package.installed for package in wanted):
        needs = ", ".join(package.name for package in wanted)
        yield Check(name, "absent", f"not installed ({needs})", install, required=False)
        return
    versions = ", ".join(f"{package.name} {package.installed}" for package in wanted)
    if wrong := _unfit(wanted):
        yield Check(name, "failed", wrong, f"{install} --upgrade", required=False)
    elif trial is None:
        yield Check(name, "ok", versions, required=False)
    else:
        cure = f"{install} --force-reinstall"
        yield _checked(
            name, lambda: f"{versions}; {trial()}", required=False, cure=cure
        )


def _checked(
    name: str, use: Callable[[], str], *, required: bool = True, cure: str = ""
) -> Check:
    try:
        return Check(name, "ok", use(), required=required)
    except Trouble as trouble:
        return Check(name, "failed", trouble.problem, trouble.cure, required)
    except Exception as error:  # whatever a broken library does
        problem = (
            f"{type(error).__name__}:"
            f" {str(error).splitlines()[0] if str(error) else 'no message'}"
        )
        return Check(name, "failed", problem, cure, required)


def _gb(count: float) -> str:
    return f"{count / 1e9:,.1f} GB"
