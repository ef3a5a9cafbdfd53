"""Reproductions: every plan in the repository can be run, and a plan is measured as it says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from colonnade import reproduction
from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.reproduction import Check, Measured, plans, reproduce

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
early_stop = false
[federation]
device = "cpu"
"""


def plan_folder(folder: Path) -> Path:
    """A folder of reproductions with one small paper in it."""
    (folder / "paper" / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "paper" / "configs" / "tiny.toml").write_text(CONFIG)
    tiny: dict[str, Any] = {
        "claim": "digits can be learned",
        "config": "configs/tiny.toml",
        "seeds": [0, 1],
        "epochs": 3,
        "checks": [
            {"epoch": 2, "metric": "accuracy", "at_least": 0.5, "paper": 0.9712},
            {"epoch": 3, "metric": "accuracy", "at_least": 0.5, "authors_code": 0.9},
        ],
        "quick": {"seeds": [0], "epochs": 2},
    }
    impossible = {
        **tiny,
        "claim": "nobody can be that good",
        "checks": [{"epoch": 1, "metric": "accuracy", "at_least": 1.01}],
    }
    (folder / "paper" / "expected.json").write_text(json.dumps({"tiny": tiny, "impossible": impossible}))
    return folder


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "folder", lambda: plan_folder(tmp_path))


def test_the_repositorys_reproductions_are_found() -> None:
    assert {"vim-admm", "vim-admm-exact"} <= set(plans())


@pytest.mark.parametrize("name", plans())
def test_every_plan_is_valid_and_complete(name: str) -> None:
    plan = plans()[name]
    settings = Settings.from_toml(plan.config)
    assert settings.data.dataset is not None
    assert not settings.train.early_stop  # else a check's epoch might never come
    for one in (plan, plan.shortened()):
        assert one.seeds
        assert one.checks
        assert all(1 <= check.epoch <= one.epochs for check in one.checks)
        assert all(0 < check.at_least < 1 for check in one.checks)
    assert len(plan.shortened().seeds) <= len(plan.seeds)
    assert (plan.config.parents[1] / "README.md").exists()


def test_it_is_run_for_every_seed_and_measured_at_every_epoch(tiny: None) -> None:
    seen: list[tuple[str, Any]] = []
    measured = reproduce("tiny", watch=lambda title, event: seen.append((title, event)))
    assert [one.check.epoch for one in measured] == [2, 3]
    assert all(len(one.by_seed) == 2 for one in measured)
    assert all(one.holds for one in measured)
    tested = [event["test"] for _, event in seen if isinstance(event, dict)]
    assert [bool(scores) for scores in tested] == [False, True, True] * 2
    assert measured[0].by_seed == [tested[1]["accuracy"], tested[4]["accuracy"]]
    assert measured[1].by_seed == [tested[2]["accuracy"], tested[5]["accuracy"]]
    assert {title for title, _ in seen} == {"tiny, seed 0", "tiny, seed 1"}
    assert measured[0].by_seed[0] != measured[0].by_seed[1]


def test_quick_takes_fewer_seeds_and_the_checks_that_remain(tiny: None) -> None:
    measured = reproduce("tiny", quick=True)
    assert [(one.check.epoch, len(one.by_seed)) for one in measured] == [(2, 1)]


def test_a_figure_that_is_missed_does_not_hold(tiny: None) -> None:
    (one,) = reproduce("impossible", quick=True)
    assert not one.holds
    assert one.to_json()["holds"] is False


def test_the_mean_over_seeds_is_what_must_hold() -> None:
    check = Check(1, "accuracy", 0.9)
    assert Measured(check, [0.88, 0.93]).holds
    assert not Measured(check, [0.86, 0.93]).holds
    assert Measured(check, [0.88, 0.93]).mean == pytest.approx(0.905)
    never = Measured(check)  # training stopped before that epoch
    assert math.isnan(never.mean)
    assert not never.holds
    assert never.to_json()["mean"] is None


def test_an_unknown_name_is_refused_with_the_likely_one(tiny: None) -> None:
    with pytest.raises(
        ConfigError, match=r"There is no reproduction 'tinny' \(did you mean 'tiny'\?\); there are tiny, imp"
    ):
        reproduce("tinny")
