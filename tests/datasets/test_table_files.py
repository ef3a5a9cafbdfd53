"""Which columns of a file are read, as what, and what is said of a file that cannot be."""

from __future__ import annotations

import gc
import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from colonnade.datasets.table import packed, unpacked
from colonnade.datasets.table_files import (
    ColumnRoles,
    choose_columns,
    csv_header,
    for_spreadsheets,
    listing,
    read_frame,
)
from colonnade.errors import ConfigError, DataError

ROWS = "id,age,job\n007,31,clerk\n9007199254740993,40,\nNA,25,nurse\n"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(
        gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    )
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "T.CSV"])
def test_csv_ids_are_read_exactly_as_written(tmp_path: Path, name: str) -> None:
    frame = read_frame(written(tmp_path, name, ROWS), ColumnRoles("bank", "id"))
    assert frame["id"].tolist() == ["007", "9007199254740993", "NA"]
    assert frame["age"].tolist() == [31, 40, 25]
    assert frame["job"].isna().tolist() == [False, True, False]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    frame = read_frame(
        written(tmp_path, "t.csv", "\ufeff" + ROWS), ColumnRoles("bank", "id")
    )
    assert list(frame.columns) == ["id", "age", "job"]


def test_parquet_keeps_ids_even_where_pandas_made_them_the_index(
    tmp_path: Path,
) -> None:
    frame = pd.DataFrame({"id": [2**53 + 1, 5, 6], "age": [1.5, None, 2.0]}).set_index(
        "id"
    )
    frame.to_parquet(tmp_path / "t.parquet")
    read = read_frame(tmp_path / "t.parquet", ColumnRoles("bank", "id"))
    assert read["id"].tolist() == [2**53 + 1, 5, 6]
    assert read["age"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_only_the_columns_asked_for_are_read(tmp_path: Path, name: str) -> None:
    source = pd.DataFrame(
        {"secret": [1, 2], "b": [3, 4], "id": ["x", "y"], "a": [5, 6], "y": [0, 1]}
    )
    path = tmp_path / name
    (
        source.to_csv(path, index=False)
        if name.endswith("csv")
        else source.to_parquet(path)
    )
    frame = read_frame(path, ColumnRoles("bank", "id", label="y", columns=["a", "b"]))
    assert list(frame.columns) == ["id", "y", "a", "b"]


def test_another_extension_is_refused_with_those_allowed(tmp_path: Path) -> None:
    path = written(tmp_path, "t.xlsx", ROWS)
    with pytest.raises(
        DataError,
        match=(
            r"'bank' names the table .*t\.xlsx, .* must end in one of \.csv, \.csv\.gz,"
            r" \.tsv, \.tsv\.gz, \.parquet"
        ),
    ):
        read_frame(path, ColumnRoles("bank", "id"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"'bank' names the table .*gone\.csv, and there is no such file",
    ):
        read_frame(tmp_path / "gone.csv", ColumnRoles("bank", "id"))


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"t\.csv of 'bank' holds nothing, not even a header. Export it"
    ):
        read_frame(written(tmp_path, "t.csv", ""), ColumnRoles("bank", "id"))


def test_lines_before_the_header_may_be_empty(tmp_path: Path) -> None:
    assert read_frame(
        written(tmp_path, "t.csv", "\n\n" + ROWS), ColumnRoles("bank", "id")
    ).shape == (3, 3)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_file_that_may_not_be_opened_is_not_called_damaged(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: Path) -> list[str]:
        raise PermissionError(13, f"Failed to open {path}")

    path = written(tmp_path, name, ROWS)
    monkeypatch.setattr("colonnade.datasets.table_files.names_in", forbidden)
    with pytest.raises(
        DataError,
        match=rf"{name} of 'bank' cannot be read: Permission denied\. Put that right",
    ):
        read_frame(path, ColumnRoles("bank", "id"))


@pytest.mark.parametrize(
    ("text", "number"),
    [(",id,a\n0,x,1\n", 1), ("id,a,\nx,1,\n", 3), ("id,,\nx,1,2\n", 2)],
)
def test_a_column_without_a_name_is_refused_unless_the_features_are_named(
    tmp_path: Path, text: str, number: int
) -> None:
    path = written(tmp_path, "t.csv", text)
    with pytest.raises(
        DataError,
        match=rf"'bank' has a .* number {number} of the 3 in .*t\.csv.* index=False;",
    ):
        read_frame(path, ColumnRoles("bank", "id"))
    if "a" in text:
        assert read_frame(
            path, ColumnRoles("bank", "id", columns=["a"])
        ).to_numpy().tolist() == [["x", 1]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b"id,a\nx,1\ny,2,3\n"),
        ("t.csv", b"id,a\nx,1,9\ny,2,3\n"),
        ("t.csv", b"id,a\nx,\x00\x00\n"),
        ("t.csv.gz", b"id,a\nx,1\n"),
        ("t.csv.gz", gzip.compress(b"id,a\nx,1\n" * 100, mtime=0)[:-12]),
        ("t.csv.gz", gzip.compress(b"id,a\nx,1\n" * 100, mtime=0)[:12] + b"?" * 40),
        ("t.parquet", b"id,a\nx,1\n"),
    ],
    ids=[
        "one wide row",
        "all rows wide",
        "no text",
        "not gzip",
        "cut gzip",
        "torn gzip",
        "not parquet",
    ],
)
def test_a_damaged_file_is_one_clear_error(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        DataError, match=r"t\..* of 'bank' is not a .* Export it again"
    ) as caught:
        read_frame(tmp_path / name, ColumnRoles("bank", "id"))
    assert caught.value.__suppress_context__


