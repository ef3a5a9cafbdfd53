"""A first look at files: which columns could be ids or labels, and which files cannot
be tables."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd
import pytest

from colonnade.errors import DataError
from colonnade.planning.tables import files_in, look

FRAME = pd.DataFrame(
    {
        "id": [f"{n:03d}" for n in range(60)],
        "age": [20.5 + n for n in range(60)],
        "name": [f"person {n}" for n in range(60)],
        "customer_id": range(60),
        "visits": [n * n for n in range(60)],
        "site": ["A"] * 60,
        "gappy": ["x", ""] * 30,
        "ill": [0, 1] * 30,
        "heard": ["yes", "no", "?"] * 20,
        "paid": ["€ 5", "1,234", "?"] * 20,
    }
)


def write(folder: Path, kind: str) -> Path:
    path = folder / f"the clinic (north).{kind}"
    if kind == "parquet":
        FRAME.to_parquet(path)
    else:
        FRAME.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_columns_are_seen_alike_in_every_format(kind: str, tmp_path: Path) -> None:
    seen = look(write(tmp_path, kind))
    c = seen.columns
    assert seen.owner == "the_clinic__north"
    assert seen.rows == 60
    assert [name for name in c if c[name].could_be_id] == [
        "id",
        "name",
        "customer_id",
        "visits",
    ]
    assert [name for name in c if c[name].identifies and name != "id"] == [
        "name",
        "customer_id",
    ]
    assert [name for name in c if c[name].is_constant] == ["site"]
    assert [name for name in c if c[name].could_be_label] == [
        "id",
        "age",
        "customer_id",
        "visits",
        "ill",
        "heard",
        "paid",
    ]
    assert c["gappy"].gaps == 30
    assert (
        c["heard"].gaps,
        c["heard"].distinct,
        c["paid"].gaps,
        c["paid"].numeric,
    ) == (20, 2, 20, True)
    assert (c["age"].numeric, c["age"].whole, c["name"].numeric) == (True, False, False)
    assert "007" in seen.ids("id")  # as it is written


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"", "holds nothing, not even a header. Export it again."),
        ("a.csv", b"id,x\n1,2,3\n", "rows all fit its header"),
        ("a.csv", b"id,x\n\x00\x00,1\n", "a CSV file"),
        ("a.csv", b"id,x,x\n1,2,3\n", "'x' more than once"),
        (
            "a.csv",
            b",id,x\na,1,2\n",
            "has a column without a name, number 1 of the 3 in its header",
        ),
        (
            "a.csv",
            b",id,\n0,1,2\n",
            "has a column without a name, number 1 of the 3 in its header",
        ),
        ("a.csv", b"id x\n1 2\n", "Is it separated by commas"),
        ("a.csv", b"id,x\n", "0 rows"),
        ("a.parquet", b"PAR1 no", "a Parquet file"),
        ("a.csv.gz", b"no gzip", "a CSV file"),
        ("a.xlsx", b"", "must end in one of .csv"),
    ],
)
def test_what_is_no_table_is_refused_with_the_rule(
    name: str, content: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        look(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("kind", ["csv", "csv twice", "csv joined", "parquet"])
def test_row_numbers_that_pandas_wrote_are_seen_as_such(
    kind: str, tmp_path: Path
) -> None:
    frame = FRAME.sample(frac=1, random_state=0)
    if kind == "csv joined":
        frame = pd.concat([frame, frame.head(20)])
    path = tmp_path / f"a.{kind.split()[0]}"
    if kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path)
    if kind == "csv twice":
        pd.read_csv(path, dtype=str).to_csv(path, index=False)
    seen = look(path)
    row_numbers = [name for name, c in seen.columns.items() if c.is_row_numbers]
    assert row_numbers == [
        "__index_level_0__" if kind == "parquet" else "Unnamed: 0",
    ]
    assert list(seen.frame["id"]) == list(frame["id"])
    assert not seen.columns[row_numbers[0]].could_be_id
    assert not seen.columns[row_numbers[0]].could_be_label


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no file"):
        look(tmp_path / "a.csv")


def test_tables_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.csv", "a.parquet", "c.csv.gz", "notes.txt", "federation.toml"):
        (tmp_path / name).write_bytes(
            gzip.compress(b"") if name.endswith("gz") else b""
        )
    (tmp_path / "folder.csv").mkdir()
    assert [path.name for path in files_in(tmp_path)] == [
        "a.parquet",
        "b.csv",
        "c.csv.gz",
    ]
