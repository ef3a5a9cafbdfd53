"""Noise at test time, training again with fewer parties, and which parties are chosen.
Changed holdings differ in what was asked for and in nothing else.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.explain.trained import ALGORITHMS, fresh, trained

from colonnade.core.batches import seed_for
from colonnade.errors import ConfigError
from colonnade.explain import (
    Retraining,
    at_rows,
    gather,
    head_changes,
    head_norms,
    left_out,
    noise_validation,
    noised,
    only,
    ranking,
    summarize,
    trained_copy,
    without,
)
from colonnade.explain.experiments import chosen, trainings
from colonnade.explain.importance import Lost
from colonnade.federation import Federation
from colonnade.rows.holdings import Holdings


def means(lost: dict[str, Lost]) -> dict[str, float]:
    return {party: one.mean for party, one in lost.items()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_trained_copy_says_the_same_and_shares_nothing(algorithm: str) -> None:
    federation = trained(algorithm)
    copy = trained_copy(federation, federation.holdings)
    assert torch.equal(copy.outputs("test"), federation.outputs("test"))
    before = federation.outputs("test")
    copy.batches.epochs = copy.batches.epochs + 1
    copy.batches.done = len(copy.batches)
    for _ in copy.train():
        pass
    assert torch.equal(federation.outputs("test"), before)


@pytest.mark.parametrize("algorithm", ["vimadmm", "vimadmm_joint"])
def test_noising_all_at_once_is_noising_one_by_one(algorithm: str) -> None:
    federation = trained(algorithm)
    found = noise_validation(federation, 2.0, repeats=1, seed=4)
    whole = federation.evaluate("test")["accuracy"]
    for party in federation.owners:
        generator = torch.Generator().manual_seed(seed_for(4, party, "noise 0"))
        held = at_rows(federation.holdings, "test", federation.batches.splits["test"])
        alone = trained_copy(federation, noised(held, party, None, 2.0, generator))
        assert found[party].mean == pytest.approx(
            whole - alone.evaluate("test")["accuracy"]
        )
        assert found[party].deviation == 0


def test_noise_hurts_whom_the_model_reads() -> None:
    embeddings = gather(trained())
    found = means(noise_validation(trained(), 3.0, embeddings=embeddings))
    assert ranking(found)[0] == "strong"
    assert found["strong"] > 0.1
    assert set(
        means(noise_validation(trained(), 0.0, embeddings=embeddings)).values()
    ) == {0.0}
    again = noise_validation(trained(), 3.0, embeddings=embeddings, seed=1)
    assert again != noise_validation(trained(), 3.0, embeddings=embeddings, seed=2)
    assert again == noise_validation(trained(), 3.0, embeddings=embeddings, seed=1)
    with pytest.raises(ConfigError, match="at least one repeat"):
        noise_validation(trained(), 3.0, repeats=0)


def test_a_secure_sum_can_be_checked_by_noise_and_trained_again() -> None:
    secure = fresh("vimadmm_joint", algorithm={"aggregation": "secure"})
    found = means(noise_validation(secure, 3.0, repeats=1, seed=2))
    plain = means(noise_validation(trained("vimadmm_joint"), 3.0, repeats=1, seed=2))
    # fixed-point sums may turn a row over
    assert found == pytest.approx(plain, abs=0.03)
    one = Retraining(secure, secure.evaluate("test")["accuracy"]).with_parties(
        ["strong"]
    )
    assert one.parties == ("strong",)
    assert math.isfinite(one.score)


def test_training_without_a_party_is_training_the_others() -> None:
    federation = fresh(train={"epochs": 2})
    score = federation.evaluate("test")["accuracy"]
    retraining = Retraining(federation, score)
    lost = left_out(retraining)
    assert list(lost) == ["strong", "weak", "noise"]
    other = Federation(
        _without_settings(federation, "strong"), without(federation.holdings, "strong")
    )
    other.fit()
    assert lost["strong"] == pytest.approx(score - other.evaluate("test")["accuracy"])
    assert lost["strong"] > 0.1
    assert retraining.all.score == score
    assert retraining.all.head_norms == head_norms(federation)
    with_labels_only = retraining.with_parties(["strong", "noise"])
    assert with_labels_only.parties == ("strong", "noise")


def _without_settings(federation: Federation, party: str) -> Any:
    import dataclasses

    parties = {
        name: one for name, one in federation.settings.parties.items() if name != party
    }
    return dataclasses.replace(federation.settings, parties=parties)


def test_each_set_of_parties_is_trained_once_and_counted_before() -> None:
    federation = fresh(train={"epochs": 1})
    begun: list[str] = []

    def watch(title: str, event: Any) -> None:
        if getattr(getattr(event, "batch", None), "step", None) == 0:
            begun.append(title)

    norms = head_norms(federation)
    retraining = Retraining(federation, 0.5, watch=watch)
    left_out(retraining)
    summarize(retraining, norms)
    retraining.with_noise("noise", 1.0)
    assert len(begun) == trainings(norms)
    assert "with noise at noise" in begun
    assert trainings({"a": 1.0}) == 1
    assert trainings({"a": 1.0, "b": 2.0}) == 3
    assert trainings({f"p{number}": number for number in range(14)}) == 14 + 4 + 1


def test_a_party_that_trains_on_noise_gets_a_lighter_head() -> None:
    federation = trained()
    noisy = Retraining(federation, federation.evaluate("test")["accuracy"]).with_noise(
        "strong", 5.0
    )
    assert noisy.head_changes["strong"] < head_changes(federation)["strong"]
    assert noisy.score < federation.evaluate("test")["accuracy"] - 0.1


NORMS = {"a": 3.0, "b": 1.0, "c": 5.0, "d": 2.0, "e": 4.0}


@pytest.mark.parametrize(
    ("share", "which", "expected"),
    [
        (50, "most", ("a", "c", "e")),
        (50, "least", ("a", "b", "d")),
        (20, "most", ("c",)),
        (20, "least", ("b",)),
        (21, "most", ("c", "e")),
        (100, "least", ("a", "b", "c", "d", "e")),
    ],
)
def test_a_share_of_the_parties_is_rounded_up(
    share: int, which: str, expected: tuple[str, ...]
) -> None:
    assert chosen(NORMS, share, which) == expected


def test_shares_of_the_papers_data_sets() -> None:
    def count(parties: int, share: int) -> int:
        return len(
            chosen(
                {str(number): float(number) for number in range(parties)}, share, "most"
            )
        )

    assert [(count(parties, 50), count(parties, 20)) for parties in (14, 9, 4)] == [
        (7, 3),
        (5, 2),
        (2, 1),
    ]


@pytest.mark.parametrize(("share", "which"), [(0, "most"), (101, "most"), (50, "best")])
def test_what_is_no_share_is_refused(share: int, which: str) -> None:
    with pytest.raises(ConfigError, match="1 to 100 percent of the most or least"):
        chosen(NORMS, share, which)


def test_summarization_trains_with_those() -> None:
    federation = trained()
    retraining = Retraining(federation, federation.evaluate("test")["accuracy"])
    found = summarize(retraining, {"strong": 3.0, "weak": 2.0, "noise": 1.0}, [20])
    assert [(one.which, one.parties) for one in found] == [
        ("most", ("strong",)),
        ("least", ("noise",)),
    ]
    assert found[0].score > found[1].score + 0.1


@pytest.fixture
def holdings() -> Holdings:
    return trained().holdings


def columns(holdings: Holdings, party: str) -> torch.Tensor:
    return holdings.columns[party].features


def noise(
    holdings: Holdings,
    sigma: float = 2.0,
    seed: int = 0,
    rows: torch.Tensor | None = None,
) -> Holdings:
    return noised(holdings, "weak", rows, sigma, torch.Generator().manual_seed(seed))


def test_noise_changes_the_named_party_and_rows_alone(holdings: Holdings) -> None:
    before = {name: columns(holdings, name).clone() for name in holdings.columns}
    rows = holdings.splits["test"]
    changed = noise(holdings, rows=rows)
    others = torch.ones(len(holdings.ids), dtype=torch.bool)
    others[rows] = False
    assert torch.equal(columns(changed, "weak")[others], before["weak"][others])
    assert bool((columns(changed, "weak")[rows] != before["weak"][rows]).all())
    for name in ("strong", "noise"):
        assert columns(changed, name) is columns(holdings, name)
    assert changed.labelled is holdings.labelled
    assert all(torch.equal(columns(holdings, name), before[name]) for name in before)


def test_noise_is_seeded_and_as_large_as_said(holdings: Holdings) -> None:
    assert torch.equal(
        columns(noise(holdings), "weak"), columns(noise(holdings), "weak")
    )
    assert not torch.equal(
        columns(noise(holdings), "weak"), columns(noise(holdings, seed=1), "weak")
    )
    added = columns(noise(holdings, 5.0), "weak") - columns(holdings, "weak")
    assert float(added.std()) == pytest.approx(5, rel=0.1)
    assert float(added.mean()) == pytest.approx(0, abs=0.6)
    assert torch.equal(columns(noise(holdings, 0.0), "weak"), columns(holdings, "weak"))


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf")])
def test_noise_has_a_size(holdings: Holdings, sigma: float) -> None:
    with pytest.raises(
        ConfigError, match="sigma must be a number that is not negative"
    ):
        noise(holdings, sigma)


def test_only_and_without_keep_order_and_labels(holdings: Holdings) -> None:
    assert list(only(holdings, ["noise", "strong"]).columns) == ["strong", "noise"]
    assert only(holdings, ["noise", "strong"]).roles("weak") == ["labels"]
    assert list(without(holdings, "strong").columns) == ["weak", "noise"]
    assert without(holdings, "noise").roles("weak") == ["features", "labels"]
    for changed in (
        only(holdings, ["noise"]),
        without(holdings, "weak"),
        without(holdings, "strong"),
    ):
        assert changed.label_owner == "weak"
        assert changed.labelled is holdings.labelled
    assert holdings.roles("weak") == ["features", "labels"]


def test_rows_are_cut_out_for_everybody(holdings: Holdings) -> None:
    rows = torch.tensor([5, 3, 11])
    few = at_rows(holdings, "test", rows)
    assert few.ids.tolist() == [holdings.ids[row] for row in (5, 3, 11)]
    for name in few.columns:
        assert torch.equal(columns(few, name), columns(holdings, name)[rows])
    assert torch.equal(few.labelled.labels, holdings.labelled.labels[rows])
    assert {name: split.tolist() for name, split in few.splits.items()} == {
        "test": [0, 1, 2]
    }


def test_who_holds_no_columns_is_named(holdings: Holdings) -> None:
    with pytest.raises(
        ConfigError, match=r"'storng' holds no columns here.*did you mean.*strong"
    ):
        without(holdings, "storng")
    with pytest.raises(ConfigError, match="those who do are strong, noise"):
        noise(without(holdings, "weak"))
    with pytest.raises(ConfigError, match="At least one party must keep its columns"):
        only(holdings, [])
