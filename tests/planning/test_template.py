"""The file that is written reads back as what was answered, whatever names are in it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from colonnade.algorithms import ALGORITHMS
from colonnade.federation import Settings
from colonnade.planning.template import Answers, PartyAnswer, write
from colonnade.settings.sections import AUTO
from colonnade.settings.suggested import MODEL

PARTIES = {
    "clinic": PartyAnswer(
        Path("/data/the clinic.csv"),
        label='a "label"',
        columns=("a#b", "größe", "c\\d"),
    ),
    "lab-2": PartyAnswer(Path("/data/in/lab.csv")),
}


def answers(**changes: object) -> Answers:
    given = {
        "epsilon": None,
        "left_out": {"clinic": {'od"d\n': "has one value only"}},
        **changes,
    }
    algorithm = str(given.pop("algorithm", "vimadmm"))
    epochs = given.pop("epochs", 7)
    return Answers(
        PARTIES,
        "i d",
        "classification",
        algorithm,
        epochs,  # type: ignore[arg-type]
        320,
        True,
        **given,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "algorithm", [name for name, one in ALGORITHMS.items() if one.nested is None]
)
@pytest.mark.parametrize("epsilon", [None, 4.0])
def test_it_reads_back(algorithm: str, epsilon: float | None) -> None:
    text = write(
        answers(algorithm=algorithm, epsilon=epsilon), Path("/data"), "federation.toml"
    )
    settings = Settings.from_mapping(tomllib.loads(text))
    assert settings.algorithm == algorithm
    assert (settings.data.id, settings.data.align, settings.data.task) == (
        "i d",
        "private",
        "classification",
    )
    assert (
        settings.train.epochs,
        settings.train.batch_size,
        settings.train.patience,
    ) == (7, AUTO, 10)
    # its model is its own
    assert settings.model == ({} if algorithm == "logistic_regression" else MODEL)
    clinic, lab = settings.parties.values()
    assert (clinic.table, clinic.label, clinic.columns) == (
        "the clinic.csv",
        'a "label"',
        ("a#b", "größe", "c\\d"),
    )
    assert (lab.table, lab.label, lab.columns) == ("in/lab.csv", None, None)
    budget = lab.budget
    assert (budget and budget.epsilon) == epsilon
    assert bool(lab.outbox) is (epsilon is not None)
    assert not clinic.outbox


def test_every_setting_has_a_word() -> None:
    text = write(answers(epsilon=4.0), Path("/data"), "two.toml")
    for line in text.splitlines():
        is_setting = " = " in line and not line.startswith("#")
        assert "#" in line or not is_setting or line.startswith("columns"), line
    assert "colonnade plan two.toml" in text
    assert '# left out: "od\\"d\\u000a" has one value only' in text


def test_what_it_suggests_is_what_is_used_where_nothing_is_said() -> None:
    """A file of `init` and a mapping of the same parties alone are the same federation."""
    written = Settings.from_mapping(
        tomllib.loads(write(answers(epochs="auto"), Path("/data"), "federation.toml"))
    )
    bare = Settings.from_mapping({"algorithm": {"name": "vimadmm"}})
    for part in ("config", "model", "train", "preprocess"):
        assert getattr(written, part) == getattr(bare, part), part
