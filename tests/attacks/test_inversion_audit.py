"""Every feature owner is attacked by whom its embeddings reached, and its rules decide
how well that works."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.attacks.runs import GAUSSIAN, score_of, three, trained
from tests.federation.small import frames

from colonnade.attacks.finding import Finding
from colonnade.attacks.inversion_audit import (
    EVERYBODY,
    Rebuilt,
    inversion_findings,
    joined,
    rebuild,
)
from colonnade.attacks.rehearsal import first_rounds, predictions
from colonnade.federation import Federation, Settings

WIDE = {"name": "mlp", "hidden": [32], "width": 24}


def attacked(
    one: Federation, rows: int = 40, party: str | None = None
) -> tuple[list[Rebuilt], list[Finding]]:
    rebuilt = list(rebuild(one, predictions(one, rows), rows, party))
    return rebuilt, list(inversion_findings(one, rebuilt))


def best(outbox: Mapping[str, Any] | None = None) -> float:
    """The R squared of the laboratory's best rebuilt column."""
    parties = {"lab": {"outbox": outbox}} if outbox else {}
    _, findings = attacked(trained(parties=parties), party="lab")
    return next(score_of(one) for one in findings if one.limit == "inversion_r2")


def test_tables_are_scored_by_column_and_by_whether_the_class_is_seen() -> None:
    one = trained()
    rebuilt, findings = attacked(one)
    assert [(r.attacker, r.victim, r.reached) for r in rebuilt] == [
        ("registry", "clinic", ("registry",)),
        ("registry", "lab", ("registry",)),
    ]
    assert [f.limit for f in findings] == ["inversion_r2", "recognition"] * 2
    clinic, seen = findings[:2]
    assert set(clinic.details["r2"]) == {"age", "weight"}
    assert clinic.score == max(clinic.details["r2"].values()) > 0.5
    assert clinic.details["release"] == "unprotected"
    assert "white box" in clinic.assumes
    truth = rebuilt[0].original
    expected = (
        1
        - (truth - rebuilt[0].guess)[:, 0].square().sum()
        / (truth - rebuilt[0].mean)[:, 0].square().sum()
    )
    assert clinic.details["r2"]["age"] == pytest.approx(float(expected), abs=1e-5)
    assert seen.metric == "AUC"
    assert seen.baseline == 0.5 < seen.details["auc_on_the_original"]


def test_noise_and_top_k_leave_less_to_rebuild() -> None:
    plain = best()
    assert plain > 0.5
    assert best({"embedding": GAUSSIAN}) < 0.6 * plain
    assert best({"embedding": {"codec": {"name": "top_k", "keep": 1}}}) < plain


def test_where_noise_has_a_mean_two_attackers_try() -> None:
    rule = {
        "mechanism": {
            "name": "binomial",
            "levels": 16,
            "trials": 16,
            "p": 0.5,
            "low": 0.0,
            "high": 3.0,
        }
    }
    one = trained(parties={"lab": {"outbox": {"embedding": rule}}})
    rebuilt, findings = attacked(one, party="lab")
    assert [r.defence for r in rebuilt] == [
        "binomial noise and integers",
        "binomial noise and integers, its mean unknown",
    ]
    knows, does_not = (score_of(f) for f in findings if f.limit == "inversion_r2")
    assert knows > does_not


def test_a_label_owner_does_not_attack_its_own_columns_and_labels_may_be_numbers() -> (
    None
):
    rebuilt, findings = attacked(trained("vimadmm", frames(120, "regression")))
    assert [r.victim for r in rebuilt] == ["lab"]
    assert [f.limit for f in findings] == ["inversion_r2"]


def test_categories_are_one_column_under_their_own_name() -> None:
    given = three()
    given["lab"]["colour"] = ["turquoise", "magenta"] * 100
    _, findings = attacked(trained(given=given), party="lab")
    assert set(findings[0].details["r2"]) == {"iron", "zinc", "colour"}
    assert "turquoise" not in str([f.to_json() for f in findings])


@pytest.mark.filterwarnings("ignore:compressed_vfl")
def test_it_is_said_whom_else_the_embeddings_reached() -> None:
    one = trained("compressed_vfl")
    rebuilt = list(rebuild(one, first_rounds(one, 32), 8, None))
    assert [(r.victim, r.reached) for r in rebuilt] == [
        ("clinic", ("registry", "lab")),
        ("lab", ("registry", "clinic")),
    ]


@pytest.mark.parametrize(
    ("split", "parts", "shape"), [("strips", 2, (4, 8)), ("patches", [2, 2], (4, 4))]
)
def test_pictures_are_put_together_again(
    split: str, parts: Any, shape: tuple[int, int]
) -> None:
    tables = {
        "algorithm": {"name": "splitnn"},
        "data": {"dataset": "digits", "split": split, "parts": parts},
        "model": WIDE,
        "train": {"epochs": 2, "batch_size": 64},
        "federation": {"device": "cpu"},
    }
    one = Federation.from_settings(Settings.from_mapping(tables), record=True)
    one.fit()
    assert one.recording is not None
    one.recording.transcripts.clear()
    rebuilt = list(rebuild(one, predictions(one, 24), 24, None))
    assert len(rebuilt) == math.prod(parts) if isinstance(parts, list) else parts
    assert rebuilt[0].original.shape == (24, *shape)
    whole = joined(one, rebuilt)
    assert whole is not None
    assert whole.victim == EVERYBODY
    assert whole.original.shape == whole.guess.shape == (24, 8, 8)
    assert torch.equal(whole.original[:, : shape[0], : shape[1]], rebuilt[0].original)
    findings = list(inversion_findings(one, [whole]))
    assert [f.limit for f in findings] == ["inversion_ssim", "recognition"]
    assert score_of(findings[0]) > findings[0].baseline + 0.2
    assert findings[0].details["psnr"] > findings[0].details["psnr_baseline"]
    assert score_of(findings[1]) > findings[1].baseline
    assert joined(one, rebuilt[1:]) is None
    assert (
        joined(
            one,
            [dataclasses.replace(r, attacker=f"{n}") for n, r in enumerate(rebuilt)],
        )
        is None
    )
