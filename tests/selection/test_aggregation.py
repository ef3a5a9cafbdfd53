"""The aggregation server adds and renames; it needs labels and secrets for neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.selection.made import classes, meeting

from colonnade.core import Batches, Organisation, Request
from colonnade.errors import PartyError
from colonnade.selection.aggregation import AggregationServer, More, Rank, Rest, Scan
from colonnade.selection.neighbours import shuffled, standardised

GROUPS = (("ada", "cyd"), ("bob",), ("ada", "bob", "dan"))


def test_it_names_each_groups_nearest() -> None:
    features, labels = classes(30)
    there = meeting(features, labels, scheme="ckks")
    order = shuffled(30, there.leader.shuffle)
    ready = {name: standardised(part)[order] for name, part in features.items()}
    queries = there.leader.outbox.release(
        torch.tensor([4, 9], dtype=torch.int32), "queries"
    )
    found = there.server.answer(Rank(GROUPS, queries, None, 3)).ids.tensor
    again = there.leader.outbox.release(torch.tensor([1], dtype=torch.int32), "stops")
    rest = there.server.answer(Rest(again, 3, 100)).ids.tensor
    assert (found.shape, rest.shape) == ((3, 2, 3), (3, 1, 26))
    for group, first, more in zip(GROUPS, found.tolist(), rest.tolist(), strict=True):
        joined = np.concatenate([ready[name] for name in group], axis=1)
        for at, query in enumerate((4, 9)):
            distance = ((joined - joined[query]) ** 2).sum(1)
            expected = [row for row in np.argsort(distance).tolist() if row != query]
            assert (first[at] + (more[0] if at else [])) == expected[: 29 if at else 3]


def test_it_reports_what_is_seen_in_all_lists_page_by_page() -> None:
    there = meeting(*classes(30), scheme="plain")
    queries = there.leader.outbox.release(
        torch.tensor([4, 9], dtype=torch.int32), "queries"
    )
    among = ("ada", "bob")
    seen = there.server.answer(Scan(among, queries, 5))
    assert seen.counts.shape == (2,)
    second = there.leader.outbox.release(torch.tensor([1], dtype=torch.int32), "stops")
    more = there.server.answer(More(second, 100))
    assert int(seen.counts.tensor[1]) + int(more.counts.tensor[0]) == 29, (
        "all others, at full depth"
    )


def test_what_is_asked_out_of_turn_is_refused() -> None:
    there = meeting(*classes(30), scheme="plain")
    rows = there.leader.outbox.release(torch.tensor([1], dtype=torch.int32), "queries")
    requests: list[tuple[Request[Any], str]] = [
        (More(rows, 5), "it has scanned no rankings; scan comes first"),
        (Rank(GROUPS, rows, rows, 3), "it has scanned no rankings; scan comes first"),
        (Rest(rows, 3, 5), "it has ranked nothing, .* rank comes first"),
    ]
    for request, why in requests:
        with pytest.raises(PartyError, match=why):
            there.server.answer(request)
    unprepared = AggregationServer(
        Organisation.at("server", Batches({}, batch_size=1, epochs=1, seed=0)),
        scheme="plain",
    )
    with pytest.raises(
        PartyError, match="it was given no keys; a selection starts with begin"
    ):
        unprepared.answer(Rank(GROUPS, rows, None, 3))


def test_with_participants_who_sort_the_reader_is_drawn() -> None:
    there = meeting(*classes(30), scheme="plain", decryptor="participants", queries=30)
    drawn = set()
    for _ in range(30):
        there.leader.information([("ada", "bob")])
        drawn.add(there.server._reader)
    assert drawn == {"ada", "bob", "cyd", "dan"}
