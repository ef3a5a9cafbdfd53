"""What every organisation is promised: the plan, the run and its folder tell the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation.small import federation, frames, quick, splitnn
from tests.federation.test_organisation import DRAWN, GAUSSIAN

from colonnade.errors import ConfigError
from colonnade.federation import load
from colonnade.federation.guarantees import guarantees, of_run
from colonnade.planning.budgets import plan
from colonnade.privacy.report import KNOWN
from colonnade.runs.run_directory import RunDirectory

LAB = {"lab": {"outbox": {"embedding": GAUSSIAN}, "budget": {"epsilon": 20.0}}}
BINOMIAL = {
    "lab": {
        "outbox": {
            "embedding": {
                "mechanism": {"name": "binomial", "levels": 3, "trials": 4096}
            }
        }
    }
}


@pytest.mark.parametrize(
    "parties", [LAB | DRAWN, BINOMIAL], ids=["gaussian", "binomial"]
)
@pytest.mark.parametrize("make", [quick, splitnn])
def test_a_run_costs_what_was_planned_and_its_folder_says_so(
    make: Any, parties: Any, tmp_path: Path
) -> None:
    one = federation(settings=make(parties=parties, train={"early_stop": False}))
    expected = [g.to_json() for g in plan(one)]
    assert one.organisations["lab"].outbox.released == 0  # planning releases nothing
    outcome = one.fit(tmp_path / "run")
    assert (
        outcome.summary["privacy"] == [g.to_json() for g in guarantees(one)] == expected
    )
    assert [g.to_json() for g in of_run(RunDirectory(tmp_path / "run"))] == expected


def test_the_folder_also_knows_what_was_predicted_afterwards(tmp_path: Path) -> None:
    one = federation(settings=quick(parties=LAB, train={"early_stop": False}))
    one.fit(tmp_path / "run")
    trained = one.holdings.ids[int(one.batches.splits["train"][0])]
    load(tmp_path / "run", ids=[trained], frames=frames()).predict([trained])
    (lab,) = [g for g in of_run(RunDirectory(tmp_path / "run")) if g.party == "lab"]
    assert [release.appearances for release in lab.releases] == [3]
    (known,) = [
        s for s in lab.statements if (s.adversary, s.relation) == (KNOWN, "replace-one")
    ]
    assert lab.budget is not None
    assert known.epsilon == lab.budget["spent"]


def test_columns_and_labels_are_never_one_number() -> None:
    one = federation(settings=quick(parties=LAB | DRAWN))
    one.fit()
    told = {(g.party, g.protects): g for g in guarantees(one)}
    assert set(told) == {
        ("clinic", "labels"),
        ("clinic", "columns"),
        ("lab", "columns"),
    }
    assert [s.epsilon for s in told["clinic", "labels"].statements] == [1.0]
    assert [s.epsilon for s in told["clinic", "columns"].statements] == [None]


def test_a_plain_federation_promises_nothing() -> None:
    told = guarantees(federation())
    assert {s.epsilon for g in told for s in g.statements} == {None}


def test_a_training_row_moves_the_releases_of_other_rows() -> None:
    """Why there is a statement through the local model: one row's value changes what is
    released of another."""
    given = frames()
    changed = frames()
    settings = splitnn(
        parties={"lab": {"scale": "none"}, "clinic": {"scale": "none"}},
        data={"validation": 0},
        federation={"cohort": "off"},
    )
    one = federation(given, settings)
    first = one.holdings.ids[one.agreed.one.rows("train/0/0").numpy()]
    row = changed["lab"]["patient"] == first[0]
    changed["lab"].loc[row, "iron"] += 1.0
    other = federation(changed, settings)
    seen = []
    for each in (one, other):
        steps = each.train()
        next(steps)
        next(steps)
        each.settle()
        seen.append(
            each.owners["lab"].model(each.owners["lab"].x("train/0/2")).detach()
        )
    assert first[0] not in one.holdings.ids[one.agreed.one.rows("train/0/2").numpy()]
    assert not torch.allclose(*seen)


KEY = {"public_key": "public"}
LOG_ODDS = {"lab": {"outbox": {"log_odds": GAUSSIAN}, "budget": {"epsilon": 20.0}}}


def vfedcce(**algorithm: str) -> dict[str, Any]:
    changes = {
        "algorithm": {"name": "vfedcce", **algorithm},
        "train": {"epochs": 1, "early_stop": False},
    }
    return {**quick(), **changes, "parties": LOG_ODDS}


@pytest.mark.parametrize(
    ("mode", "columns", "labels"),
    [
        (
            "encrypted-coefficients",
            {"masked_gradient": "blinded"},
            KEY | {"coefficients": "encrypted"},
        ),
        ("encrypted-jacobian", KEY | {"jacobian": "encrypted"}, {}),
    ],
)
def test_what_crosses_encrypted_costs_nothing_and_is_told(
    mode: str, columns: dict[str, str], labels: dict[str, str], tmp_path: Path
) -> None:
    one = federation(settings=vfedcce(mode=mode))
    expected = [g.to_json() for g in plan(one)]
    outcome = one.fit(tmp_path / "run")
    assert (
        outcome.summary["privacy"]
        == expected
        == [g.to_json() for g in of_run(RunDirectory(tmp_path / "run"))]
    )
    told = {
        (g["party"], g["protects"]): {
            r["release"]: r["mechanism"] for r in g["releases"]
        }
        for g in expected
    }
    for found, words in (
        (told["lab", "columns"], columns),
        (told["clinic", "labels"], labels),
    ):
        assert {
            name: how.partition(" ")[0].rstrip(":")
            for name, how in found.items()
            if name in words
        } == words
    assert told["clinic", "labels"]["gradient"] == "plain"
    (lab,) = [g for g in expected if g["party"] == "lab"]
    assert lab["budget"]["spent"] > 0  # of the log-odds alone


@pytest.mark.parametrize(
    "settings",
    [{"mode": "plaintext"}, {"mode": "encrypted-jacobian", "scheme": "plain"}],
)
@pytest.mark.filterwarnings(
    "ignore:vfedcce in plaintext", 'ignore:The encryption scheme "plain"'
)
def test_a_budget_is_refused_where_something_can_be_read_after_all(
    settings: dict[str, str],
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"lab.budget\] can never be kept with vfedcce: it also releases jacobian",
    ):
        federation(settings=vfedcce(**settings))


def test_where_every_party_gets_the_embeddings_every_party_is_an_adversary() -> None:
    """C-VFL's label owner passes embeddings on, so whatever is promised must hold
    against all."""
    settings = quick(parties=LAB) | {"algorithm": {"name": "compressed_vfl"}}
    (lab,) = [g for g in plan(federation(settings=settings)) if g.party == "lab"]
    adversaries = {s.adversary for s in lab.statements}
    assert not any("the label owner" in adversary for adversary in adversaries)
    assert "who knows the batches: every other party" in adversaries
    assert any(s.epsilon is not None for s in lab.statements)


@pytest.mark.parametrize(
    ("aggregation", "rule", "told"),
    [
        ("plain", {}, "plain"),
        ("secure", {}, "masked: only the sum over all parties can be read"),
        (
            "secure",
            GAUSSIAN,
            (
                "gaussian, clip 1, sigma 5; masked: only the sum over all parties can"
                " be read"
            ),
        ),
    ],
)
def test_a_secure_sum_is_said_and_promises_nothing_by_itself(
    aggregation: str, rule: Any, told: str
) -> None:
    parties = {"lab": {"outbox": {"logits": rule}}} if rule else {}
    settings = quick(parties=parties) | {
        "algorithm": {"name": "vimadmm_joint", "aggregation": aggregation}
    }
    given = frames()
    given |= {
        "lab": given["lab"][["patient", "iron"]],
        "mine": given["lab"][["patient", "zinc"]],
    }
    (lab,) = [g for g in plan(federation(given, settings)) if g.party == "lab"]
    assert [one.mechanism for one in lab.releases] == [told]
    assert any(s.epsilon is not None for s in lab.statements) == bool(rule)


def knn(aggregation: str) -> dict[str, Any]:
    """Every laboratory adds noise to its distances; one of them reads, where they are
    encrypted."""
    noisy = {
        "outbox": {
            "distances": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 5.0}}
        }
    }
    parties = dict.fromkeys(("lab", "mine", "ours"), noisy)
    return quick(parties=parties, train={"epochs": 7}) | {
        "algorithm": {"name": "knn", "aggregation": aggregation}
    }


def laboratories() -> dict[str, Any]:
    given = frames()
    given["ours"] = given["lab"][["patient", "iron"]].rename(columns={"iron": "lead"})
    return given | {
        "lab": given["lab"][["patient", "iron"]],
        "mine": given["lab"][["patient", "zinc"]],
    }


@pytest.mark.parametrize("aggregation", ["plain", "encrypted"])
@pytest.mark.filterwarnings("ignore:knn with plain aggregation")
def test_where_nothing_is_trained_only_what_is_scored_is_released(
    aggregation: str, tmp_path: Path
) -> None:
    one = federation(laboratories(), knn(aggregation))
    planned = [g.to_json() for g in plan(one)]
    outcome = one.fit(tmp_path / "run")
    assert outcome.summary["privacy"] == planned
    kept = [g.to_json() for g in of_run(RunDirectory(tmp_path / "run"))]
    assert kept == sorted(planned, key=lambda g: g["party"])
    told = {g["party"]: g for g in planned if g["protects"] == "columns"}
    sent = {
        name: {r["release"]: r["appearances"] for r in told[name]["releases"]}
        for name in ("lab", "mine")
    }
    assert sent["mine"]["distances"] == 1  # in validation or test, and in no epoch
    bounded = {
        name: any(s["epsilon"] is not None for s in told[name]["statements"])
        for name in ("lab", "mine")
    }
    reads = aggregation == "encrypted"  # the reader, who tells neighbours as they are
    assert bounded == {"lab": not reads, "mine": True}
    assert sent["lab"].get("neighbours") == (1 if reads else None)
    # the training rows
    assert "nothing is promised for them" in told["mine"]["notes"][0]


def test_knn_says_that_distances_cross_encrypted_and_that_labels_stay() -> None:
    settings = knn("encrypted") | {"parties": {}}
    told = {
        (g.party, g.protects): g for g in plan(federation(laboratories(), settings))
    }
    how = {one.release: one.mechanism for one in told["mine", "columns"].releases}
    assert (
        how["distances"]
        == "encrypted (ckks): the key holder can read the sum over the other parties"
    )
    assert how["neighbours"] == "plain"
    assert (
        told["clinic", "labels"].statements[0].note
        == "nothing that it sends follows the labels; predictions do"
    )
    assert (
        told["clinic", "columns"].statements[0].note
        == "its own columns are added in without noise"
    )
