"""The loop around training: what it records, when it stops, and what a spent budget
leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.federation.small import (
    Spent,
    checkpoint_of,
    entries,
    equal,
    federation,
    frames,
    learned_of,
    models_of,
    quick,
    records,
    splitnn,
)

from colonnade.core import Mechanism, Plain, Step
from colonnade.errors import ConfigError
from colonnade.evaluate import metric
from colonnade.evaluate.metrics import lead
from colonnade.federation import Federation, load, rules, stopping
from colonnade.federation.scores import Scores
from colonnade.runs.run_directory import RunDirectory


def test_the_history_has_one_record_per_epoch_and_the_watch_sees_all() -> None:
    seen: list[Any] = []
    one = federation(settings=quick(train={"epochs": 3, "early_stop": False}))
    outcome = one.fit(watch=seen.append)
    steps = [event for event in seen if isinstance(event, Step)]
    assert [event for event in seen if isinstance(event, dict)] == outcome.history
    assert [type(event).__name__ for event in seen[:6]] == ["Step"] * 4 + [
        "dict",
        "Step",
    ]
    assert [record["epoch"] for record in outcome.history] == [1, 2, 3]
    assert [record["step"] for record in outcome.history] == [4, 8, 12]
    for number, record in enumerate(outcome.history):
        sums = [
            step.loss * step.batch.size for step in steps[number * 4 : number * 4 + 4]
        ]
        # per row: the last batch is half as long
        assert record["loss"] == pytest.approx(sum(sums) / 56)
        assert set(record["validation"]) == {
            "loss",
            "accuracy",
            "auc",
            "precision",
            "recall",
            "f1",
        }
        assert record["seconds"] >= 0
    assert outcome.history[-1]["validation"] == one.evaluate("validation")
    travelled = [record["bytes"] for record in outcome.history]
    assert 0 < travelled[0] < travelled[1] < travelled[2]
    assert outcome.stopped == "all epochs done"
    assert not outcome.exhausted


def test_fit_trains_as_train_does() -> None:
    one = federation()
    other = federation()
    one.fit()
    list(other.train())
    first = {place: t for place, t in learned_of(one).items() if "/seat/" not in place}
    second = {
        place: t for place, t in learned_of(other).items() if "/seat/" not in place
    }
    assert equal(first, second)


def test_without_validation_rows_it_runs_to_the_end() -> None:
    outcome = federation(settings=quick(data={"validation": 0})).fit()
    assert "validation" not in outcome.history[0]
    assert set(outcome.summary["metrics"]) == {"train", "test"}
    assert outcome.summary["rows"] == {"train": 64, "test": 16}


@pytest.mark.parametrize("settings", [quick(), splitnn()], ids=["vimadmm", "splitnn"])
def test_the_summary_counts_what_the_ledgers_hold_and_what_leaves_arrives(
    settings: Any, tmp_path: Path
) -> None:
    one = federation(settings=settings)
    outcome = one.fit(tmp_path / "run")
    counted = outcome.summary["bytes"]
    assert counted == {
        name: {"out": book.total("out"), "in": book.total("in")}
        for name, book in one.ledgers.items()
    }
    assert (
        sum(way["out"] for way in counted.values())
        == sum(way["in"] for way in counted.values())
        > 0
    )
    for name, ways in counted.items():
        lines = (
            (tmp_path / "run" / "parties" / name / "ledger.jsonl")
            .read_text()
            .splitlines()
        )
        for way, total in ways.items():
            assert total == sum(
                e["bytes"] for e in map(json.loads, lines) if e["direction"] == way
            )
    assert RunDirectory(tmp_path / "run").summary() == outcome.summary
    assert outcome.summary["metrics"] == {
        split: one.evaluate(split) for split in ("train", "validation", "test")
    }
    assert outcome.summary["rounds"] == 8
    assert outcome.summary["parties"] == {
        "clinic": ["features", "labels"],
        "lab": ["features"],
    }
    assert {"own", "out", "in"} == {
        entry["direction"] for entry in entries(tmp_path / "run")
    }


@pytest.mark.parametrize(("task", "wanted"), [("binary", 2), ("classes", 3)])
def test_the_largest_class_is_that_of_the_rows_that_were_measured(
    task: Any, wanted: int
) -> None:
    given = frames(task=task)
    one = federation(given)
    outcome = one.fit()
    truth = given["clinic"].set_index("patient")["diagnosis"]
    assert truth.nunique() == wanted
    for split, rows in one.holdings.splits.items():
        counted = truth[one.holdings.ids[rows.numpy()]].value_counts(normalize=True)
        told = outcome.summary["majority"][split]
        assert told["share"] == pytest.approx(counted.max())
        said = set(one.predict(one.holdings.ids[rows.numpy()].tolist()).labels)
        assert told["always_one"] is (wanted == 2 and len(said) == 1)
    led = metric(lead(outcome.summary))
    assert repr(outcome).startswith(
        f"<Outcome: 2 epochs, all epochs done; on test rows {led} "
    )
    assert f"</tr><tr><th>{led}</th>" in outcome._repr_html_(), (
        "what shows most comes first in a notebook, too"
    )
    assert "<th>largest class</th>" in outcome._repr_html_()
    assert (
        repr(one)
        == "<Federation: vimadmm of clinic, lab; 56 train rows, 8 validation rows, 16"
        " test rows>"
    )


def test_a_model_that_always_says_one_class_is_told() -> None:
    given = frames()
    given["clinic"]["diagnosis"] = ["ill", *["well"] * 7] * 10  # which no column tells
    one = federation(given, splitnn(train={"epochs": 8, "early_stop": False}))
    told = one.fit().summary["majority"]["train"]
    share = float(one.labels[one.batches.splits["train"]].double().mean())
    assert told == {"share": pytest.approx(share), "always_one": True}
    assert "majority" not in federation(frames(task="regression")).fit().summary


def test_a_score_that_is_not_a_number_is_null_on_disk(tmp_path: Path) -> None:
    given = frames()
    by_id = quick(data={"stratify": False})
    first = federation(given, by_id)
    alone = first.holdings.ids[first.holdings.splits["validation"].numpy()].tolist()
    given["clinic"].loc[given["clinic"]["patient"].isin(alone), "diagnosis"] = "ill"
    outcome = federation(given, by_id).fit(tmp_path / "run")
    assert math.isnan(outcome.summary["metrics"]["validation"]["auc"])

    def refuse(word: str) -> None:
        raise AssertionError(word)

    summary = json.loads(
        (tmp_path / "run" / "summary.json").read_text(), parse_constant=refuse
    )
    assert summary["metrics"]["validation"]["auc"] is None
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line, parse_constant=refuse)["validation"]["auc"] is None
    assert (
        federation(given, by_id).fit(tmp_path / "run", resume=True).summary["epochs"]
        == 2
    )


def scores(monkeypatch: pytest.MonkeyPatch, given: list[float]) -> None:
    """Let validation score as given, epoch by epoch, and then as in the last."""
    real = Federation.score
    left = iter(given)

    def score(self: Federation, split: str, model: str | None = None) -> Scores:
        scored = real(self, split, model)
        if split != "validation":
            return scored
        now = next(left, given[-1])
        return replace(
            scored, all=scored.all | {"accuracy": now, "auc": now, "loss": 1 - now}
        )

    monkeypatch.setattr(Federation, "score", score)
    monkeypatch.setattr(stopping, "FEWEST_OF_RARER_CLASS", 1)


def after(epochs: int) -> dict[str, torch.Tensor]:
    one = federation(settings=quick(train={"epochs": epochs, "early_stop": False}))
    list(one.train())
    return models_of(one)


def test_it_stops_when_patience_ends_and_keeps_the_models_that_validated_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores(monkeypatch, [0.80, 0.90, 0.885, 0.879, 0.90, 0.95, 0.95])
    one = federation(settings=quick(train={"epochs": 9, "patience": 3}))
    outcome = one.fit(tmp_path / "run")
    assert len(outcome.history) == 5, "one dip, or two, end nothing"
    assert (
        outcome.stopped
        == "validation AUC was best, 0.9000 in epoch 2, and did not improve since"
    )
    assert outcome.reason_for_all == "validation AUC did not improve"
    assert (outcome.summary["rounds"], outcome.summary["best_epoch"]) == (20, 2)
    kept = {place: t for place, t in models_of(one).items() if "/last/" not in place}
    assert equal(kept, after(2)), "and not those of the fifth epoch"
    again = load(tmp_path / "run", frames=frames())
    assert equal(
        {p: t for p, t in models_of(again).items() if "/last/" not in p}, kept
    ), "who predicts has them, too"


def test_with_noise_the_best_models_score_is_told_and_nothing_is_released_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores(monkeypatch, [0.80, 0.90, 0.85])
    noisy = {
        "lab": {
            "outbox": {
                "embedding": {
                    "mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 5.0}
                }
            }
        }
    }
    outcome = federation(settings=quick(train={"epochs": 3}, parties=noisy)).fit()
    assert outcome.summary["metrics"]["validation"] == outcome.history[1]["validation"]


@pytest.mark.parametrize("make", [quick, splitnn])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_run_resumed_before_or_after_its_best_epoch_is_the_same_to_the_bit(
    make: Any, cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best is epoch 2: a run of 1, 2 or 3 epochs that is then asked for 4 goes on
    from where training stopped."""
    given = [0.80, 0.90, 0.7, 0.6]
    scores(monkeypatch, given)
    federation(settings=make(train={"epochs": 4})).fit(tmp_path / "whole")
    scores(monkeypatch, given[:cut])
    federation(settings=make(train={"epochs": cut})).fit(tmp_path / "cut")
    scores(monkeypatch, given[cut:])
    outcome = federation(settings=make(train={"epochs": 4})).fit(
        tmp_path / "cut", resume=True
    )
    assert outcome.summary["best_epoch"] == 2
    whole = checkpoint_of(tmp_path / "whole")
    parts = checkpoint_of(tmp_path / "cut")
    assert equal(whole, parts)
    assert any("/last/" in place for place in whole)


