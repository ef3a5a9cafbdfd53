"""Boosted trees where parties lack rows: what a party lacks is a gap in all its
columns, and nobody is told of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms import central_trees
from tests.federation.test_rows_differ import equal, made, settings, three, trained
from torch import Tensor

from colonnade.algorithms.algorithm import HeadInputs
from colonnade.algorithms.tree_pieces import Trees, splits_by_party
from colonnade.core import Peers
from colonnade.core.message import Message, batch_of
from colonnade.explain import gather
from colonnade.federation import Federation

EXACT = {
    "encryption": "none",
    "gradient_bits": 0,
    "min_rows": 1,
    "min_child_weight": 0.0,
    "depth": 3,
}
ROUGH = {"learning_rate": 0.3, "depth": 3, "bins": 8}
FEW = {"depth": 2, "bins": 4}
MODES: dict[str, dict[str, Any]] = {
    "none": {"encryption": "none"},
    "elgamal": FEW,
    "hidden": {"nodes": "hidden", **FEW},
    "sampled": {"encryption": "none", "row_share": 0.5, "column_share": 0.8},
}
LONG = pytest.param("hidden", marks=pytest.mark.long)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="boosted_trees without encryption")
        yield


def trees(
    config: dict[str, Any],
    lab: float = 0.6,
    shop: float = 0.4,
    rows: int = 120,
    **more: Any,
) -> Federation:
    given = settings({"name": "boosted_trees", **ROUGH, **config}, **more)
    given["train"] = {
        "epochs": 2,
        "early_stop": False,
        "party_dropout": 0.0,
        **more.get("train", {}),
    }
    return made(three(lab, shop, rows), given)


def tables(federation: Federation) -> list[Tensor]:
    return [one for table in federation.driver.rounds for one in table.values()]


@pytest.mark.parametrize("share", [0.3, pytest.param(0.7, marks=pytest.mark.long)])
def test_unrounded_it_is_the_centralized_booster_with_gaps(share: float) -> None:
    """Split by split, where no two splits gain the same: of a row that a party lacks,
    all its columns are gaps."""
    federation = trees({**EXACT, "bins": 32}, lab=share, rows=200, train={"epochs": 4})
    trained(federation)
    holdings = federation.holdings
    splits = federation.batches.splits
    columns = []
    for name, held in holdings.columns.items():
        columns.append(held.features.double().clone())
        columns[-1][holdings.away[name] if name in holdings.away else slice(0)] = (
            torch.nan
        )
    x = torch.cat(columns, 1).numpy()
    y = federation.labels.numpy()
    train = splits["train"].numpy()
    given: dict[str, Any] = {"bins": 32, "depth": 3, "l2": 1.0, "rate": 0.3}
    wanted, scores = central_trees.boosted(
        x[train], y[train], 4, by_gaps=False, **given
    )
    assert np.allclose(
        federation.driver.scores[train][:, 0].numpy(), scores, rtol=0, atol=1e-9
    )
    assert np.allclose(federation.outputs("train")[:, 0].numpy(), scores, atol=1e-5)
    assert sum(len(tree.children) > 0 for tree in wanted) == 4
    assert {int(k) for table in federation.driver.rounds for k in table["party"]} == {
        -1,
        0,
        1,
        2,
    }


@pytest.mark.parametrize("mode", ["none", "elgamal", LONG, "sampled"])
def test_with_everybody_present_nothing_is_different(mode: str) -> None:
    by_presence = trees(MODES[mode], lab=2, shop=2)
    plain = trees(MODES[mode], lab=2, shop=2)
    plain.peers.presence = None
    assert by_presence.peers.presence is not None
    assert equal(tables(trained(by_presence)), tables(trained(plain)))
    assert by_presence.evaluate("test") == plain.evaluate("test")


@pytest.mark.parametrize("mode", ["elgamal", "hidden"])
def test_encrypted_or_hidden_the_trees_are_the_same(mode: str) -> None:
    plain, other = (
        trained(trees({**FEW, **more, "min_rows": 1}))
        for more in ({"encryption": "none"}, MODES[mode])
    )
    assert np.allclose(plain.driver.scores, other.driver.scores, rtol=0, atol=1e-12)
    assert torch.equal(plain.outputs("test"), other.outputs("test"))
    if mode == "elgamal":
        assert equal(tables(plain), tables(other))


def test_a_partner_that_holds_no_row_changes_nothing() -> None:
    nobody = trained(trees(MODES["elgamal"], shop=-1))
    frames = three(0.6, -1, 120)
    del frames["shop"]
    given = settings({"name": "boosted_trees", **ROUGH, **FEW})
    given["train"] = {"epochs": 2, "early_stop": False, "party_dropout": 0.0}
    two = trained(made(frames, given))
    assert all(
        torch.equal(a[k], b[k])
        for a, b in zip(nobody.driver.rounds, two.driver.rounds, strict=True)
        for k in ("party", "split", "left", "right", "value", "absent_left")
    )
    assert nobody.evaluate("test") == two.evaluate("test")
    assert not [
        entry for entry in nobody.ledgers["shop"].entries if entry.name != "public_key"
    ]


@pytest.mark.parametrize(
    "mode", ["none", pytest.param("elgamal", marks=pytest.mark.long), LONG, "sampled"]
)
def test_a_party_is_told_about_its_own_rows_alone(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything with a line per row has one for each of its rows, or of those that are
    learned from; and what the other holds changes no size of what it is told first in a
    round."""

    def seen(shop: float) -> list[tuple[str, list[int]]]:
        federation = trees(MODES[mode], shop=shop, train={"epochs": 2})
        told: list[tuple[str, str | None, list[int]]] = []

        def note(self: Peers, _direction: str, name: str, message: Message) -> None:
            if name == "lab":
                told.extend(
                    (one.receipt.name, batch_of(message), list(one.shape))
                    for one in message.crossing()
                )

        with monkeypatch.context() as patch:
            patch.setattr(Peers, "note", note)
            trained(federation)
        mine = federation.agreed_apart["lab"].one
        for name, batch, shape in told:
            if name in federation.algorithm.per_row and batch is not None:
                rows = len(mine.rows(batch))
                assert (
                    shape[0] <= rows
                    if mode == "sampled" and name in ("gradients", "hessians")
                    else shape[0] == rows
                )
        return [
            (name, shape)
            for name, _, shape in told
            if name in ("gradients", "hessians")
        ][:1]

    few = seen(0.2)
    many = seen(0.9)
    assert few == many or mode == "sampled"


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_run_goes_on_where_it_stopped(tmp_path: Path, dropout: float) -> None:
    def of(epochs: int) -> Federation:
        return trees(
            {"encryption": "none"}, train={"epochs": epochs, "party_dropout": dropout}
        )

    straight = of(5)
    first = of(2)
    second = of(5)
    straight.fit()
    first.fit(tmp_path)
    second.fit(tmp_path, resume=True)
    assert equal(tables(straight), tables(second))
    assert torch.equal(straight.outputs("test"), second.outputs("test"))


