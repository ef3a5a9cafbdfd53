"""The whole report: what is in it, and that it comes back from JSON. What each party
holds, in words and as a region: put together, the regions are the picture.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.explain.trained import (
    ALGORITHMS,
    WITHOUT_HEADS,
    frames,
    fresh,
    settings,
    trained,
)

from colonnade.errors import BudgetExhausted, ConfigError, InputError
from colonnade.explain import (
    Report,
    correlation,
    explain,
    gather,
    permutation,
    retrain,
    silenced,
    tsne,
    write,
)
from colonnade.explain.report import regions
from colonnade.federation import Federation, Settings


@pytest.mark.parametrize(
    ("algorithm", "task"),
    [(name, "classes") for name in ALGORITHMS]
    + [("vimadmm", "binary"), ("fdml", "regression")],
)
def test_a_report_has_every_party_and_comes_back(algorithm: str, task: str) -> None:
    report = explain(trained(algorithm, task), repeats=2, tsne_rows=30)
    assert report.parties == ["strong", "weak", "noise"]
    assert all(list(values) == report.parties for values in report.measures.values())
    assert Report.from_json(report.to_json()) == report
    wanted = {"permutation", "silenced", "noise"}
    if algorithm in WITHOUT_HEADS:
        assert report.measures.keys() == wanted
        assert report.ranked_by == "permutation"
        assert "heads stay at the parties" in report.notes[0]
    else:
        assert report.measures.keys() - {"head_change"} == {"head_norm", *wanted}
        assert report.notes == []
    assert report.ranking[0] == "strong"
    assert (
        report.metric
        == {"binary": "auc", "classes": "accuracy", "regression": "r2"}[task]
    )


def test_its_numbers_are_the_measures_own() -> None:
    federation = trained()
    report = explain(federation, repeats=3, seed=2, noise=1.5, by="head_norm")
    embeddings = gather(federation)
    lost = permutation(embeddings, repeats=3, seed=2)
    assert report.measures["permutation"] == {
        party: one.mean for party, one in lost.items()
    }
    assert report.deviations["permutation"] == {
        party: one.deviation for party, one in lost.items()
    }
    assert report.measures["silenced"] == silenced(embeddings)
    assert report.score == embeddings.score()
    pair = next(
        one
        for one in report.correlations
        if one["between"] == ["head_norm", "permutation"]
    )
    found = correlation(report.measures["head_norm"], report.measures["permutation"])
    assert (pair["spearman"], pair["kendall"]) == (found.spearman, found.kendall)
    firsts = [one["between"] for one in report.correlations]
    assert ["head_norm", "noise"] in firsts
    assert ["head_change", "noise"] in firsts


def test_no_column_or_id_is_in_it() -> None:
    report = explain(trained(), repeats=1, tsne_rows=30)
    text = report.to_json()
    assert "P00" not in text
    features = trained().holdings.columns["strong"].features
    assert features is not None
    shown = [
        str(round(value, 5))
        for value in features[trained().batches.splits["test"]].flatten().tolist()
    ]
    # a shorter one may be there by chance
    told = [value for value in shown if len(value.partition(".")[2]) == 5]
    assert len(told) > 100
    assert not [value for value in told if value in text]


def test_a_sample_and_a_chosen_measure() -> None:
    report = explain(trained(), rows=40, by="silenced", repeats=1)
    assert report.rows == 40
    assert report.ranked_by == "silenced"
    assert report.ranking[0] == "strong"
    with pytest.raises(
        ConfigError, match=r"can be ranked by head_change, head_norm, .*; found 'norm'"
    ):
        explain(trained(), by="norm", repeats=1, tsne_rows=10)


def test_validation_rows_stand_in_for_test_rows() -> None:
    federation = fresh(train={"epochs": 1}, data={"test": 0.0})
    assert explain(federation, repeats=1, tsne_rows=10).split == "validation"
    neither = fresh(train={"epochs": 1}, data={"test": 0.0, "validation": 0.0})
    with pytest.raises(ConfigError, match="neither test nor validation rows"):
        explain(neither)


def test_a_secure_sum_leaves_out_what_needs_single_releases() -> None:
    federation = fresh(
        "vimadmm_joint", algorithm={"aggregation": "secure"}, train={"epochs": 1}
    )
    report = explain(federation, repeats=1, rows=20)
    assert report.measures.keys() == {"noise"}
    assert report.tsne is None
    assert any("secure aggregation" in note for note in report.notes)
    assert report.ranked_by == "noise"


def test_a_spent_budget_leaves_out_the_noise_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BudgetExhausted("'lab' will not release again.")

    monkeypatch.setattr("colonnade.explain.experiments.noise_validation", refuse)
    report = explain(trained(), repeats=1, tsne_rows=10)
    assert report.measures.keys() == {
        "head_norm",
        "head_change",
        "permutation",
        "silenced",
    }
    assert report.notes == ["Noise is left out: 'lab' will not release again."]
    monkeypatch.setattr("colonnade.explain.report.separable", lambda federation: False)
    with pytest.raises(BudgetExhausted):
        explain(trained("fdml"), repeats=1)


def test_a_wrong_measure_is_refused_before_anybody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(*_: object, **__: object) -> None:
        raise AssertionError("a release was asked for")

    monkeypatch.setattr("colonnade.explain.report.gather", ask)
    with pytest.raises(
        ConfigError,
        match=r"can be ranked by permutation, silenced, noise; found 'head_norm'",
    ):
        explain(trained("fdml"), by="head_norm")


def test_who_paid_is_said_and_what_nobody_paid_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gaussian = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 5.0}}
    rules: dict[str, Any] = {
        "parties": {"strong": {"outbox": {"embedding": gaussian}}},
        "train": {"epochs": 1},
    }
    federation = fresh(**rules)
    item = next(iter(federation.accounts["strong"].counts))
    before = federation.accounts["strong"].released(item)[1]
    report = explain(federation, repeats=2, tsne_rows=10)
    # each test row once
    assert federation.accounts["strong"].released(item)[1] - before == report.rows
    assert "strong paid for it" in report.notes[-1]
    assert "charged to nobody" in report.notes[-1]

    def refuse(*_: object, **__: object) -> None:
        raise BudgetExhausted("'strong' will not release again.")

    monkeypatch.setattr("colonnade.explain.experiments.noise_validation", refuse)
    with pytest.raises(BudgetExhausted):
        explain(federation, by="noise", repeats=1)


def test_the_plane_is_in_no_order_that_says_whose_label_is_whose() -> None:
    federation = trained()
    report = explain(federation, repeats=1)
    assert report.tsne is not None
    agreed = federation.labels[federation.batches.splits["test"]].tolist()
    assert report.tsne["labels"] == sorted(agreed) != agreed
    plane = tsne(gather(federation), [report.ranking[0], report.ranking[-1]])
    for party, points in plane.points.items():
        rows = {
            (*(round(float(at), 3) for at in xy), label)
            for xy, label in zip(points, agreed, strict=True)
        }
        assert {
            (*xy, y)
            for xy, y in zip(
                report.tsne["points"][party], report.tsne["labels"], strict=True
            )
        } == rows


def test_retraining_adds_to_a_copy() -> None:
    federation = fresh(train={"epochs": 1})
    report = explain(federation, repeats=1, rows=30, tsne_rows=10)
    told: list[int] = []

    def begin(count: int) -> None:
        told.append(count)

    fuller = retrain(federation, report, noise=2.0, begin=begin)
    assert "left_out" not in report.measures
    assert fuller.measures["left_out"].keys() == {"strong", "weak", "noise"}
    assert fuller.denoising is not None
    assert fuller.denoising["party"] == report.ranking[0]
    assert fuller.denoising["clean"]["score"] == federation.evaluate("test")["accuracy"]
    assert fuller.summarization is not None
    shares = [(one["share"], one["which"]) for one in fuller.summarization]
    assert shares == [
        (100, "all"),
        (50, "most"),
        (50, "least"),
        (20, "most"),
        (20, "least"),
    ]
    assert ["head_norm", "left_out"] in [
        pair["between"] for pair in fuller.correlations
    ]
    assert told == [6]
    assert Report.from_json(fuller.to_json()) == fuller


def test_one_party_alone_can_be_explained() -> None:
    only = {"strong": frames()["strong"].assign(y=frames()["weak"]["y"])}
    federation = Federation.from_frames(
        only, id="id", label="y", settings=settings(train={"epochs": 1})
    )
    for _ in federation.train():
        pass
    report = retrain(federation, explain(federation, repeats=1, tsne_rows=10))
    assert "left_out" not in report.measures
    assert report.ranking == ["strong"]
    assert all(pair["spearman"] is None for pair in report.correlations)


def test_files_are_written_whole(tmp_path: Path) -> None:
    report = explain(trained(), repeats=1, tsne_rows=20)
    made = write(report, tmp_path / "a" / "b", pictures=False)
    assert [path.name for path in made] == ["explain.json", "tsne.json"]
    short: dict[str, Any] = json.loads(made[0].read_text())
    assert short["tsne"] == {
        "rows": 20,
        "parties": [report.ranking[0], report.ranking[-1]],
        "file": "tsne.json",
    }
    plane = json.loads(made[1].read_text())
    assert len(plane["labels"]) == 20
    assert torch.tensor(plane["points"][report.ranking[0]]).shape == (20, 2)
    assert sorted(path.name for path in made[0].parent.iterdir()) == [
        "explain.json",
        "tsne.json",
    ]
    mine = made[0].with_name("mine.png")
    stale = made[0].with_name("summarization.png")
    for path in (mine, stale):
        path.write_text("")
    write(report, mine.parent, pictures=False)
    assert mine.exists()
    assert not stale.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written.*Choose another --out"):
        write(report, tmp_path / "file", pictures=False)


def test_numbers_that_are_none_become_null() -> None:
    report = explain(trained(), repeats=1, tsne_rows=10)
    report.summarization = [
        {"share": 50, "which": "most", "parties": ["strong"], "score": math.nan}
    ]
    again = json.loads(report.to_json())
    assert again["summarization"][0]["score"] is None
    with pytest.raises(ConfigError, match="no report of `colonnade explain`"):
        Report.from_json("{}")


def digits(**data: Any) -> Federation:
    tables = {
        "algorithm": {"name": "vimadmm"},
        "data": {"dataset": "digits", **data},
        "model": {"name": "mlp", "hidden": [4], "width": 3},
        "federation": {"device": "cpu"},
    }
    return Federation.from_settings(Settings.from_mapping(tables))


@pytest.mark.parametrize(
    ("data", "size"),
    [
        ({"split": "strips", "parts": 3}, [8, 8]),
        ({"split": "patches", "parts": [2, 4]}, [8, 8]),
        ({"split": "patches", "parts": [3, 3]}, [9, 9]),  # padded
    ],
)
def test_regions_cover_the_picture_once(data: dict[str, Any], size: list[int]) -> None:
    found = regions(digits(**data))
    covered = torch.zeros(size)
    for held in found.values():
        top, left, height, width = held["region"]
        covered[top : top + height, left : left + width] += 1
        assert held["picture"] == size
    assert bool((covered == 1).all())


def test_strips_go_down_and_patches_across_first() -> None:
    strips = [
        held["region"] for held in regions(digits(split="strips", parts=4)).values()
    ]
    assert strips == [[0, 0, 2, 8], [2, 0, 2, 8], [4, 0, 2, 8], [6, 0, 2, 8]]
    patches = [
        held["region"]
        for held in regions(digits(split="patches", parts=[2, 2])).values()
    ]
    assert patches == [[0, 0, 4, 4], [0, 4, 4, 4], [4, 0, 4, 4], [4, 4, 4, 4]]


def test_tables_and_columns_are_counted() -> None:
    assert regions(trained())["strong"] == {"holds": "2 columns"}
    assert regions(digits(split="columns", parts=4))["client_01"] == {
        "holds": "16 values"
    }
