"""--set lays values over a file's tables, each checked as if it stood there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.federation.small import quick, write

from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.settings.changes import changes_of, laid_over


def changed(folder: Path, *given: str) -> Settings:
    return Settings.from_toml(
        write(folder, settings=quick(model={"hidden": [6]})), changes=changes_of(given)
    )


def test_values_are_toml_and_a_word_is_text(tmp_path: Path) -> None:
    found = changed(
        tmp_path,
        "train.epochs=30",
        "train.early_stop = false",
        "algorithm.learning_rate=1e-2",
        "model.hidden=[8, 4]",
        "preprocess.numbers=piecewise",
        'parties.lab.outbox.embedding={ mechanism = "plain" }',
    )
    assert (found.train.epochs, found.train.early_stop, found.config.learning_rate) == (
        30,
        False,
        0.01,
    )
    assert (found.model["hidden"], found.preprocess.numbers) == ([8, 4], "piecewise")
    assert found.parties["lab"].outbox == {"embedding": {"mechanism": "plain"}}
    # what nobody changed is the file's
    assert (found.config.local_steps, found.train.batch_size) == (2, 16)


def test_a_path_is_from_the_file_on_and_the_last_word_counts(tmp_path: Path) -> None:
    found = changed(
        tmp_path, 'parties.lab.table="other.csv"', "train.epochs=3", "train.epochs=4"
    )
    assert found.parties["lab"].table == str((tmp_path / "other.csv").resolve())
    assert found.train.epochs == 4


def test_a_model_that_is_only_named_gets_settings() -> None:
    assert laid_over({"model": "mlp"}, changes_of(["model.width=8"]), "f") == {
        "model": {"name": "mlp", "width": 8}
    }


def test_owners_in_lists_are_found_by_name() -> None:
    tables = {"data_owners": [{"name": "a", "scale": "none"}, {"name": "b"}]}
    found = laid_over(tables, changes_of(["data_owners.b.scale=minmax"]), "f")
    assert found == {
        "data_owners": [
            {"name": "a", "scale": "none"},
            {"name": "b", "scale": "minmax"},
        ]
    }
    assert tables["data_owners"][1] == {"name": "b"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("train.epochs", "takes KEY=VALUE"),
        ("train.epochs=", "takes KEY=VALUE"),
        ("=3", "takes KEY=VALUE"),
        ("train..epochs=3", "takes KEY=VALUE"),
        ("train.epochs=3\nseed=4", "takes KEY=VALUE"),
        ("model.hidden=[64", "takes KEY=VALUE"),
        (
            "epochs=3",
            "names a setting with its table, as in train.epochs; found 'epochs'",
        ),
        ("train={ epochs = 3 }", "names a setting with its table"),
        ("trian.epochs=3", r"no table \[trian\] \(did you mean 'train'\?\)"),
        ("train.epoch=3", r"no setting 'epoch' \(did you mean 'epochs'\?\)"),
        ("train.epochs=many", "must be"),
        ("train.early_stop=True", "early_stop must be true or false; found 'True'"),
        (
            "parties.labb.scale=none",
            r"no parties of the name 'labb' \(did you mean 'lab'\?\)",
        ),
        ("train.epochs.most=3", "train.epochs is 2 and no table"),
    ],
)
def test_what_cannot_be_set_is_told(given: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        changed(tmp_path, given)
