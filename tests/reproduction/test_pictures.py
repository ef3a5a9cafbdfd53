"""Learning curves are drawn, one line per run, as PNG and SVG."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.reproduction.test_expected import plan_folder

from colonnade.reproduction import Study, plan
from colonnade.reproduction.pictures import curves


def test_curves_are_drawn_and_nothing_else_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "colonnade.reproduction.expected.folder",
        lambda: plan_folder(tmp_path / "plans"),
    )
    study = Study(plan("tiny"))
    study.curves = {
        "SplitNN": [[(1, 0.5), (2, 0.7)], [(1, 0.6), (2, 0.9)]],
        "FDML": [[(1, 0.4), (2, 0.6)]],
    }
    png, svg = curves(study, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "tiny.png",
        "tiny.svg",
    ]
    picture = np.asarray(Image.open(png).convert("RGB")).reshape(-1, 3)
    for colour in ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)):
        assert (picture == colour).all(-1).sum() > 100
    assert svg.read_text(encoding="utf-8").startswith("<?xml")


def test_losses_have_a_panel_of_their_own_where_the_plan_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "colonnade.reproduction.expected.folder",
        lambda: plan_folder(tmp_path / "plans"),
    )
    study = Study(dataclasses.replace(plan("tiny"), panels=("loss", "score")))
    study.curves = {"SplitNN": [[(1, 0.5), (2, 0.7)]]}
    study.losses = {"SplitNN": [[(1, 0.9), (2, 0.4)]]}
    wide, _ = curves(study, tmp_path / "out")
    study.plan = plan("tiny")
    narrow, _ = curves(study, tmp_path / "alone")
    assert Image.open(wide).width > Image.open(narrow).width
