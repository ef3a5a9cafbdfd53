"""An explanation between sites is that of one process, and asks partners for nothing
but their held-out rows, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.federation import small_multi, small_multi_sites
from tests.federation.small import quick
from tests.federation.small_sites import ALONE, folders, sites, trained

from colonnade.errors import BudgetExhausted, CheckpointError, DataError
from colonnade.explain import Report, explain
from colonnade.explain.at_site import explain_at
from colonnade.federation import Federation, load
from colonnade.sites.driving import drive
from colonnade.sites.participant import started

ONE_PROCESS = ("noise", "left_out")


def told(report: Report) -> dict[str, Any]:
    """What does not need everybody's columns in one place."""
    return {
        "measures": {
            name: values
            for name, values in report.measures.items()
            if name not in ONE_PROCESS
        },
        "deviations": {
            name: values
            for name, values in report.deviations.items()
            if name not in ONE_PROCESS
        },
        "score": report.score,
        "metric": report.metric,
        "split": report.split,
        "rows": report.rows,
        "ranking": report.ranking,
        "tsne": report.tsne,
    }


def test_it_is_the_explanation_of_one_process_to_the_bit(tmp_path: Path) -> None:
    run = trained(tmp_path)
    found, folder = explain_at(sites(tmp_path)["clinic"], "run", repeats=2, tsne_rows=5)
    assert told(found) == told(explain(load(tmp_path / "here"), repeats=2, tsne_rows=5))
    assert set(found.measures) == {
        "head_norm",
        "head_change",
        "permutation",
        "silenced",
    }
    assert folder == run / "explain"
    assert json.loads((folder / "explain.json").read_text())["ranking"] == found.ranking


def test_partners_release_their_held_out_rows_once_and_nothing_else(
    tmp_path: Path,
) -> None:
    trained(tmp_path)
    ledger = tmp_path / "lab/runs/run/parties/lab/ledger-after.jsonl"
    assert not ledger.exists() or not ledger.read_text()
    found, _ = explain_at(sites(tmp_path)["clinic"], "run", repeats=1, tsne_rows=5)
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    sent = sorted(
        (line["name"], line["shape"][0]) for line in lines if line["direction"] == "out"
    )
    assert sent == [("embedding", found.rows), ("held", found.rows)]
    assert len(started(tmp_path / "clinic/runs/run", "clinic")[0]["test"]) == found.rows


def test_a_partner_whose_budget_does_not_cover_it_refuses(tmp_path: Path) -> None:
    noisy = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 8.0}}
    }
    spent = quick(
        **ALONE,
        parties={"lab": {"outbox": noisy, "budget": {"epsilon": 1.2}}},
        train={"epochs": 1},
    )
    folders(tmp_path, settings=spent)
    drive(sites(tmp_path)["clinic"], "run")

    def often() -> None:
        for _ in range(40):
            explain_at(sites(tmp_path)["clinic"], "run", repeats=1, tsne_rows=5)

    with pytest.raises(BudgetExhausted, match="'lab'"):
        often()


def test_what_it_needs_is_said_before_anybody_is_asked(tmp_path: Path) -> None:
    trained(tmp_path)
    table = tmp_path / "all" / "clinic.csv"
    whole = table.read_text()
    frame = pd.read_csv(table)
    frame.iloc[:40].to_csv(table, index=False)
    with pytest.raises(
        DataError, match="'clinic' no longer holds all rows that this run held out"
    ):
        explain_at(sites(tmp_path)["clinic"], "run")
    table.write_text(whole)
    (tmp_path / "clinic/runs/run/parties/clinic/held_out.json").unlink()
    with pytest.raises(CheckpointError, match="does not say which rows were held out"):
        explain_at(sites(tmp_path)["clinic"], "run")
    with pytest.raises(Exception, match="'lab' does not predict"):
        explain_at(sites(tmp_path)["lab"], "run")


def test_each_of_several_label_owners_explains_its_own_rows(tmp_path: Path) -> None:
    file, _ = small_multi_sites.folders(
        tmp_path, small_multi_sites.private(train={"epochs": 1})
    )
    Federation.from_toml(file).fit(tmp_path / "here")
    drive(sites(tmp_path)["aggregation_server"], "run")
    here = load(tmp_path / "here")
    found, _ = explain_at(sites(tmp_path)["south"], "run", repeats=2, tsne_rows=5)
    same = explain(here, owner="south", repeats=2, tsne_rows=5)
    assert told(found) == told(same)
    assert found.parties == list(small_multi.COLUMNS)
    assert set(same.measures) == {"permutation", "silenced"}