def test_an_exported_head_takes_nan_for_what_a_party_lacks() -> None:
    federation = trained(trees({"encryption": "none"}))
    driver = federation.driver
    embeddings = gather(federation)
    parts = {name: h.clone() for name, h in embeddings.parts.items()}
    for name, lacks in embeddings.lacks.items():
        parts[name][lacks] = torch.nan
    shapes = splits_by_party(driver.state(), list(parts))
    head = Trees(
        HeadInputs(
            driver.state(), driver.config, shapes, 1, lambda _: torch.nn.Identity()
        )
    )
    assert torch.allclose(
        head(list(parts.values())), federation.outputs("test"), atol=1e-6
    )


def test_who_is_left_out_of_a_round_has_no_split_in_it_and_numbers_still_agree() -> (
    None
):
    federation = trained(
        trees({"encryption": "none"}, train={"epochs": 12, "party_dropout": 0.5})
    )
    asked = torch.stack([table["asked"] for table in federation.driver.rounds])
    assert asked[:, 0].all()
    for k, name in enumerate(federation.owners):
        assert len(federation.owners[name].rounds) == int(asked[:, k].sum())
        used = torch.tensor(
            [bool((table["party"] == k).any()) for table in federation.driver.rounds]
        )
        assert not (used & ~asked[:, k]).any()
    assert not asked.all()
    train = federation.batches.splits["train"]
    assert torch.allclose(
        federation.outputs("train"), federation.driver.scores[train].float(), atol=1e-6
    )


def test_without_a_partner_its_splits_go_as_was_learned_and_by_default_to_the_larger_side() -> (
    None
):
    federation = trained(trees({"encryption": "none"}, lab=2, shop=2))
    for table in federation.driver.rounds:
        for node in torch.nonzero(table["party"] >= 0).flatten().tolist():
            assert table["absent_left"][node] in (True, False)
    alone = federation.evaluate("test", without=["lab", "shop"])
    assert alone == federation.evaluate("test", without=["shop", "lab"])
    assert alone != federation.evaluate("test")
