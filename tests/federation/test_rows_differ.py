"""Rows that not everybody holds: all of the label owner's are trained on, each with the
partners that hold it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.federation.small import Frames, Tables, quick

from colonnade.core import Batches, Peers, by_id
from colonnade.core.message import Message, batch_of
from colonnade.core.presence import Presence
from colonnade.errors import ConfigError
from colonnade.federation import Federation, Settings, load

ABLE: list[dict[str, Any]] = [
    {"name": "fdml"},
    {"name": "vimadmm", "local_steps": 2},
    {"name": "vimadmm_joint", "local_steps": 2},
    {"name": "vimsgd"},
    {"name": "vafl"},
    {"name": "splitnn", "combine": "mean"},
]
STRANGE = [f"S{number}" for number in range(5)]  # whom the clinic does not know
NAMES = [one["name"] for one in ABLE]


def three(lab: float = 0.6, shop: float = 0.4, rows: int = 160) -> Frames:
    """A clinic with all rows and the labels; a laboratory and a shop that hold some of
    them, and others."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 6)).round(3)
    ids = np.array([f"P{number:03d}" for number in range(rows)])
    label = np.where(x @ np.array([1.0, -1.0, 1.5, 0.5, 1.0, 1.0]) > 0, "ill", "well")
    clinic = pd.DataFrame(
        {"patient": ids, "age": x[:, 0], "weight": x[:, 1], "diagnosis": label}
    )
    found = {"clinic": clinic}
    for name, share, at in (("lab", lab, 2), ("shop", shop, 4)):
        frame = pd.DataFrame(
            {"patient": ids, f"{name}_a": x[:, at], f"{name}_b": x[:, at + 1]}
        )
        strange = pd.DataFrame(
            {"patient": STRANGE, f"{name}_a": range(5), f"{name}_b": [2.0, 1, 3, 0, 4]}
        )
        found[name] = pd.concat([frame[random.random(rows) < share], strange]).sample(
            frac=1, random_state=1
        )
    return found


def settings(algorithm: dict[str, Any] | None = None, **more: Any) -> Tables:
    train = {
        "batch_size": 32,
        "early_stop": False,
        "party_dropout": 0.0,
        **more.pop("train", {}),
    }
    return quick(
        data={"rows": "label_owner", **more.pop("data", {})}, train=train, **more
    ) | {"algorithm": algorithm or {"name": "fdml"}}


def made(frames: Frames, tables: Tables, *, record: bool = False) -> Federation:
    return Federation.from_frames(
        frames, id="patient", label="diagnosis", settings=tables, record=record
    )


def weights(federation: Federation, *parties: str) -> list[torch.Tensor]:
    chosen = [
        owner
        for name, owner in federation.owners.items()
        if not parties or name in parties
    ]
    return [
        one.detach().clone() for owner in chosen for one in owner.model.parameters()
    ]


def trained(federation: Federation) -> Federation:
    for _ in federation.train():
        pass
    return federation


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("algorithm", ABLE, ids=NAMES)
def test_with_everybody_present_nothing_is_different(algorithm: dict[str, Any]) -> None:
    """The same rows in the same batches, without the layer that asks each for what it
    holds."""
    full = three(lab=2, shop=2)
    by_presence = made(full, settings(algorithm))
    plain = made(full, settings(algorithm))
    plain.peers.presence = None
    assert by_presence.peers.presence is not None
    assert equal(weights(trained(by_presence)), weights(trained(plain)))
    assert by_presence.evaluate("test") == plain.evaluate("test")


@pytest.mark.parametrize(
    "algorithm",
    [{"name": "fdml"}, {"name": "splitnn", "combine": "mean"}],
    ids=["sum", "mean"],
)
def test_a_partner_that_holds_no_row_changes_nothing(algorithm: dict[str, Any]) -> None:
    nobody = three(shop=-1)
    two = {name: frame for name, frame in nobody.items() if name != "shop"}
    with_it = trained(made(nobody, settings(algorithm)))
    without_it = trained(made(two, settings(algorithm)))
    assert equal(weights(with_it, "clinic", "lab"), weights(without_it))
    assert with_it.evaluate("test") == without_it.evaluate("test")
    assert with_it.ledgers["shop"].total("out") == 0


