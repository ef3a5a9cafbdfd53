"""Tables with many rows for one person: their owner makes one row of them, by a rule
that is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.federation.small import frames, quick, write

from colonnade import load
from colonnade.errors import ConfigError, DataError
from colonnade.federation import Federation
from colonnade.rows.groups import grouped_table, with_groups
from colonnade.rows.holdings import read_own
from colonnade.settings.federation_file import Settings

PEOPLE = pd.DataFrame({"no": ["a", "b", "c"], "age": [1.0, 2.0, 3.0]})
BOUGHT = pd.DataFrame(
    {
        "no": ["b", "a", "b", "a", "b", "stranger"],
        "amount": [1.0, 10.0, 2.0, np.nan, 6.0, 100.0],
        "time": [
            "2024-01-03",
            "2024-01-01",
            "2024-01-02",
            "2024-01-05",
            "2024-01-01",
            "2024-01-01",
        ],
        "shop": ["x", "y", "z", "x", "y", "z"],
    }
)


def joined(tmp_path: Path, bought: pd.DataFrame = BOUGHT, **given: Any) -> pd.DataFrame:
    bought.to_csv(tmp_path / "bought.csv", index=False)
    tables = [
        grouped_table(
            "bought",
            {"table": str(tmp_path / "bought.csv"), **given},
            "party.toml",
            "no",
        )
    ]
    return with_groups(PEOPLE, None, "shop", tables)


def test_count_sum_mean_and_last(tmp_path: Path) -> None:
    ways = ["count", "sum", "mean", "last"]
    found = joined(tmp_path, group={"amount": ways, "shop": "last"}, order="time")
    made: Any = found.set_index("no").drop(columns="age")
    assert list(made.columns) == [
        *(f"bought.amount.{way}" for way in ways),
        "bought.shop.last",
    ]
    # by time the first row is the last
    assert made.loc["b"].tolist() == [3, 9.0, 3.0, 1.0, "x"]
    assert made.loc["a"].tolist() == [1, 10.0, 10.0, 10.0, "x"]  # a gap is no amount
    assert made.loc["c"].tolist()[:2] == [0, 0.0]
    assert made.loc["c"].isna().tolist()[2:] == [True, True, True]


def test_without_an_order_the_last_is_the_files(tmp_path: Path) -> None:
    assert joined(tmp_path, group={"amount": "last"})["bought.amount.last"].tolist()[
        :2
    ] == [10.0, 6.0]


def test_numbers_may_be_written_as_people_do(tmp_path: Path) -> None:
    written = BOUGHT.assign(amount=["1,000", "€ 10", "2", "?", "6", "7"])
    assert joined(tmp_path, written, group={"amount": "sum"})[
        "bought.amount.sum"
    ].tolist() == [10.0, 1008.0, 0.0]
    with pytest.raises(
        DataError,
        match=(
            r"'shop' has a table 'bought' whose column 'shop' holds no numbers or times"
        ),
    ):
        joined(tmp_path, group={"shop": "sum"})


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            {"group": {"amount": 3}},
            "group of 'amount' must be of count, sum, mean, last; found 3",
        ),
        (
            {"group": {"amount": [{"sum": 1}]}},
            "group of 'amount' must be of count, sum, mean, last; found",
        ),
        (
            {"group": {"amount": "median"}},
            "group of 'amount' must be of count, sum, mean, last; found 'median'",
        ),
        ({"group": {}}, "group must say what"),
        ({"group": {"amount": "sum"}, "by": 3}, "by must be text"),
        ({"group": {"amount": "sum"}, "sort": "time"}, "has no setting 'sort'"),
        ({"group": {"price": "sum"}}, "has no column 'price'"),
        ({"group": {"amount": "sum"}, "by": "customer"}, "customer"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, wrong: dict[str, Any], why: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=why):
        joined(tmp_path, **wrong)


def test_a_party_trains_and_predicts_with_them(tmp_path: Path) -> None:
    """As if the columns had stood in its table; also for rows that are new, and after a
    change of the other table."""
    given: Any = frames()
    lab = given["lab"]
    twice = {name: np.repeat(lab[name].to_numpy(), 2) for name in ("patient", "iron")}
    blood = pd.DataFrame(twice)
    by_hand = {
        **given,
        "lab": lab.drop(columns="iron").assign(**{"blood.iron.mean": lab["iron"]}),
    }
    plain = Federation.from_frames(
        by_hand, id="patient", label="diagnosis", settings=quick()
    ).fit()
    file = write(tmp_path, {**given, "lab": lab.drop(columns="iron")}, quick())
    blood.to_csv(tmp_path / "blood.csv", index=False)
    file.write_text(
        file.read_text()
        + '\n[parties.lab.tables.blood]\ntable = "blood.csv"\ngroup = { iron ='
        ' "mean" }\n'
    )
    run = Federation.from_toml(file).fit(tmp_path / "run")
    assert run.summary["metrics"] == plain.summary["metrics"]
    settings = Settings.from_toml(file)
    assert read_own(settings, "lab").columns[-1] == "blood.iron.mean"
    assert len(load(tmp_path / "run", ids=["P001"]).predict(["P001"]).to_frame()) == 1
