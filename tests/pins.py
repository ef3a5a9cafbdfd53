"""How old the pins of constraints.txt are, which of them are not what is installed, and
their known holes.

    python -m tests.pins       exit code 5: the pins are older than 90 days, or pip-audit knows a hole in one of them

Known holes are looked up by pip-audit, which asks a service for them. Where it is not
installed or reaches nobody, this says so: then only the date stands for them.
"""

from __future__ import annotations

import datetime
import importlib.util
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

FILE = Path(__file__).parents[1] / "constraints.txt"
DATE = re.compile(r"^# Pinned on (\d{4}-\d{2}-\d{2})\.", re.MULTILINE)
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)
MOST = 90
"""Days after which pins are looked at again."""
HOLES = 1
NOBODY = "no known holes were looked up: pip-audit is not installed, or reached nobody"


def pinned_on(text: str) -> datetime.date:
    found = DATE.search(text)
    if found is None:
        raise ValueError(
            "constraints.txt must say since when it holds: # Pinned on YEAR-MONTH-DAY."
        )
    return datetime.date.fromisoformat(found[1])


def too_old(text: str, today: datetime.date) -> str | None:
    """What to do about pins of that age, or nothing."""
    days = (today - pinned_on(text)).days
    if days <= MOST:
        return None
    return (
        f"The pins are {days} days old, and {MOST} are the most. Install the newest,"
        " run the tests, and pin those."
    )


def others(text: str) -> list[str]:
    """Installed versions that are not the pinned ones."""
    found = []
    for name, version in PIN.findall(text):
        try:
            here = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if here.partition("+")[0] != version:
            found.append(f"{name} {here} is installed, and {version} is pinned")
    return found


def known_holes() -> tuple[bool, str]:
    """Whether pip-audit found any, and what it said."""
    if importlib.util.find_spec("pip_audit") is None:
        return False, NOBODY
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--no-deps",
        "--disable-pip",
        "-r",
        str(FILE),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = ran.returncode == HOLES and "Found" in ran.stderr
    return found, ran.stdout or ran.stderr if found or ran.returncode == 0 else NOBODY


def main() -> int:
    text = FILE.read_text(encoding="utf-8")
    old, (holes, told) = (
        too_old(text, datetime.datetime.now(datetime.UTC).date()),
        known_holes(),
    )
    print(
        f"{len(PIN.findall(text))} pins since {pinned_on(text)}.",
        *([old] if old else []),
        *others(text),
        told,
        sep="\n",
    )
    return 5 if old or holes else 0


if __name__ == "__main__":
    raise SystemExit(main())