def test_a_row_is_learned_from_with_those_who_hold_it() -> None:
    """One step of FDML is one of autograd on sum_k mask_k o_k, of the mean loss over
    the rows that a party holds: as large a step for who holds few."""
    plain = {
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
    }
    federation = made(three(), settings({"name": "fdml", **plain}))
    holdings = federation.holdings
    driver = federation.driver
    (batch,) = federation.agreed.one.of_epoch(0)[:1]
    rows = federation.agreed.one.rows(batch.name)
    total = torch.zeros(len(rows), 1)
    before = weights(federation)
    shares = dict[str, int]()
    for name, owner in federation.owners.items():
        held = (
            ~holdings.away[name][rows]
            if name in holdings.away
            else torch.ones(len(rows), dtype=torch.bool)
        )
        shares[name] = int(held.sum())
        total = total + held[:, None] * owner.model.train()(
            holdings.columns[name].features[rows]
        )
    models = [
        p for owner in federation.owners.values() for p in owner.model.parameters()
    ]
    slopes = torch.autograd.grad(driver.loss(total, driver.labels[rows]), models)
    each = [
        len(rows) / shares[n]
        for n, owner in federation.owners.items()
        for _ in owner.model.parameters()
    ]
    wanted = [
        weight - 0.1 * k * slope
        for weight, k, slope in zip(before, each, slopes, strict=True)
    ]
    next(iter(federation.train()))
    assert all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip(weights(federation), wanted, strict=True)
    )
    assert not equal(
        weights(federation, "shop"), before[-len(weights(federation, "shop")) :]
    )


