"""An algorithm's record: what it says, and what it refuses."""

from __future__ import annotations

import dataclasses

import pytest

from colonnade.algorithms import ALGORITHMS, fdml, knn, multi_vfl, splitnn, vfedcce
from colonnade.algorithms.algorithm import Kind, Release
from colonnade.core import NON_PRIVATE
from colonnade.core.receipt import PUBLIC
from colonnade.errors import ConfigError


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_release_says_what_it_is(name: str) -> None:
    algorithm = ALGORITHMS[name]
    assert algorithm.config.about().endswith(".")
    assert algorithm.from_columns, "a budget would be for nothing"
    for release in algorithm.releases.values():
        assert (release.of == "nothing") == (release.kind in (Kind.KEY, Kind.LAYOUT))
    columns, others = algorithm.crosses(algorithm.config())
    assert set(columns) | set(others) <= set(algorithm.releases)


def test_what_a_budget_is_for_takes_noise_and_has_a_line_for_each_row() -> None:
    assert splitnn.ALGORITHM.from_columns == ["embedding"]
    assert vfedcce.ALGORITHM.from_columns == ["log_odds"]
    assert knn.ALGORITHM.from_columns == ["distances"]  # neighbours are numbers of rows


def test_what_crosses_follows_from_the_kinds_unless_settings_decide() -> None:
    class Slopes(splitnn.Config):
        reveals = {"slope": "labels", "key": "nothing", "sums": "sums"}

    columns, labels = dataclasses.replace(
        splitnn.ALGORITHM,
        config=Slopes,
        releases={
            "slope": Release(Kind.GRADIENT, of="labels", per_row=True),
            "key": Release(Kind.KEY, of="nothing", per_row=False),
            "sums": Release(Kind.OTHER, of="columns", per_row=False),
        },
    ).crosses(splitnn.Config())
    assert (columns, labels) == (
        {"sums": NON_PRIVATE},
        {"slope": NON_PRIVATE, "key": PUBLIC},
    )
    assert "jacobian" in vfedcce.ALGORITHM.crosses(vfedcce.Config(mode="plaintext"))[0]


def test_names_are_found_by_kind() -> None:
    assert fdml.ALGORITHM.named(Kind.LOGIT_GRADIENT, Kind.LOGITS) == (
        "logits",
        "gradient",
    )
    assert fdml.ALGORITHM.named(Kind.GRADIENT) == ()


def test_somebody_drives_and_only_one() -> None:
    with pytest.raises(
        ConfigError,
        match=r"either train, .* or nested; colonnade\.algorithms\.splitnn has neither",
    ):
        dataclasses.replace(splitnn.ALGORITHM, train=None)
    with pytest.raises(ConfigError, match="has both"):
        dataclasses.replace(ALGORITHMS["splitnn"], nested=multi_vfl.ALGORITHM.nested)


def test_a_step_has_the_wanted_rows_or_all() -> None:
    assert splitnn.ALGORITHM.batch_size(32, 100) == 32

    class Rounds(splitnn.Config):
        in_batches = False

    rounds = dataclasses.replace(splitnn.ALGORITHM, config=Rounds)
    assert (rounds.batch_size(32, 100), rounds.batch_size(32, 0)) == (100, 1)
    assert (splitnn.ALGORITHM.passes(7), knn.ALGORITHM.passes(7)) == (7, 0)
