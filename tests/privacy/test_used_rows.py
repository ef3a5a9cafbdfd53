"""Which rule a batch gets, from what its rows were ever used for."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from colonnade.algorithms import ALGORITHMS
from colonnade.core import Agreed, Batches, Outbox, Plain
from colonnade.core.release import Rule
from colonnade.privacy import Binomial, Gaussian
from colonnade.privacy.used_rows import UsedRows, cost, weaker
from colonnade.store import Item, SiteStore, Word, recover

IDS = np.array(["ada", "bob", "cyd", "dan", "eve"])
STRONG = Rule(Gaussian(1.0, 8.0))
WEAK = Rule(Gaussian(1.0, 1.0))
NONE = Rule(Plain())


def used(
    splits: dict[str, list[int]], ids: np.ndarray = IDS, **more: list[str]
) -> UsedRows:
    rows = {name: torch.tensor(places) for name, places in splits.items()}
    batches = Batches(rows, batch_size=2, epochs=1, seed=0)
    return UsedRows("lab", Agreed({"clinic": (batches, None)}), lambda: ids, **more)


def outbox(guard: UsedRows, rules: dict[str, Rule]) -> Outbox:
    made = Outbox("lab", torch.Generator(), rules)
    made.guard = guard
    return made


def test_strictest_is_what_costs_a_row_the_least() -> None:
    assert cost(STRONG) < cost(WEAK) < cost(NONE) == float("inf")
    assert cost(Rule(Binomial(16, 4096))) < float("inf")
    assert cost(Rule(Gaussian(1.0, 0.0))) == float("inf"), (
        "a clip alone promises nothing"
    )


@pytest.mark.parametrize(
    ("first", "second"), [(STRONG, NONE), (WEAK, NONE), (STRONG, WEAK)]
)
def test_the_stricter_of_both_applies_whichever_is_named(
    first: Rule, second: Rule
) -> None:
    for train, predict in ((first, second), (second, first)):
        guard = used({"train": [0, 1], "test": [2]})
        box = outbox(guard, {"train.h": train, "predict.h": predict, "h": NONE})
        guard.batches["clinic"].ask(torch.tensor([3, 1, 4]))
        assert box.rule("h", "predict[0:2]") is first, (
            "a row that was trained on is among them"
        )
        assert box.rule("h", "predict[0:1]") is predict
        assert box.rule("h", "train/0/0") is train
        assert box.rule("h", "test[0:1]") is box.rules["h"]
        assert box.rule_for("h", "predict") is predict


def test_a_batch_that_names_no_agreed_rows_gets_the_strictest() -> None:
    box = outbox(used({"train": [0]}), {"train.h": STRONG, "h": NONE})
    assert [box.rule("h", name) for name in (None, "nonsense", "predict[0:9]")] == [
        STRONG
    ] * 3


def test_equal_costs_leave_the_rule_that_is_named() -> None:
    other = Rule(Plain())
    box = outbox(used({"train": [0]}), {"train.h": NONE, "test.h": other})
    assert box.rule("h", "train/0/0") is NONE


def test_what_tells_about_all_training_rows_has_their_rule() -> None:
    """Distances are from training rows, whichever row they are asked for."""
    told = [
        name
        for name, release in ALGORITHMS["knn"].releases.items()
        if release.of_training
    ]
    assert told == ["distances", "total", "neighbours"]
    box = outbox(
        used({"train": [0], "test": [1]}, of_training=told),
        {"distances": WEAK, "test.distances": NONE},
    )
    assert box.rule("distances", "test[0:1]") is WEAK
    assert not [
        name for name, one in ALGORITHMS["splitnn"].releases.items() if one.of_training
    ]


def kept(rows: UsedRows, folder: Path) -> UsedRows:
    """The rows, whose uses are in the laboratory's store from here on."""
    if not (folder / "store").exists():
        with SiteStore.create(folder / "store", "lab") as store:
            store.numbers_of([], "patient", Word.FIRST_CONTACT)
    rows.keep(SiteStore.open(folder / "store", "lab"), "patient", Word.NEW_PEOPLE)
    return rows


def test_sides_of_all_runs_add_up_and_are_known_by_id(tmp_path: Path) -> None:
    kept(used({"train": [0, 1], "test": [2]}), tmp_path)
    kept(used({"train": [2, 3]}), tmp_path)
    again = kept(used({"predict": [0, 1, 2, 3, 4]}, IDS[::-1].copy()), tmp_path)
    again.batches["clinic"].ask(torch.arange(5))
    found = {
        IDS[::-1][row]: again.sides("h", f"predict[{row}:{row + 1}]")
        for row in range(5)
    }
    assert found == {
        "ada": ["train"],
        "bob": ["train"],
        "cyd": ["train", "test"],
        "dan": ["train"],
        "eve": [],
    }


def test_rows_whose_uses_are_lost_count_as_used_for_everything(tmp_path: Path) -> None:
    kept(used({"train": [0, 1], "test": [2]}), tmp_path)
    shutil.rmtree(tmp_path / "store")
    recover(tmp_path / "store", "lab", Item.of("h", "non-private", {}))
    with SiteStore.open(tmp_path / "store", "lab") as store:
        store.numbers_of([], "patient", Word.FIRST_CONTACT)
    asked = kept(used({"predict": [4]}), tmp_path)
    assert asked.sides("h", "predict[0:1]") == ["train", "validation", "test"]


def test_the_weaker_purposes_are_named() -> None:
    def rule_for(purpose: str | None) -> Rule:
        return {"train": STRONG, "test": WEAK, "predict": NONE}[str(purpose)]

    assert weaker(rule_for, ("train", "test", "predict"), 1) == ["test", "predict"]
    assert weaker(lambda _: NONE, ("train", "predict"), 1) == []


def test_which_rule_is_the_stricter_depends_on_how_wide_rows_are() -> None:
    """Binomial noise pays for each number, Gaussian noise for a row."""
    by_row = Rule(Gaussian(1.0, 4.0))
    by_number = Rule(Binomial(2, 256))
    assert cost(by_number) < cost(by_row) == cost(by_row, 64) < cost(by_number, 64)
    box = outbox(used({"train": [0, 1]}), {"h": by_row, "predict.h": by_number})
    box.guard.batches["clinic"].ask(torch.tensor([1, 0]))  # type: ignore[union-attr]
    narrow, wide = (
        box.release(torch.zeros(2, width), "h", "predict[0:2]").receipt.event
        for width in (1, 64)
    )
    assert (narrow.kind, wide.kind) == ("binomial", "gaussian")
    assert weaker(lambda one: box.rule_for("h", one), ("train", "predict"), 64) == [
        "predict"
    ]
