from __future__ import annotations

import gc
import gzip
from pathlib import Path

import pandas as pd
import pytest

from colonnade.datasets.table_files import ColumnRoles, csv_header, for_spreadsheets, read_frame
from colonnade.errors import DataError

ROWS = "id,age,job\n007,31,clerk\n9007199254740993,40,\nNA,25,nurse\n"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "T.CSV"])
def test_csv_ids_are_read_exactly_as_written(tmp_path: Path, name: str) -> None:
    frame = read_frame(written(tmp_path, name, ROWS), ColumnRoles("bank", "id"))
    assert frame["id"].tolist() == ["007", "9007199254740993", "NA"]
    assert frame["age"].tolist() == [31, 40, 25]
    assert frame["job"].isna().tolist() == [False, True, False]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    frame = read_frame(written(tmp_path, "t.csv", "\ufeff" + ROWS), ColumnRoles("bank", "id"))
    assert list(frame.columns) == ["id", "age", "job"]


def test_parquet_keeps_ids_even_where_pandas_made_them_the_index(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [2**53 + 1, 5, 6], "age": [1.5, None, 2.0]}).set_index("id")
    frame.to_parquet(tmp_path / "t.parquet")
    read = read_frame(tmp_path / "t.parquet", ColumnRoles("bank", "id"))
    assert read["id"].tolist() == [2**53 + 1, 5, 6]
    assert read["age"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_only_the_columns_asked_for_are_read(tmp_path: Path, name: str) -> None:
    source = pd.DataFrame({"secret": [1, 2], "b": [3, 4], "id": ["x", "y"], "a": [5, 6], "y": [0, 1]})
    path = tmp_path / name
    source.to_csv(path, index=False) if name.endswith("csv") else source.to_parquet(path)
    frame = read_frame(path, ColumnRoles("bank", "id", label="y", columns=["a", "b"]))
    assert list(frame.columns) == ["id", "y", "a", "b"]


def test_another_extension_is_refused_with_those_allowed(tmp_path: Path) -> None:
    path = written(tmp_path, "t.xlsx", ROWS)
    with pytest.raises(
        DataError,
        match=r"'bank' names the table .*t\.xlsx, .* must end in one of \.csv, \.csv\.gz, \.tsv, \.tsv\.gz, \.parquet",
    ):
        read_frame(path, ColumnRoles("bank", "id"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'bank' names the table .*gone\.csv, and there is no such file"):
        read_frame(tmp_path / "gone.csv", ColumnRoles("bank", "id"))


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'bank' has an empty table: .*t\.csv holds nothing, not even a header"):
        read_frame(written(tmp_path, "t.csv", ""), ColumnRoles("bank", "id"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b"id,a\nx,1\ny,2,3\n"),
        ("t.csv", b"id,a\nx,1,9\ny,2,3\n"),
        ("t.csv", b"id,a\nx,\x00\x00\n"),
        ("t.csv.gz", b"id,a\nx,1\n"),
        ("t.csv.gz", gzip.compress(b"id,a\nx,1\n" * 100, mtime=0)[:-12]),
        ("t.parquet", b"id,a\nx,1\n"),
    ],
    ids=["one wide row", "all rows wide", "no text", "not gzip", "cut gzip", "not parquet"],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"'bank' has a table that cannot be read: .* Export it again") as caught:
        read_frame(tmp_path / name, ColumnRoles("bank", "id"))
    assert caught.value.__suppress_context__


def test_a_duplicate_header_is_refused_rather_than_renamed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'bank' has 'a' more than once in its table"):
        read_frame(written(tmp_path, "t.csv", "id,a,a\nx,1,2\n"), ColumnRoles("bank", "id"))


@pytest.mark.parametrize(
    "text", ["=1+1", "+A1", "-A1", "@SUM(A1)", "\tx", "\r=x", "\n=x", "'=1", "''@x", "-1+cmd|' /C x'!A0"]
)
def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe_that_can_be_taken_away(text: str) -> None:
    written = for_spreadsheets(pd.DataFrame({"id": [text], text: ["a"]}))
    assert (written["id"].tolist(), written.columns.tolist()) == ([f"'{text}"], ["id", f"'{text}"])


def test_numbers_and_other_text_are_written_as_they_are() -> None:
    frame = pd.DataFrame({"id": ["-17", "+3.5e-7", "-.5", "P-1", "'tis", ""], "score": [-1.5, 2, 0, -0.0, None, 1e300]})
    pd.testing.assert_frame_equal(for_spreadsheets(frame), frame)
    same = pd.DataFrame([[1, "=x"]], columns=["=x", "'=x"])
    assert for_spreadsheets(same).columns.tolist() == ["'=x", "''=x"]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_separators_and_alphabets_are_told_from_the_file(tmp_path: Path, separator: str, encoding: str) -> None:
    rows = [["id", "größe", "wert"], ["é1", "müller", "3,5"], ["é2", "o", "4,25"]]
    quoted = [[f'"{cell}"' if separator in cell else cell for cell in row] for row in rows]
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


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_a_file_that_was_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "bank.csv").write_text("id;age\na;1\n")
    assert csv_header(tmp_path / "bank.csv") == ["id", "age"]
    gc.collect()
