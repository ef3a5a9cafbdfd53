"""Verdicts follow from scores, and a threshold is crossed only above it."""

from __future__ import annotations

import dataclasses

import pytest

from colonnade.attacks.finding import (
    CLASSES,
    COLUMNS,
    LABELS,
    LIMITS,
    Finding,
    advantage,
    suggested,
    verdict,
)
from colonnade.settings.federation_file import Settings
from colonnade.settings.sections import AuditSettings

ONE = Finding(
    "labels",
    "lab",
    "clinic",
    "prediction",
    "looks",
    "accuracy",
    0.6,
    0.5,
    "…",
    limit="label_inference",
)


def test_an_advantage_is_what_a_guess_left_open() -> None:
    assert advantage(1.0, 0.9) == 1.0
    assert advantage(0.9, 0.9) == 0.0
    assert advantage(0.95, 0.9) == pytest.approx(0.5)


def test_a_threshold_may_be_reached_but_not_crossed() -> None:
    assert not ONE.crossed
    assert not ONE.under({"label_inference": 0.6}).crossed
    assert ONE.under({"label_inference": 0.59}).crossed
    assert not ONE.under({"inversion_r2": 0.1}).crossed
    assert ONE.under({"label_inference": 0.59}).to_json()["crossed"] is True


def test_every_limit_is_a_setting() -> None:
    assert tuple(AuditSettings().limits) == LIMITS


@pytest.mark.parametrize(
    ("guess", "value"), [(0.5, 0.6), (0.9, 0.92), (0.998, 0.9984), (1.0, 1.0)]
)
def test_a_suggested_threshold_is_above_a_guess(guess: float, value: float) -> None:
    one = dataclasses.replace(ONE, baseline=guess)
    other = dataclasses.replace(one, limit="inversion_r2", baseline=-1.0)
    assert suggested([other, one, dataclasses.replace(one, baseline=0.1)]) == (
        "label_inference",
        value,
    )
    assert suggested([other]) == ("inversion_r2", 0.2)
    assert suggested([]) == ("label_inference", 0.6)


def test_verdicts_in_words() -> None:
    assert verdict(LABELS, 1.0, 0.5, low=0.99) == "can tell nearly every label"
    assert verdict(LABELS, 0.7, 0.5, low=0.6) == "can tell many labels"
    assert verdict(LABELS, 0.55, 0.5, low=0.51) == "learns something about labels"
    # on so few rows it may be luck
    assert verdict(LABELS, 0.8, 0.5, low=0.49) == "no better than guessing"
    assert verdict(CLASSES, 0.99, 0.1, low=0.9) == "nearly every class is still seen"
    assert verdict(CLASSES, 0.2, 0.1, low=0.1) == "classes are no longer seen"
    assert verdict(COLUMNS, 0.95, 0.0) == "can rebuild rows almost exactly"
    assert (
        verdict(COLUMNS, 0.5, 0.5)
        == verdict(COLUMNS, -7.0, 0.0)
        == "hardly better than guessing the mean"
    )


def test_thresholds_are_kept_with_a_run_and_may_change_after_it() -> None:
    strict = Settings.from_mapping({"audit": {"label_inference": 0.6}})
    assert strict.to_mapping()["audit"] == {"label_inference": 0.6}
    assert Settings.from_mapping(strict.to_mapping()) == strict
    loose = Settings.from_mapping({})
    assert "audit" not in loose.to_mapping()
    strict.check_continues(loose)
    loose.check_continues(strict)
