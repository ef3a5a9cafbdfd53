"""The standing adversary: every promise of SECURITY.md is attacked by the test that its
table names, and told.

    python -m tests.attack                          all promises, 500 random attempts per adversary, minutes
    python -m tests.attack --attempts 50 --seed 7   fewer, and others
    python -m tests.attack relay client             these adversaries alone

Exit code 0: all held; 5: one was broken, or its test could not be made.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
TEST = r"`(?P<file>tests/[\w/]+\.py)::(?P<test>test_\w+)`"
LINE = re.compile(
    rf"^\| (?P<promise>[^|]+) \| (?:(?P<adversary>\w+) \| )?{TEST} \|$", re.MULTILINE
)
BROKEN = 5


class Promise(NamedTuple):
    """A line of SECURITY.md's table."""

    promise: str
    adversary: str
    file: str
    test: str

    @property
    def id(self) -> str:
        return f"{self.file}::{self.test}"


def promises() -> list[Promise]:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    return [Promise(**found.groupdict("driver")) for found in LINE.finditer(text)]


class Outcomes:
    """What came of each test, over all its cases."""

    def __init__(self) -> None:
        self.attempts: dict[str, int] = defaultdict(int)
        self.ends: dict[str, list[str]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0]
        if report.when == "call" or not report.passed:
            self.ends[name].append(report.outcome)
            counted = dict(report.user_properties).get("attempts", 1)
            self.attempts[name] += int(str(counted)) if report.when == "call" else 0

    def of(self, promise: Promise) -> str:
        ends = set(self.ends[promise.id])
        return (
            "BROKEN"
            if "failed" in ends
            else "held"
            if "passed" in ends
            else "not tried"
        )


def attack(adversaries: Sequence[str], attempts: int, seed: int) -> int:
    chosen = [
        one for one in promises() if not adversaries or one.adversary in adversaries
    ]
    os.environ |= {"COLONNADE_ATTEMPTS": str(attempts), "COLONNADE_SEED": str(seed)}
    found = Outcomes()
    started = time.monotonic()
    ids = list(dict.fromkeys(one.id for one in chosen))
    pytest.main(
        [
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            "-m",
            "",
            "--rootdir",
            str(ROOT),
            *ids,
        ],
        plugins=[found],
    )
    width = max(len(one.promise) for one in chosen)
    print(f"\n{'promise':<{width}}  adversary  attempts  outcome")
    for one in chosen:
        print(
            f"{one.promise:<{width}}  {one.adversary:<9}  {found.attempts[one.id]:>8} "
            f" {found.of(one)}"
        )
    held = sum(found.of(one) == "held" for one in chosen)
    tried = sum(found.attempts[name] for name in ids)
    print(
        f"{held} of {len(chosen)} promises held; {tried} attempts, seed {seed},"
        f" {time.monotonic() - started:.0f} s."
    )
    return 0 if held == len(chosen) else BROKEN


def main() -> int:
    known = sorted({one.adversary for one in promises()})
    parser = argparse.ArgumentParser(
        prog="python -m tests.attack",
        description="Attack every promise of SECURITY.md.",
    )
    parser.add_argument(
        "adversaries", nargs="*", choices=[*known, []], help="these alone"
    )
    parser.add_argument(
        "--attempts", type=int, default=500, help="random ones, of each adversary"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="of the random ones; one is chosen and printed",
    )
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    return attack(given.adversaries, given.attempts, seed)


if __name__ == "__main__":
    raise SystemExit(main())
