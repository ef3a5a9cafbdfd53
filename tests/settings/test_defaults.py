"""What is suggested follows rows and the algorithm, gives way to what is said, and
changes no run that is kept."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation.small import Task, federation, frames

from colonnade.algorithms import ALGORITHMS
from colonnade.datasets.fitted import Number, Piecewise, best_way
from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import AGREED, write_agreed
from colonnade.settings.suggested import (
    EPOCHS_WITH_NOISE,
    FEWEST_EPOCHS,
    MODEL,
    MOST_EPOCHS,
    PRESETS,
    by_rows,
    sizes,
)
from colonnade.settings.toml_text import to_toml


@pytest.mark.parametrize("rows", [1, 40, 300, 1000, 10_000, 10**5, 10**6, 10**8])
def test_few_rows_get_small_batches_and_many_epochs_and_nobody_gets_ten_steps(
    rows: int,
) -> None:
    size, epochs = by_rows(rows, in_batches=True)
    assert 16 <= size <= 512
    assert FEWEST_EPOCHS <= epochs <= MOST_EPOCHS
    assert -(-rows // size) * epochs >= min(100, 20 * rows)
    more, fewer = by_rows(10 * rows, in_batches=True)
    assert (more >= size, fewer <= epochs) == (True, True)


def test_the_number_of_rows_decides_where_nobody_has_said_how_many() -> None:
    train = federation(frames(80), {"federation": {"device": "cpu"}}).settings.train
    assert (train.batch_size, train.epochs) == by_rows(56, in_batches=True)
    said = federation(frames(80), {"train": {"batch_size": 7}}).settings.train
    assert (said.batch_size, said.epochs) == (7, by_rows(56, in_batches=True)[1])


NOISE: dict[str, Any] = {
    "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": "auto"}}
}
LAB = {"outbox": NOISE, "budget": {"epsilon": 8.0}}


def test_where_noise_is_made_for_a_budget_there_are_few_epochs_unless_somebody_says_how_many(
    tmp_path: Path,
) -> None:
    noisy = federation(frames(80), {"parties": {"lab": LAB}})
    assert noisy.settings.train.epochs == EPOCHS_WITH_NOISE
    assert noisy.given.train.epochs != EPOCHS_WITH_NOISE
    said = federation(frames(80), {"parties": {"lab": LAB}, "train": {"epochs": 30}})
    assert said.settings.train.epochs == 30
    number = {
        "embedding": {"mechanism": {**NOISE["embedding"]["mechanism"], "sigma": 9.0}}
    }
    for rule in (
        {},
        {"outbox": number},
        {"outbox": number, "budget": {"epsilon": 80.0}},
    ):
        assert (
            federation(frames(80), {"parties": {"lab": rule}}).settings.train.epochs
            > EPOCHS_WITH_NOISE
        )
    # sites see no rules but their own, and must choose alike
    write_agreed(tmp_path, noisy.given)
    assert (
        tomllib.loads((tmp_path / AGREED).read_text())["train"]["epochs"]
        == EPOCHS_WITH_NOISE
    )


def test_a_model_is_as_wide_as_rows_and_classes_ask_for() -> None:
    rows = (10, 300, 1000, 2000, 5000, 10**5, 10**8)
    classes = (1, 2, 3, 5, 10, 26, 100)
    by_rows_ = [sizes(count, 2)["width"] for count in rows]
    by_classes = [sizes(300, count)["width"] for count in classes]
    assert by_rows_ == sorted(by_rows_) == [8, 8, 8, 16, 32, 32, 32], (
        "few rows are not learned by heart"
    )
    assert by_classes == sorted(by_classes) == [8, 8, 8, 16, 32, 64, 64], (
        "two directions for each class"
    )
    for width, found in (
        (sizes(r, c)["width"], sizes(r, c)) for r in rows for c in classes
    ):
        assert found["hidden"] == [2 * width]
    endings = [sizes(300, count)["ending"] for count in classes]
    assert endings == [
        "none",
        "none",
        "none",
        "same",
        "same",
        "same",
        "same",
    ], "many directions bend"


def test_bins_are_for_tables_that_have_rows_of_every_class_to_fill_them() -> None:
    values = np.arange(1200.0)
    assert [best_way(values, classes=classes) for classes in (0, 2, 3)] == [
        "standard",
        "piecewise",
        "standard",
    ]
    assert best_way(np.append(values, 1e9), classes=3) == "quantile"
    tables: dict[str, Any] = {
        "algorithm": {"name": "splitnn"},
        "preprocess": {"numbers": "auto"},
    }
    expected: dict[Task, type] = {
        "binary": Piecewise,
        "classes": Number,
        "regression": Piecewise,
    }
    for task, ways in expected.items():
        held = (
            federation(frames(1600, task), tables).holdings.columns["lab"].preprocessor
        )
        assert held is not None
        assert {type(column) for column in held.columns} == {ways}


def test_sizes_that_a_file_names_stay_and_the_others_follow() -> None:
    trained = federation(frames(80), {"federation": {"device": "cpu"}}).settings
    assert trained.for_rows(10**6, 26).model["hidden"] == [16], (
        "what is trained has its size"
    )
    own = {"model": {"width": 5}, "parties": {"lab": {"model": {"hidden": [7]}}}}
    settings = Settings.from_mapping(own).for_rows(2000, 3)
    assert settings.model == {**MODEL, "hidden": [32], "width": 5, "ending": "none"}
    assert settings.parties["lab"].model == {
        **MODEL,
        "hidden": [7],
        "width": 16,
        "ending": "none",
    }
    model = Settings.from_mapping(own).for_rows(300, 26).parties["lab"].model
    assert isinstance(model, dict)
    assert model["ending"] == "same", "layers of its own end as suggested"
    paper = Settings.from_mapping({"preset": "vim-mnist"})
    assert paper.for_rows(40, 2).model == paper.model == PRESETS["vim-mnist"]["model"]


@pytest.mark.parametrize(
    "name", [name for name, one in ALGORITHMS.items() if one.nested is None]
)
def test_what_an_algorithm_suggests_is_accepted_and_gives_way(name: str) -> None:
    kind = ALGORITHMS[name].config
    config = Settings.from_mapping({"algorithm": {"name": name}}).config
    assert {key: getattr(config, key) for key in kind.for_tables} == dict(
        kind.for_tables
    )
    for key in kind.for_tables:
        paper = getattr(kind(), key)
        assert (
            getattr(
                Settings.from_mapping({"algorithm": {"name": name, key: paper}}).config,
                key,
            )
            == paper
        )


def test_a_preset_is_the_papers_settings_where_the_file_says_nothing() -> None:
    settings = Settings.from_mapping(
        {"preset": "vim-mnist", "algorithm": {"name": "vafl"}, "train": {"epochs": 3}}
    )
    assert settings.config == ALGORITHMS["vafl"].config()
    assert settings.model == PRESETS["vim-mnist"]["model"]
    assert (
        settings.train.epochs,
        settings.train.batch_size,
        settings.preprocess.numbers,
    ) == (3, 1024, "standard")
    assert Settings.from_mapping(settings.to_mapping()) == settings, "it is written out"
    other = Settings.from_mapping(
        {"preset": "vim-mnist", "model": {"name": "linear", "width": 3}}
    )
    assert other.model == {"name": "linear", "width": 3}
    with pytest.raises(
        ConfigError,
        match=r"there is no preset 'vim-minst' \(did you mean 'vim-mnist'\?\)",
    ):
        Settings.from_mapping({"preset": "vim-minst"})


def test_a_named_data_set_keeps_the_papers_settings() -> None:
    settings = Settings.from_mapping(
        {"algorithm": {"name": "vafl"}, "data": {"dataset": "digits"}}
    )
    assert settings.config == ALGORITHMS["vafl"].config()
    assert (settings.model, settings.train.batch_size, settings.preprocess.numbers) == (
        {},
        1024,
        "standard",
    )


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, MODEL),
        ("mlp", MODEL),
        ({"width": 5}, {**MODEL, "width": 5}),
        ({"activation": "relu"}, {**MODEL, "activation": "relu"}),
        ({"hidden": [9]}, {**MODEL, "hidden": [9]}),
        ({"hidden": [9], "ending": "same"}, {**MODEL, "hidden": [9], "ending": "same"}),
        ("linear", {"name": "linear"}),
    ],
)
def test_a_model_is_completed_and_another_left_as_it_is(
    given: Any, used: dict[str, Any]
) -> None:
    parties = {"lab": {"model": given}} if given else {}
    settings = Settings.from_mapping({"model": given, "parties": parties})
    assert settings.model == used
    if given:
        own = settings.parties["lab"].model
        assert ({"name": own} if isinstance(own, str) else own) == used


def test_a_file_that_an_earlier_version_kept_is_what_it_was(tmp_path: Path) -> None:
    """It says nothing of preparation or of the activation: then numbers were scaled,
    and the activation was ReLU."""
    given: dict[str, Any] = {
        "model": {"name": "mlp", "hidden": [6]},
        "train": {"epochs": 2, "batch_size": 16},
    }
    (tmp_path / "federation.toml").write_text(to_toml(given))
    kept = Settings.from_toml(tmp_path / "federation.toml", saved=True)
    assert (kept.preprocess.numbers, kept.model) == ("standard", given["model"])
    assert kept.config == ALGORITHMS[kept.algorithm].config()
    fresh = Settings.from_toml(tmp_path / "federation.toml")
    assert (fresh.preprocess.numbers, fresh.model) == (
        "auto",
        {**MODEL, **given["model"]},
    )


def test_what_a_run_keeps_says_everything(tmp_path: Path) -> None:
    one = federation(frames(80), {"train": {"epochs": 1}})
    one.fit(tmp_path / "run")
    assert RunDirectory(tmp_path / "run").settings() == one.settings
    summary = RunDirectory(tmp_path / "run").summary()
    assert summary is not None
    assert summary["chosen"] == {
        "data.task": "classification",
        "preprocess.numbers": "clinic: 2 scaled; lab: 2 scaled",
        "model.hidden": [16],
        "model.width": 8,
        "model.ending": "none",
        "train.batch_size": 16,
        "train.stop_on": "loss",
        "federation.device": str(one.device),
    }
