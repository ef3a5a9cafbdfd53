from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.datasets.table import Table, align, read_table, table_from_frame
from colonnade.errors import DataError

SOME_IDS = st.lists(st.integers(0, 10**20).map(str), min_size=1, unique=True)


def table(ids: list[object], owner: str = "bank") -> Table:
    frame = pd.DataFrame({"id": ids, "a": range(len(ids)), "y": [str(i) for i in ids]})
    return table_from_frame(frame, owner=owner, id="id", label="y")


def test_whole_numbers_become_digits_and_text_is_kept() -> None:
    assert table([7, 2**62]).ids.tolist() == ["7", "4611686018427387904"]
    assert table(["007", " 7", "a"]).ids.tolist() == ["007", " 7", "a"]


def test_a_csv_and_a_parquet_file_give_the_same_table(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["01", "02"], "a": [1.5, 2.5], "y": ["no", "yes"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    one, two = (
        read_table(tmp_path / f"t.{end}", owner="bank", id="id", label="y")
        for end in ("csv", "parquet")
    )
    assert one.ids.tolist() == two.ids.tolist() == ["01", "02"]
    assert (
        one.features["a"].to_dict() == two.features["a"].to_dict() == {0: 1.5, 1: 2.5}
    )
    assert one.columns == two.columns == ["a"]
    assert one.label is not None
    assert one.label.tolist() == ["no", "yes"]


def test_the_frame_may_change_afterwards() -> None:
    frame = pd.DataFrame({"id": ["x", "y"], "a": [1, 2]})
    held = table_from_frame(frame, owner="bank", id="id")
    frame.loc[0, "a"] = 99
    assert held.features["a"].tolist() == [1, 2]


def test_a_printed_table_shows_sizes_and_no_cell() -> None:
    shown = repr(table(["secret-1", "secret-2"]))
    assert shown == "Table('bank', 2 rows, 1 features, label 'y')"


@settings(max_examples=50)
@given(
    st.lists(
        st.text(alphabet="ab0 9é", min_size=1, max_size=4).filter(str.strip),
        min_size=1,
        unique=True,
    )
)
def test_in_order_carries_every_row_with_its_id(ids: list[object]) -> None:
    held = table(ids)
    wanted = np.array(sorted(str(i) for i in ids)[: max(1, len(ids) - 1)])
    moved = held.in_order(wanted)
    assert moved.ids.tolist() == wanted.tolist()
    assert moved.label is not None
    assert moved.label.tolist() == wanted.tolist()
    assert [ids[row] for row in moved.features["a"]] == wanted.tolist()


@settings(max_examples=50)
@given(SOME_IDS.flatmap(lambda ids: st.tuples(st.just(ids), st.permutations(ids))))
def test_all_parties_agree_on_one_order_whatever_their_own(
    orders: tuple[list[str], list[str]],
) -> None:
    ids, shuffled = orders
    tables = {"bank": table([*ids]), "shop": table([*shuffled], "shop")}
    order = align(tables)
    assert order.tolist() == sorted(ids)
    assert all(
        held.in_order(order).ids.tolist() == order.tolist() for held in tables.values()
    )


def test_an_id_that_one_party_lacks_stops_the_alignment() -> None:
    with pytest.raises(DataError) as caught:
        align({"bank": table([1, 2, 3]), "shop": table([1], "shop")})
    assert (
        str(caught.value)
        == "All parties must hold the same ids. 'shop' lacks 2 that others hold. To"
        ' train on the rows that all hold, set align = "private" under [data]; or'
        " remove the others."
    )


@pytest.mark.parametrize("asked", ["0", "9", "15"])
def test_in_order_refuses_an_id_it_does_not_hold(asked: str) -> None:
    with pytest.raises(
        DataError,
        match=(
            r"'bank' lacks 1 of the ids asked for\. Ask for rows that all parties hold"
        ),
    ):
        table([1, 2]).in_order(np.array(["1", asked]))


def test_aligning_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="align was given no table"):
        align({})


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            ["a", "b", "a", "b", "c"],
            (
                "'bank' has 2 ids that occur more than once, such as in rows 0 and 2,"
                " counted from 0, and an id"
            ),
        ),
        (
            [1, "1"],
            (
                "'bank' has 1 ids that occur more than once, such as in rows 0 and 1,"
                " counted from 0"
            ),
        ),
        (
            ["a", None, " "],
            (
                "'bank' has 2 rows without an id in column 'id', and every row needs"
                " one. Remove these rows"
            ),
        ),
        (
            [1.5, 2.5],
            (
                "'bank' has ids of type float in column 'id', and ids must be text or"
                " whole numbers"
            ),
        ),
        ([True, False], "'bank' has ids of type bool"),
        (["a", "a\0"], "'bank' has ids that end in a zero character"),
        ([], "'bank' has a table without rows"),
    ],
)
def test_bad_ids_are_refused_by_name(ids: list[object], message: str) -> None:
    with pytest.raises(DataError) as caught:
        table(ids)
    assert message in str(caught.value)