@pytest.mark.parametrize("algorithm", ABLE, ids=NAMES)
def test_a_partner_is_told_about_its_own_rows_alone(
    algorithm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has a line per row has one for each of its rows of the batch; what it
    answers, too; and the sizes of what it gets do not depend on what another partner
    holds."""

    def seen(shop: float) -> dict[str, list[tuple[str, str | None, list[int]]]]:
        federation = made(
            three(shop=shop), settings(algorithm, data={"align": "private"})
        )
        told: dict[str, list[tuple[str, str | None, list[int]]]] = {
            "lab": [],
            "shop": [],
        }

        def note(self: Peers, _direction: str, name: str, message: Message) -> None:
            for one in message.released() if name != self.owner else ():
                told[name].append(
                    (one.receipt.name, batch_of(message), list(one.tensor.shape))
                )

        with monkeypatch.context() as patch:
            patch.setattr(Peers, "note", note)
            trained(federation)
        per_row = federation.algorithm.per_row
        for name, entries in told.items():
            apart = federation.agreed_apart[name].one
            for released, batch, shape in entries:
                assert (
                    released not in per_row
                    or batch is None
                    or shape[0] == len(apart.rows(batch))
                )
            assert any(released in per_row for released, _, _ in entries)
        return told

    few = seen(0.2)
    many = seen(0.9)
    assert few["lab"] == many["lab"]
    assert few["shop"] != many["shop"]


def test_a_partner_finds_its_part_of_a_batch_from_its_own_ids() -> None:
    """No list of the label owner's rows is needed: its own numbering, its own ids, and
    the number of batches."""
    federation = made(three(), settings())
    mine = federation.agreed.one
    apart = federation.agreed_apart["lab"].one
    ids = federation.ids
    lacks = federation.holdings.away["lab"]
    own = np.sort(ids[~lacks.numpy()])[::-1]  # a table in another order
    splits = {
        s: torch.from_numpy(np.isin(own, ids[rows.numpy()]).nonzero()[0])
        for s, rows in mine.splits.items()
    }
    alone = Batches(
        splits,
        batch_size=7,
        epochs=2,
        seed=0,
        numbers=by_id.numbers_of(own.tolist(), 0),
        parts=mine.parts,
    )
    names = [batch.name for epoch in range(3) for batch in mine.of_epoch(epoch)]
    for name in [*names, *(chunk.name for chunk in mine.chunks("test", 9))]:
        rows = mine.rows(name)
        assert (
            own[alone.rows(name).numpy()].tolist()
            == ids[rows[~lacks[rows]].numpy()].tolist()
        )
    assert alone.fingerprint() == apart.fingerprint() != mine.fingerprint()
    every = [
        torch.cat([mine.rows(batch.name) for batch in mine.of_epoch(epoch)])
        for epoch in range(2)
    ]
    assert all(
        torch.equal(one.sort().values, mine.splits["train"].sort().values)
        for one in every
    )
    assert not torch.equal(*every)
    parts = torch.cat([mine.rows(chunk.name) for chunk in mine.chunks("test", 9)])
    assert torch.equal(parts, mine.splits["test"])


def test_through_bytes_it_is_the_same() -> None:
    one = trained(made(three(), settings(ABLE[1])))
    other = trained(
        made(
            three(),
            settings(ABLE[1], federation={"device": "cpu", "through_bytes": True}),
        )
    )
    assert equal(weights(one), weights(other))
    books = {
        name: (book.total("out"), book.total("in"))
        for name, book in one.ledgers.items()
    }
    assert books == {
        name: (book.total("out"), book.total("in"))
        for name, book in other.ledgers.items()
    }
    assert books["clinic"] == (
        books["lab"][1] + books["shop"][1],
        books["lab"][0] + books["shop"][0],
    )


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_run_goes_on_where_it_stopped(tmp_path: Path, dropout: float) -> None:
    def of(epochs: int) -> Federation:
        return made(
            three(),
            settings(ABLE[1], train={"epochs": epochs, "party_dropout": dropout}),
        )

    straight = of(3)
    first = of(1)
    second = of(3)
    straight.fit()
    first.fit(tmp_path)
    second.fit(tmp_path, resume=True)
    assert equal(weights(straight), weights(second))


def test_party_dropout_leaves_whole_partners_out_of_training_batches_alone() -> None:
    rows = {"train/0/1": torch.arange(8), "test[0/1]": torch.arange(8)}
    batches = [f"train/0/{number}" for number in range(400)]
    presence = Presence(
        "a",
        ["a", "b", "c"],
        {},
        lambda name: rows["train/0/1"],
        per_row=["h"],
        dropout=0.25,
    )
    out = {
        party: sum(presence.size(party, batch) == 0 for batch in batches)
        for party in "abc"
    }
    assert out["a"] == 0
    assert 60 < out["b"] < 140
    assert 60 < out["c"] < 140
    assert all(presence.size(party, "test[0/1]") == 8 for party in "abc")
    alone = Presence(
        "a", ["b", "c"], {}, lambda name: rows["train/0/1"], per_row=["h"], dropout=0.9
    )
    assert all(any(alone.size(party, batch) for party in "bc") for batch in batches)


def test_a_row_that_a_partner_lacks_costs_it_nothing() -> None:
    noise = {
        "outbox": {
            "logits": {"mechanism": {"name": "gaussian", "sigma": 1.0, "clip": 1.0}}
        }
    }
    federation = trained(made(three(), settings(parties={"lab": noise})))
    account = federation.accounts["lab"]
    lacks = federation.holdings.away["lab"]
    counts = next(iter(account.counts.values()))
    train = torch.zeros(len(lacks), dtype=torch.bool).index_fill_(
        0, federation.agreed.one.splits["train"], True
    )
    spent = torch.from_numpy(np.asarray(counts))[
        torch.from_numpy(np.asarray(account.places))
    ]
    assert (spent[lacks] == 0).all()
    assert (spent[train & ~lacks] == 2).all()


def test_metrics_by_who_holds_a_row() -> None:
    federation = made(three(), settings(train={"epochs": 4}))
    summary = federation.fit().summary
    kinds = summary["subsets"]["test"]
    lacks = federation.holdings.away
    rows = federation.agreed.one.splits["test"]
    assert list(kinds) == [
        "everybody",
        "without lab",
        "without shop",
        "label owner alone",
    ]
    assert kinds["everybody"]["rows"] == int(
        (~lacks["lab"] & ~lacks["shop"])[rows].sum()
    )
    assert kinds["label owner alone"]["rows"] == int(
        (lacks["lab"] & lacks["shop"])[rows].sum()
    )
    assert (
        federation.evaluate("test", without=["lab", "shop"])
        != summary["metrics"]["test"]
    )
    alone = federation.evaluate("test", without=["lab", "shop"])
    assert alone == federation.evaluate("test", without=["shop", "lab"])


def test_a_prediction_says_who_took_no_part(tmp_path: Path) -> None:
    frames = three()
    federation = made(frames, settings())
    federation.fit(tmp_path)
    ids = frames["clinic"]["patient"].tolist()
    held = {name: set(frames[name]["patient"]) for name in ("lab", "shop")}
    wanted = [" ".join(name for name in held if one not in held[name]) for one in ids]
    live = federation.predict(ids)
    assert list(live.degraded or ()) == wanted
    loaded = load(tmp_path, ids=ids, frames=frames).predict(ids)
    assert list(loaded.degraded or ()) == wanted
    assert np.allclose(live.scores, loaded.scores, atol=1e-6)


def test_rows_that_only_the_label_owner_holds_need_its_columns() -> None:
    frames = three()
    frames["clinic"] = frames["clinic"][["patient", "diagnosis"]]
    federation = made(frames, settings())
    assert set(federation.ids) == (
        set(frames["lab"]["patient"]) | set(frames["shop"]["patient"])
    ) - set(STRANGE)
    trained(federation)


def test_the_default_learns_from_rows_that_a_party_lacks_without_being_told_how() -> (
    None
):
    """Its head then reads the mean of what there is; with all parts it reads them side
    by side."""
    whole = Settings.from_mapping({})
    lacking = [
        Settings.from_mapping(given)
        for given in (
            {"data": {"rows": "label_owner"}},
            {"train": {"party_dropout": 0.5}},
            {"federation": {"on_missing": "skip"}},
        )
    ]
    assert whole.config.combine == "concat"
    assert {settings.algorithm for settings in lacking} == {whole.algorithm}
    assert {settings.config.combine for settings in lacking} == {"mean"}


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "splitnn", "combine": "concat"},
        *({"name": name} for name in ("knn", "one_shot", "vfedcce", "compressed_vfl")),
    ],
)
def test_an_algorithm_that_needs_every_part_of_a_row_says_why(
    algorithm: dict[str, str],
) -> None:
    name = algorithm["name"]
    with pytest.raises(
        ConfigError,
        match=f'rows = "label_owner" cannot be used with {name}.*Those that can',
    ):
        Settings.from_mapping({"algorithm": algorithm, "data": {"rows": "label_owner"}})
    with pytest.raises(ConfigError, match=f"party_dropout cannot be used with {name}"):
        Settings.from_mapping({"algorithm": algorithm, "train": {"party_dropout": 0.5}})


def test_what_a_partner_cannot_find_by_itself_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"poisson.*cannot tell which of its own are drawn"
    ):
        Settings.from_mapping(
            {"data": {"rows": "label_owner"}, "train": {"sampling": "poisson"}}
        )
    with pytest.raises(
        ConfigError, match=r"party_dropout must be a number from 0.*found 1\.5"
    ):
        Settings.from_mapping({"train": {"party_dropout": 1.5}})
    packed = {"outbox": {"gradient": {"codec": {"name": "half"}}}}
    with pytest.raises(ConfigError, match="packed by the codec"):
        trained(made(three(), settings(parties={"clinic": packed})))
