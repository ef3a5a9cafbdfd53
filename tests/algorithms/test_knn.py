"""Neighbours are those of the joined columns, and nobody sees a distance that is not
meant for it.

There are no training steps, so the battery's losses do not exist; what it asks of every
algorithm otherwise is here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    NearestNeighbors,
)
from tests.conformance.toy import (
    TRANSPORTS,
    Task,
    Toy,
    assert_bit_equal,
    federation,
    sequential,
)

from colonnade import Federation, load
from colonnade.algorithms import knn
from colonnade.core import Ciphertext, Party, Request, Transport
from colonnade.encryption import make_keys
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.transport import Fault, Faulty, Recording

WAYS: dict[str, dict[str, Any]] = {
    "ckks": {"scheme": "ckks"},
    "bfv": {"scheme": "bfv"},
    "not encrypted": {"scheme": "plain"},
    "plain": {"aggregation": "plain"},
}
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def toy(way: str = "ckks", k: int = 5, **settings: Any) -> Toy:
    return federation(knn.ALGORITHM, config=knn.Config(k=k, **WAYS[way]), **settings)


def joined(toy: Toy, split: str) -> Any:
    rows = toy.batches.splits[split]
    return torch.cat(
        [party.features[rows] for party in toy.parties.values()], dim=1
    ).numpy()


def recorded(parties: Mapping[str, Party]) -> Transport:
    return Recording(sequential(parties))


# The law: nearest neighbours of the joined columns


@every_way
@pytest.mark.parametrize("task", ["classes", "binary", "regression"])
@pytest.mark.parametrize("k", [1, 5, 8])
def test_it_predicts_what_scikit_learn_does_with_the_joined_columns(
    way: str, task: Task, k: int
) -> None:
    """With even k a vote may be a tie: both take the lower class."""
    found = toy(way, k, task=task)
    assert found.run() == []
    outputs = found.predict()
    y = found.driver.labels[found.batches.splits["train"]].numpy()
    kind: Any = KNeighborsRegressor if task == "regression" else KNeighborsClassifier
    reference = kind(k, algorithm="brute").fit(joined(found, "train"), y)
    expected = torch.from_numpy(reference.predict(joined(found, "test")))
    decided = found.driver.loss.decide(outputs)
    if task == "regression":
        assert torch.allclose(decided.double(), expected.double(), atol=1e-6)
        return
    assert torch.equal(decided, expected)
    shares = torch.from_numpy(reference.predict_proba(joined(found, "test")))
    assert torch.allclose(found.driver.loss.scores(outputs).double(), shares, atol=1e-5)


@pytest.mark.parametrize("task", ["classes", "binary", "regression"])
def test_a_fading_vote_is_scikit_learns_with_weights_by_rank(task: Task) -> None:
    found = federation(
        knn.ALGORITHM, config=knn.Config(k=9, fade=0.75, aggregation="plain"), task=task
    )
    kind: Any = KNeighborsRegressor if task == "regression" else KNeighborsClassifier

    def by_rank(distances: Any) -> Any:
        return np.tile(np.arange(1.0, 10.0) ** -0.75, (len(distances), 1))

    y = found.driver.labels[found.batches.splits["train"]].numpy()
    reference = kind(9, algorithm="brute", weights=by_rank).fit(
        joined(found, "train"), y
    )
    outputs = found.predict()
    loss = found.driver.loss
    if task == "regression":
        expected = reference.predict(joined(found, "test"))
        said = loss.decide(outputs)
    else:
        expected = reference.predict_proba(joined(found, "test"))
        said = loss.scores(outputs)
    assert torch.allclose(said.double(), torch.from_numpy(expected).double(), atol=1e-5)


@every_way
def test_neighbours_come_nearest_first(way: str) -> None:
    found = toy(way)
    found.predict()
    find = knn.plain if way == "plain" else knn.encrypted
    _, expected = (
        NearestNeighbors(n_neighbors=5, algorithm="brute")
        .fit(joined(found, "train"))
        .kneighbors(joined(found, "test"))
    )
    assert torch.equal(
        find(found.driver, found.peers, "test[0:60]"), torch.from_numpy(expected)
    )


def test_pictures_are_compared_pixel_by_pixel() -> None:
    found = toy("plain")
    party = found.parties["ada"]
    pictures = party.features.reshape(-1, 2, 2)
    other = knn.FeatureOwner(
        party.organisation,
        pictures,
        knn.ALGORITHM.complete(party.model, pictures[:1], 3, seed=0),
        party.config,
    )
    assert torch.equal(other.distances("test[0:60]"), party.distances("test[0:60]"))


# Who learns what


def test_encrypted_the_label_owner_gets_neighbours_and_no_distance() -> None:
    found = toy("ckks", transport=recorded)
    found.predict()
    seen = found.transport.of("label owner")
    kinds = {
        (entry.peer, entry.name)
        for entry in found.driver.ledger.entries
        if entry.direction == "in"
    }
    assert kinds == {
        ("ada", "public_key"),
        ("ada", "neighbours"),
        ("bob", "distances"),
        ("cyd", "distances"),
    }
    sent = [
        one.message.values for one in seen if isinstance(one.message, knn.Distances)
    ]
    distances = [one for one in sent if isinstance(one, Ciphertext)]
    assert sent == distances
    assert len(distances) == 2 * 2  # 60 rows in pieces of 50
    key = found.driver.public.id
    assert {
        (one.encrypted.scheme, one.encrypted.key, one.shape[1]) for one in distances
    } == {("ckks", key, 160)}
    assert {e.event for e in found.driver.ledger.entries if e.name == "distances"} == {
        "encrypted (ckks)"
    }
    (neighbours,) = {
        one.message.rows.tensor.dtype
        for one in seen
        if isinstance(one.message, knn.Neighbours)
    }
    assert neighbours == torch.int64
    assert found.parties["bob"]._secret is None


def test_the_reader_gets_the_sum_of_the_others_and_they_get_nothing() -> None:
    found = toy("bfv", transport=recorded)
    found.predict()
    ranks = [
        one.message
        for one in found.transport.of("ada")
        if isinstance(one.message, knn.Rank)
    ]
    (total,) = ranks[0].total
    expected = sum(found.parties[k].distances("test[0:50]") for k in ("bob", "cyd"))
    opened = found.parties["ada"]._secret.decrypt(total.encrypted)
    assert torch.allclose(opened, expected, atol=1e-8)
    assert {
        e.event for e in found.parties["ada"].ledger.entries if e.name == "total"
    } == {"non-private"}
    for name in ("bob", "cyd"):
        assert {
            e.name for e in found.parties[name].ledger.entries if e.direction == "in"
        } == {"public_key"}


def test_a_sum_of_one_is_refused_and_plain_text_must_be_asked_for() -> None:
    with pytest.raises(
        ConfigError, match=r"'ada'.* would know those of 'bob'.*aggregation = \"plain\""
    ):
        toy("ckks", columns=(4, 4))
    with pytest.raises(
        ConfigError, match="'bob', which decrypts their sum, would know those of 'ada'"
    ):
        # the label owner's own organisation does not read
        toy("ckks", columns=(4, 4), driver="ada")
    with pytest.warns(UserWarning, match="from which these follow up to a rotation"):
        assert toy("plain", columns=(4, 4)).predict().shape == (60, 3)
    assert knn.Config() == knn.Config(k=5, aggregation="encrypted", scheme="ckks")


@every_way
def test_one_party_alone_is_a_federation_too(way: str) -> None:
    alone = toy(way, columns=(12,))
    three = toy("plain")
    assert torch.equal(alone.predict(), three.predict())
    assert {e.name for e in alone.driver.ledger.entries} <= {
        "distances",
        "public_key",
        "neighbours",
    }


def test_where_the_label_owner_has_columns_another_one_reads() -> None:
    found = toy("ckks", driver="ada", transport=recorded)
    found.predict()
    assert knn.reading(found.driver, found.peers) == "bob"
    assert torch.equal(found.predict(), toy("plain").predict())


def test_a_party_follows_its_own_settings() -> None:
    found = toy("plain")
    requests: list[Request[Any]] = [knn.AskKey(3), knn.Rank("test[0:5]", ())]
    for request in requests:
        with pytest.raises(
            PartyError, match="its aggregation is plain, and this is part of encrypted"
        ):
            found.peers["bob"].ask(request)
    with pytest.raises(PartyError, match="it was not given a key yet"):
        toy("ckks").peers["bob"].ask(knn.AskDistances("test[0:5]"))


@pytest.mark.parametrize(
    ("scheme", "limit", "why"),
    [
        (
            "plain",
            2.0**14,
            "of the scheme 'plain' came, and by this party's own settings it is 'ckks'",
        ),
        ("bfv", 2.0**14, "of the scheme 'bfv' came"),
        ("ckks", 1e-3, "a public key for values up to 0.001 came"),
        ("ckks", 2.0**14 + 1, "a public key for values up to 16385 came"),
    ],
)
def test_a_lying_label_owner_cannot_choose_how_distances_are_encrypted(
    scheme: str, limit: float, why: str
) -> None:
    """It hands out a key of its own as the reader's. Of the scheme "plain" it would
    read all distances in the reply."""
    found = toy("ckks")
    key = found.driver.outbox.publish(
        make_keys(scheme, limit=limit).public.to_bytes(), "public_key"
    )
    with pytest.raises(BoundaryError, match=f"(?i){why}"):
        found.peers["bob"].ask(knn.UseKey(key))
    with pytest.raises(PartyError, match="it was not given a key yet"):
        found.peers["bob"].ask(knn.AskDistances("test[0:5]"))
    assert not [
        entry
        for entry in found.parties["bob"].ledger.entries
        if entry.name == "distances"
    ]


def test_a_lying_reader_is_told_by_the_label_owner_too() -> None:
    found = toy("ckks")
    reader = found.parties[knn.reading(found.driver, found.peers)]
    reader._secret = make_keys("plain", limit=2.0**14)
    with pytest.raises(BoundaryError, match="of the scheme 'plain' came"):
        found.predict()


@pytest.mark.parametrize(
    "lie",
    [
        torch.zeros(1, 100_000, dtype=torch.int64),
        torch.full((1, 5), 10**9),
        torch.full((1, 5), -1),
        torch.rand(1, 5),
    ],
)
def test_neighbours_that_a_lying_reader_makes_up_are_refused_with_its_name(
    lie: torch.Tensor,
) -> None:
    """Of a wide answer hundreds of times as much would be computed, and place -1 is the
    last training row."""
    one = toy()
    reader = one.parties[knn.reading(one.driver, one.peers)]
    rows = len(one.driver.rows("test[0:4]"))
    knn.share_key(one.driver, one.peers)

    def rank(request: knn.Rank) -> knn.Neighbours:
        return knn.Neighbours(
            reader.outbox.release(lie.expand(rows, -1), "neighbours", request.batch)
        )

    rank.__serves__ = 1  # type: ignore[attr-defined]
    reader.rank = rank
    with pytest.raises(
        PartyError, match=rf"'{reader.name}' failed while answering knn.Rank"
    ):
        knn.encrypted(one.driver, one.peers, "test[0:4]")


@pytest.mark.parametrize("way", ["plain", "ckks"])
def test_distances_that_are_not_as_agreed_are_refused_with_their_senders_name(
    way: str,
) -> None:
    """Left out of the sum without a word, the neighbours would be those of the other
    parties' columns."""
    found = toy(way)
    other = toy("ckks" if way == "plain" else "plain")
    liar: Any = found.parties["cyd"]
    if way == "plain":
        liar.config = other.driver.config
        key = make_keys("ckks", limit=2.0**14).public.to_bytes()
        found.peers["cyd"].ask(
            knn.UseKey(found.driver.outbox.publish(key, "public_key"))
        )
    else:
        knn.share_key(found.driver, found.peers)
        liar.config = other.driver.config
    find, sent = (
        (knn.plain, "encrypted") if way == "plain" else (knn.encrypted, "readable")
    )
    with pytest.raises(
        PartyError,
        match=f"'cyd' failed while answering knn.AskDistances .* it sent {sent} values",
    ):
        find(found.driver, found.peers, "test[0:4]")