def test_a_duplicate_header_is_refused_rather_than_renamed(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"'bank' has 'a' more than once in .*t\.csv\. Rename"
    ):
        read_frame(
            written(tmp_path, "t.csv", "id,a,a\nx,1,2\n"), ColumnRoles("bank", "id")
        )


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+A1",
        "-A1",
        "@SUM(A1)",
        "\tx",
        "\r=x",
        "\n=x",
        "'=1",
        "''@x",
        "-1+cmd|' /C x'!A0",
    ],
)
def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe_that_can_be_taken_away(
    text: str,
) -> None:
    written = for_spreadsheets(pd.DataFrame({"id": [text], text: ["a"]}))
    assert (written["id"].tolist(), written.columns.tolist()) == (
        [f"'{text}"],
        ["id", f"'{text}"],
    )


def test_numbers_and_other_text_are_written_as_they_are() -> None:
    frame = pd.DataFrame(
        {
            "id": ["-17", "+3.5e-7", "-.5", "P-1", "'tis", ""],
            "score": [-1.5, 2, 0, -0.0, None, 1e300],
        }
    )
    pd.testing.assert_frame_equal(for_spreadsheets(frame), frame)
    same = pd.DataFrame([[1, "=x"]], columns=["=x", "'=x"])
    assert for_spreadsheets(same).columns.tolist() == ["'=x", "''=x"]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_separators_and_alphabets_are_told_from_the_file(
    tmp_path: Path, separator: str, encoding: str
) -> None:
    rows = [["id", "größe", "wert"], ["é1", "müller", "3,5"], ["é2", "o", "4,25"]]
    quoted = [
        [f'"{cell}"' if separator in cell else cell for cell in row] for row in rows
    ]
    text = "\n".join(separator.join(row) for row in quoted) + "\n"
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    frame = read_frame(tmp_path / "t.csv", ColumnRoles("bank", "id"))
    assert [list(frame.columns), *frame.to_numpy().tolist()] == rows


def test_a_file_that_changes_is_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for text in ("id,a\n1,2\n", "id;a;b\n1;2;3\n"):
        path.write_text(text)
        assert read_frame(path, ColumnRoles("bank", "id")).shape[0] == 1
    assert list(read_frame(path, ColumnRoles("bank", "id")).columns) == ["id", "a", "b"]


