"""What VIM's grid over sigma, C and rate chooses at each epsilon."""

from __future__ import annotations

from reproductions.vim import dp, dp_chosen, dp_grid

from colonnade import reproduction

PLAN = reproduction.plan("vim-dp-grid")


def test_what_was_chosen_is_on_the_grid_and_keeps_within_its_epsilon() -> None:
    assert {method for method, _ in dp_chosen.CHOSEN} == set(dp.METHODS)
    for (method, epsilon), one in dp_chosen.CHOSEN.items():
        assert f"{method}, sigma {one.sigma:g}, C {one.clip:g}, rate {one.rate:g}" in dp_grid.cells(PLAN)
        assert dp_grid.spent(one.sigma, one.epoch) <= epsilon
        later = [epoch for epoch in PLAN.epochs if epoch > one.epoch]
        assert not later or dp_grid.spent(one.sigma, later[0]) > epsilon


def test_a_method_is_given_the_best_of_its_own_points_by_validation_rows() -> None:
    study = reproduction.Study(PLAN)
    for title, point in dp_grid.table(PLAN).items():
        own = {"VAFL": 0.05, "FDML": 0.5}.get(point.method)
        for epoch in PLAN.epochs:
            better = point.rate == own and point.clip == 0.1
            study.record(f"{title}, epoch {epoch}, validation", 0.5 + 0.2 * better + 0.01 * (point.sigma == 20))
            study.record(f"{title}, epoch {epoch}, test", 0.9 - 0.2 * better)
    dp_grid.finish(study)
    for method, rate in (("VAFL", 0.05), ("FDML", 0.5)):
        found = {name: study.measured[f"{method}, epsilon 0.1: {name}"].mean for name in ("sigma", "C", "rate")}
        assert found == {"sigma": 20, "C": 0.1, "rate": rate}
        assert study.measured[f"{method}, epsilon 1: test"].mean < 0.8  # test rows have no say


def test_what_was_run_with_three_seeds_is_what_the_points_choose() -> None:
    study = reproduction.Study(PLAN)
    points = dp_grid.known(PLAN)
    assert set(points) == set(dp_grid.cells(PLAN))
    for point in points.values():
        study.add(point.found())
    dp_grid.finish(study)
    for (method, epsilon), one in dp_chosen.CHOSEN.items():
        names = ("sigma", "C", "rate", "epoch")
        found = [study.measured[f"{method}, epsilon {epsilon:g}: {name}"].mean for name in names]
        assert found == [one.sigma, one.clip, one.rate, one.epoch]
