"""What an organisation makes of its own table, or of a public data set: what one
process would, and no more."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from tests.federation.small import frames, quick
from tests.federation.small_sites import folders

from colonnade.errors import DataError
from colonnade.federation import Settings
from colonnade.rows.public import from_dataset
from colonnade.settings.party_file import OWN, read_own, write_agreed, write_own
from colonnade.sites.reader import own_columns, read_own_table, rows_of


def test_rows_are_in_the_order_of_the_ids(tmp_path: Path) -> None:
    folders(tmp_path)
    assert read_own_table(read_own(tmp_path / "lab" / OWN)).ids.tolist() == sorted(
        frames()["lab"]["patient"]
    )


def test_an_organisation_without_columns_has_no_place(tmp_path: Path) -> None:
    given = frames()
    given["lab"] = given["lab"][["patient"]]
    folders(tmp_path, given)
    with pytest.raises(DataError, match=r"'lab'"):
        read_own_table(read_own(tmp_path / "lab" / OWN))


def test_columns_are_prepared_as_in_training_whatever_the_table_holds_now(
    tmp_path: Path,
) -> None:
    folders(tmp_path)
    own = read_own(tmp_path / "lab" / OWN)
    table = read_own_table(own)
    before = own_columns(own, table, {"clinic": table.ids}, 1)
    path = tmp_path / "all" / "lab.csv"
    more = frames(rows=90, seed=5)["lab"]
    pd.concat([pd.read_csv(path), more[more["patient"] >= "P080"]]).assign(
        extra=1.0
    ).to_csv(path, index=False)
    known, columns = rows_of(own, before.state_of("lab"))
    assert len(known) == 90
    assert torch.equal(columns(before.ids), before.columns["lab"].features)


def test_a_part_of_a_public_data_set_is_cut_out(tmp_path: Path) -> None:
    tables = quick(data={"dataset": "breast_cancer", "parts": [10, 20]})
    whole = from_dataset(Settings.from_mapping(tables))
    named = Settings.from_mapping(
        {**tables, "parties": {name: {} for name in whole.names}}
    )
    name = next(iter(whole.columns))
    write_agreed(tmp_path, named)
    write_own(tmp_path, named, name)
    mine = own_columns(read_own(tmp_path / OWN), None, {}, 1)
    assert list(mine.columns) == [name]
    assert torch.equal(mine.columns[name].features, whole.columns[name].features)
    assert not any(len(held.labels) for held in mine.label_owners.values()), (
        "labels are not its own"
    )