@pytest.mark.filterwarnings(
    "error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning"
)
def test_a_file_that_was_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "bank.csv").write_text("id;age\na;1\n")
    assert csv_header(tmp_path / "bank.csv") == ["id", "age"]
    gc.collect()


PRESENT = ["id", "age", "income", "y"]


def test_without_columns_all_but_id_and_label_are_features_in_table_order() -> None:
    assert choose_columns(PRESENT, ColumnRoles("bank", "id", label="y")) == [
        "age",
        "income",
    ]


def test_named_columns_keep_the_order_asked_for() -> None:
    assert choose_columns(
        PRESENT, ColumnRoles("bank", "id", columns=["income", "age"])
    ) == ["income", "age"]


def test_a_label_owner_may_hold_no_features() -> None:
    assert choose_columns(["id", "y"], ColumnRoles("bank", "id", label="y")) == []


@pytest.mark.parametrize(
    ("id_column", "label", "columns", "message"),
    [
        (
            "idd",
            None,
            None,
            (
                "'bank' has no column 'idd' (did you mean 'id'?), named as its id. Its"
                " columns are 'id', 'age'"
            ),
        ),
        (
            "id",
            "why",
            None,
            "'bank' has no column 'why', named as its label. Its columns are",
        ),
        (
            "id",
            None,
            ["incom"],
            (
                "'bank' has no column 'incom' (did you mean 'income'?), named as its"
                " feature."
            ),
        ),
        (
            "id",
            None,
            ["age", "age"],
            "'bank' has 'age' more than once in columns. List each feature once.",
        ),
    ],
)
def test_a_wrong_name_is_a_data_error(
    id_column: str, label: str | None, columns: list[str] | None, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        choose_columns(
            PRESENT, ColumnRoles("bank", id_column, label=label, columns=columns)
        )
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("label", "columns", "message"),
    [
        (
            "id",
            None,
            "'bank' names 'id' as both id and label. Name a label column of its own.",
        ),
        (
            None,
            ["id", "age"],
            "'bank' lists its id column 'id' as a feature. Take it out of columns",
        ),
        (
            "y",
            ["y", "age"],
            "'bank' lists its label column 'y' as a feature. Take it out of columns",
        ),
    ],
)
def test_a_column_with_two_parts_is_a_config_error(
    label: str | None, columns: list[str] | None, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_columns(PRESENT, ColumnRoles("bank", "id", label=label, columns=columns))
    assert message in str(caught.value)


def test_a_table_with_two_columns_of_one_name_is_refused() -> None:
    with pytest.raises(DataError, match="'bank' has 'age' more than once in its table"):
        choose_columns(["id", "age", "age"], ColumnRoles("bank", "id"))


def test_only_an_id_is_nothing_to_bring() -> None:
    with pytest.raises(
        DataError,
        match=(
            "'bank' holds no feature and no label: its table has only the id column"
            " 'id'"
        ),
    ):
        choose_columns(["id"], ColumnRoles("bank", "id"))
    with pytest.raises(
        DataError,
        match=(
            r"'bank' holds no feature and no label: its columns are \[\]. Add a feature"
        ),
    ):
        choose_columns(["id", "age"], ColumnRoles("bank", "id", columns=[]))


def test_a_long_list_is_cut_and_says_so() -> None:
    assert listing(["a", "b", "c"], limit=2) == "'a', 'b' and 1 more"


def test_packed_ids_are_the_same_text_in_the_same_order_and_of_ascii_a_quarter_of_the_bytes() -> (
    None
):
    plain = np.array([f"{number:08d}" for number in range(5)])
    assert (packed(plain).itemsize, unpacked(packed(plain)).tolist()) == (
        8,
        plain.tolist(),
    )
    words = np.array(["z", "é", "e", "日本", "\U0001f600", "\uffff", "\ud800", ""])
    assert unpacked(packed(words)).tolist() == words.tolist()
    assert (
        packed(words).argsort(kind="stable").tolist()
        == words.argsort(kind="stable").tolist()
    )