def test_half_a_letter_is_no_id() -> None:
    """Nobody could hash it; from a file it cannot come."""
    frame = pd.DataFrame({"id": pd.Series(["a", "\ud800"], dtype=object), "x": [1, 2]})
    with pytest.raises(
        DataError,
        match="'bank' has an id with a lone surrogate, half of a letter: it is no text",
    ):
        table_from_frame(frame, owner="bank", id="id")


def test_column_names_must_be_text() -> None:
    with pytest.raises(
        DataError, match="'bank' has 1 columns whose names are not text, such as 3"
    ):
        table_from_frame(pd.DataFrame({"id": ["x"], 3: [1]}), owner="bank", id="id")


def test_a_table_put_together_by_hand_must_fit() -> None:
    with pytest.raises(
        DataError,
        match=(
            r"'bank' has a table whose ids, features and label have different lengths:"
            r" \[1, 2\]"
        ),
    ):
        Table("bank", np.array(["x"]), pd.DataFrame({"a": [1, 2]}))


@pytest.mark.parametrize(
    ("there", "cure"),
    [
        (
            ["0001", "0002", "0003"],
            (
                r"They differ in leading zeros: 3 rows fit without that, and 0 as .*ID"
                r" = .digits."
            ),
        ),
        (
            ["1.0", "2.0", "3.0"],
            r'They differ in a "\.0" at the end.*write whole numbers',
        ),
        (
            ["01.0", "02.0", "03.0"],
            r'They differ in leading zeros and a "\.0" .*whole numbers.*ID = .digits.',
        ),
        (
            [" 1", "2 ", "3"],
            (
                r'They differ in capitals or spaces: .*set ids = "normalised" under'
                r" \[alignment\]"
            ),
        ),
        (["1-", "-2", "3."], r"They differ in hyphens, dots, slashes or spaces"),
        (
            ["T1", "T2", "T4"],
            (
                r"No id is shared. They begin with '' in 'bank', with 'T' in 'shop',"
                r" and 2 would fit"
            ),
        ),
        (
            ["7", "8", "6"],
            (
                r"Ids look alike everywhere, as '9' .*, and none is shared. Is it the"
                r" same id"
            ),
        ),
        (["T7", "T8", "T9"], r"Ids look like '9' in 'bank', 'a9' in 'shop'"),
        (
            ["70", "80", "91"],
            r"Ids look like '9' in 'bank', '99' in 'shop' \(a is any letter",
        ),
        (["Nr-70", "Nr-80", "b"], r"Ids look like '9' in 'bank', 'aa-99' in 'shop'"),
        (["1", "8", "9"], r"To train on the rows that all hold"),
    ],
)
def test_ids_that_are_written_otherwise_are_not_to_be_removed(
    there: list[object], cure: str
) -> None:
    with pytest.raises(DataError, match=cure) as caught:
        align({"bank": table([1, 2, 3]), "shop": table(there, "shop")})
    assert not any(f"{one}'" in str(caught.value) for one in there), (
        "ids are nobody else's business"
    )
