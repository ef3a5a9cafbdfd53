"""Named rules: what people write in many ways has one form, and what cannot be read has
none."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.alignment.rules import find_rule
from colonnade.errors import ConfigError


@pytest.mark.parametrize(
    ("rule", "cells", "one"),
    [
        ("exact", ["Ab ", " Ab"], "Ab"),
        ("exact", [7, np.int64(7), "7", 7.0], "7"),
        ("text", ["Anna  MUSTER", " anna muster", "Ａnna Muster"], "anna muster"),
        (
            "name",
            ["Müller-Lüthi", "MULLER LUTHI", "Mu\u0308ller‐Lüthi ", "müller, lüthi"],
            "muller luthi",
        ),
        ("name", ["O'Brien", "O’BRIEN", "o brien"], "o brien"),
        ("name", ["Strauß", "STRAUSS"], "strauss"),
        ("email", ["Anna@X.org", " anna @x.ORG"], "anna@x.org"),
        ("code", ["AB-12 3", "ab123", "a.b/123"], "ab123"),
        ("digits", ["0012-3", "12 3", 123, 123.0], "123"),
        ("digits", ["000"], "0"),
        (
            "phone",
            [
                "+41 79 123 45 67",
                "0041791234567",
                "+41 (0)79 123-45-67",
                "+41/79/1234567",
            ],
            "+41791234567",
        ),
        (
            "phone +41",
            ["079 123 45 67", "+41 79 123 45 67", "0041 79 123 45 67"],
            "+41791234567",
        ),
        (
            "date",
            [
                "1980-12-31",
                "31.12.1980",
                "31/12/1980",
                "31-12-1980",
                "19801231",
                "1980/12/31",
            ],
            "1980-12-31",
        ),
        (
            "date",
            [
                date(1980, 12, 31),
                datetime(1980, 12, 31, 5),
                pd.Timestamp("1980-12-31"),
                19801231,
            ],
            "1980-12-31",
        ),
        (
            "date",
            ["1.2.1980", "01/02/1980", "1980-2-1", "1980-02-01T10:00:00"],
            "1980-02-01",
        ),
        ("date month-first", ["2/1/1980", "1980-02-01", "1.2.1980"], "1980-02-01"),
    ],
)
def test_all_forms_are_one(rule: str, cells: list[Any], one: str) -> None:
    written = find_rule(rule, "rule")
    assert [written(cell) for cell in cells] == [one] * len(cells)


@pytest.mark.parametrize(
    ("rule", "cell"),
    [
        *[
            (rule, gap)
            for rule in ("exact", "name", "phone", "date")
            for gap in (None, float("nan"), pd.NA, pd.NaT, "  ")
        ],
        ("date", "31.02.1980"),
        ("date", "yesterday"),
        ("date", "12/31/1980"),
        ("phone", "unknown"),
        ("phone", "12"),
        ("phone", "079 1 +2 33"),
        ("exact", 1.5),
        ("code", "--"),
    ],
)
def test_what_cannot_be_read_is_as_good_as_a_gap(rule: str, cell: Any) -> None:
    assert find_rule(rule, "rule")(cell) == ""


@pytest.mark.parametrize("wrong", ["fone", "phone 41", "phone +0", 3, "date us"])
def test_an_unknown_rule_is_refused(wrong: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"\[alignment.rules\] tel must be one of exact, .*found"
    ):
        find_rule(wrong, "[alignment.rules] tel")
