"""Embeddings are gathered once, and changing them is changing what the parties hold."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tests.explain.trained import ALGORITHMS, fresh, trained

from colonnade.algorithms import find
from colonnade.core import Rows
from colonnade.errors import ConfigError
from colonnade.explain import at_rows, gather, trained_copy, tsne
from colonnade.explain.embeddings import PIECE, Embeddings


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_gathered_gives_the_models_own_outputs(algorithm: str) -> None:
    federation = trained(algorithm)
    embeddings = gather(federation)
    assert torch.equal(embeddings.outputs(), federation.outputs("test"))
    assert embeddings.score() == federation.evaluate("test")["accuracy"]
    assert list(embeddings.parts) == ["strong", "weak", "noise"]


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_the_score_is_the_tasks_own(task: str) -> None:
    federation = trained("vimadmm", task)
    name = {"binary": "auc", "regression": "r2"}[task]
    assert gather(federation).score() == federation.evaluate("test")[name]


def test_each_party_is_asked_once_and_writes_it_down() -> None:
    federation = fresh(train={"epochs": 1})
    before = {name: len(ledger.entries) for name, ledger in federation.ledgers.items()}
    gather(federation)
    fresh_lines = federation.ledgers["noise"].entries[before["noise"] :]
    assert [(line.direction, line.name, line.batch) for line in fresh_lines] == [
        ("out", "embedding", "test[0:100]")
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_permuting_embeddings_is_permuting_columns_and_asking_again(
    algorithm: str,
) -> None:
    federation = trained(algorithm)
    embeddings = gather(federation)
    order = torch.randperm(
        len(embeddings.rows), generator=torch.Generator().manual_seed(1)
    )
    held = at_rows(federation.holdings, "test", embeddings.rows)
    columns = held.columns["strong"].features
    mixed = dataclasses.replace(held.columns["strong"], features=columns[order])
    again = trained_copy(
        federation, dataclasses.replace(held, columns={**held.columns, "strong": mixed})
    )
    expected = again.outputs("test")
    permuted = embeddings.outputs({"strong": embeddings.parts["strong"][order]})
    assert not torch.allclose(permuted, embeddings.outputs(), atol=1e-3)
    torch.testing.assert_close(permuted, expected, rtol=1e-5, atol=1e-5)


def test_a_sample_is_seeded_in_order_and_leaves_the_agreed_rows() -> None:
    federation = trained()
    whole = gather(federation)
    agreed = federation.batches.splits["test"]
    some = gather(federation, rows=20, seed=3)
    places = [agreed.tolist().index(row) for row in some.rows.tolist()]
    assert len(places) == 20
    assert places == sorted(places)
    assert places != list(range(20))
    torch.testing.assert_close(some.outputs(), whole.outputs()[places])
    assert torch.equal(some.labels, whole.labels[places])
    assert torch.equal(gather(federation, rows=20, seed=3).rows, some.rows)
    assert not torch.equal(gather(federation, rows=20, seed=4).rows, some.rows)
    assert torch.equal(gather(federation, rows=10_000).rows, agreed)
    assert federation.batches.splits["test"] is agreed


def test_many_rows_are_combined_in_pieces() -> None:
    given = gather(trained())
    times = PIECE // len(given.labels) + 2
    many = dataclasses.replace(
        given,
        parts={k: h.repeat(times, 1) for k, h in given.parts.items()},
        labels=given.labels.repeat(times),
    )
    assert len(many.labels) > PIECE
    torch.testing.assert_close(many.outputs(), given.outputs().repeat(times, 1))


def test_wrong_questions_are_refused() -> None:
    federation = trained()
    with pytest.raises(ConfigError, match=r"no rows called 'tests'; there are 'train'"):
        gather(federation, "tests")
    with pytest.raises(ConfigError, match="at least one row; found 0"):
        gather(federation, rows=0)
    embeddings = gather(federation)
    with pytest.raises(
        ConfigError, match="embeddings of strong, weak, noise; found storng"
    ):
        embeddings.outputs({"storng": embeddings.parts["strong"]})
    with pytest.raises(ConfigError, match="no embeddings of 'lab'"):
        tsne(embeddings, ["lab"])


def test_an_algorithm_that_combines_otherwise_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    federation = trained()

    def predict(driver: object, peers: object, rows: Rows) -> torch.Tensor:
        return torch.zeros(rows.size, 3)

    for changes in ({"predict": predict}, {"combine": None}):
        monkeypatch.setattr(
            federation, "algorithm", dataclasses.replace(find("vimadmm"), **changes)
        )
        with pytest.raises(
            ConfigError, match="vimadmm does not combine one tensor per party"
        ):
            gather(federation)


def test_a_secure_sum_is_refused() -> None:
    federation = fresh(
        "vimadmm_joint", algorithm={"aggregation": "secure"}, train={"epochs": 1}
    )
    with pytest.raises(
        ConfigError, match="secure aggregation, so nobody sees what one party released"
    ):
        gather(federation)


def shaped(h: torch.Tensor) -> Embeddings:
    given = gather(trained())
    return dataclasses.replace(given, parts={"one": h}, labels=given.labels[: len(h)])


def test_tsne_is_seeded_and_of_a_sample() -> None:
    embeddings = gather(trained())
    plane = tsne(embeddings, ["strong", "noise"], rows=60, seed=1)
    again = tsne(embeddings, ["noise"], rows=60, seed=1)
    assert list(plane.points) == ["strong", "noise"]
    assert plane.points["noise"].shape == (60, 2)
    assert np.array_equal(plane.points["noise"], again.points["noise"])
    assert (
        plane.labels.tolist()
        != tsne(embeddings, ["noise"], rows=60, seed=2).labels.tolist()
    )


def test_tsne_takes_what_has_no_two_axes() -> None:
    h = torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
    for flat in (h, h.expand(40, 3), torch.zeros(40, 3)):
        assert np.isfinite(tsne(shaped(flat), ["one"]).points["one"]).all()
    with pytest.raises(ConfigError, match="three rows or more; found 2"):
        tsne(shaped(h[:2]), ["one"])
