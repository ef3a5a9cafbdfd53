"""`colonnade doctor`: lines for people, JSON for machines, and its exit code."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
from tests.cli.called import Caller

from colonnade.planning.doctor import Check

CHECKS = [
    Check("python", "ok", "3.11.0"),
    Check(
        "extra tracking",
        "absent",
        "not installed (tensorboard)",
        'pip install "colonnade[tracking]"',
        required=False,
    ),
    Check("extra plots", "failed", "broken [badly]", "reinstall it", required=False),
]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """Instead of this machine's, which tests/planning holds."""
    found = list(CHECKS)
    monkeypatch.setattr(
        import_module("colonnade.cli.doctor"), "examine", lambda: iter(found)
    )
    return found


def test_a_line_per_check_with_the_cure(call: Caller, checks: list[Check]) -> None:
    called = call("doctor")
    assert called.code == 0
    for part in (
        "✓ python  3.11.0",
        "– extra tracking",
        'pip install "colonnade[tracking]"',
        "✗ extra plots  broken [badly]",
    ):
        assert part in called.out, part
    assert "All that is required works" in called.out


def test_json(call: Caller, checks: list[Check]) -> None:
    told = json.loads(call("doctor", "--json").out)
    assert told["healthy"] is True
    assert [check["state"] for check in told["checks"]] == ["ok", "absent", "failed"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_is_required_and_broken_is_code_1(
    options: list[str], call: Caller, checks: list[Check]
) -> None:
    checks.append(Check("torch on cpu", "failed", "no", "reinstall torch"))
    assert call("doctor", *options).code == 1
