"""Training on all rows beside the rows that all hold, shortened to seconds. `colonnade
reproduce partial` runs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.federation.test_rows_differ import three

from colonnade import reproduction
from colonnade.reproduction import Study
from colonnade.reproduction.cells import cells, script_of


@pytest.fixture
def study() -> Study:
    return Study(reproduction.plan("partial").shortened())


@pytest.fixture
def script(study: Study) -> Any:
    return script_of(study.plan)


def held(study: Study, script: Any) -> Any:
    frames = {
        name: frame.rename(columns={"patient": "id"})
        for name, frame in three(lab=2, shop=2).items()
    }
    known = frames["clinic"]["id"]
    return script.of_frames(
        study.settings(),
        {n: f[f["id"].isin(known)] for n, f in frames.items()},
        "diagnosis",
        0,
    )


def test_partners_lack_all_but_a_share_and_no_test_row(
    study: Study, script: Any
) -> None:
    holdings = held(study, script)
    away = script.lacked(holdings, 0.3, seed=0)
    assert list(away) == ["lab", "shop"]
    for mask in away.values():
        assert not mask[holdings.splits["test"]].any()
        assert 0.5 < mask[holdings.splits["train"]].double().mean() < 0.9
    rows = script.common(holdings.splits, away)
    assert torch.equal(rows["test"], holdings.splits["test"])
    assert 0 < len(rows["train"]) < len(holdings.splits["train"]) / 4
    assert script.lacked(holdings, 1.0, seed=0) == {}


def test_absent_partners_are_zeros_to_a_head_and_nothing_to_a_sum(
    study: Study, script: Any
) -> None:
    holdings = held(study, script)
    away = script.lacked(holdings, 0.6, seed=0)
    standard = script.fit(
        study,
        script.STANDARD,
        holdings.divided(lambda splits: script.common(splits, away)),
        0,
    )
    assert standard.peers.presence is None
    assert script.score(standard, alone=True) != script.score(standard)
    assert script.score(standard) == standard.evaluate("test")["auc"]
    any_subset = script.fit(
        study, {}, replace(holdings, away=away), 0, rows="label_owner"
    )
    assert (
        script.score(any_subset, alone=True)
        == any_subset.evaluate("test", without=["lab", "shop"])["auc"]
    )


def test_cells_are_those_whose_files_are_there(
    study: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    assert cells(study.plan) == ["mnist, 10 %, seed 0", "mnist, whole, seed 0"]
    assert not any("credit" in cell for cell in cells(reproduction.plan("partial")))


def test_rivals_learn_from_the_same_rows(study: Study, script: Any) -> None:
    """LASER-VFL's objective learns with and without partners; so do models that were
    pretrained."""
    plan = reproduction.plan("partial-rivals").shortened()
    rivals = script_of(plan)
    holdings = held(study, script)
    assert cells(plan) == [
        "mnist, task sampling, 10 %, seed 0",
        "mnist, pretrained, 10 %, seed 0",
    ]
    away = script.lacked(holdings, 0.6, seed=0)
    present, alone = rivals.task_sampling(holdings, away, 0, 40)
    assert 0.5 < alone < present <= 1.0
    pretrained = rivals.trained(study, "pretrained", replace(holdings, away=away), 0)
    assert pretrained.settings.train.pretrain == rivals.EPOCHS
    assert 0.5 < script.score(pretrained) <= 1.0