def test_the_first_key_stands() -> None:
    found = toy("ckks")
    first, other = (
        found.driver.outbox.publish(
            make_keys("ckks", limit=2.0**14).public.to_bytes(), "public_key"
        )
        for _ in range(2)
    )
    for _ in range(2):
        found.peers["bob"].ask(knn.UseKey(first))
    with pytest.raises(
        PartyError, match="it was given another key before, and keeps to that"
    ):
        found.peers["bob"].ask(knn.UseKey(other))


# What the battery asks of every algorithm


@every_way
@pytest.mark.parametrize("transport", [name for name in TRANSPORTS if name != "auto"])
def test_what_carries_the_calls_changes_nothing(way: str, transport: str) -> None:
    assert torch.equal(
        toy(way, transport=TRANSPORTS[transport]).predict(), toy("plain").predict()
    )


@every_way
def test_prediction_changes_nothing_and_does_not_depend_on_the_chunks(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = toy(way)
    random = torch.random.get_rng_state()
    before = found.states()
    whole = found.predict()
    assert torch.equal(found.predict(), whole)
    monkeypatch.setattr(knn, "DISTANCES_AT_ONCE", 160 * 7)
    assert torch.equal(found.predict(), whole)
    assert_bit_equal(before, found.states())
    assert torch.equal(random, torch.random.get_rng_state())


def test_training_rows_are_prepared_once_however_many_pieces_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The more rows are remembered, the more pieces: to prepare them for each would
    take rows x rows."""
    found = toy("plain")
    seen = list[int]()
    monkeypatch.setattr(knn, "DISTANCES_AT_ONCE", 160 * 7)
    for party in found.parties.values():
        party.model.register_forward_hook(
            lambda _, given, __: seen.append(len(given[0]))
        )
    found.predict()
    assert seen.count(160) == len(found.parties)
    assert len(seen) > 2 * len(found.parties)


@every_way
def test_it_says_what_each_release_reveals_and_ledgers_agree_on_every_byte(
    way: str,
) -> None:
    found = toy(way, transport=recorded)
    found.predict()
    for name, party in found.parties.items():
        assert found.driver.ledger.total("in", name) == party.ledger.total(
            "out", "label owner"
        )
        assert found.driver.ledger.total("out", name) == party.ledger.total(
            "in", "label owner"
        )
        assert found.transport.of("label owner").total(name) == party.ledger.total(
            "out", "label owner"
        )
    names = {entry.name for entry in found.driver.ledger.entries}
    columns, labels = knn.crossing(found.driver.config)
    assert names == set(columns) | set(labels) <= set(knn.ALGORITHM.releases)


@pytest.mark.parametrize("kind", ["drop", "fail"])
def test_a_lost_call_is_named_and_can_be_repeated(kind: Any) -> None:
    found = toy(
        "ckks",
        transport=lambda parties: Faulty(
            sequential(parties), [Fault(kind, "bob", at=3)]
        ),
    )
    with pytest.raises(PartyError, match="'bob'") as caught:
        found.predict()
    assert caught.value.batch == "test[0:50]"
    assert torch.equal(found.predict(), toy("plain").predict())


@every_way
def test_where_k_is_more_than_the_training_rows_all_of_them_vote(way: str) -> None:
    assert torch.equal(toy(way, k=161).predict(), toy(way, k=160).predict())


# As a federation


def frames(rows: int = 120) -> dict[str, pd.DataFrame]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 6))
    y = np.where(x.sum(1) > 0, "yes", "no")
    ids = np.arange(1000, 1000 + rows)
    one, two, three = (
        pd.DataFrame({"id": ids, f"c{at}": x[:, at], f"c{at + 1}": x[:, at + 1]})
        for at in (0, 2, 4)
    )
    return {"shop": one, "bank": two, "clinic": three.assign(label=y)}


def test_a_run_is_kept_and_predicts_rows_that_are_new(tmp_path: Path) -> None:
    """Every party remembers its own training columns; nobody else's, and no keys."""
    known = frames(120)
    everything = frames(140)
    settings = {"algorithm": {"name": "knn", "k": 5, "fade": 0.0}}
    federation = Federation.from_frames(
        known, id="id", label="label", settings=settings
    )
    outcome = federation.fit(tmp_path / "run")
    assert (
        outcome.summary["metrics"]["test"]["accuracy"]
        == federation.evaluate("test")["accuracy"]
        >= 0.7
    )
    assert (outcome.summary["rounds"], outcome.history) == (0, [])
    asked = {
        entry.batch for entry in federation.ledgers["clinic"].entries if entry.batch
    }
    assert not any(batch.startswith("train") for batch in asked), (
        "each would be its own neighbour, at n x n distances"
    )
    assert "nearest to itself" in outcome.summary["not_measured"]["train"]
    new = [str(one) for one in range(1120, 1140)]
    loaded = load(tmp_path / "run", ids=new, frames=everything)
    rows = federation.batches.splits["train"]
    owners = list(federation.owners.values())
    reference = KNeighborsClassifier(5).fit(
        torch.cat([o.features[rows] for o in owners], 1), federation.labels[rows]
    )
    here = torch.cat([owner.features for owner in loaded.owners.values()], dim=1)
    expected = [("no", "yes")[at] for at in reference.predict(here)]
    assert loaded.predict(new).labels.tolist() == expected
    assert set(federation.organisations["bank"].state()) == {"seat", "features"}
    assert federation.organisations["bank"].state()["features"].keys() == {"memory"}


@pytest.mark.parametrize(("noise", "expected"), [(0.0, 1.0), (3.0, 0.5)])
def test_votes_fade_as_suits_the_validation_rows_best(
    noise: float, expected: float, tmp_path: Path
) -> None:
    """The nearest tell most where labels follow the columns, and no more than others
    where they hardly do. Only the label owner knows, a kept run too, and nothing more
    crosses."""
    generator = np.random.default_rng(0)
    rows = 400
    x = generator.normal(size=(rows, 2))
    y = x.sum(1) + noise * generator.normal(size=rows)
    given = {
        "shop": pd.DataFrame({"id": np.arange(rows), "a": x[:, 0], "label": y}),
        "bank": pd.DataFrame({"id": np.arange(rows), "b": x[:, 1]}),
    }
    crossed = []
    for fade in ("auto", 0.75):
        settings = {"algorithm": {"name": "knn", "aggregation": "plain", "fade": fade}}
        federation = Federation.from_frames(
            given, id="id", label="label", settings=settings
        )
        federation.fit(tmp_path / str(fade))
        crossed.append(federation.ledgers["bank"].total("out"))
    assert crossed[0] == crossed[1]
    learned = load(tmp_path / "auto", frames=given)
    losses = {}
    for fade in knn.FADES:
        federation.driver.fade = fade
        losses[fade] = federation.evaluate("validation")["loss"]
    assert learned.driver.fade == min(losses, key=lambda one: losses[one]) == expected
    federation.driver.fade = expected
    assert learned.evaluate("test") == federation.evaluate("test")


def test_columns_that_were_not_scaled_are_refused_with_the_cure() -> None:
    raw = {
        name: frame.assign(**{frame.columns[1]: frame.iloc[:, 1] * 1e5})
        for name, frame in frames().items()
    }
    settings = {
        "algorithm": {"name": "knn"},
        "parties": {name: {"scale": "none"} for name in raw},
    }
    federation = Federation.from_frames(raw, id="id", label="label", settings=settings)
    with pytest.raises(PartyError, match=r"must be a number from .* Scale or clip it"):
        federation.evaluate("test")