@pytest.mark.parametrize(
    ("stop_on", "best"), [("auto", 1), ("score", 1), ("loss", 3), ("few", 3)]
)
def test_what_is_better_is_a_setting(
    stop_on: str, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AUC of few rows is little more than chance, so then the loss decides."""
    if stop_on != "few":
        monkeypatch.setattr(stopping, "FEWEST_OF_RARER_CLASS", 1)
    one = federation(
        settings=quick(train={"stop_on": "auto" if stop_on == "few" else stop_on})
    )
    records = [
        {
            "epoch": epoch,
            "loss": 1.0,
            "validation": {"auc": auc, "accuracy": 0.5, "loss": loss},
        }
        for epoch, (auc, loss) in enumerate([(0.9, 0.5), (0.8, 0.4), (0.7, 0.3)], 1)
    ]
    found = stopping.best_of(one, records)
    assert found is not None
    assert found["epoch"] == best


@pytest.mark.parametrize(
    ("positives", "decides"), [(24, "loss"), (99, "loss"), (100, "auc"), (140, "auc")]
)
def test_auc_of_few_rows_of_the_rarer_class_does_not_stop_a_run(
    positives: int, decides: str
) -> None:
    """480 validation rows are many, and 24 of the rarer class among them are few: AUC
    falls by chance while the loss still gets better."""
    one = with_validation_rows(480, positives)
    assert stopping.rows_of_rarer_class(one) == positives
    records = [
        {
            "epoch": epoch,
            "loss": 1.0 / epoch,
            "validation": {"auc": auc, "accuracy": 0.9, "loss": loss},
        }
        for epoch, (auc, loss) in enumerate(
            [(0.70, 0.50), (0.69, 0.45), (0.69, 0.40), (0.69, 0.41), (0.69, 0.42)], 1
        )
    ]
    name, _ = stopping.judged(one, records)
    best = stopping.best_of(one, records)
    reason = stopping.why_stop(one, records)
    assert best is not None
    assert reason is not None
    in_full, as_all_are_told = reason
    assert (name, best["epoch"]) == (decides, 1 if decides == "auc" else 3)
    why = f"only {positives} validation rows are of the rarer class, and AUC needs 100"
    assert (why in in_full) == (decides == "loss")
    assert str(positives) not in as_all_are_told, "counts are the label owner's"


def with_validation_rows(rows: int, positives: int) -> Federation:
    """A federation with so many validation rows, of which some are of the rarer class."""
    random = np.random.default_rng(0)
    ids = [f"P{number:04d}" for number in range(2 * rows)]
    label = np.where(np.arange(2 * rows) < 2 * positives, "ill", "well")
    side = np.where(np.arange(2 * rows) % 2 == 0, "train", "validation")
    clinic = pd.DataFrame({"patient": ids, "age": random.normal(size=2 * rows)})
    given = {
        "clinic": clinic.assign(diagnosis=label, side=side),
        "lab": pd.DataFrame({"patient": ids, "iron": random.normal(size=2 * rows)}),
    }
    settings = quick(data={"split_by": "side"}, train={"patience": 2})
    return federation(given, settings)


def test_a_score_that_is_missing_once_does_not_decide() -> None:
    one = federation()
    records = [
        {"epoch": e, "validation": {"auc": auc, "loss": e / 2}}
        for e, auc in ((1, 0.5), (2, None))
    ]
    found = stopping.best_of(one, records)
    assert found is not None
    assert found["epoch"] == 1, "by the loss"


def test_vims_criterion_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    scores(monkeypatch, [0.80, 0.90, 0.885, 0.879, 0.95, 0.95, 0.95])
    outcome = federation(
        settings=quick(train={"epochs": 6, "patience_drop": 0.02})
    ).fit()
    assert len(outcome.history) == 4
    assert outcome.stopped == "validation accuracy fell from 0.9000 to 0.8790"
    assert outcome.reason_for_all == "validation accuracy fell"
    assert outcome.summary["rounds"] == 16


def test_it_does_not_stop_when_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    scores(monkeypatch, [0.9, 0.1, 0.1, 0.1])
    outcome = federation(settings=quick(train={"epochs": 3, "early_stop": False})).fit()
    assert len(outcome.history) == 3


def test_it_stops_when_the_loss_no_longer_changes() -> None:
    still = splitnn(algorithm={"learning_rate": 1e-9}, train={"epochs": 9})
    outcome = federation(settings=still).fit()
    assert (
        outcome.reason_for_all
        == outcome.stopped
        == "converged: the training loss no longer changes"
    )
    assert len(outcome.history) == 4  # three changes in a row
    moving = splitnn(train={"epochs": 5})
    assert len(federation(settings=moving).fit().history) == 5


def test_a_run_that_had_stopped_early_stays_stopped_when_resumed(
    tmp_path: Path,
) -> None:
    still = splitnn(algorithm={"learning_rate": 1e-9}, train={"epochs": 9})
    federation(settings=still).fit(tmp_path / "run")
    outcome = federation(settings=still).fit(tmp_path / "run", resume=True)
    assert outcome.stopped == "converged: the training loss no longer changes"
    assert len(outcome.history) == len(records(tmp_path / "run")) == 4
    assert outcome.summary["rounds"] == 16


def spending(
    monkeypatch: pytest.MonkeyPatch, after: int, release: str = "embedding"
) -> dict[str, Any]:
    """Settings in which the lab releases its embedding so many times and then no more."""
    mechanisms: dict[str, Callable[..., Mechanism]] = {"plain": Plain, "spent": Spent}
    monkeypatch.setattr(rules, "MECHANISMS", mechanisms)
    return {
        "lab": {"outbox": {release: {"mechanism": {"name": "spent", "after": after}}}}
    }


@pytest.mark.parametrize("make", [quick, splitnn])
@pytest.mark.parametrize("cohort", ["on", "off"])
def test_a_spent_budget_ends_the_run_with_a_saved_model(
    make: Any, cohort: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an epoch is 4 batches and one validation: the 8th release is the third batch of
    # the second epoch
    parties = spending(monkeypatch, after=7)
    one = federation(settings=make(parties=parties, federation={"cohort": cohort}))
    outcome = one.fit(tmp_path / "run")
    assert outcome.exhausted
    assert (
        outcome.stopped
        == "'lab' will not release \"embedding\" again: its budget is spent."
    )
    assert outcome.reason_for_all == "a privacy budget is spent"
    assert (len(outcome.history), outcome.summary["rounds"]) == (1, 6)
    assert outcome.summary["metrics"] == {
        "validation": outcome.history[0]["validation"]
    }, "nothing is released for it"
    assert outcome.summary["best_epoch"] == 1
    assert (
        json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"]
        == outcome.stopped
    )
    assert json.loads((tmp_path / "run" / "checkpoint.json").read_text())["step"] == 6
    again = load(tmp_path / "run", frames=frames())
    models = [
        {k: v for k, v in learned_of(fed).items() if "/model/" in k or "heads" in k}
        for fed in (one, again)
    ]
    assert models[0]
    assert equal(*models)


def test_a_budget_for_training_alone_leaves_measuring_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = federation(
        settings=quick(
            parties=spending(monkeypatch, after=6, release="train.embedding")
        )
    )
    outcome = one.fit(tmp_path / "run")
    assert outcome.exhausted
    assert outcome.summary["rounds"] == 6
    assert outcome.summary["metrics"] == {
        split: one.evaluate(split) for split in ("validation", "test")
    }


def test_a_budget_that_ends_with_the_last_measurement_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 8 batches, 2 validations
    one = federation(settings=quick(parties=spending(monkeypatch, after=10)))
    outcome = one.fit()
    assert outcome.exhausted
    assert outcome.summary["epochs"] == 2
    assert outcome.summary["metrics"] == {
        "validation": outcome.history[-1]["validation"]
    }


def test_seconds_add_up_over_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation().fit(tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    lines = [
        json.loads(line) | {"seconds": 1000.0} for line in path.read_text().splitlines()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = RunDirectory(tmp_path / "run")
    run.keep_mark(
        {key: value for key, value in run.mark().items() if key != "measured"}
    )
    outcome = federation().fit(tmp_path / "run", resume=True)
    assert 2000 <= outcome.summary["seconds"] < 2060


def test_the_bound_for_convergence_is_relative() -> None:
    one = federation()
    flat: list[dict[str, Any]] = [
        {"loss": loss} for loss in (100.0, 100.005, 100.0, 100.005)
    ]
    assert (
        stopping.why_stop(one, flat)
        == ("converged: the training loss no longer changes",) * 2
    )
    small: list[dict[str, Any]] = [
        {"loss": loss} for loss in (1e-3, 1.1e-3, 1e-3, 1.1e-3)
    ]
    assert stopping.why_stop(one, small) is None
    assert torch.get_num_threads() == 1


def test_a_second_fit_goes_on_from_where_training_stood_and_never_ends_with_a_worse_model() -> (
    None
):
    """As one long fit: what was best before still counts, and a run that stopped early
    stays so."""
    stops = quick(train={"epochs": 30, "patience": 2}, algorithm={"learning_rate": 0.5})
    one = federation(settings=stops)
    first = one.fit()
    assert first.best is not None
    assert len(first.history) < 30, "it stopped early"
    models = models_of(one)
    second = one.fit()
    assert second.stopped.startswith(
        "nothing was trained: it had stopped early before: validation "
    )
    assert (second.history, second.best) == (first.history, first.best)
    assert equal(models, models_of(one))


def test_a_fit_that_was_interrupted_goes_on_as_if_it_had_not_been() -> None:
    def interrupt(event: Step | dict[str, Any]) -> None:
        if isinstance(event, dict) and event["epoch"] == 2:
            raise KeyboardInterrupt

    settings = quick(train={"epochs": 4, "patience": 4})
    whole = federation(settings=settings)
    cut = federation(settings=settings)
    expected = whole.fit()
    with pytest.raises(KeyboardInterrupt):
        cut.fit(watch=interrupt)
    with pytest.warns(UserWarning, match="goes on from there"):
        found = cut.fit()
    assert [one["loss"] for one in found.history] == [
        one["loss"] for one in expected.history
    ]
    assert equal(models_of(whole), models_of(cut))


def test_only_a_folder_can_be_resumed() -> None:
    with pytest.raises(
        ConfigError, match=r"resumed in its folder: fit\(FOLDER, resume=True\)"
    ):
        federation().fit(resume=True)
