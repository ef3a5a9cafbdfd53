"""A file read in pieces gives what the file read whole gives: ids, columns as numbers
or words, and the label. Stored columns give back what was put in, in any order of rows.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.core.files import MAP_FROM
from colonnade.datasets import table as streams
from colonnade.datasets.fitted import kind_of, numbers, text
from colonnade.datasets.preprocess import Preprocessor
from colonnade.datasets.stored import Columns, Filling
from colonnade.datasets.table import Table, read_table
from colonnade.errors import DataError

CELLS = st.sampled_from(
    [
        "",
        "NA",
        "1",
        "01",
        "2",
        "-7",
        "1.5",
        "1.50",
        "0.1",
        "True",
        "TRUE",
        "False",
        "blue",
        "Grün",
        "9007199254740993",
    ]
)
ROWS = st.lists(
    st.tuples(CELLS, CELLS, st.sampled_from(["0", "1", "1.5", "no", "True"])),
    min_size=1,
    max_size=12,
)


def both(
    path: Path, monkeypatch: pytest.MonkeyPatch, piece: int = 3, label: str | None = "y"
) -> tuple[Table, Table]:
    whole = read_table(path, owner="lab", id="id", label=label)
    with monkeypatch.context() as patch:
        patch.setenv(MAP_FROM, "0")
        patch.setattr(streams, "PIECE", piece)
        return whole, read_table(path, owner="lab", id="id", label=label)


def assert_same(whole: Table, pieces: Table) -> None:
    assert isinstance(pieces.features, Columns)
    assert whole.ids.tolist() == pieces.ids.tolist()
    assert whole.columns == pieces.columns
    for name in whole.columns:
        one = whole.features[name]
        other = pieces.features[name]
        assert one.isna().tolist() == other.isna().tolist()
        if one.isna().all():
            continue
        kind = kind_of(one, owner="lab")
        assert kind == kind_of(other, owner="lab"), name
        if kind == "number":
            np.testing.assert_array_equal(numbers(one), numbers(other))
        else:
            assert text(one).tolist() == text(other).tolist()
    if whole.label is not None:
        assert pieces.label is not None
        assert [str(v) for v in whole.label] == [str(v) for v in pieces.label]


@settings(max_examples=40)
@given(rows=ROWS)
def test_a_csv_in_pieces_is_the_csv(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    path = tmp_path_factory.mktemp("pieces") / "lab.csv"
    lines = [f"{number:03d},{a},{b},{y}" for number, (a, b, y) in enumerate(rows)]
    path.write_text("\n".join(["id,a,b,y", *lines]) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        assert_same(*both(path, patch))


def test_a_column_that_turns_out_to_be_text_was_text_all_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lab.csv"
    path.write_text("id,code,y\na,01,0\nb,02,1\nc,03,0\nd,x4,1\n", encoding="utf-8")
    _, pieces = both(path, monkeypatch, piece=2)
    assert text(pieces.features["code"]).tolist() == ["01", "02", "03", "x4"]


def test_quoted_line_ends_blank_lines_and_gzip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lab.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        file.write('id,note,a,y\r\n1,"two\nlines",1,0\r\n\r\n2,plain,2,1\r\n3,,3,1')
    assert_same(*both(path, monkeypatch, piece=2))


def test_a_parquet_file_in_pieces_is_the_parquet_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame(
        {
            "id": range(100, 110),
            "whole": pd.array([1, 2, None, 4, 5, 6, 7, 8, 9, 2**60 + 1], dtype="Int64"),
            "flag": [True, False, None, True] + [True] * 6,
            "word": pd.Categorical(["a", "b", None, "a", "c", "a", "a", "b", "b", "a"]),
            "late": [None] * 9 + ["x"],
            "value": np.linspace(0, 1, 10, dtype=np.float32),
            "y": ["no", "yes"] * 5,
        }
    )
    frame.to_parquet(tmp_path / "lab.parquet")
    assert_same(*both(tmp_path / "lab.parquet", monkeypatch))


def test_features_have_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({f"x{n}": draw.lognormal(size=500) for n in range(19)})
    frame["x3"] = frame["x3"].where(frame["x3"] > 0.5)
    frame["job"] = draw.choice(["clerk", "nurse", "NA", "cook"], size=500)
    frame.insert(0, "id", draw.permutation(500))
    frame.to_csv(tmp_path / "lab.csv", index=False)
    whole, pieces = both(tmp_path / "lab.csv", monkeypatch, piece=64, label=None)
    order = np.sort(whole.ids)[::-1][:400]
    training = np.arange(0, 400, 2)

    def prepared(table: Table) -> tuple[Preprocessor, bytes]:
        mine = table.in_order(order)
        assert mine.ids.tolist() == order.tolist()
        learned = Preprocessor.fit(mine, training)
        return learned, learned.transform(mine).numpy().tobytes()

    assert prepared(whole) == prepared(pieces)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,a\n", "has a table without rows"),
        (
            "id,a\n1,2\n1,3\n",
            "1 ids that occur more than once, such as in rows 0 and 1, counted from 0",
        ),
        ("id,a\n1,2\n ,3\n", "1 rows without an id"),
        ("id,a\n1,2\n2,3,4\n", "is not a CSV file"),
        ("id,a\n1,2,3\n2,3,4\n", "is not a CSV file"),
        ("name,a\n1,2\n", "id"),
    ],
)
def test_what_is_refused_whole_is_refused_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    path = tmp_path / "lab.csv"
    path.write_text(content, encoding="utf-8")
    for megabytes in ("64", "0"):
        monkeypatch.setenv(MAP_FROM, megabytes)
        with pytest.raises(DataError, match=message):
            read_table(path, owner="lab", id="id")
    path = tmp_path / "lab.parquet"
    path.write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="is not a Parquet file"):
        read_table(path, owner="lab", id="id")


@pytest.fixture(params=["0", "64"])
def stored(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Columns:
    monkeypatch.setenv(MAP_FROM, request.param)
    filling = Filling(["a", "b"], most=9)  # more than there will be
    filling.add(
        pd.DataFrame({"a": [1, 2], "b": ["x", None]}), 0, {"a": True, "b": False}
    )
    filling.add(
        pd.DataFrame({"a": [None, 4.5], "b": ["y", "x"]}), 2, {"a": True, "b": False}
    )
    return filling.done()


def test_columns_are_what_was_added(stored: Columns) -> None:
    assert stored.columns == ["a", "b"]
    assert len(stored) == 4
    np.testing.assert_array_equal(stored["a"], [1.0, 2.0, np.nan, 4.5])
    assert text(stored["b"]).tolist() == ["x", "missing", "y", "x"]
    assert stored["b"].isna().tolist() == [False, True, False, False]


def test_taking_rows_moves_every_column(stored: Columns) -> None:
    moved = stored.take(np.array([3, 0, 1]))
    assert moved["a"].tolist() == [4.5, 1.0, 2.0]
    assert text(moved["b"]).tolist() == ["x", "x", "missing"]
    assert stored["a"].tolist()[0] == 1.0


def test_a_column_that_is_read_again_takes_the_place_of_what_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MAP_FROM, "0")
    filling = Filling(["a", "b"], most=2)
    filling.add(
        pd.DataFrame({"a": [1, 2], "b": ["x", "z"]}), 0, {"a": True, "b": False}
    )
    filling.forget(["a"])
    filling.add(pd.DataFrame({"a": ["01", "2"]}), 0, {"a": False})
    assert text(filling.done()["a"]).tolist() == ["01", "2"]
    assert text(filling.done()["b"]).tolist() == ["x", "z"]


def test_own_gaps_and_codes_are_those_of_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first piece the postcodes look like numbers, and in the last the points
    are words."""
    path = tmp_path / "lab.csv"
    cells = ["80331,5", "10115,-999", "50667,7", "50667,Secret", "01067,8", "01067,9"]
    lines = [f"{number},{cell},{number % 2}" for number, cell in enumerate(cells)]
    path.write_text("\n".join(["id,zip,points,y", *lines]) + "\n", encoding="utf-8")

    def table() -> Table:
        return read_table(
            path, owner="lab", id="id", label="y", gaps=["secret", "-999"]
        )

    whole = table()
    monkeypatch.setenv(MAP_FROM, "0")
    monkeypatch.setattr(streams, "PIECE", 2)
    pieces = table()
    assert_same(whole, pieces)
    assert text(pieces.features["zip"])[-1] == "01067"
    assert whole.features["points"].isna().tolist() == [0, 1, 0, 1, 0, 0]
