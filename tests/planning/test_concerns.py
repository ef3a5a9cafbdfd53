"""Each warning is given where its cause is, and not where it is not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.federation import small, small_multi
from tests.planning.three import GAUSSIAN, federation, frames, tables

from colonnade.planning.budgets import budget_ends, plan
from colonnade.planning.plan import concerns

PROTECTED = {name: {"outbox": GAUSSIAN} for name in ("lab", "scan")}
DRAWN = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 3.0}}}


def said(built: Any) -> str:
    return "\n".join(concerns(built, plan(built), budget_ends(built)))


@pytest.mark.parametrize(
    ("words", "cause", "cure"),
    [
        (
            "columns of 'lab', 'scan': no rule adds noise to what leaves (embedding",
            {},
            {"parties": PROTECTED},
        ),
        ("columns of 'clinic': what a label owner sends follows them", {}, None),
        ("the labels of 'clinic'", {}, {"parties": {"clinic": {"outbox": DRAWN}}}),
        (
            "batch_size is 500 and there are 63 training rows",
            {"train": {"batch_size": 500}},
            {},
        ),
        ("9 validation rows", {}, {"data": {"validation": 30}}),
        (
            "validation is 0, so the run cannot stop early",
            {"data": {"validation": 0.0}},
            {},
        ),
        ("test is 0", {"data": {"test": 0.0}}, {}),
        ("'lab' 4 for 2", {}, {"model": {"name": "linear", "width": 2}}),
        ("found by private set intersection first", {"data": {"align": "private"}}, {}),
        (
            "adds up two parties alone",
            {"algorithm": {"name": "vimadmm_joint", "aggregation": "secure"}},
            {"algorithm": {"name": "vimadmm_joint"}},
        ),
        (
            'noise = "seeded" protects nobody',
            {"federation": {"device": "cpu", "noise": "seeded"}},
            {},
        ),
        (
            "'lab' has a budget of epsilon 2, which ends",
            {"parties": {"lab": {"outbox": GAUSSIAN, "budget": {"epsilon": 2.0}}}},
            {"parties": {"lab": {"outbox": GAUSSIAN, "budget": {"epsilon": 40.0}}}},
        ),
    ],
)
def test_a_warning_goes_with_its_cause(
    words: str, cause: dict[str, Any], cure: dict[str, Any] | None
) -> None:
    assert words in said(federation(**cause))
    if cure is not None:
        assert words not in said(federation(**cure))


def test_a_slip_of_the_pen_in_a_label_is_told_before_the_run() -> None:
    given = frames()
    words = said(small.federation(given, tables()))
    assert "too few to learn" not in words
    given["clinic"].loc[3, "diagnosis"] = " ill"
    assert (
        "'clinic' has fewer than 5 of its 90 rows in a class of the label: ' ill' (1)."
        in said(small.federation(given, tables()))
    )


def test_of_several_label_owners_all_are_named() -> None:
    words = said(small_multi.federation())
    assert "labels of 'north', 'south'" in words
    assert "columns of 'lab', 'scan'" in words


@pytest.mark.filterwarnings("ignore:knn with plain aggregation")
def test_where_nothing_that_is_sent_follows_labels_they_are_no_concern() -> None:
    words = said(federation(algorithm={"name": "knn", "aggregation": "plain"}))
    assert "columns of 'clinic': they are added in without noise" in words
    assert "labels of" not in words


@pytest.mark.filterwarnings("ignore:knn with plain aggregation")
def test_noise_that_covers_some_rows_alone_is_a_concern() -> None:
    knn = {"algorithm": {"name": "knn", "aggregation": "plain"}}
    noisy = {"lab": {"outbox": {"distances": GAUSSIAN["embedding"]}}}
    words = (
        "The noise of 'lab' covers rows that are asked about; training rows enter every"
        " distance"
    )
    assert words in said(federation(**knn, parties=noisy))
    assert words not in said(federation(**knn))
