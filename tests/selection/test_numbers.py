"""Labels that are numbers: Kraskov's estimate on sums that the leader decrypts, and
what reaches it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.feature_selection import mutual_info_regression
from tests.selection.joined import kraskov
from tests.selection.made import EVERY, Features, classes, meeting, numbers, plainly

from colonnade.core import Ciphertext
from colonnade.errors import ConfigError, PartyError
from colonnade.selection import Selection, information_here, select_here
from colonnade.selection.aggregation import Add
from colonnade.selection.neighbours import Columns, shuffled, standardised

SERVER = "aggregation_server"


def tied() -> tuple[Features, NDArray[np.float64]]:
    """Few levels, of the label too: many rows are equal in both."""
    features, labels = numbers()
    return {name: np.round(part / 2) for name, part in features.items()}, np.round(
        labels * 2
    ) / 4


def centrally(
    features: Features, labels: NDArray[np.float64], group: tuple[str, ...], k: int = 3
) -> float:
    joined = np.concatenate([standardised(features[name]) for name in group], axis=1)
    return kraskov(
        joined / np.sqrt(joined.shape[1]), standardised(labels[:, None])[:, 0], k=k
    )


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"leader": "bob"},
        {"batching": False},
        {"scheme": "ckks"},
        {"scheme": "bfv"},
        {"through_bytes": True},
    ],
    ids=str,
)
def test_every_group_is_kraskov_on_its_joined_columns(
    levels: bool, options: dict[str, Any]
) -> None:
    features, labels = tied() if levels else numbers()
    groups = [
        ["ada", "cyd", "dan"],
        ["ada", "bob", "cyd"],
        ["ada", "bob", "cyd", "dan"],
    ]
    found = plainly(features, labels, groups=groups, **options).groups
    assert len(found) == 3
    assert len({round(value, 3) for value in found.values()}) == 3
    for group, value in found.items():
        assert value == pytest.approx(centrally(features, labels, group), abs=1e-9)


@pytest.mark.parametrize("method", ["vf_ps", "leave_one_out", "brute_force"])
def test_every_method_takes_numbers(method: str) -> None:
    features, labels = numbers(200)
    found = plainly(features, labels, method=method, keep=2, k=4)
    assert set(found.chosen) == {"ada", "bob"}
    for group, value in found.groups.items():
        assert len(group) > 1
        assert value == pytest.approx(centrally(features, labels, group, k=4), abs=1e-9)
    assert set(plainly(features, labels, method="lasso", keep=2).chosen) == {
        "ada",
        "bob",
    }


def test_one_column_is_scikit_learns() -> None:
    """A group whose other member is constant has one column."""
    random = np.random.default_rng(0)
    x = random.normal(size=300)
    y = x + random.normal(size=300)
    features = {"ada": x, "bob": np.ones(300), "cyd": np.zeros(300)}
    found = information_here(features, y, [["ada", "bob"]], queries=EVERY)
    (expected,) = mutual_info_regression(x[:, None], y, n_neighbors=3, random_state=0)
    assert found["ada", "bob"] == pytest.approx(expected, abs=1e-9)


def test_noise_in_one_place_tells_nothing_of_noise_in_another() -> None:
    random = np.random.default_rng(1)
    features = {name: random.normal(size=(500, 1)) for name in ("ada", "bob", "cyd")}
    y = random.normal(size=500)
    assert (
        abs(
            information_here(features, y, [["ada", "bob"]], queries=EVERY)["ada", "bob"]
        )
        < 0.08
    )
    told = features["ada"][:, 0] + features["bob"][:, 0]
    assert (
        information_here(features, told, [["ada", "bob"]], queries=EVERY)["ada", "bob"]
        > 0.8
    )


def test_wide_groups_are_measured_by_the_mean_over_their_columns() -> None:
    """Else their distances exceed all of labels, and the estimate sinks to 0. The truth
    is that of a normal pair."""
    random = np.random.default_rng(0)
    features = {
        name: random.normal(size=(500, 10 if name == "ada" else 1))
        for name in ("ada", "bob", "cyd")
    }
    y = 0.8 * features["ada"].sum(1) / np.sqrt(10) + 0.6 * random.normal(size=500)
    truth = -np.log(0.6)
    group = ["ada", "bob"]
    found, wide = (
        information_here(features, y, [group], scaling=how)["ada", "bob"]
        for how in ("standard", "none")
    )
    assert wide < truth / 3 < found < truth


def test_the_labels_unit_does_not_matter_unless_nothing_is_scaled() -> None:
    features, labels = numbers()
    groups = [list(features)]
    assert plainly(features, labels * 1000 + 7, groups=groups).scores == pytest.approx(
        plainly(features, labels, groups=groups).scores, abs=1e-12
    )
    (raw,) = plainly(features, labels, groups=groups, scaling="none").groups.values()
    assert raw == pytest.approx(
        kraskov(np.concatenate(list(features.values()), axis=1), labels), abs=1e-9
    )


def test_bins_are_the_cheaper_way() -> None:
    features, labels = numbers(200)
    found = plainly(features, labels, bins=3, keep=2)
    assert set(found.chosen) == {"ada", "bob"}
    assert (
        found.cost.candidates < plainly(features, labels, keep=2).cost.candidates == 199
    )
    assert "key_server" in found.learned
    two = {name: features[name] for name in ("ada", "bob")}
    assert list(plainly(two, labels, bins=3).groups) == [("ada",), ("bob",)]


@pytest.mark.parametrize("scheme", ["plain", "ckks"])
def test_classes_give_the_same_whoever_decrypts(scheme: str) -> None:
    features, labels = classes()
    rounded = {name: np.round(part) for name, part in features.items()}
    groups = [["ada", "bob"], ["ada", "cyd", "dan"]]
    found = plainly(rounded, labels, groups=groups, decryptor="leader", scheme=scheme)
    assert found.groups == pytest.approx(
        plainly(rounded, labels, groups=groups).groups, abs=1e-12
    )


@functools.cache
def run(scheme: str = "ckks") -> Selection:
    features, labels = numbers(60)
    return plainly(
        features, labels, record=True, through_bytes=True, scheme=scheme, queries=20
    )


def readable(found: Selection, party: str) -> list[torch.Tensor]:
    assert found.recording is not None
    messages = [
        seen.message for seen in found.recording.of(party) if seen.sender != party
    ]
    return [item.tensor for message in messages for item in message.released()]


def test_the_leader_gets_sums_of_two_or_more_and_nobody_else_anything_to_read() -> None:
    found = run()
    assert found.recording is not None
    sums = [
        item
        for seen in found.recording.of("leader")
        for item in seen.message.crossing()
    ]
    ciphers = [item for item in sums if isinstance(item, Ciphertext)]
    assert len(ciphers) == len(found.groups)
    assert all(item.encrypted.bound >= 2 * 2.0**16 / 4 for item in ciphers)
    for party in (*numbers(60)[0], SERVER):
        kinds = {tensor.dtype for tensor in readable(found, party)}
        assert kinds == {torch.int32, torch.uint8}, "pseudo ids, counts and public keys"
    names = {
        item.receipt.name
        for seen in found.recording.of(SERVER)
        for item in seen.message.crossing()
    }
    assert names == {"queries", "public_key", "distances"}, "no ranking and no order"


def test_what_is_said_to_follow_from_the_sums_does() -> None:
    """Without encryption the leader's sums can be looked at: by the tested groups,
    everybody's distances follow."""
    found = run("plain")
    assert "the distances of ada, bob, cyd, dan alone" in found.learned["leader"]
    features, labels = numbers(60)
    there = meeting(features, labels, scheme="plain", record=True, queries=20)
    there.leader.information(list(found.groups))
    assert there.recording is not None
    assert there.leader.sorter is not None
    messages = [seen.message for seen in there.recording.of("leader")]
    ciphers = [
        item
        for message in messages
        for item in message.crossing()
        if isinstance(item, Ciphertext)
    ]
    sums = (
        np.stack([there.leader.sorter.open(one)[0] for one in ciphers])
        / there.leader._unit
    )
    member = np.array(
        [[name in group for name in features] for group in found.groups], dtype=float
    )
    solved = np.linalg.lstsq(member, sums, rcond=None)[0]
    order = shuffled(60, there.leader.shuffle)
    for name, mine in zip(features, solved, strict=True):
        columns = Columns(standardised(features[name])[order])
        counts = np.full(20, 59, np.int32)
        assert mine == pytest.approx(
            columns.distances(there.leader.queries, None, counts), abs=1e-6
        )
    assert (
        "no single participant's distances follow"
        in plainly(features, labels, groups=[["ada", "bob"], ["cyd", "dan"]]).learned[
            "leader"
        ]
    )


