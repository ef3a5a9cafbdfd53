"""What VIM's grids over sigma, C and rate choose at each epsilon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reproductions.vim import dp, dp_chosen, dp_grid

from colonnade import reproduction
from colonnade.reproduction import Study
from colonnade.rows.public import from_dataset

GRIDS = [
    name for name in dp_grid.GRIDS if dp_grid.file(reproduction.plan(name)).exists()
]
PLAN = reproduction.plan("vim-dp-grid")


def put_together(name: str) -> Study:
    """The grid as it was run."""
    study = Study(reproduction.plan(name))
    for point in dp_grid.known(study.plan).values():
        study.add(point.recorded())
    dp_grid.finish(study)
    return study


def put(study: Study, title: str, seed: int, epoch: int, score: float) -> None:
    """A cell of those that were chosen."""
    measured = [
        {"what": f"{title}, epoch {epoch}, test", "unit": "%", "by_seed": [score]}
    ]
    study.add(
        {"measured": measured, "curves": {}, "losses": {}}, cell=f"{title}, seed {seed}"
    )


@pytest.mark.parametrize("name", GRIDS)
def test_what_was_chosen_is_on_the_grid_and_keeps_within_its_epsilon(name: str) -> None:
    plan, chosen = (
        reproduction.plan(name),
        dp_chosen.chosen(reproduction.plan(name.replace("grid", "chosen"))),
    )
    assert set(chosen) == {
        (method, epsilon) for method in dp.METHODS for epsilon in dp_grid.EPSILONS
    }
    for (method, epsilon), one in chosen.items():
        assert (
            f"{method}, sigma {one.sigma:g}, C {one.clip:g}, rate {one.rate:g}"
            in dp_grid.cells(plan)
        )
        assert dp_grid.spent(plan, one.sigma, one.epoch) <= epsilon
        later = [
            epoch for epoch in dp_grid.epochs_of(plan, method) if epoch > one.epoch
        ]
        assert not later or dp_grid.spent(plan, one.sigma, later[0]) > epsilon


def test_a_method_is_given_the_best_of_its_own_points_by_validation_rows() -> None:
    study = Study(PLAN)
    for title, point in dp_grid.table(PLAN).items():
        own = {"VAFL": 0.05, "FDML": 0.5}.get(point.method)
        for epoch in PLAN.epochs:
            better = point.rate == own and point.clip == 0.1
            study.record(
                f"{title}, epoch {epoch}, validation",
                0.5 + 0.2 * better + 0.01 * (point.sigma == 20),
            )
            study.record(f"{title}, epoch {epoch}, test", 0.9 - 0.2 * better)
    dp_grid.finish(study)
    for method, rate in (("VAFL", 0.05), ("FDML", 0.5)):
        found = {
            name: study.measured[f"{method}, epsilon 0.1: {name}"].mean
            for name in ("sigma", "C", "rate")
        }
        assert found == {"sigma": 20, "C": 0.1, "rate": rate}
        # test rows have no say
        assert study.measured[f"{method}, epsilon 1: test"].mean < 0.8


@pytest.mark.parametrize("name", GRIDS)
def test_what_is_kept_of_a_grid_is_every_point_and_what_they_choose(name: str) -> None:
    plan = reproduction.plan(name)
    study = put_together(name)
    text = dp_grid.file(plan).read_text(encoding="utf-8")
    assert set(json.loads(text)["points"]) == set(dp_grid.cells(plan))
    measured = [one.to_json() for one in study.measured.values()]
    assert dp_grid.kept(plan, measured, json.loads(text)["hardware"]) == text


@pytest.mark.parametrize("name", dp_grid.GRIDS)
def test_every_epsilon_has_a_point_of_ten_epochs(name: str) -> None:
    """So that methods that need many rounds are not shut out where rows are few; and no
    sigma is for nothing."""
    plan = reproduction.plan(name)
    sigmas = dp_grid.GRIDS[name].sigmas
    for epsilon in dp_grid.EPSILONS:
        assert dp_grid.spent(plan, max(sigmas), 10) <= epsilon
    assert all(
        dp_grid.spent(plan, sigma, 1) <= max(dp_grid.EPSILONS) for sigma in sigmas
    )


def test_cifar_has_few_points_of_which_one_is_table_3s_and_admm_ends_early() -> None:
    plan = reproduction.plan("vim-dp-grid-cifar")
    points = list(dp_grid.table(plan).values())
    assert len(points) == len(dp_grid.cells(plan)) == 3 * 13 + 2 * 6
    assert [
        point for point in points if point[1:] == dp_grid.CIFAR_TABLE_3[point.method]
    ] == [
        dp_grid.Point(method, *dp_grid.CIFAR_TABLE_3[method]) for method in dp.METHODS
    ]
    assert {point.sigma for point in points} == set(dp_grid.GRIDS[plan.name].sigmas)
    study = Study(plan)
    for title, point in dp_grid.table(plan).items():
        for epoch in dp_grid.epochs_of(plan, point.method):
            for split in dp_grid.SPLITS:
                study.record(
                    f"{title}, epoch {epoch}, {split}",
                    0.5 + 0.01 * (point.sigma == 2) + 0.001 * epoch,
                )
    dp_grid.finish(study)
    at = {
        epsilon: [
            study.measured[f"VIMADMM, epsilon {epsilon}: {name}"].mean
            for name in ("sigma", "epoch")
        ]
        for epsilon in (0.1, 0.3, 1)
    }
    assert at == {0.1: [20, 2], 0.3: [20, 2], 1: [2, 2]}
    assert study.measured["FDML, epsilon 1: epoch"].mean == 7
    kept = json.loads(
        dp_grid.kept(plan, [one.to_json() for one in study.measured.values()], "none")
    )
    assert {
        len(one["test"])
        for title, one in kept["points"].items()
        if title.startswith("VIMADMM")
    } == {2}


def test_epsilons_with_the_same_choice_share_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = reproduction.plan("vim-dp-chosen-cifar")
    path = tmp_path / "chosen.json"
    told = {
        "VIMADMM, epsilon 0.1": [20, 0.01, 0.05, 2],
        "VIMADMM, epsilon 0.3": [20, 0.01, 0.05, 2],
    }
    path.write_text(
        json.dumps({"chosen": told | {"VIMADMM, epsilon 1": [2, 0.1, 0.05, 2]}})
    )
    monkeypatch.setattr(dp_chosen, "choices", lambda _: path)
    ran = [
        cell
        for cell in dp_chosen.cells(plan)
        if cell.startswith("VIMADMM, ") and cell.endswith("seed 0")
    ]
    assert ran == [
        f"VIMADMM, epsilon {at}, seed 0"
        for at in ("0.1", "0.1, noise alone", "1", "1, noise alone")
    ]
    study = Study(plan)
    for seed in plan.seeds:
        put(study, "VIMADMM, epsilon 0.1", seed, 2, 0.5 + 0.1 * seed)
        put(study, "VIMADMM, epsilon 0.1, noise alone", seed, 2, 0.4)
    dp_chosen.finish(study)
    assert study.measured[
        "VIMADMM, epsilon 0.3: above noise alone"
    ].by_seed == pytest.approx([0.1, 0.2, 0.3])
    assert "VIMADMM, epsilon 1: test" not in study.measured


@pytest.mark.parametrize("data", ["letter", "modelnet10", "cifar"])
def test_a_set_has_the_rows_methods_and_settings_that_it_has_without_noise(
    data: str,
) -> None:
    study = Study(reproduction.plan(f"vim-dp-grid-{data}"))
    plain = reproduction.plan(f"vim-{data}")
    assert study.plan.config == plain.config
    for method in dp.METHODS:
        told = dp.at_rate(study, plain.runs[method], 0.7)
        config = Study(plain).settings(plain.runs[method]).to_mapping()["algorithm"]
        rates = {
            name for name in config if name in ("learning_rate", "head_learning_rate")
        }
        assert told == config | dict.fromkeys(rates, 0.7)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.long] if "cifar" in name or "net" in name else []
        )  # which take long to read
        for name in dp_grid.GRIDS
    ],
)
def test_batches_are_the_share_of_rows_that_is_accounted_for(
    name: str, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(data_folder))
    settings = Study(reproduction.plan(name)).settings()
    assert settings.train.batch_size == dp_grid.BATCH
    assert len(from_dataset(settings).splits["train"]) == dp_grid.GRIDS[name].rows


def test_a_method_is_set_beside_its_control_and_the_baselines_seed_by_seed() -> None:
    study = Study(reproduction.plan("vim-dp-chosen"))
    for (method, epsilon), one in dp_chosen.chosen(study.plan).items():
        for seed in study.plan.seeds:
            score = {"FDML": 0.8, "VIMADMM": 0.7 + 0.1 * seed}.get(method, 0.5)
            title = f"{method}, epsilon {epsilon:g}"
            put(study, title, seed, one.epoch, score)
            put(study, f"{title}, noise alone", seed, one.epoch, 0.4)
    dp_chosen.finish(study)
    assert study.measured["VIMADMM, epsilon 1: above FDML"].by_seed == pytest.approx(
        [-0.1, 0.0, 0.1]
    )
    assert study.measured[
        "FDML, epsilon 0.3: above noise alone"
    ].by_seed == pytest.approx([0.4] * 3)
    assert study.measured[
        "VIMADMM, epsilon 1: against the label owner"
    ].mean == pytest.approx(7.51, abs=0.01)
    assert "FDML, epsilon 1: above VAFL" not in study.measured


def test_seeds_that_were_not_run_shift_no_other_beside_the_wrong_one() -> None:
    study = Study(reproduction.plan("vim-dp-chosen"))
    epochs = {
        method: dp_chosen.chosen(study.plan)[method, 1.0].epoch
        for method in ("FDML", "VIMADMM-J")
    }
    for seed in study.plan.seeds:
        for sent, less in (("", 0.0), (", noise alone", 0.1)):
            put(
                study,
                f"FDML, epsilon 1{sent}",
                seed,
                epochs["FDML"],
                0.5 + 0.1 * seed - less,
            )
    put(study, "VIMADMM-J, epsilon 1", 2, epochs["VIMADMM-J"], 0.8)
    for seed in (0, 2):
        put(
            study,
            "VIMADMM-J, epsilon 1, noise alone",
            seed,
            epochs["VIMADMM-J"],
            0.4 + 0.1 * seed,
        )
    dp_chosen.finish(study)
    found = {
        what: study.measured[f"VIMADMM-J, epsilon 1: {what}"].by_seed
        for what in ("above FDML", "noise alone")
    }
    assert found == {
        "above FDML": pytest.approx([0.1]),
        "noise alone": pytest.approx([0.6]),
    }
