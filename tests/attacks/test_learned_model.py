"""What a party gives away to somebody who has none of its weights and knows columns of
some rows, beside a control: by a secret model's embeddings; by scores along directions
of known length, which of one column are its values; and by sums over bins, which are
equations in which side of a border each row is on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from tests.attacks.runs import score_of, three, trained
from tests.federation.small import frames

from colonnade.algorithms.algorithm import Equations
from colonnade.attacks import audit_federation
from colonnade.attacks.finding import Finding
from colonnade.attacks.learned_model import (
    bits,
    learned_findings,
    lengths_findings,
    regressed,
    sums_findings,
)
from colonnade.attacks.rehearsal import TRAINED, Rehearsal, first_rounds, train_on
from colonnade.core import Transcript
from colonnade.federation import Federation

SECRET = {"parties": {"clinic": {"models": "secret"}, "lab": {"models": "secret"}}}
NAME = "columns by regression on known rows"
UNAIDED = "columns from scores and lengths"
AIDED = "columns from scores of many rounds"
SUMMED = "columns from sums of scores of many rounds"


@pytest.mark.parametrize("models", [SECRET, {}], ids=["secret", "seeded"])
def test_a_secret_model_is_learned_from_known_rows(
    models: dict[str, dict[str, object]],
) -> None:
    one = trained("splitnn", three(), model={"hidden": [32], "width": 24}, **models)
    found = {
        finding.victim: finding
        for finding in learned_findings(one, train_on(one, 512, TRAINED), None)
    }
    assert found.keys() == {"clinic", "lab"}
    for finding in found.values():
        assert finding.attack == NAME
        assert (finding.attacker, finding.moment) == ("registry", "trained model")
        assert finding.details["known_rows"] == 100
        assert finding.details["rows"] == 40
        # a secret model is drawn anew in every run, and a few of its units may be dead
        assert score_of(finding) > 0.25
        assert finding.details["by_known_rows"].keys() == {"20", "100"}
    worst = max(found.values(), key=score_of)
    best = worst.details["best_column"]
    assert score_of(worst) > 0.7
    assert (
        worst.details["r2"][best]
        > 0.8
        > worst.details["r2_without_embeddings"][best] + 0.2
    )


def test_noise_without_the_row_gives_nothing_away() -> None:
    """The control of the attack itself: it must not find what is not there."""
    alone = {
        "embedding": {"mechanism": {"name": "noise_only", "clip": 1.0, "sigma": 4.0}}
    }
    one = trained(
        "splitnn", three(), parties={"lab": {"outbox": alone}}, train={"epochs": 1}
    )
    (finding,) = learned_findings(one, train_on(one, 512, TRAINED), "lab")
    assert finding.victim == "lab"
    assert score_of(finding) < 0.25


def test_an_owner_with_columns_has_them_in_the_control() -> None:
    """The laboratory's columns are the clinic's own, so embeddings tell nothing that it
    did not know."""
    given = frames(200, "classes")
    twin = (
        given["clinic"]
        .drop(columns="diagnosis")
        .rename(columns={"age": "iron", "weight": "zinc"})
    )
    one = trained("splitnn", {"clinic": given["clinic"], "lab": twin}, **SECRET)
    (finding,) = learned_findings(one, train_on(one, 512, TRAINED), None)
    assert min(finding.details["r2_without_embeddings"].values()) > 0.99
    assert (finding.score, finding.verdict) == (
        0.0,
        "hardly better than guessing the mean",
    )


def test_too_few_rows_are_not_attacked() -> None:
    one = trained("splitnn", frames(45), train={"epochs": 1})
    assert list(learned_findings(one, train_on(one, 512, TRAINED), None)) == []
    assert NAME not in {
        finding.attack for finding in audit_federation(one, rows=8).findings
    }


def test_regression_finds_a_linear_map_and_ridge_holds_where_there_are_more_numbers_than_rows() -> (
    None
):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 6, generator=generator)
    weights = torch.randn(6, 3, generator=generator)
    assert torch.allclose(
        regressed(x[:20], (x @ weights)[:20] + 2, x[20:]),
        (x @ weights)[20:] + 2,
        atol=0.05,
    )
    # nothing to be learned from 20 rows
    wide = torch.randn(80, 60, generator=generator)
    guess = regressed(wide[:20], x[:20], wide[20:])
    assert float((guess - x[20:]).square().mean()) < 1.5 * float(
        (x[20:] - x[:20].mean(0)).square().mean()
    )
    constant = regressed(torch.ones(20, 2), x[:20], torch.ones(5, 2))
    assert torch.allclose(constant, x[:20].mean(0).expand(5, -1), atol=1e-5)


def by_victim(
    federation: Federation, rehearsal: Rehearsal
) -> Mapping[tuple[str, str], Finding]:
    return {
        (one.victim, one.attack): one
        for one in lengths_findings(federation, rehearsal, None)
    }


def test_scores_of_many_rounds_are_the_columns() -> None:
    given = three()
    given["lab"] = given["lab"].iloc[:, :2]  # the id, and one column
    federation = trained(
        "logistic_regression", given, preprocess={"numbers": "standard"}
    )
    first = by_victim(federation, first_rounds(federation, 64))
    alone = first["lab", UNAIDED]
    assert (alone.attacker, alone.moment, alone.releases) == (
        "registry",
        "first rounds",
        ("logits", "lengths"),
    )
    assert score_of(alone) > 0.999
    assert alone.verdict == "can rebuild rows almost exactly"
    aided = first["clinic", AIDED]
    assert min(aided.details["r2"].values()) > 0.99, "every column, not the best alone"
    few = dataclasses.replace(
        first_rounds(federation, 64),
        transcripts=train_on(federation, 64, TRAINED).transcripts,
    )
    assert score_of(by_victim(federation, few)["clinic", AIDED]) < score_of(aided), (
        "one round is one direction"
    )


def test_sums_under_masks_over_as_many_rounds_as_there_are_columns_are_the_columns() -> (
    None
):
    """Nobody's scores are known, and with the columns of a few rows everybody's follow
    all the same; of few rounds, hardly."""
    secure = {"aggregation": "secure"}
    brief = {"epochs": 2}
    federation = trained(
        "logistic_regression",
        three(),
        preprocess={"numbers": "standard"},
        config=secure,
        train=brief,
    )
    rehearsal = first_rounds(federation, 64)
    first = by_victim(federation, rehearsal)
    assert set(first) == {("clinic", SUMMED), ("lab", SUMMED)}
    assert {one.releases for one in first.values()} == {("logits", "lengths")}
    assert all(min(one.details["r2"].values()) > 0.99 for one in first.values())
    own = Transcript(
        "registry",
        [seen for seen in rehearsal.transcripts["registry"] if seen.sender == "lab"],
    )
    assert not by_victim(
        federation, dataclasses.replace(rehearsal, transcripts={"registry": own})
    ), "a share is no sum"
    few = dataclasses.replace(
        rehearsal, transcripts=train_on(federation, 64, TRAINED).transcripts
    )
    later = by_victim(federation, few)
    assert all(score_of(later[key]) < score_of(one) for key, one in first.items()), (
        "one round is one direction"
    )


@cache
def run(**config: Any) -> Federation:
    settings = {"depth": 3, "bins": 8, "min_rows": 2, **config}
    return trained(
        "boosted_trees", given=three(300), config=settings, train={"epochs": 1}
    )


@pytest.mark.parametrize(
    "config",
    [
        {},
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in ({"nodes": "hidden", "depth": 2}, {"row_share": 0.7})
        ),
    ],
    ids=str,
)
def test_the_equations_hold_for_the_true_bits(config: dict[str, Any]) -> None:
    """Of every round, node and candidate that was told: the label owner's weights times
    the rows' true sides."""
    federation = run(**config)
    rehearsal = train_on(federation, 64, TRAINED)
    make = federation.algorithm.equations
    owner = federation.owners["lab"]
    assert make is not None
    found = list(
        make(
            federation.driver,
            rehearsal.transcripts["registry"],
            rehearsal.transcripts["lab"],
        )
    )
    assert found
    growing = owner._growing
    assert growing is not None
    # of the last round
    left = torch.from_numpy(
        growing.all_going_left(range(len(growing.candidates)))
    ).double()
    last = found[-1]
    told = ~last.sums.isnan()
    assert int(told.sum()) >= 10
    assert torch.allclose((last.weights @ left)[told], last.sums[told])


def test_with_as_many_equations_as_rows_every_bit_is_known_and_with_few_hardly_any() -> (
    None
):
    generator = torch.Generator().manual_seed(0)
    rows = 40
    truth = (torch.rand(rows, 3, generator=generator) < 0.4).double()
    weights = torch.rand(rows, rows, generator=generator, dtype=torch.float64)
    whole = bits(Equations("train/0/0", weights, weights @ truth))
    assert ((whole > 0.5) == truth.bool()).all()
    few = bits(Equations("train/0/0", weights[:4], weights[:4] @ truth))
    assert not ((few > 0.5) == truth.bool()).all()


def test_a_label_owner_that_is_told_sums_is_an_attacker() -> None:
    federation = run()
    found = list(sums_findings(federation, train_on(federation, 64, TRAINED), None))
    assert {one.victim for one in found} == {"clinic", "lab"}
    for one in found:
        assert one.attacker == "registry"
        assert one.releases == ("sums",)
        assert score_of(one) <= 1
        assert one.details["known_rows"] == 100
