"""Every label owner's rows: common to all data owners, divided by id, with one meaning
of classes and columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.federation.small_multi import COLUMNS, LABELS, Frames, frames, some

from colonnade import datasets
from colonnade.datasets.table import table_from_frame
from colonnade.errors import ConfigError, DataError
from colonnade.federation import Settings
from colonnade.rows.holdings import Holdings, LabelledRows, tables_of
from colonnade.rows.making import divide, from_tables
from colonnade.rows.public import _in_proportion, from_dataset
from colonnade.settings.sections import DataSettings


def settings_of(
    labelled: Any = LABELS, columns: Any = COLUMNS, **data: Any
) -> Settings:
    owners = {"label_owners": labelled, "data_owners": columns}
    lists = {
        section: [{"name": name} for name in names] for section, names in owners.items()
    }
    as_they_are: dict[str, Any] = {"preprocess": {"numbers": "standard"}}
    several: dict[str, Any] = {
        "algorithm": {"name": "multi_vfl"},
        "data": {"id": "patient", **data},
        **as_they_are,
        **lists,
    }
    return Settings.from_mapping(several)


def held(
    given: Frames, labelled: Any = LABELS, columns: Any = COLUMNS, **data: Any
) -> Holdings:
    settings = settings_of(labelled, columns, **data)
    tables = {
        name: table_from_frame(
            frame, owner=name, id="patient", label="diagnosis", columns=()
        )
        for name, frame in some(given, labelled).items()
    }
    return from_tables(settings, tables_of(settings, some(given, columns)), tables)


def rows_of(share: LabelledRows) -> torch.Tensor:
    assert share.rows is not None
    return share.rows


def features(shares: Holdings, name: str) -> torch.Tensor:
    return shares.columns[name].features


def test_a_row_is_one_person_at_everybody() -> None:
    given = frames()
    shares = held(
        {name: frame.sample(frac=1, random_state=3) for name, frame in given.items()}
    )
    assert shares.ids.tolist() == given["scan"]["patient"].tolist()
    truth = given["scan"].set_index("patient")["size"]
    for name, share in shares.label_owners.items():
        assert share.ids.tolist() == given[name]["patient"].tolist()
        assert shares.ids[rows_of(share).numpy()].tolist() == share.ids.tolist()
        ill = (
            given[name].set_index("patient")["diagnosis"].loc[share.ids.tolist()]
            == "well"
        )
        assert share.labels.tolist() == ill.astype(int).tolist()
        column = features(shares, "scan")[rows_of(share), 0].double().numpy()
        assert (
            np.corrcoef(column, truth.loc[share.ids.tolist()].to_numpy())[0, 1]
            > 1 - 1e-9
        )


def test_a_row_is_on_the_same_side_at_all_who_know_it() -> None:
    shares = held(frames())
    assert shares.known_to == 2
    sides: dict[str, set[str]] = {}
    for share in shares.label_owners.values():
        found = torch.cat(list(share.splits.values())).sort().values
        assert torch.equal(found, torch.arange(len(share.ids)))
        for split, rows in share.splits.items():
            for one in share.ids[rows.numpy()]:
                sides.setdefault(one, set()).add(split)
    assert all(len(side) == 1 for side in sides.values())


def test_numbers_of_rows_that_would_put_one_on_two_sides_are_refused() -> None:
    given = frames()
    few = given["south"].iloc[:40]  # of whom north knows 20
    sides: dict[str, set[str]] = {}
    for name, frame in (("north", given["north"]), ("south", few)):
        ids = frame["patient"].to_numpy(dtype=np.str_)
        for split, rows in divide(
            ids, DataSettings(validation=0.3, test=20), 0, name
        ).items():
            for one in ids[rows.numpy()]:
                sides.setdefault(one, set()).add(split)
    torn = sum(len(found) > 1 for found in sides.values())
    message = (
        rf"test = 20 count rows, and 'north' and 'south' would divide {torn} rows .*"
        r" Give shares instead"
    )
    with pytest.raises(ConfigError, match=message):
        held({**given, "south": few}, validation=0.3, test=20)
    # all are shared, and all agree
    same = held({**given, "south": given["north"]}, validation=7, test=20)
    assert {len(share.splits["test"]) for share in same.label_owners.values()} == {20}
    alone = held({**given, "south": given["south"].iloc[20:]}, test=20)
    assert len(alone.label_owners["south"].splits["test"]) == 20


def test_shares_are_near_what_was_asked_for_and_numbers_exact() -> None:
    ids = np.array([f"id{number}" for number in range(20_000)])
    sizes = {
        k: len(v) / len(ids) for k, v in divide(ids, DataSettings(), 0, "a").items()
    }
    assert sizes == pytest.approx(
        {"train": 0.7, "validation": 0.1, "test": 0.2}, abs=0.02
    )
    exact = divide(ids[:50], DataSettings(validation=7, test=11), 0, "a")
    assert {k: len(v) for k, v in exact.items()} == {
        "train": 32,
        "validation": 7,
        "test": 11,
    }
    assert set(divide(ids[:50], DataSettings(validation=0, test=0), 0, "a")) == {
        "train"
    }
    one, other = (
        divide(ids[:50], DataSettings(), seed, "a")["test"].tolist() for seed in (0, 1)
    )
    assert one != other
    with pytest.raises(
        ConfigError, match=r"leave 'a' none of its 50 rows for training"
    ):
        divide(ids[:50], DataSettings(validation=20, test=30), 0, "a")
    with pytest.raises(
        ConfigError, match=r"test = 0\.01 of the 5 rows of 'a' is no row at all"
    ):
        divide(ids[:5], DataSettings(validation=0, test=0.01), 0, "a")


def test_columns_are_prepared_once_on_all_training_rows_and_no_others() -> None:
    given = frames()
    before = held(given)
    train = {
        one
        for s in before.label_owners.values()
        for one in s.ids[s.splits["train"].numpy()]
    }
    rows = torch.from_numpy(np.isin(before.ids, list(train)))
    assert features(before, "lab")[rows].mean(0).abs().max() < 1e-6
    changed = frames()
    changed["lab"].loc[~changed["lab"]["patient"].isin(train), ["iron", "zinc"]] = 1e6
    assert torch.equal(
        features(held(changed), "lab")[rows], features(before, "lab")[rows]
    )


def test_classes_are_the_union_of_what_label_owners_have() -> None:
    given = frames()
    given["north"]["diagnosis"] = "ill"  # one class alone
    given["south"].loc[given["south"].index % 3 == 0, "diagnosis"] = "unclear"
    shares = held(given)
    assert shares.encoder.classes == ("ill", "unclear", "well")
    assert set(shares.label_owners["north"].labels.tolist()) == {0}
    assert shares.loss.outputs == 3


def test_numbers_share_their_mean_and_scale() -> None:
    given = frames()
    for at, name in enumerate(LABELS):
        given[name]["diagnosis"] = np.linspace(0, 1, len(given[name])) + at
    shares = held(given)
    assert shares.encoder.task == "regression"
    train = torch.cat(
        [share.labels[share.splits["train"]] for share in shares.label_owners.values()]
    )
    assert (float(train.mean()), float(train.std(correction=0))) == pytest.approx(
        (0, 1), abs=1e-5
    )


def test_exact_alignment_names_who_lacks_an_id_and_private_finds_the_common() -> None:
    given = frames()
    given["lab"] = given["lab"][given["lab"]["patient"] != "P005"]
    with pytest.raises(
        DataError, match=r"'lab' lacks 1 of the ids asked for\. .*align = \"private\""
    ):
        held(given)
    shares = held(given, align="private")
    assert len(shares.label_owners["north"].ids) == 89
    assert "P005" not in shares.ids
    assert len(shares.label_owners["south"].ids) == 80
    nobody = frames()
    nobody["south"]["patient"] = "Q" + nobody["south"]["patient"]
    with pytest.raises(DataError, match="No id is held by all of "):
        held(nobody, align="private")


def test_a_hospital_with_columns_compares_its_own_tables_by_itself() -> None:
    given = frames()
    given["north_columns"] = given["scan"].iloc[10:]
    tables = {**given, "north": given["north"]}
    settings = settings_of(("north",), ("north", "lab"), align="private")
    labelled = {
        "north": table_from_frame(
            tables["north"], owner="north", id="patient", label="diagnosis", columns=()
        )
    }
    columns = tables_of(
        settings, {"north": given["north_columns"], "lab": given["lab"]}
    )
    assert len(from_tables(settings, columns, labelled).label_owners["north"].ids) == 80


def dealt(owners: list[dict[str, Any]], **data: Any) -> Holdings:
    tables = {
        "data": {"dataset": "digits", "split": "strips", "parts": 4, **data},
        "label_owners": owners,
    }
    return from_dataset(
        Settings.from_mapping({"algorithm": {"name": "multi_vfl"}, **tables})
    )


def test_a_data_set_is_dealt_to_label_owners_by_class() -> None:
    owners = [
        {"name": "all", "rows": 500},
        {"name": "few", "rows": 200, "classes": [0, 1]},
    ]
    shares = dealt(owners, validation=0)
    source = datasets.load("digits")
    test = 0 if source.test is None else len(source.test)
    few = shares.label_owners["few"]
    every = shares.label_owners["all"]
    known = few.labels if not test else few.labels[few.splits["train"]]
    assert set(known.tolist()) == {0, 1}
    assert set(every.labels.tolist()) == set(range(10))
    assert not set(few.ids) & set(every.ids)
    assert list(shares.columns) == [f"client_0{number}" for number in range(1, 5)]
    whole = np.concatenate(
        [part.array() for part in (source.train, source.test) if part is not None]
    )
    rows = shares.ids.astype(int)
    truth = np.concatenate(
        [part.y for part in (source.train, source.test) if part is not None]
    )
    for share in shares.label_owners.values():
        assert (truth[share.ids.astype(int)] == share.labels.numpy()).all()
    pixels = (
        whole.reshape(len(whole), 8, 8)[rows, 2:4]
        .reshape(len(rows), -1)
        .astype(np.float64)
    )
    got = features(shares, "client_02").reshape(len(rows), -1).double().numpy()
    assert np.corrcoef(pixels.flatten(), got.flatten())[0, 1] > 1 - 1e-9


def test_whoever_holds_all_classes_holds_them_as_the_data_set_does() -> None:
    """In Multi-VFL's 4niid the fifth owner would otherwise hold half as many again of
    the two classes nobody chose."""
    few = [
        {"name": f"few{at}", "rows": 150, "classes": [2 * at, 2 * at + 1]}
        for at in range(4)
    ]
    owners = dealt(
        [{"name": "all", "rows": 200}, *few], test=0, validation=0
    ).label_owners
    truth = torch.from_numpy(datasets.load("digits").train.y)
    wanted = 200 * torch.bincount(truth, minlength=10) / len(truth)
    assert (torch.bincount(owners["all"].labels, minlength=10) - wanted).abs().max() < 1
    for at in range(4):
        pair = torch.bincount(owners[f"few{at}"].labels, minlength=10)
        own = torch.bincount(truth, minlength=10)[2 * at : 2 * at + 2]
        assert (pair[2 * at : 2 * at + 2] - 150 * own / own.sum()).abs().max() < 1
        assert pair.sum() == 150


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=10
    ),
    st.integers(0, 200),
)
def test_shares_are_whole_in_proportion_and_never_more_than_there_is(
    classes: list[tuple[int, int]], wish: int
) -> None:
    sizes = [size for size, _ in classes]
    most = [min(size, free) for size, free in classes]
    count = min(wish, sum(most))
    shares = _in_proportion(count, sizes, most)
    assert sum(shares) == count
    assert all(0 <= share <= limit for share, limit in zip(shares, most, strict=True))
    exact = [count * size / sum(sizes) for size in sizes]
    if all(limit >= share + 1 for share, limit in zip(exact, most, strict=True)):
        assert all(
            abs(share - wanted) < 1 for share, wanted in zip(shares, exact, strict=True)
        )


def test_official_test_rows_are_dealt_evenly_with_all_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = datasets.load("digits")
    half = len(source.train) // 2
    x = source.train.array()
    y = source.train.y
    kind = type(source.train)
    rows = [kind(x[at], y[at]) for at in (slice(half), slice(half, None))]
    official = type(source)(**{**vars(source), "train": rows[0], "test": rows[1]})
    monkeypatch.setattr(datasets, "load", lambda name: official)
    shares = dealt(
        [{"name": "a", "rows": 90, "classes": [3, 4]}, {"name": "b"}], validation=0
    )
    a = shares.label_owners["a"]
    b = shares.label_owners["b"]
    assert set(a.labels[a.splits["train"]].tolist()) == {3, 4}
    assert len(a.splits["train"]) == 90
    assert set(a.labels[a.splits["test"]].tolist()) == set(range(10))
    assert abs(len(a.splits["test"]) - len(b.splits["test"])) <= 1
    tested = np.concatenate([s.ids[s.splits["test"].numpy()] for s in (a, b)]).astype(
        int
    )
    assert sorted(tested) == list(range(half, len(source.train)))


def test_more_rows_than_there_are_cannot_be_dealt() -> None:
    with pytest.raises(
        ConfigError,
        match=r"'a' is to get 5000 rows, and \d+ of its classes are left of \d+",
    ):
        dealt([{"name": "a", "rows": 5000, "classes": [0]}])
    with pytest.raises(ConfigError, match=r"'a' has the class 12, which no row has"):
        dealt([{"name": "a", "classes": [12]}])


def test_frames_of_one_owner_are_left_as_they_are() -> None:
    given = frames()
    copies = {name: frame.copy() for name, frame in given.items()}
    held(given)
    for name, frame in given.items():
        pd.testing.assert_frame_equal(frame, copies[name])
