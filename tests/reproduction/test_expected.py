"""Reproductions: every plan in the repository can be run, and a plan is read as it
says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from colonnade import reproduction
from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.reproduction import Figure, Plan, Study, plan, plans

CONFIG = """\
[algorithm]
name = "splitnn"
[data]
dataset = "digits"
split = "columns"
parts = 2
[model]
hidden = [16]
width = 8
[train]
epochs = 50
batch_size = 32
[federation]
device = "cpu"
"""

SCRIPT = """
def run(study):
    for seed in study.plan.seeds:
        study.record("the answer", 42.0 + seed, "")
"""


def plan_folder(folder: Path) -> Path:
    """A folder of reproductions with one small paper in it."""
    (folder / "paper" / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "paper" / "configs" / "tiny.toml").write_text(CONFIG)
    (folder / "paper" / "answer.py").write_text(SCRIPT)
    tiny: dict[str, Any] = {
        "claim": "digits can be learned",
        "config": "configs/tiny.toml",
        "runs": {
            "SplitNN": {},
            "FDML": {"algorithm": {"name": "fdml", "learning_rate": 0.2}},
        },
        "seeds": [0, 1],
        "epochs": [2, 3],
        "reach": [0.4, 5],
        "figures": {
            "SplitNN, epoch 2": {"at_least": 0.5, "paper": 0.9712},
            "FDML, epoch 3": {"at_least": 0.5, "at_most": 1.0, "authors_code": 0.9},
        },
        "quick": {
            "seeds": [0],
            "epochs": [2],
            "runs": ["SplitNN"],
            "figures": {"SplitNN, epoch 2": {"at_least": 0.5}},
        },
    }
    wish = {"SplitNN, epoch 2": {"at_least": 1.01}}
    impossible = {
        **tiny,
        "claim": "nobody can be that good",
        "figures": wish,
        "quick": {**tiny["quick"], "figures": wish},
    }
    script = {
        "claim": "a paper's own script",
        "config": "configs/tiny.toml",
        "script": "answer.py",
        "seeds": [0, 2],
        "epochs": [1],
        "figures": {"the answer": {"at_most": 43.5}},
        "quick": {"seeds": [5], "figures": {"the answer": {"at_most": 46.5}}},
    }
    (folder / "paper" / "expected.json").write_text(
        json.dumps({"tiny": tiny, "impossible": impossible, "answer": script})
    )
    return folder


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "colonnade.reproduction.expected.folder", lambda: plan_folder(tmp_path)
    )


def test_the_repositorys_reproductions_are_found() -> None:
    assert {"vim-admm", "vim-mnist", "vim-cifar", "vim-explain"} <= set(plans())


@pytest.mark.parametrize("name", plans())
def test_every_plan_is_valid_and_complete(name: str) -> None:
    one = plan(name)
    for shape in (one, one.shortened()):
        study = Study(shape)
        assert shape.seeds
        assert shape.epochs
        assert bool(shape.runs) != bool(shape.script)
        for changes in shape.runs.values():
            settings = study.settings(changes)
            assert settings.data.dataset is not None
            assert settings.train.epochs == min(
                changes.get("until", math.inf), max(shape.epochs)
            )
            # else a figure's epoch might never come
            assert not settings.train.early_stop
    if one.runs:  # a script names its own figures
        assert set(one.figures) <= expected_names(one)
        assert {
            what for what, figure in one.shortened().figures.items() if figure.at_least
        } <= expected_names(one.shortened())
    assert one.quick["figures"]  # a quick version that cannot fail shows nothing
    assert all(
        {"at_least", "at_most"} & set(bounds)
        for bounds in one.quick["figures"].values()
    )
    assert one.config.exists()
    assert one.script is None or one.script.exists()
    assert (one.folder / "README.md").exists()


def expected_names(one: Plan) -> set[str]:
    """What `runs` measure."""
    last = {run: changes.get("until", math.inf) for run, changes in one.runs.items()}
    names = {
        f"{run}, epoch {epoch}"
        for run in one.runs
        for epoch in one.epochs
        if epoch <= last[run]
    }
    if one.reach is not None:
        wanted = f"{one.reach[0]:.0%}"
        names |= {
            f"{run}, {what} to {wanted}"
            for run in one.runs
            for what in ("rounds", "MB per party")
        }
    return names


def test_quick_is_a_part_of_the_whole(tiny: None) -> None:
    quick = plan("tiny").shortened()
    assert (quick.seeds, quick.epochs, list(quick.runs), quick.reach) == (
        (0,),
        (2,),
        ["SplitNN"],
        None,
    )
    assert (quick.short, plan("tiny").short) == (True, False)
    assert quick.figures["SplitNN, epoch 2"] == Figure(paper=0.9712, at_least=0.5)
    # its bounds are those of the whole
    assert quick.figures["FDML, epoch 3"] == Figure(authors_code=0.9)
    assert plan("answer").shortened().seeds == (5,)
    assert plan("answer").shortened().epochs == (1,)


def test_figures_and_settings_are_read(tiny: None) -> None:
    one = plan("tiny")
    assert one.figures["FDML, epoch 3"] == Figure(
        authors_code=0.9, at_least=0.5, at_most=1.0
    )
    assert one.reach == (0.4, 5)
    settings = Study(one).settings(one.runs["FDML"])
    assert (
        settings.algorithm,
        settings.config.learning_rate,
        settings.train.epochs,
    ) == ("fdml", 0.2, 3)
    assert settings.model == Settings.from_toml(one.config).model


def test_an_unknown_name_is_refused_with_the_likely_one(tiny: None) -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"There is no reproduction 'tinny' \(did you mean 'tiny'\?\); there are"
            r" tiny, imp"
        ),
    ):
        reproduction.reproduce("tinny")


def test_a_quick_version_may_have_fewer_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = plan_folder(tmp_path)
    told = json.loads((folder / "paper" / "expected.json").read_text())
    told["tiny"]["quick"]["rows"] = {"train": 64, "test": 20}
    (folder / "paper" / "expected.json").write_text(json.dumps(told))
    monkeypatch.setattr("colonnade.reproduction.expected.folder", lambda: folder)
    sizes = []
    for one in (plan("tiny"), plan("tiny").shortened()):
        study = Study(one)
        made = study.federation(study.settings(), 0)
        sizes.append(
            [
                len(made.batches.splits[split])
                for split in ("train", "validation", "test")
            ]
        )
    assert sizes[1] == [64, sizes[0][1], 20]
    assert sizes[0][0] > 64
    assert sizes[0][2] > 20
