"""Verdicts follow from scores, and a threshold is crossed only above it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from colonnade.attacks.finding import (
    LIMITS,
    NOT_MEASURED,
    NOT_RULED_OUT,
    Finding,
    advantage,
    suggested,
)
from colonnade.attacks.scores import AUC
from colonnade.runs.run_directory import to_json
from colonnade.settings.federation_file import Settings
from colonnade.settings.sections import AuditSettings

COLUMN = Finding(
    attack="columns",
    attacker="clinic",
    victim="lab",
    moment="prediction",
    assumes="looks",
    metric="R²",
    score=0.6,
    baseline=0.0,
    limit="inversion_r2",
)
ONE = Finding(
    attack="labels",
    attacker="lab",
    victim="clinic",
    moment="prediction",
    assumes="looks",
    metric=AUC,
    score=0.8,
    baseline=0.5,
    low=0.7,
    high=0.9,
    limit="label_inference",
)
UNMEASURED = dataclasses.replace(
    ONE, score=None, low=None, high=None, undecided=((0.0, 1.0),)
)


def at(low: float, high: float = 1.0) -> Finding:
    return dataclasses.replace(ONE, score=high, low=low, high=high)


def rebuilt(score: float, baseline: float = 0.0) -> Finding:
    return dataclasses.replace(COLUMN, score=score, baseline=baseline)


def test_an_advantage_is_what_a_guess_left_open() -> None:
    assert advantage(1.0, 0.9) == 1.0
    assert advantage(0.9, 0.9) == 0.0
    assert advantage(0.95, 0.9) == pytest.approx(0.5)


def test_a_threshold_may_be_reached_but_not_crossed() -> None:
    assert not COLUMN.crossed
    assert not COLUMN.under({"inversion_r2": 0.6}).crossed
    assert COLUMN.under({"inversion_r2": 0.59}).crossed
    assert not COLUMN.under({"label_inference": 0.1}).crossed
    assert COLUMN.under({"inversion_r2": 0.59}).to_json()["crossed"] is True


def test_of_auc_the_lower_end_of_its_interval_counts() -> None:
    assert ONE.proven == 0.7
    assert not ONE.under({"label_inference": 0.7}).crossed
    assert ONE.under({"label_inference": 0.69}).crossed


def test_what_was_not_measured_is_no_pass() -> None:
    assert not UNMEASURED.measured
    assert not UNMEASURED.leaks
    assert not UNMEASURED.counts
    assert UNMEASURED.verdict == NOT_MEASURED
    for threshold in (0.5, 0.8, 0.99):
        limited = UNMEASURED.under({"label_inference": threshold})
        assert limited.unknown
        assert not limited.crossed
    assert not UNMEASURED.unknown
    # a threshold that nothing can be above needs no rows
    assert not UNMEASURED.under({"label_inference": 1.0}).unknown


def test_a_threshold_that_too_few_rows_could_show_to_be_crossed_is_not_kept() -> None:
    perfect = dataclasses.replace(at(low=0.85), undecided=((0.85, 1.0),))
    assert perfect.under({"label_inference": 0.8}).crossed
    assert perfect.under({"label_inference": 0.9}).unknown
    assert perfect.measures_every_class
    assert not UNMEASURED.measures_every_class


def test_a_finding_is_read_as_it_was_written() -> None:
    limits = {"label_inference": 0.9}
    for finding in (ONE.under(limits), COLUMN, UNMEASURED.under(limits)):
        assert Finding.from_json(json.loads(to_json(finding.to_json()))) == finding


def test_every_limit_is_a_setting() -> None:
    assert tuple(AuditSettings().limits) == LIMITS


@pytest.mark.parametrize(("guess", "value"), [(0.5, 0.6), (0.9, 0.92)])
def test_a_suggested_threshold_is_above_a_guess(guess: float, value: float) -> None:
    one = dataclasses.replace(ONE, baseline=guess)
    column = rebuilt(0.3, baseline=-1.0)
    assert suggested([column, one]) == ("label_inference", value)
    assert suggested([column]) == ("inversion_r2", 0.2)
    assert suggested([]) == ("label_inference", 0.6)


def test_verdicts_in_words() -> None:
    assert at(low=0.99).verdict == "can tell nearly every label"
    assert at(low=0.7).verdict == "can tell many labels"
    assert at(low=0.51).verdict == "learns something about labels"
    assert at(low=0.45, high=0.6).verdict == "no better than guessing"
    # on so few rows it may be luck, and it may be a leak
    assert at(low=0.49, high=0.9).verdict == NOT_RULED_OUT
    assert at(low=0.1, high=0.6).verdict == NOT_RULED_OUT
    seen = dataclasses.replace(at(low=0.9), limit="recognition")
    assert seen.verdict == "nearly every class is still seen"
    blank = dataclasses.replace(at(low=0.4, high=0.6), limit="recognition")
    assert blank.verdict == "classes are no longer seen"
    assert rebuilt(0.95).verdict == "can rebuild rows almost exactly"
    assert rebuilt(0.5, baseline=0.5).verdict == rebuilt(-7.0).verdict
    assert rebuilt(-7.0).verdict == "hardly better than guessing the mean"
    assert [at(low=0.51).leaks, at(low=0.49).leaks] == [True, False]
    assert [rebuilt(0.11).leaks, rebuilt(0.09).leaks] == [True, False]


def test_thresholds_are_kept_with_a_run_and_may_change_after_it() -> None:
    strict = Settings.from_mapping({"audit": {"label_inference": 0.6}})
    assert strict.to_mapping()["audit"] == {"label_inference": 0.6}
    assert Settings.from_mapping(strict.to_mapping()) == strict
    loose = Settings.from_mapping({})
    assert "audit" not in loose.to_mapping()
    strict.check_continues(loose)
    loose.check_continues(strict)
