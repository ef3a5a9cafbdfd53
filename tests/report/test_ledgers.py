"""Flows add up to the ledgers, each transfer counted once."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from pathlib import Path

import pytest

from colonnade.errors import InputError
from colonnade.report.facts import flows, read, totals
from colonnade.runs.history import crossings


def entries(run: Path, party: str) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for line in (run / "parties" / party / "ledger.jsonl").read_text().splitlines()
    ]


def test_every_line_that_left_a_party_is_counted_once(noisy: Path) -> None:
    found = flows(noisy, {"embedding": "words"})
    times: Counter[tuple[object, ...]] = Counter()
    size: Counter[tuple[object, ...]] = Counter()
    values: Counter[tuple[object, ...]] = Counter()
    for party in ("clinic", "lab"):
        for one in entries(noisy, party):
            if one["direction"] == "out":
                key: tuple[object, ...] = (party, one["peer"], one["name"])
                times[key] += 1
                size[key] += one["bytes"]  # type: ignore[operator]
                values[key] += math.prod(one["shape"])  # type: ignore[call-overload]
    assert {(one["from"], one["to"], one["name"]) for one in found} == set(times)
    for one in found:
        key = one["from"], one["to"], one["name"]
        assert (one["times"], one["bytes"], one["values"]) == (
            times[key],
            size[key],
            values[key],
        )
        assert one["told_by"] == one["from"]
    assert totals(found) == read(noisy).summary["bytes"]  # type: ignore[index]


def test_protection_meaning_and_spend(noisy: Path) -> None:
    found = {one["name"]: one for one in flows(noisy, {"embedding": "words"})}
    assert found["embedding"]["protection"] == "gaussian, clip 1, sigma 4"
    assert found["embedding"]["meaning"] == "words"
    assert found["residual"]["protection"] == "plain"
    assert found["residual"]["meaning"] == "not described"
    last = [
        one["epsilon"] for one in entries(noisy, "lab") if one["epsilon"] is not None
    ][-1]
    assert found["embedding"]["epsilon"] == last


def test_where_the_senders_ledger_is_elsewhere_the_receivers_tells(
    noisy: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(noisy, run)
    shutil.rmtree(run / "parties" / "lab")
    both = totals(flows(noisy, {}))
    one = flows(run, {})
    assert totals(one) == both
    assert {line["told_by"] for line in one} == {"clinic"}


@pytest.mark.parametrize(
    "wrong",
    [
        b"garbage",
        b"",
        b"[]",
        b"7",
        b'{"direction": "out"}',
        b"\xff",
        b"[" * 100_000,
        {"direction": "up"},
        {"peer": 1},
        {"shape": "many"},
        {"bytes": -1},
        {"bytes": None},
        {"parameters": []},
        {"epsilon": "1"},
        {"more": 1},
    ],
)
def test_a_line_that_cannot_be_read_is_not_skipped_since_a_sum_would_be_too_small(
    noisy: Path, tmp_path: Path, wrong: bytes | dict[str, object]
) -> None:
    file = tmp_path / "parties" / "lab" / "ledger.jsonl"
    file.parent.mkdir(parents=True)
    lines = (noisy / "parties" / "lab" / "ledger.jsonl").read_bytes().splitlines()
    lines[3] = (
        wrong
        if isinstance(wrong, bytes)
        else json.dumps(json.loads(lines[3]) | wrong).encode()
    )
    file.write_bytes(b"\n".join(lines) + b"\n")
    for read_by in (lambda: flows(tmp_path, {}), lambda: crossings(tmp_path)):
        with pytest.raises(
            InputError,
            match=r"lab/ledger\.jsonl, line 4, is no entry of a ledger\. Restore",
        ):
            read_by()
