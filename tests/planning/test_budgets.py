"""Where a budget ends, against the run that it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.federation import small_multi
from tests.planning.three import GAUSSIAN, federation, settings, tables

from colonnade.errors import BudgetExhausted
from colonnade.federation import Federation, Settings
from colonnade.planning.budgets import budget_ends, epsilon_of, in_words


def parties(epsilon: float, rules: dict[str, Any] = GAUSSIAN) -> dict[str, Any]:
    return {"lab": {"outbox": rules, "budget": {"epsilon": epsilon}}}


def finished(built: Federation) -> int:
    """How many epochs, with their validation, a run gets through before a budget is
    spent."""
    done = 0
    try:
        for step in built.train():
            if step.batch.number + 1 == built.batches.per_epoch:
                built.evaluate("validation")
                done += 1
    except BudgetExhausted:
        return done
    raise AssertionError("it lasted to the end")


@pytest.mark.parametrize("epsilon", [2.0, 4.0, 5.5])
def test_it_ends_in_the_epoch_in_which_the_run_stops(
    epsilon: float, tmp_path: Path
) -> None:
    found = settings(tmp_path, tables(train={"epochs": 5}, parties=parties(epsilon)))
    (end,) = budget_ends(Federation.from_settings(found))
    assert (end.party, end.purpose, end.epoch) == (
        "lab",
        "train",
        finished(Federation.from_settings(found)) + 1,
    )
    assert (end.times, end.rows) == (end.epoch - 1, 63)  # a row once an epoch


def test_a_budget_that_lasts_has_no_end() -> None:
    assert budget_ends(federation(parties=parties(50.0))) == []
    automatic = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": "auto"}}
    }
    assert budget_ends(federation(parties=parties(1.0, automatic))) == []


def test_rows_that_leave_with_less_noise_end_first() -> None:
    weak = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 2.0}}
    built = federation(
        train={"epochs": 5},
        parties=parties(6.0, {**GAUSSIAN, "validation.embedding": weak}),
    )
    (end,) = budget_ends(built)
    assert (end.purpose, end.epoch, end.times, end.rows) == ("validation", 2, 1, 9)
    assert finished(built) == 1
    (test,) = budget_ends(
        federation(
            parties=parties(
                6.0,
                {
                    **GAUSSIAN,
                    "test.embedding": {
                        **weak,
                        "mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 0.5},
                    },
                },
            )
        )
    )
    assert (test.purpose, test.epoch, test.times) == ("test", 3, 0)
    assert "ends in the test at the end" in in_words(test, 3)


def test_the_first_party_to_end_comes_first() -> None:
    two = {
        name: {"outbox": GAUSSIAN, "budget": {"epsilon": e}}
        for name, e in {"lab": 5.0, "scan": 3.0}.items()
    }
    ends = budget_ends(federation(train={"epochs": 5}, parties=two))
    assert [end.party for end in ends] == ["scan", "lab"]
    assert ends[0].epoch < ends[1].epoch


def test_whom_two_label_owners_know_is_released_twice_a_round(tmp_path: Path) -> None:
    lab = {"name": "lab", "outbox": small_multi.GAUSSIAN, "budget": {"epsilon": 4.0}}
    given = small_multi.quick(train={"epochs": 6}, data_owners=[lab])
    found = Settings.from_toml(small_multi.write(tmp_path, given))
    built = Federation.from_settings(found)
    (end,) = budget_ends(built)
    frames = small_multi.frames()
    both = set(frames["north"]["patient"]) & set(frames["south"]["patient"])
    assert end.row in both
    assert end.times == 2 * (end.epoch - 1)
    assert end.rows < len(both)  # those of them that are for training
    assert finished(built) == end.epoch - 1


def test_epsilon_of_an_account_is_what_it_counted_release_by_release() -> None:
    built = federation(parties={"lab": {"outbox": GAUSSIAN}})
    list(built.train())
    assert epsilon_of(built.accounts["lab"]) == pytest.approx(
        built.accounts["lab"].worst
    )


def test_words_name_the_party_the_epoch_and_the_cure() -> None:
    (end,) = budget_ends(federation(parties=parties(3.5)))
    words = in_words(end, 3)
    for part in (
        "'lab' has a budget of epsilon 3.5",
        "epoch 2 of 3",
        "63 of its training rows",
        "released once",
        "sigma",
    ):
        assert part in words, words


KNN = {"name": "knn", "aggregation": "plain"}


@pytest.mark.filterwarnings("ignore:knn with plain aggregation")
def test_where_nothing_is_trained_epochs_cost_nothing() -> None:
    def built(epochs: int, sigma: Any, epsilon: float = 4.0) -> Federation:
        rules = {
            "distances": {
                "mechanism": {"name": "gaussian", "clip": 1.0, "sigma": sigma}
            }
        }
        return federation(
            algorithm=KNN, train={"epochs": epochs}, parties=parties(epsilon, rules)
        )

    assert budget_ends(built(100, 4.0)) == []
    noise = [
        repr(
            built(epochs, "auto")
            .organisations["lab"]
            .outbox.rule("distances")
            .mechanism
        )
        for epochs in (1, 100)
    ]
    assert noise[0] == noise[1]
    (end,) = budget_ends(built(100, 1.0))
    assert (end.purpose, end.times) == ("validation", 0)
    assert "ends in the validation at the end: 9 of its validation rows" in in_words(
        end, 0
    )
    assert "epochs" not in in_words(end, 0)
