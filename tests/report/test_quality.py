"""Curves and costs in the page: where the label owner measured them, in its own folder
and in no other."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.federation.small import Frames, frames, splitnn

from colonnade.evaluate import class_name
from colonnade.federation import Federation
from colonnade.report.facts import read
from colonnade.report.page import render
from colonnade.report.quality import CURVES, quality_figures
from colonnade.report.result import result


def uneven() -> Frames:
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 2))
    ids = [f"P{number:03d}" for number in range(300)]
    ill = np.where(x.sum(1) + random.normal(size=300) > 2.2, "ill", "well")
    return {
        "clinic": pd.DataFrame({"patient": ids, "age": x[:, 0], "diagnosis": ill}),
        "lab": pd.DataFrame({"patient": ids, "iron": x[:, 1]}),
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uneven") / "run"
    settings = splitnn(train={"epochs": 2, "early_stop": False})
    Federation.from_frames(
        uneven(), id="patient", label="diagnosis", settings=settings
    ).fit(folder)
    return folder


def test_uneven_classes_lead_with_auc_and_every_curve_is_drawn(run: Path) -> None:
    facts = read(run)
    assert facts.metric == "auc"
    told = result(facts)
    assert "reach an AUC of" in told
    assert "by always saying the largest class" in told
    assert [one.name for one in quality_figures(facts)] == list(CURVES)
    page = render(facts)
    for words in (
        "How well it decides",
        "The positive class is ill, the rarer one of the training rows",
        "From which score of ill on",
        "By class",
        "KS, the largest",
        "so expect less on others",
        "and the cost is of the same rows: expect a higher one on others.",
        "True classes (rows) and what was predicted (columns)",
    ):
        assert words in page


def test_it_is_the_label_owners_alone(run: Path) -> None:
    assert [path.parent.name for path in run.glob("parties/*/quality.json")] == [
        "clinic"
    ]
    found = json.loads((run / "parties" / "clinic" / "quality.json").read_text())
    assert (found["split"], found["owner"], found["rows"]) == ("test", "clinic", 60)
    assert "P0" not in json.dumps(found)


def test_classes_that_look_alike_are_told_apart(run: Path) -> None:
    facts = read(run)
    assert facts.quality is not None
    page = render(replace(facts, quality=facts.quality | {"classes": ["ill", " ill"]}))
    # in the tables' rows, a heading, and the curves' legend
    assert page.count(html.escape("' ill'")) >= 4
    assert "The positive class is ill, " in page
    assert [class_name(name) for name in ("ill", "ill\xa0", "", 3)] == [
        "ill",
        "'ill\\xa0'",
        "''",
        "3",
    ]


def test_without_it_the_page_has_no_such_section(run: Path) -> None:
    facts = replace(read(run), quality=None)
    assert quality_figures(facts) == []
    assert "How well it decides" not in render(facts)


def test_numbers_have_their_own(tmp_path: Path) -> None:
    settings = splitnn(train={"epochs": 1})
    given = frames(task="regression")
    Federation.from_frames(
        given, id="patient", label="diagnosis", settings=settings
    ).fit(tmp_path / "run")
    facts = read(tmp_path / "run")
    assert [one.name for one in quality_figures(facts)] == ["calibration"]
    assert "How far off predictions are" in render(facts)
