"""What each party holds: rows in one agreed order, columns prepared from training rows
alone, labels at one party."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.federation.small import Frames, Task, frames, quick, settings_of, write

from colonnade import datasets
from colonnade.datasets.table import Index, packed
from colonnade.errors import ConfigError, DataError
from colonnade.federation import Federation
from colonnade.optim.losses import CrossEntropy, Logistic, Squared
from colonnade.rows.holdings import Holdings, tables_of
from colonnade.rows.making import from_tables
from colonnade.rows.public import from_dataset

PARTIES = {"clinic": {"label": "diagnosis"}, "lab": {}}


def held(given: Frames, **tables: object) -> Holdings:
    given_too = {
        "parties": PARTIES,
        "data": {"id": "patient"},
        "preprocess": {"numbers": "standard"},
        **tables,
    }
    settings = settings_of(**given_too)
    return from_tables(settings, tables_of(settings, given))


def features(holdings: Holdings, party: str) -> torch.Tensor:
    return holdings.columns[party].features


def test_rows_are_aligned_whatever_order_the_tables_have() -> None:
    sorted_ = held(frames())
    shuffled = held({n: f.sample(frac=1, random_state=5) for n, f in frames().items()})
    assert (
        sorted_.ids.tolist()
        == shuffled.ids.tolist()
        == [f"P{number:03d}" for number in range(80)]
    )
    for party in PARTIES:
        assert torch.equal(features(sorted_, party), features(shuffled, party))
    assert torch.equal(sorted_.labelled.labels, shuffled.labelled.labels)
    # and a row's cells are that person's: a standardised column is the raw one, shifted
    # and scaled
    raw = torch.tensor(frames()["lab"].sort_values("patient")["iron"].to_numpy())
    assert (
        torch.corrcoef(torch.stack([raw, features(sorted_, "lab")[:, 0].double()]))[
            0, 1
        ]
        > 1 - 1e-9
    )


def test_nothing_is_learned_from_rows_outside_training() -> None:
    before = held(frames())
    changed = frames()
    outside = {
        before.ids[row]
        for split in ("validation", "test")
        for row in before.splits[split].tolist()
    }
    for frame in changed.values():
        for column in frame.select_dtypes("number"):
            frame.loc[frame["patient"].isin(outside), column] = 1e6
    after = held(changed)
    train = before.splits["train"]
    assert len(outside) == 24
    assert torch.equal(train, after.splits["train"])
    for party in PARTIES:
        assert torch.equal(
            features(before, party)[train], features(after, party)[train]
        )
        assert not torch.equal(features(before, party), features(after, party))


def test_changing_a_training_row_does_change_what_is_learned() -> None:
    before = held(frames())
    changed = frames()
    inside = before.ids[int(before.splits["train"][0])]
    changed["lab"].loc[changed["lab"]["patient"] == inside, "iron"] = 1e6
    train = before.splits["train"]
    assert not torch.equal(
        features(before, "lab")[train][1:, 0],
        features(held(changed), "lab")[train][1:, 0],
    )


@pytest.mark.parametrize(
    ("task", "loss"),
    [("binary", Logistic()), ("classes", CrossEntropy(3))],
)
def test_the_kind_of_label_decides_the_loss(task: Task, loss: object) -> None:
    assert held(frames(task=task)).loss == loss


def test_the_loss_of_numbers_knows_their_own_unit() -> None:
    holdings = held(frames(task="regression"))
    labels = frames(task="regression")["clinic"].set_index("patient")["diagnosis"]
    assert isinstance(holdings.loss, Squared)
    np.testing.assert_allclose(
        holdings.loss.unit.own(holdings.labelled.labels).numpy(),
        labels.loc[holdings.ids.tolist()],
        rtol=1e-5,
        atol=1e-4,
    )


def test_splits_are_fractions_or_numbers_of_rows_and_nothing_is_left_over() -> None:
    sizes = {name: len(rows) for name, rows in held(frames()).splits.items()}
    assert sizes == {"train": 56, "validation": 8, "test": 16}
    data = {"id": "patient", "validation": 5, "test": 0}
    holdings = held(frames(), data=data)
    assert {name: len(rows) for name, rows in holdings.splits.items()} == {
        "train": 75,
        "validation": 5,
    }
    assert sorted(torch.cat(list(holdings.splits.values())).tolist()) == list(range(80))


def test_a_label_owner_may_hold_no_columns_and_roles_say_who_holds_what() -> None:
    given = frames()
    given["clinic"] = given["clinic"][["patient", "diagnosis"]]
    holdings = held(given)
    assert {name: holdings.roles(name) for name in holdings.names} == {
        "clinic": ["labels"],
        "lab": ["features"],
    }
    assert list(holdings.state_of("clinic")) == ["labels"]
    assert list(holdings.state_of("lab")) == ["columns"]


def test_a_party_scales_as_its_settings_say() -> None:
    holdings = held(frames(), parties={**PARTIES, "lab": {"scale": "minmax"}})
    train = features(holdings, "lab")[holdings.splits["train"]]
    torch.testing.assert_close(train.aminmax(dim=0), (torch.zeros(2), torch.ones(2)))


Change = Callable[[Frames], None]


def twice(given: Frames) -> None:
    given["lab"] = pd.concat([given["lab"], given["lab"].iloc[:2]])


def drop(given: Frames) -> None:
    given["lab"] = given["lab"][given["lab"]["patient"] != "P007"]


def column(party: str, name: str, value: Any) -> Change:
    def change(given: Frames) -> None:
        given[party][name] = value

    return change


WRONG: list[tuple[Change, dict[str, object], str]] = [
    (
        twice,
        {},
        (
            r"'lab' has 2 ids that occur more than once, such as in rows \d+ and \d+,"
            r" counted from 0, and an id"
        ),
    ),
    (
        drop,
        {},
        (
            r"All parties must hold the same ids\. 'lab' lacks 1 that others hold\. To"
            r" train on the rows"
        ),
    ),
    (
        column("lab", "iron", np.inf),
        {},
        r"'lab' has infinite values in 'iron', on its 56 training rows",
    ),
    (
        column("clinic", "diagnosis", "ill"),
        {},
        r"'clinic' has a label 'diagnosis' with one value only on its 80",
    ),
    (
        column("clinic", "diagnosis", None),
        {},
        r"'clinic' has no label in any of its 80 rows",
    ),
    (
        column("lab", "diagnosis", "ill"),
        {},
        r"Exactly one party must name its label .*; found 'clinic', 'lab'\.",
    ),
    (
        lambda given: None,
        {"columns": ["iorn"]},
        r"'lab' has no column 'iorn' \(did you mean 'iron'\?\), .* feature",
    ),
    (
        lambda given: None,
        {"columns": ["patient"]},
        r"'lab' lists its id column 'patient' as a feature",
    ),
    (
        lambda given: None,
        {"table": "none.csv"},
        r"'lab' names the table .*none\.csv, and there is no such file",
    ),
    (
        lambda given: None,
        {"table": "lab.xls"},
        r"must end in one of \.csv, \.csv\.gz, \.tsv, \.tsv\.gz, \.parq",
    ),
]


@pytest.mark.parametrize(("change", "lab", "message"), WRONG)
def test_a_table_that_cannot_be_used_is_named_with_its_owner(
    change: Change, lab: dict[str, object], message: str, tmp_path: Path
) -> None:
    given = frames()
    change(given)
    path = write(tmp_path, given, quick(parties={"lab": lab}))
    with pytest.raises((DataError, ConfigError), match=message):
        Federation.from_toml(path)


def test_somebody_must_hold_the_labels_and_somebody_columns(tmp_path: Path) -> None:
    given = frames()
    given["clinic"] = given["clinic"].drop(columns="diagnosis")
    with pytest.raises(
        DataError,
        match=(
            r"Exactly one party must name its label column \(label = \.\.\.\); found"
            r" none\."
        ),
    ):
        Federation.from_toml(write(tmp_path / "a", given))
    only = {"clinic": frames()["clinic"][["patient", "diagnosis"]]}
    with pytest.raises(DataError, match=r"No party holds any feature columns"):
        Federation.from_toml(write(tmp_path / "b", only))


def test_a_federation_file_without_parties_or_tables_says_what_to_add(
    tmp_path: Path,
) -> None:
    path = tmp_path / "federation.toml"
    path.write_text("[train]\nepochs = 1\n")
    with pytest.raises(
        ConfigError, match=r"Nobody holds columns\. Add \[parties\.NAME\] with table = "
    ):
        Federation.from_toml(path)
    path.write_text('[parties.lab]\nlabel = "y"\n')
    with pytest.raises(
        ConfigError,
        match=r'\[parties\.lab\] must name its table, as in table = "lab\.csv"',
    ):
        Federation.from_toml(path)


def named(**data: object) -> Holdings:
    return from_dataset(settings_of(data=data, preprocess={"numbers": "standard"}))


def ways_of(rows: int = 80, **tables: object) -> dict[str, list[str]]:
    """By party how each of its columns was prepared."""
    given = frames(rows)
    given["lab"].loc[given["lab"].index[:1], "zinc"] = 1e6
    holdings = held(
        given,
        **{
            "preprocess": {},
            "data": {"id": "patient", "validation": 0, "test": 1},
            **tables,
        },
    )
    prepared = {name: one.preprocessor for name, one in holdings.columns.items()}
    return {
        name: [c["kind"] for c in one.state()["columns"]]
        for name, one in prepared.items()
        if one is not None
    }


def test_numbers_of_many_rows_fill_quantile_bins_and_of_few_only_heavy_tails_are_ranked() -> (
    None
):
    bins = ["piecewise"] * 2
    plain = ["number"] * 2
    assert (
        ways_of(1001)
        == ways_of(1001, preprocess={"numbers": "auto"})
        == {"clinic": bins, "lab": bins}
    )
    assert (
        ways_of(1000) == ways_of() == {"clinic": plain, "lab": ["number", "quantile"]}
    )


def test_how_numbers_are_prepared_is_for_all_for_an_owner_or_for_a_column() -> None:
    bins = ["piecewise"] * 2
    plain = ["number"] * 2
    assert ways_of(preprocess={"numbers": "standard"}) == {
        "clinic": plain,
        "lab": plain,
    }
    assert ways_of(preprocess={"numbers": "piecewise"}) == {"clinic": bins, "lab": bins}
    scaled = {
        "clinic": {"label": "diagnosis", "scale": "minmax"},
        "lab": {"numbers": "quantile"},
    }
    assert ways_of(1001, parties=scaled) == {"clinic": plain, "lab": ["quantile"] * 2}
    mixed = {"clinic": {"label": "diagnosis"}, "lab": {"numbers": {"zinc": "standard"}}}
    assert ways_of(1001, parties=mixed) == {
        "clinic": bins,
        "lab": ["piecewise", "number"],
    }
    # distances, and what is learned without labels, take every bin for a column
    for name in ("knn", "one_shot"):
        unbinned = ways_of(1001, algorithm={"name": name})
        assert {way for ways in unbinned.values() for way in ways} <= {
            "number",
            "quantile",
        }
    wrong = {"clinic": {"label": "diagnosis"}, "lab": {"numbers": {"zink": "standard"}}}
    with pytest.raises(
        ConfigError,
        match=(
            "'lab' says how the numbers of 'zink' are prepared, and has no such column"
        ),
    ):
        ways_of(parties=wrong)


def test_pictures_are_not_cut_into_bins() -> None:
    from_auto = from_dataset(
        settings_of(data={"dataset": "digits", "split": "columns", "parts": 5})
    )
    plain = named(dataset="digits", split="columns", parts=5)
    for name in plain.columns:
        assert torch.equal(features(from_auto, name), features(plain, name))


@pytest.mark.parametrize(
    ("data", "shapes"),
    [
        ({"split": "columns", "parts": 3}, [(22,), (21,), (21,)]),
        ({"split": "columns", "parts": [40, 4, 20]}, [(40,), (4,), (20,)]),
        ({"split": "strips", "parts": 4}, [(2, 8)] * 4),
        ({"split": "patches", "parts": 2}, [(4, 4)] * 4),
        ({"split": "patches", "parts": [2, 1]}, [(4, 8)] * 2),
        ({"split": "patches", "parts": [3, 1]}, [(3, 8)] * 3),
    ],
)
def test_digits_are_cut_as_asked(
    data: dict[str, object], shapes: list[tuple[int, ...]]
) -> None:
    holdings = named(dataset="digits", **data)
    owner, *clients = holdings.names
    assert clients == [f"client_{number:02d}" for number in range(1, len(shapes) + 1)]
    assert [tuple(features(holdings, name).shape) for name in clients] == [
        (1797, *shape) for shape in shapes
    ]
    assert owner == holdings.label_owner == "label_owner"
    assert owner not in holdings.columns
    assert holdings.loss == CrossEntropy(10)


def test_cut_columns_put_together_are_the_picture_scaled_on_training_rows() -> None:
    holdings = named(dataset="digits", split="columns", parts=5)
    whole = torch.cat([features(holdings, name) for name in holdings.columns], dim=1)
    picture = torch.from_numpy(datasets.load("digits").train.array()).float().flatten(1)
    seen = picture[holdings.splits["train"]]
    torch.testing.assert_close(whole, (picture - seen.mean()) / seen.std())


def test_labels_may_be_at_a_client() -> None:
    holdings = named(dataset="digits", parts=2, labels_at="client_02")
    assert list(holdings.columns) == ["client_01", "client_02"]
    assert holdings.roles("client_02") == ["features", "labels"]


def test_a_table_by_name_is_cut_evenly_or_by_column_names() -> None:
    even = named(dataset="breast_cancer", parts=4)
    widths = [features(even, name).shape[1] for name in even.columns]
    assert widths == [8, 8, 7, 7]
    uneven = named(dataset="breast_cancer", parts=[20, 1, 9])
    assert [features(uneven, name).shape[1] for name in uneven.columns] == [20, 1, 9]
    columns = {"north": ["mean area", "mean texture"], "south": ["worst area"]}
    parties = {
        name: {"columns": given, "scale": "minmax"} for name, given in columns.items()
    }
    chosen = from_dataset(
        settings_of(
            data={"dataset": "breast_cancer", "labels_at": "north"}, parties=parties
        )
    )
    assert {name: chosen.roles(name) for name in chosen.names} == {
        "north": ["features", "labels"],
        "south": ["features"],
    }
    preprocessor = chosen.columns["north"].preprocessor
    assert preprocessor is not None
    assert preprocessor.names == columns["north"]
    train = features(chosen, "south")[chosen.splits["train"]]
    assert (float(train.min()), float(train.max())) == pytest.approx((0, 1))
    assert chosen.loss == Logistic()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"dataset": "digts"},
            r"There is no data set 'digts' \(did you mean 'digits'\?\)\.",
        ),
        (
            {"dataset": "digits", "split": "strips", "parts": [2, 2]},
            r"parts must be a whole number for strips; found \[2, 2\]",
        ),
        (
            {"dataset": "digits", "split": "patches", "parts": [2, 2, 2]},
            r"parts must be \[rows, columns\] for patches; found",
        ),
        (
            {"dataset": "digits", "parts": 65},
            r"64 columns or pixels cannot be split into 65 parts: ask for 1 to 64",
        ),
        (
            {"dataset": "digits", "parts": [60, 3]},
            r"add up to all 64 columns; found \[60, 3\], which are 63\.",
        ),
        (
            {"dataset": "breast_cancer", "parts": [15, 16]},
            r"add up to all 30 columns; found \[15, 16\], which are 31\.",
        ),
        (
            {"dataset": "digits", "split": "views"},
            r"This split needs voxels \[N, D, H, W\]",
        ),
        (
            {"dataset": "digits", "validation": 0.6, "test": 0.6},
            r"leave 'label_owner' none of its \d+ rows",
        ),
    ],
)
def test_a_cut_that_cannot_be_made_is_refused(
    data: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        named(**data)


def test_party_settings_for_nobody_are_refused() -> None:
    tables = quick(
        data={"dataset": "digits"}, parties={"client_1": {"outbox": {"embedding": {}}}}
    )
    with pytest.raises(
        ConfigError,
        match=(
            r"\[parties\.client_1\] is no party of this federation \(did you mean"
            r" 'client_01'"
        ),
    ):
        Federation.from_settings(settings_of(**tables))


def test_ids_take_no_more_memory_in_a_federation_than_in_its_tables() -> None:
    """A byte a letter; as text they would take four, in the list of all rows and in the
    label owner's."""
    names = [f"{number:08d}" for number in range(40)]
    frames = {
        "a": pd.DataFrame({"id": names, "y": [0, 1] * 20}),
        "b": pd.DataFrame({"id": names, "x": range(40)}),
    }
    held = Federation.from_frames(frames, id="id", label="y").holdings
    assert held.ids.tolist() == held.labelled.ids.tolist() == names
    for one in (held, held.labelled):
        assert (
            sum(
                array.nbytes
                for array in vars(one).values()
                if isinstance(array, np.ndarray)
            )
            == 8 * 40
        )


def test_an_index_finds_each_id_as_a_dict_would() -> None:
    random = np.random.default_rng(0)
    ids = random.permutation(np.array([f"P{number}" for number in range(500)]))
    position = {one: at for at, one in enumerate(ids.tolist())}
    wanted = np.array(
        [f"P{number}" for number in random.integers(0, 1000, 300)]
        + ["", "P", "zzz", "P00"]
    )
    rows, there = Index(packed(ids)).find(wanted)
    assert there.tolist() == [one in position for one in wanted.tolist()]
    assert rows[there].tolist() == [position[one] for one in wanted[there].tolist()]
    assert Index(packed(ids[:0])).find(wanted)[1].sum() == 0
