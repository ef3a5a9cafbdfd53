"""A selection gives what the joined columns would give, whichever way it was computed;
and its laws."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.selection.joined import ross
from tests.selection.made import EVERY, Features, classes, meeting, plainly

from colonnade.core.batches import seed_for
from colonnade.errors import ConfigError, DataError
from colonnade.selection import (
    METHODS,
    Selection,
    in_process,
    information_here,
    select_here,
)
from colonnade.selection.neighbours import shuffled, standardised
from colonnade.transport import InProcess


def tied(rows: int = 90) -> tuple[Features, NDArray[np.int64]]:
    """Few levels, so that many rows are equally far."""
    features, labels = classes(rows)
    return {name: np.round(part) for name, part in features.items()}, labels


@functools.cache
def reference(levels: bool = False) -> Selection:
    return plainly(*(tied() if levels else classes()))


def same(found: Selection, expected: Selection) -> None:
    assert found.groups.keys() == expected.groups.keys()
    assert found.scores == expected.scores
    assert found.ranking == expected.ranking


@pytest.mark.parametrize("levels", [False, True])
def test_every_group_is_ross_on_its_joined_columns(levels: bool) -> None:
    features, labels = tied() if levels else classes()
    # ties are broken in the order of pseudo ids
    order = shuffled(len(labels), seed_for(0, "shuffle"))
    ready = {name: standardised(part)[order] for name, part in features.items()}
    assert len(reference(levels).groups) == 6  # all halves of four
    for group, found in reference(levels).groups.items():
        joined = np.concatenate([ready[name] for name in group], axis=1)
        assert found == pytest.approx(ross(joined, labels[order]), abs=1e-12)


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"fagin": False}, {"batching": False}, {"fagin": False, "batching": False}],
    ids=str,
)
def test_optimisations_change_nothing(levels: bool, options: dict[str, bool]) -> None:
    features, labels = tied() if levels else classes()
    same(plainly(features, labels, **options), reference(levels))


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"through_bytes": True},
        {"decryptor": "participants"},
        {"batching": False},
        {"scheme": "bfv"},
    ],
    ids=str,
)
def test_encryption_changes_nothing(levels: bool, options: dict[str, object]) -> None:
    """Distances that differ by less than the scheme's precision, 1e-9 here, would be
    taken for equal; none do."""
    features, labels = tied() if levels else classes()
    few = {
        "groups": [["ada", "bob"], ["bob", "cyd", "dan"], ["ada"]],
        "keep": 1,
        "queries": EVERY,
    }
    expected = plainly(features, labels, **few)
    same(plainly(features, labels, **({"scheme": "ckks"} | few | options)), expected)


def test_queries_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colonnade.selection.leader.AT_ONCE", 90 * 7)
    steps: list[tuple[int, int]] = []
    same(
        plainly(*classes(), watch=lambda done, total: steps.append((done, total))),
        reference(),
    )
    assert steps[-1] == (90, 90)
    assert len(steps) == 13


def test_fewer_queries_are_rows_drawn_by_the_seed() -> None:
    features, labels = classes()
    found = [
        plainly(features, labels, queries=20, seed=seed).scores for seed in (0, 0, 1)
    ]
    assert found[0] == found[1] != found[2]


def test_rows_in_another_order_change_nothing() -> None:
    features, labels = classes()
    order = np.random.default_rng(3).permutation(len(labels))
    moved = plainly(
        {name: part[order] for name, part in features.items()}, labels[order]
    )
    assert moved.scores == pytest.approx(reference().scores, abs=1e-12)


def test_noise_ranks_last() -> None:
    features, labels = classes(200)
    assert plainly(features, labels).ranking[-1] == "dan"


def test_a_copy_knows_nothing_new() -> None:
    features, labels = classes()
    held = {**features, "eve": features["ada"]}
    found = information_here(held, labels, [["ada"], ["ada", "eve"]], queries=EVERY)
    assert found["ada", "eve"] == pytest.approx(found["ada",], abs=1e-12)


def test_tensors_one_column_and_some_rows() -> None:
    features, labels = classes()
    kept = np.arange(60)
    expected = plainly(
        {name: part[kept] for name, part in features.items()}, labels[kept]
    )
    torched = {name: torch.from_numpy(part) for name, part in features.items()} | {
        "ada": features["ada"][:, 0]
    }
    same(plainly(torched, torch.from_numpy(labels), rows=kept), expected)  # type: ignore[arg-type]


def test_a_leader_with_columns_is_one_organisation() -> None:
    features, labels = classes()
    found = plainly(features, labels, leader="bob")
    assert found.scores.keys() == features.keys()
    assert found.ledgers["bob"].total("own") > 0
    assert set(found.ledgers) == {*features, "aggregation_server", "key_server"}
    assert "joint mutual information" in found.learned["bob"]


def test_ledgers_are_what_transcripts_count() -> None:
    found = select_here(*classes(40), keep=2, record=True)
    assert found.recording is not None
    for name, ledger in found.ledgers.items():
        assert ledger.total("in") == found.recording.of(name).total()
    assert (
        found.cost.bytes
        == sum(ledger.total("in") for ledger in found.ledgers.values())
        > 0
    )


def test_operations_are_counted() -> None:
    features, labels = classes()
    groups = [["ada", "bob"], ["ada", "bob", "cyd"], ["dan"]]
    cost = plainly(features, labels, fagin=False, groups=groups).cost
    packs = math.ceil(90 * 89 / 4096)
    assert (cost.encryptions, cost.additions, cost.decryptions) == (
        3 * packs,
        3 * packs,
        2 * packs,
    )
    assert cost.candidates == 89
    assert plainly(features, labels, groups=groups).cost.candidates < 89
    apart = plainly(features, labels, groups=groups, batching=False, fagin=False).cost
    assert (apart.encryptions, apart.candidates) == (5 * packs, 3 * 89)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ranks_everybody_and_says_what_was_learned(method: str) -> None:
    found = plainly(*classes(), method=method, keep=2)
    assert sorted(found.ranking) == ["ada", "bob", "cyd", "dan"]
    assert found.chosen == found.ranking[:2]
    assert found.learned
    assert json.loads(json.dumps(found.to_json()))["chosen"] == list(found.chosen)
    if method != "random":
        assert set(found.chosen) == {"ada", "bob"}
    assert (
        bool(found.cost.bytes)
        == bool(found.groups)
        == (method not in ("random", "lasso"))
    )


def test_brute_force_by_a_function_of_ones_own() -> None:
    worth = {"ada": 0.1, "bob": 0.4, "cyd": 0.3, "dan": 0.2}
    found = plainly(
        *classes(),
        method="brute_force",
        keep=2,
        score=lambda group: sum(worth[name] for name in group),
    )
    assert set(found.chosen) == {"bob", "cyd"}
    assert len(found.groups) == 6
    assert found.cost.bytes == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"keep": 0},
            "keep must be a whole number from 1 to 4, the participants; found 0",
        ),
        ({"keep": 5}, "found 5"),
        (
            {"method": "vfps"},
            (
                "There is no selection method 'vfps', did you mean 'vf_ps'|no selection"
                " method 'vfps'"
            ),
        ),
        ({"querys": 3}, "has no setting 'querys'"),
        (
            {"k": 0},
            r"select_here: \[selection\] k must be a whole number, 1 or more; found 0",
        ),
        ({"groups": [["ada", "eve"]]}, r"found \['ada', 'eve'\]"),
        ({"groups": [["ada", "bob", "cyd"]]}, "'dan' is in none of the 1 test groups"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plainly(*classes(), **options)


def test_bad_parties_are_refused() -> None:
    features, labels = classes()
    with pytest.raises(DataError, match="'ada' has 80 rows and there are 90 labels"):
        plainly(features | {"ada": features["ada"][:80]}, labels)
    with pytest.raises(ConfigError, match="cannot be called 'key_server'"):
        plainly(features | {"key_server": features["ada"]}, labels)
    with pytest.raises(
        ConfigError, match="takes 2 or more participants with columns; found 1"
    ):
        plainly({"ada": features["ada"]}, labels)
    two = {name: features[name] for name in ("ada", "bob")}
    with pytest.raises(
        ConfigError,
        match=(
            "3 or more participants where they sort: of two, who sorts could subtract"
        ),
    ):
        plainly(two, labels, decryptor="participants")


def test_differences_within_error_are_said() -> None:
    """Views of one thing score alike: the one left out is told to be level; a column of
    noise is not."""
    random = np.random.default_rng(0)
    labels = np.arange(300) % 2
    thing = labels[:, None] + 0.6 * random.normal(size=(300, 2))
    views = {
        f"view{at}": thing + 0.05 * random.normal(size=(300, 2)) for at in range(2)
    }
    noise = {"noise": random.normal(size=(300, 2))}
    found = select_here(
        {**views, **noise}, labels, keep=1, method="vf_ps", scheme="plain", queries=100
    )
    assert found.errors.keys() == found.scores.keys()
    assert all(0 < error < 0.2 for error in found.errors.values())
    (left,) = [name for name in views if name not in found.chosen]
    assert left in found.level
    assert found.to_json()["level"] == list(found.level)
    clear = select_here(
        {"view0": views["view0"], **noise},
        labels,
        keep=1,
        method="leave_one_out",
        scheme="plain",
    )
    assert (clear.chosen, clear.level) == (("view0",), ())


def test_threads_are_chosen_by_counting_distances_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, labels = classes(60)
    found = []
    ways = []
    for least in (60 * 20 + 1, 60 * 20):
        monkeypatch.setattr(in_process, "IN_THREADS", least)
        carried = meeting(
            features, labels, scheme="plain", queries=20
        ).leader.peers.transport
        assert isinstance(carried, InProcess)
        ways.append(carried.parallel)
        found.append(plainly(features, labels, queries=20).scores)
    assert ways == ["never", "always"]
    assert found[0] == found[1]
