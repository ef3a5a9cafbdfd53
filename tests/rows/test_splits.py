"""Which rows train: every class alike, as a column says, by time, or by a list of ids;
and what others are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.federation.small import Frames, frames, quick, splitnn, write
from tests.federation.small_sites import folders, sites
from torch import Tensor

from colonnade import load
from colonnade.datasets.table import packed
from colonnade.errors import ConfigError, DataError
from colonnade.federation import Federation, Settings
from colonnade.rows.holdings import Holdings, LabelledRows, tables_of
from colonnade.rows.making import divide, from_tables
from colonnade.rows.sides import sides_heard, sides_to_tell
from colonnade.runs import run_directory
from colonnade.settings.sections import DataSettings
from colonnade.sites.driving import drive

IDS = np.array([f"id{number:03d}" for number in range(200)])


def held(
    given: Frames, data: dict[str, Any] | None = None, seed: int = 0, **clinic: Any
) -> Holdings:
    parties = {"clinic": {"label": "diagnosis", **clinic}, "lab": {}}
    tables = quick(
        data={"id": "patient", **(data or {})},
        federation={"seed": seed},
        parties=parties,
    )
    settings = Settings.from_mapping(tables)
    return from_tables(settings, tables_of(settings, given))


def sides(holdings: Holdings) -> dict[str, str]:
    held = holdings.labelled
    return {
        one: side
        for side, rows in held.splits.items()
        for one in held.ids[rows.numpy()].tolist()
    }


def with_rare(count: int) -> Frames:
    given = frames()
    given["clinic"].loc[: count - 1, "diagnosis"] = "rare"
    return given


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_rare_class_is_in_training_whatever_the_seed(count: int) -> None:
    for seed in range(20):
        holdings = held(with_rare(count), seed=seed)
        assert len(holdings.encoder.classes) == 3
        rare = holdings.encoder.classes.index("rare")
        assert (
            int((holdings.labelled.labels[holdings.splits["train"]] == rare).sum()) >= 1
        )
        assert {k: len(v) for k, v in holdings.splits.items()} == {
            "train": 56,
            "validation": 8,
            "test": 16,
        }


def test_every_class_is_divided_alike() -> None:
    strata = np.repeat([0, 1, 2], [150, 40, 10])
    for seed in range(10):
        found = divide(IDS, DataSettings(), seed, "clinic", strata=strata)
        assert sorted(torch.cat(list(found.values())).tolist()) == list(range(200))
        for side, share in (("test", 0.2), ("validation", 0.1)):
            counts = np.bincount(strata[found[side].numpy()], minlength=3)
            assert np.abs(counts - share * np.array([150, 40, 10])).max() <= 1


def test_without_it_a_class_may_be_lost_and_the_old_way_stays(tmp_path: Path) -> None:
    plain = divide(IDS, DataSettings(stratify=False), 0, "clinic")
    assert torch.equal(
        plain["test"], divide(IDS, DataSettings(), 0, "clinic")["test"]
    ), "by id alone"
    lost = 0
    for seed in range(20):
        try:
            held(with_rare(1), {"stratify": False}, seed)
        except DataError as error:
            lost += "of a class that no training row has" in str(error)
    assert lost
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_directory, "SPLIT", 2)
        Federation.from_toml(
            write(tmp_path, frames(), splitnn(data={"stratify": False}))
        ).fit(run)
    # as an older Colonnade wrote it
    kept = (run / "federation.toml").read_text().replace("stratify = false\n", "")
    (run / "federation.toml").write_text(
        "".join(line for line in kept.splitlines(True) if not line.startswith("#"))
    )
    assert load(run).evaluate("test")["auc"] > 0, "its rows are known again"


def test_a_column_says_which_rows_train() -> None:
    given = frames()
    words = ["Train", "val", "test", "train"] * 20
    given["clinic"]["set"] = words
    holdings = held(given, {"split_by": "set"})
    assert sides(holdings) == {
        one: {"Train": "train", "val": "validation"}.get(word, word)
        for one, word in zip(given["clinic"]["patient"], words, strict=True)
    }
    prepared = holdings.columns["clinic"].preprocessor
    assert prepared is not None
    assert prepared.names == ["age", "weight"], "a model must not be fed it"
    given["clinic"]["set"] = ["train", "test"] * 40
    found = held(given, {"split_by": "set", "validation": 0.25}).splits
    assert {side: len(rows) for side, rows in found.items()} == {
        "train": 30,
        "validation": 10,
        "test": 40,
    }


def test_the_latest_rows_are_test_rows() -> None:
    given = frames()
    days = np.random.default_rng(0).permutation(80)
    given["clinic"]["opened"] = (
        pd.Timestamp("2024-01-01") + pd.to_timedelta(days, unit="D")
    ).strftime("%d.%m.%Y")
    found = sides(held(given, {"split_by": "opened"}))
    expected = {
        one: "test" if day >= 64 else "validation" if day >= 56 else "train"
        for one, day in zip(given["clinic"]["patient"], days, strict=True)
    }
    assert found == expected
    after = {
        "split_by": "opened",
        "test_from": "2024-03-01",
        "validation_from": "2024-02-20",
    }
    counts = {
        side: list(sides(held(given, after)).values()).count(side)
        for side in ("train", "validation", "test")
    }
    assert counts == {"train": 50, "validation": 10, "test": 20}
    given["clinic"]["opened"] = days // 10
    tied = sides(held(given, {"split_by": "opened", "test": 0.2, "validation": 0.0}))
    assert [
        tied[one]
        for one, day in zip(given["clinic"]["patient"], days, strict=True)
        if day // 10 >= 6
    ] == ["test"] * 20


def test_a_list_of_ids_is_tested_on(tmp_path: Path) -> None:
    given = frames()
    tested = given["clinic"]["patient"].iloc[::8].tolist()
    pd.DataFrame({"patient": [*tested, "nobody"]}).to_csv(
        tmp_path / "test.csv", index=False
    )
    with pytest.warns(
        UserWarning,
        match=(
            r"1 of the 11 ids that 'clinic' names as test_ids, such as 'nobody',"
            r" are not"
        ),
    ):
        found = sides(held(given, test_ids=str(tmp_path / "test.csv")))
    assert sorted(one for one, side in found.items() if side == "test") == tested
    assert list(found.values()).count("validation") == 7
    pd.DataFrame({"patient": ["nobody"]}).to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(
        DataError,
        match=r"None of the 1 ids that 'clinic' names as test_ids is among its 80 rows",
    ):
        held(given, test_ids=str(tmp_path / "test.csv"))


@pytest.mark.parametrize(
    ("data", "cells", "message"),
    [
        (
            {"split_by": "set"},
            "later",
            r"'clinic' has a column 'set', .* neither sides nor times",
        ),
        ({"split_by": "set"}, "test", r"'clinic' has no training row left"),
        (
            {"split_by": "when"},
            "x",
            r"'clinic' has no column 'when', named as its split_by column",
        ),
        (
            {"split_by": "set", "test_from": "9"},
            range(9),
            r"test_from = '9': no row of 'clinic' is left",
        ),
        ({"test_from": 9}, "x", r"test_from needs split_by"),
        ({"split_by": 3}, "x", r"split_by must be text, the name of a column; found 3"),
    ],
)
def test_what_divides_nothing_is_refused(
    data: dict[str, Any], cells: Any, message: str
) -> None:
    given = frames(rows=9)
    given["clinic"]["set"] = cells
    with pytest.raises((DataError, ConfigError), match=message):
        held(given, data)


@pytest.mark.parametrize("gap", [None, "?", "NA"])
def test_rows_without_a_label_are_left_out_and_all_of_them_counted(
    gap: str | None,
) -> None:
    given = frames()
    given["clinic"].loc[[3, 10, 40, 77], "diagnosis"] = gap
    with pytest.warns(
        UserWarning,
        match=(
            r"'clinic' has 4 rows without a label in 'diagnosis', of 80\. They are left"
        ),
    ):
        holdings = held(given)
    assert len(holdings.ids) == 76 == sum(map(len, holdings.splits.values()))
    gone = given["clinic"]["patient"].iloc[[3, 10, 40, 77]]
    assert not set(gone) & set(holdings.ids.tolist())
    assert holdings.columns["lab"].features.shape[0] == 76


def test_others_hear_what_they_are_told_and_nothing_of_other_rows() -> None:
    strata = np.repeat([0, 1], 100)
    kept = np.sort(np.random.default_rng(0).permutation(200)[:190])
    splits = divide(IDS[kept], DataSettings(), 0, "clinic", strata=strata[kept])
    text = sides_to_tell(IDS, LabelledRows(packed(IDS[kept]), torch.zeros(190), splits))
    understood = sides_heard(text, IDS)
    assert understood is not None
    assert understood[0].tolist() == IDS[kept].tolist()
    assert {k: v.tolist() for k, v in understood[1].items()} == {
        k: v.tolist() for k, v in splits.items()
    }
    for wrong in ("", "200:", "200:!!", text[:-8], text.replace("200:", "199:")):
        assert sides_heard(wrong, IDS) is None
    assert sides_heard(text, IDS[:10]) is None


def test_an_order_that_others_do_not_know_hides_the_classes() -> None:
    """With the agreed order, a test row beyond most others' border shows its class;
    with a salt, places say nothing."""
    strata = (np.arange(200) < 20).astype(np.int64)

    def advantage(salt: str, seed: int) -> float:
        """How many of the rare rows an onlooker finds: rows on a side that their place
        would not give them."""
        found = divide(
            IDS, DataSettings(validation=0.0), seed, "clinic", strata=strata, salt=salt
        )["test"].numpy()
        usual = divide(IDS, DataSettings(validation=0.0), seed, "clinic")[
            "test"
        ].numpy()
        odd = np.setxor1d(found, usual)
        return float(strata[odd].mean()) if len(odd) else 0.1

    open_, hidden = (
        np.mean([advantage(salt, seed) for seed in range(30)])
        for salt in ("", "secret")
    )
    assert open_ > 0.3, (
        "of the odd ones a third are rare, where a tenth of all rows are"
    )
    assert hidden < 0.2


def test_sites_train_with_the_rows_that_the_label_owner_tells(tmp_path: Path) -> None:
    given = with_rare(3)
    given["clinic"].loc[[30, 31], "diagnosis"] = None
    settings = splitnn(train={"epochs": 1})
    folders(tmp_path, given, settings)
    every = sites(tmp_path)
    drive(every["clinic"], "run")
    alone = Federation.from_toml(tmp_path / "all" / "federation.toml")
    mine: dict[str, Tensor] = alone.holdings.splits
    for site in every.values():
        part = (
            site.participant.federation.holdings
            if site.participant is not None
            else None
        )
        if part is not None:
            assert part.ids.tolist() == alone.holdings.ids.tolist()
            assert {k: v.tolist() for k, v in part.splits.items()} == {
                k: v.tolist() for k, v in mine.items()
            }
