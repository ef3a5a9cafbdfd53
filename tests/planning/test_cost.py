"""A whole run's parts, each against a federation that does that part alone."""

from __future__ import annotations

import pytest
from tests.planning.three import GAUSSIAN, federation

from colonnade.planning import cost
from colonnade.planning.measure import Cost, Traffic, take_traffic, total


def test_training_validation_and_the_end_each_cost_what_they_do() -> None:
    costs = cost.whole_run(federation(), 2)
    built = federation()
    list(built.train())
    assert costs.training.traffic == total(take_traffic(built.ledgers).values())
    for _ in range(3):
        built.evaluate("validation")
    assert costs.validation.traffic == total(take_traffic(built.ledgers).values())
    for split in ("train", "validation", "test"):
        built.evaluate(split)
    assert costs.final.traffic == total(take_traffic(built.ledgers).values())
    assert (costs.rounds, costs.per_epoch) == (12, 4)


def test_where_rows_are_counted_only_the_test_is_scored_at_the_end() -> None:
    built = federation(parties={"lab": {"outbox": GAUSSIAN}})
    costs = cost.whole_run(built, 1)
    take_traffic(built.ledgers)
    built.evaluate("test")
    assert costs.final.traffic == total(take_traffic(built.ledgers).values())


def test_where_nothing_is_trained_scoring_opens() -> None:
    built = federation(algorithm={"name": "knn", "aggregation": "plain"})
    costs = cost.whole_run(built, 2)
    assert costs.rounds == 0
    assert not costs.training.traffic
    assert not costs.validation.traffic
    assert costs.final.traffic


@pytest.mark.parametrize(
    "algorithm", [{"name": "vimadmm"}, {"name": "knn", "aggregation": "plain"}]
)
def test_finding_the_common_rows_is_counted_once(algorithm: dict[str, str]) -> None:
    plain, private = (
        federation(algorithm=algorithm, data={"align": how})
        for how in ("exact", "private")
    )
    aligning = Traffic(
        {
            (name, way): book.total(way)
            for name, book in private.ledgers.items()
            for way in ("out", "in")
        }
    )
    without, whole = (
        total(part.traffic for part in cost.whole_run(one, 2).parts)
        for one in (plain, private)
    )
    assert whole == total([without, aligning])
    assert aligning["lab", "out"] > 0


def test_without_patience_a_short_batch_counts_as_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = cost.whole_run(federation(), 2)
    monkeypatch.setattr(cost, "PATIENCE", 0.0)
    quick = cost.whole_run(federation(), 2)
    assert cost.AT_MOST in quick.estimates
    assert not exact.estimates
    for key, count in exact.training.traffic.items():
        assert count < quick.training.traffic[key] < count * 1.1
    assert len(quick.per_batch) == 1


def test_costs_are_added_so_many_times() -> None:
    found = Cost()
    found.add(Traffic({("lab", "out"): 3}), 4, 0.5, 2)
    found.add(Traffic({("lab", "out"): 1}))
    assert (found.traffic["lab", "out"], found.seconds, found.exchanges) == (13, 2.0, 8)
