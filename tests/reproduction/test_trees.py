"""Trees beside scikit-learn's, shortened to seconds. `colonnade reproduce trees` runs
the whole."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade import reproduction
from colonnade.errors import DataError
from colonnade.reproduction import Study
from colonnade.reproduction.cells import script_of


@pytest.fixture
def script() -> Any:
    return script_of(reproduction.plan("trees"))


def written(folder: Path, rows: int = 400) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 6))
    y = (x[:, 0] + x[:, 3] - x[:, 4] * x[:, 1] > 0).astype(int)
    ids = random.permutation(rows)
    (folder / "fate_vertical").mkdir()
    guest = pd.DataFrame(x[:, :3]).add_prefix("x").assign(y=y)
    for side, frame in (
        ("guest", guest),
        ("host", pd.DataFrame(x[:, 3:]).add_prefix("x")),
    ):
        frame.insert(0, "id", ids)
        frame.to_csv(
            folder / "fate_vertical" / f"breast_hetero_{side}.csv.gz", index=False
        )


def test_a_cell_compares_both_on_the_same_rows(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    plan = reproduction.plan("trees").shortened()
    assert script.cells(plan) == ["south german credit", "breast"]
    study = Study(plan)
    with pytest.raises(DataError, match=r"breast_hetero_guest\.csv\.gz is not there"):
        script.run(study, "breast")
    written(tmp_path)
    script.run(study, "breast")
    ours, central = (
        study.measured[f"breast, {what}"].by_seed[0]
        for what in ("auc", "auc, centralized")
    )
    assert ours > 0.85
    assert central > 0.85
    assert study.measured["breast, auc less centralized"].by_seed == [ours - central]


def test_what_the_readme_says_is_what_was_measured() -> None:
    plan = reproduction.plan("trees")
    readme = (plan.folder / "README.md").read_text(encoding="utf-8")
    values = json.loads((plan.folder / "expected.json").read_text(encoding="utf-8"))[
        "trees"
    ]["measured"][0]["values"]
    means = [
        fmean(values[f"default_credit, auc{what}"])
        for what in ("", ", centralized", " less centralized")
    ]
    told = "| default_credit (FATE) | 30,000 × 13 + 10 | AUC | {:.4f} | {:.4f} | {:+.4f} |".format(
        *means
    )
    assert told in readme
    choose = (
        plan.folder.parents[1] / "docs" / "how-to-choose-an-algorithm.md"
    ).read_text(encoding="utf-8")
    both = ", ".join(
        f"{values[f'bank marketing, auc{what}'][0]:.4f}" for what in ("", ", vimadmm")
    )
    assert f"| bank marketing | 45,211 | {both.replace(', ', ' | ')} |" in choose
    assert {name for name in plan.figures if "less centralized" in name} == set(
        plan.figures
    )