def test_the_server_adds_nothing_that_shows_one_participant() -> None:
    features, labels = numbers(30)
    for leader, group in (("leader", ("ada",)), ("bob", ("ada", "bob"))):
        there = meeting(features, labels, scheme="plain", leader=leader)
        queries = there.leader.outbox.release(
            torch.tensor([4], dtype=torch.int32), "queries"
        )
        with pytest.raises(
            PartyError, match=r"would show '.*' one participant's distances"
        ):
            there.server.answer(Add((group,), queries))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"groups": [["ada"], ["bob", "cyd", "dan"]]},
            r"with the group \['ada'\] it would read those of one",
        ),
        (
            {"leader": "ada", "method": "brute_force", "keep": 2},
            r"with the group \['ada', 'bob'\]",
        ),
        ({"method": "brute_force"}, "keep more"),
        ({"decryptor": "key_server"}, 'Set decryptor = "leader"; or set bins'),
        ({"estimator": "kraskov", "bins": 4}, "found bins = 4"),
    ],
    ids=str,
)
def test_what_would_show_too_much_is_refused(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        plainly(*numbers(), **options)


def test_three_besides_the_leader() -> None:
    features, labels = numbers()
    three = {name: features[name] for name in ("ada", "bob", "cyd")}
    assert {len(group) for group in plainly(three, labels).groups} == {2}
    with pytest.raises(
        ConfigError,
        match=(
            r"3 or more participants besides 'ada', who decrypts.*; found 2. Set bins"
        ),
    ):
        plainly(three, labels, leader="ada")
    assert (
        select_here(three, labels, keep=2, method="lasso", leader="ada").ranking[-1]
        == "cyd"
    )
