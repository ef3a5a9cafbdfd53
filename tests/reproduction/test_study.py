"""A study measures what its plan says, at the epochs it says, for every seed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.reproduction.test_expected import plan_folder

from colonnade.core import Step
from colonnade.reproduction import Figure, Measured, Study, plan, reproduce


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "colonnade.reproduction.expected.folder", lambda: plan_folder(tmp_path)
    )


@pytest.fixture(scope="module")
def seen() -> set[str]:
    """The titles of the runs that were watched."""
    return set()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, seen: set[str]) -> Study:
    """The whole of a tiny study."""

    def watch(title: str, step: Step) -> None:
        assert math.isfinite(step.loss)
        seen.add(title)

    folder = plan_folder(tmp_path_factory.mktemp("tiny"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("colonnade.reproduction.expected.folder", lambda: folder)
        return reproduce("tiny", watch=watch)


def test_every_run_is_made_for_every_seed_and_measured_at_every_epoch(
    study: Study, seen: set[str]
) -> None:
    assert seen == {
        f"{run}, seed {seed}" for run in ("SplitNN", "FDML") for seed in (0, 1)
    }
    for run in ("SplitNN", "FDML"):
        assert [[epoch for epoch, _ in curve] for curve in study.curves[run]] == [
            [1, 2, 3]
        ] * 2
        for epoch in (2, 3):
            scores = [curve[epoch - 1][1] for curve in study.curves[run]]
            assert study.measured[f"{run}, epoch {epoch}"].by_seed == scores
            assert scores[0] != scores[1]
    assert study.holds
    assert study.measured["SplitNN, epoch 2"].figure.paper == 0.9712


def test_rounds_and_bytes_to_a_score_count_training_only(study: Study) -> None:
    for run in ("SplitNN", "FDML"):
        rounds, moved = (
            study.measured[f"{run}, {what} to 40%"].by_seed
            for what in ("rounds", "MB per party")
        )
        assert all(number % 5 == 0 for number in rounds)
        width = 8 if run == "SplitNN" else 10  # embeddings, or logits
        # up and down, float32, no short batch yet
        expected = [number * 2 * 32 * width * 4 / 1e6 for number in rounds]
        assert moved == pytest.approx(expected)


def test_a_look_on_the_way_changes_nothing(study: Study) -> None:
    not_looked = reproduce("tiny", quick=True)
    what = "SplitNN, epoch 2"
    assert not_looked.measured.keys() == {what}
    assert study.measured[what].by_seed[0] == not_looked.measured[what].by_seed[0]


def test_a_script_records_what_it_finds() -> None:
    study = reproduce("answer")
    assert study.measured["the answer"].by_seed == [42.0, 44.0]
    assert study.measured["the answer"].holds
    assert reproduce("answer", quick=True).holds is False


def test_a_figure_that_is_missed_does_not_hold() -> None:
    # what was never measured does not hold either
    assert not Study(plan("tiny").shortened()).holds
    study = reproduce("impossible", quick=True)
    (one,) = study.measured.values()
    assert one.holds is False
    assert not study.holds
    assert one.to_json()["holds"] is False
    assert one.to_json()["deviation"] is None  # of one seed


def test_the_mean_over_seeds_is_what_must_hold() -> None:
    within = Figure(at_least=0.9, at_most=0.95)
    assert Measured("x", within, by_seed=[0.88, 0.93]).holds
    assert not Measured("x", within, by_seed=[0.86, 0.93]).holds
    assert not Measured("x", within, by_seed=[0.99, 0.93]).holds
    assert Measured("x", within, by_seed=[0.88, 0.93]).mean == pytest.approx(0.905)
    assert Measured("x", within, by_seed=[0.88, 0.92]).deviation == pytest.approx(
        0.04 / math.sqrt(2)
    )
    assert Measured("x", by_seed=[0.5]).holds is None
    never = Measured("x", within)
    assert never.holds is False
    assert never.to_json()["mean"] is None


def test_a_study_can_run_over_other_holdings() -> None:
    study = Study(plan("tiny").shortened())
    settings = study.settings()
    held = study.federation(settings, 0).holdings
    held = held.divided(
        lambda splits: {"train": splits["train"][:64], "test": splits["test"]}
    )
    federation = study.train("fewer rows", settings, 1, held)
    assert federation.batches.per_epoch == 2
    assert federation.settings.engine.seed == 1
    assert list(study.measured) == ["fewer rows, epoch 2"]
    losses = {
        step.batch.name: step.loss * step.batch.size
        for step in study.federation(settings, 1, held).train()
    }
    first = (
        sum(loss for name, loss in losses.items() if name.startswith("train/0/")) / 64
    )
    (((epoch, loss), _),) = study.losses["fewer rows"]
    assert epoch == 1
    assert loss == pytest.approx(first)


def test_a_run_that_diverges_scores_nothing_and_the_others_go_on() -> None:
    study = Study(plan("tiny").shortened())
    study.train("mad", study.settings({"algorithm": {"learning_rate": 1e30}}), 0)
    study.train("sane", study.settings(), 0)
    assert math.isnan(study.measured["mad, epoch 2"].mean)
    assert study.measured["mad, epoch 2"].to_json()["by_seed"] == [None]
    assert study.measured["sane, epoch 2"].mean > 0.5
