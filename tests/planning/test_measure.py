"""What one batch and one scoring cost, against the ledgers of a federation that does
them."""

from __future__ import annotations

import pytest
import torch
from tests.federation import small_multi
from tests.planning.three import GAUSSIAN, federation

from colonnade.planning import measure
from colonnade.planning.measure import take_traffic, total


def test_fewer_training_rows_and_everything_else_as_it_was() -> None:
    built = federation()
    short = measure.shortened(built.holdings, lambda rows: min(rows, 5))
    assert torch.equal(short.splits["train"], built.holdings.splits["train"][:5])
    assert torch.equal(short.splits["test"], built.holdings.splits["test"])
    assert len(built.holdings.splits["train"]) == 63
    several = small_multi.federation()
    shares = measure.shortened(several.holdings, lambda rows: rows % 16)
    for name, share in shares.label_owners.items():
        assert (
            len(share.splits["train"])
            == len(several.holdings.label_owners[name].splits["train"]) % 16
        )


@pytest.mark.parametrize("rows", [16, 15])
def test_a_batch_costs_what_it_costs_in_a_run(rows: int) -> None:
    built = federation()
    one = measure.train(built.settings, built.holdings, lambda n: min(n, rows))
    list(built.train())
    pieces = take_traffic(built.ledgers)
    assert one.batch == {"": pieces["train/1/0" if rows == 16 else "train/1/3"]}
    assert one.opening == pieces[None]  # the first heads
    assert one.is_exact
    assert not one.each_round


def test_where_nothing_is_trained_there_is_no_batch() -> None:
    built = federation(algorithm={"name": "knn", "aggregation": "plain"})
    assert not measure.train(built.settings, built.holdings, lambda rows: rows).seconds


def test_an_opening_about_all_training_rows_says_so() -> None:
    joined = federation(algorithm={"name": "compressed_vfl", "local_steps": 1})
    found = measure.train(joined.settings, joined.holdings, lambda rows: rows, steps=1)
    assert found.about_all_rows
    plain = federation()
    other = measure.train(plain.settings, plain.holdings, lambda rows: min(rows, 16))
    assert not other.about_all_rows


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_scoring_costs_what_it_costs_in_a_run(split: str) -> None:
    built = federation()
    found = measure.score(built, split)
    take_traffic(built.ledgers)
    built.evaluate(split)
    assert found.traffic == total(take_traffic(built.ledgers).values())
    assert found.is_exact


def test_chunks_of_two_sizes() -> None:
    """A split of 18 rows, scored 7 at a time."""
    built = federation()
    (driver,) = built.label_owners.values()
    driver.answer_bytes = 7 * driver.bytes_per_row(built.batches.splits["test"])
    assert [rows.size for rows in built.chunks("test")] == [7, 7, 4]
    found = measure.score(built, "test")
    assert found.exchanges == 3
    take_traffic(built.ledgers)
    built.evaluate("test")
    assert found.traffic == total(take_traffic(built.ledgers).values())


def test_measuring_touches_no_budget() -> None:
    built = federation(
        parties={"lab": {"outbox": GAUSSIAN, "budget": {"epsilon": 0.01}}}
    )
    assert measure.train(
        built.settings, built.holdings, lambda rows: min(rows, 16)
    ).seconds
    assert built.accounts["lab"].counts == {}
