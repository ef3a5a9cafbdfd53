"""Ids from files, and nothing but ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from colonnade.alignment import AlignmentSettings, Ids
from colonnade.alignment.ids import read_ids, with_normalised_ids
from colonnade.datasets.table import packed, table_from_frame
from colonnade.errors import DataError

FRAME = pd.DataFrame(
    {
        "name": ["NA", "007", "Zoë"],
        "born": [1990, 1991, 1992],
        "weight": [1.5, None, 2.0],
    }
)


def read(path: Path, *columns: str) -> Ids:
    return read_ids(path, owner="clinic", columns=columns, settings=AlignmentSettings())


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz", "table.parquet"])
def test_ids_are_read_as_written(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    (
        FRAME.to_parquet(path)
        if name.endswith("parquet")
        else FRAME.to_csv(path, index=False)
    )
    assert (
        read(path, "name").digests.tobytes()
        == Ids.of("clinic", [["NA", "007", "Zoë"]]).digests.tobytes()
    )
    both = Ids.of("clinic", [["NA", "007", "Zoë"], ["1990", "1991", "1992"]])
    assert read(path, "name", "born").digests.tobytes() == both.digests.tobytes()
    swapped = read(path, "born", "name")
    assert swapped.digests.tobytes() != both.digests.tobytes()


def test_a_table_has_its_ids_as_they_are_compared() -> None:
    table = table_from_frame(
        FRAME.assign(name=["NA", " \uff10\uff10\uff17", "ZOE\u0308"]),
        owner="clinic",
        id="name",
    )
    assert with_normalised_ids(table).ids.tolist() == ["na", "007", "zo\u00eb"]
    for ids, words in (
        (
            ["a", "A", " a"],
            "'clinic' has 2 rows whose id is an earlier row's once normalised",
        ),
        (
            ["a", "\u2003", "b"],
            "'clinic' has 1 rows whose ids are empty once normalised",
        ),
    ):
        with pytest.raises(DataError, match=words):
            with_normalised_ids(replace(table, packed=packed(np.array(ids))))


def test_a_table_of_ids_alone_will_do(tmp_path: Path) -> None:
    path = tmp_path / "ids.csv"
    path.write_text("\ufeffid\n1\n2\n", encoding="utf-8")
    assert len(read(path, "id")) == 2


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    good = tmp_path / "good.csv"
    FRAME.to_csv(good, index=False)
    with pytest.raises(
        DataError,
        match=(
            r"'clinic' has no column 'nam' \(did you mean 'name'\?\), named as its id"
        ),
    ):
        read(good, "nam")
    with pytest.raises(DataError, match="there is no such file"):
        read(tmp_path / "none.csv", "id")
    with pytest.raises(DataError, match=r"must end in one of \.csv, "):
        read(tmp_path / "table.xlsx", "id")
    for name, content, message in (
        ("empty.csv", b"", "holds nothing, not even a header"),
        ("header.csv", b"id\n", "'clinic' has a table without rows"),
        (
            "wide.csv",
            b"id,x\n1,2,3\n4,5,6\n",
            "is not a CSV file whose rows all fit its header",
        ),
        ("broken.csv.gz", b"no gzip", "is not a CSV file"),
        ("broken.parquet", b"no parquet", "is not a Parquet file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            read(tmp_path / name, "id")


def test_a_float_column_is_refused(tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "table.parquet")
    with pytest.raises(DataError, match="'clinic' has an id of type float in row 0"):
        read(tmp_path / "table.parquet", "weight")
