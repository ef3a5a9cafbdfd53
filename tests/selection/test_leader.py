"""The leader's queries, and when it stops asking."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.selection.made import classes, meeting

from colonnade.errors import ConfigError, DataError
from colonnade.selection import SelectionSettings
from colonnade.selection.leader import Leader
from colonnade.selection.neighbours import shuffled


def test_a_row_alone_in_its_class_is_no_query_but_a_neighbour() -> None:
    features, labels = classes(30)
    labels[7] = 9
    there = meeting(features, labels, queries=100, scheme="plain")
    rows = shuffled(30, there.leader.shuffle)[there.leader.queries]
    assert sorted(rows.tolist()) == [row for row in range(30) if row != 7]
    assert np.isfinite(there.leader.information([("ada", "bob")])["ada", "bob"])


def test_queries_are_the_same_rows_whatever_the_shuffle() -> None:
    features, labels = classes(30)
    rows = []
    for shuffle in (1, 2):
        there = meeting(features, labels, queries=10, scheme="plain")
        there.organisations["leader"].generator.manual_seed(0)
        leader = Leader(
            there.organisations["leader"],
            labels,
            SelectionSettings(queries=10),
            shuffle,
        )
        rows.append(shuffled(30, shuffle)[leader.queries].tolist())
    assert rows[0] == rows[1]


def test_the_shuffle_is_secret_unless_it_is_to_be_repeated() -> None:
    _, labels = classes(30)
    organisations = meeting(*classes(30), scheme="plain").organisations
    drawn = {
        Leader(organisations["leader"], labels, SelectionSettings()).shuffle
        for _ in range(3)
    }
    assert len(drawn) == 3


def test_k_above_a_classs_size_takes_all_of_it() -> None:
    features, labels = classes(30)
    found = meeting(features, labels, queries=100, k=25, scheme="plain")
    assert found.leader.neighbours.max() == np.bincount(labels).max() - 1
    assert np.isfinite(found.leader.information([("ada", "bob")])["ada", "bob"])


def test_it_stops_at_the_kth_of_the_label_and_asks_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Places asked for by `Rest` go to queries that still lack one, and to no other."""
    monkeypatch.setattr("colonnade.selection.leader.PLACES", 1)
    there = meeting(*classes(90), queries=90, scheme="plain", record=True, k=5)
    there.leader.information([("dan",), ("cyd", "dan")])
    assert there.recording is not None
    sizes = [
        tensor.shape[1] for tensor in there.recording.of("leader").tensors("sorted_ids")
    ]
    assert sizes[0] == 90
    assert len(sizes) > 1
    assert all(later < earlier for earlier, later in itertools.pairwise(sizes))


def test_everybody_must_have_the_same_rows() -> None:
    features, labels = classes(30)
    there = meeting(features, labels, scheme="plain")
    there.participants["bob"]._features = features["bob"][:20]
    for one in there.participants.values():
        one._columns = None
    with pytest.raises(ConfigError, match="'bob' has 20 rows and 'leader' 30 labels"):
        there.leader.meet(there.leader.peers, list(features), ["key_server"])


def test_labels_without_classes_are_refused() -> None:
    with pytest.raises(DataError, match="all 30 labels differ"):
        meeting(classes(30)[0], np.arange(30), scheme="plain")
