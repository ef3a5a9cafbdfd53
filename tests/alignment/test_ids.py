"""Which spellings are one id, and which rows have none."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.alignment import AlignmentSettings, Ids
from colonnade.alignment.ids import matches_by_rule, more_by_rule, zeros_in_front
from colonnade.alignment.rules import normalised
from colonnade.errors import DataError

NORMALISED = AlignmentSettings(ids="normalised")


def digest(*parts: Any, settings: AlignmentSettings | None = None) -> bytes:
    return Ids.of("clinic", [[part] for part in parts], settings).digests.tobytes()


@pytest.mark.parametrize(
    "one",
    [1, "1", np.int64(1), np.uint8(1), pd.Series([1], dtype="Int64")[0], np.str_("1")],
)
def test_whole_numbers_are_their_digits(one: Any) -> None:
    assert digest(one) == digest("1")
    assert digest(one) != digest("01")
    assert digest(one) != digest("1.0")


def test_a_long_number_keeps_every_digit() -> None:
    assert digest(2**63 + 1) == digest("9223372036854775809") != digest(2**63)


def test_exact_ids_are_kept_as_they_are() -> None:
    spellings = [
        "Zoë",
        unicodedata.normalize("NFD", "Zoë"),
        "zoë",
        "Zoë ",
        " Zoë",
        "ＺoË",
    ]
    assert len({digest(one) for one in spellings}) == len(spellings)


def test_normalised_ids_ignore_unicode_form_case_and_white_space() -> None:
    spellings = [
        "Zoë Groß",
        unicodedata.normalize("NFD", "zoË GROSS"),
        "\tzoë\u00a0 groß\n",
        "ＺＯË ｇross",
    ]
    assert len({digest(one, settings=NORMALISED) for one in spellings}) == 1
    for other in ("Zoe Gross", "ZoëGroß", "Groß Zoë"):
        assert digest(other, settings=NORMALISED) != digest(
            spellings[0], settings=NORMALISED
        )
    assert digest("007", settings=NORMALISED) != digest(7, settings=NORMALISED)


@settings(max_examples=40)
@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalised(normalised(text)) == normalised(text)
    assert normalised(unicodedata.normalize("NFD", text)) == normalised(text)


@settings(max_examples=40)
@given(
    st.lists(st.text("ab1", min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(st.text("ab1", min_size=1, max_size=3), min_size=1, max_size=4),
)
def test_composite_ids_are_equal_exactly_when_all_parts_are(
    left: list[str], right: list[str]
) -> None:
    assert (digest(*left) == digest(*right)) == (left == right)


@pytest.mark.parametrize(
    "value",
    [1.0, np.float64(2.5), True, np.bool_(False), b"1", pd.Timestamp("2020-01-01")],
)
def test_what_has_no_single_spelling_is_refused(value: Any) -> None:
    with pytest.raises(
        DataError,
        match=(
            r"'clinic' has an id of type \w+ in row 1, and ids must be text or"
            r" whole num"
        ),
    ):
        Ids.of("clinic", [["1", value]])


@pytest.mark.parametrize("value", [None, float("nan"), "", "  \t", pd.NA, pd.NaT])
@pytest.mark.parametrize("rule", [AlignmentSettings(), NORMALISED])
def test_a_row_without_an_id_is_refused(value: Any, rule: AlignmentSettings) -> None:
    with pytest.raises(
        DataError, match="'clinic' has no id in row 1, and every row needs one"
    ):
        Ids.of("clinic", [["1", value]], rule)


def test_half_a_character_is_refused() -> None:
    with pytest.raises(DataError, match="row 0 that is no valid Unicode"):
        Ids.of("clinic", [["\ud800"]])


def test_a_table_without_rows_or_columns_is_refused() -> None:
    with pytest.raises(DataError, match="'clinic' has a table without rows"):
        Ids.of("clinic", [[]])
    with pytest.raises(DataError, match="'clinic' names no id column"):
        Ids.of("clinic", [])
    with pytest.raises(DataError, match="id columns of different lengths"):
        Ids.of("clinic", [["a", "b"], ["a"]])


def test_duplicates_are_reported_and_refused() -> None:
    with pytest.raises(
        DataError,
        match=(
            r"'clinic' has 2 rows with an id that an earlier row has too.*first is"
            r" row 2"
        ),
    ):
        Ids.of("clinic", [["b", "a", "b", "c", "a"]])


def test_or_the_first_row_is_kept() -> None:
    ids = Ids.of(
        "clinic",
        [["b", "a", "B ", "c", "a"]],
        AlignmentSettings(ids="normalised", duplicates="first"),
    )
    assert ids.rows.tolist() == [0, 1, 3]
    assert (len(ids), ids.total, ids.repeated) == (3, 5, 2)
    assert ids.digests.tobytes() == b"".join(digest(one) for one in "bac")


def test_no_id_is_shown_or_kept() -> None:
    ids = Ids.of("clinic", [["secret-7"]])
    assert repr(ids) == "Ids('clinic', 1 of 1 rows, 1 columns)"
    assert b"secret" not in ids.digests.tobytes()


LONG = [str(number) for number in range(100_000, 104_500)]
"""Ids that all write alike; the oldest customers' have a zero in front at one."""
OLD = [str(number) for number in range(20_000, 20_503)]


def test_ids_that_match_by_another_rule_are_counted() -> None:
    padded = LONG + [f"0{number}" for number in OLD]
    matches = matches_by_rule(padded, LONG + OLD)
    assert matches == {"exact": 4500, "text": 4500, "code": 4500, "digits": 5003}
    assert more_by_rule(matches, 5003, "kunde") == (
        '503 more would match without leading zeros: kunde = "digits" under'
        " [alignment.rules]."
    )
    assert matches_by_rule(padded, LONG + OLD, LONG[:7])["digits"] == 7


@pytest.mark.parametrize(
    ("left", "right", "matches", "advice"),
    [
        (["a1", "B2"], ["A1", "b2 "], [0, 2, 2], 'ids = "normalised"'),
        (["1-2", "3-4"], ["12", "34"], [0, 0, 2, 2], 'kunde = "code"'),
        (["a1", "b1"], ["1", "2"], [0, 0, 0], ""),
        (["1", "01", "2"], ["1", "2"], [2, 2, 2, 1], ""),
        (["1", "2"], ["1", "2"], [2, 2, 2, 2], ""),
    ],
)
def test_the_mildest_rule_that_finds_most_is_advised(
    left: list[str], right: list[str], matches: list[int], advice: str
) -> None:
    counted = matches_by_rule(left, right)
    assert list(counted.values()) == matches
    said = more_by_rule(counted, 2, "kunde")
    assert (advice in said) if advice else said == ""


def test_a_few_more_may_be_chance() -> None:
    assert more_by_rule({"exact": 500, "digits": 504}, 1000, "id") == ""
    assert more_by_rule({"exact": 500, "digits": 510}, 1000, "id") != ""


def test_an_owner_by_itself_is_told_of_its_own_leading_zeros() -> None:
    said = zeros_in_front("bank", ["0123", "4567", "A01"], "kunde")
    assert "'bank' has zeros in front of 1 of its 3 ids." in said
    assert 'kunde = "digits"' in said
    assert "123" not in said, "which ones is nobody's business"
    assert zeros_in_front("bank", ["123", "A01"], "kunde") == ""
