"""An audit runs what applies, bounds it by the run's thresholds, and changes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.runs import (
    BUDGETED,
    GAUSSIAN,
    few_steps,
    fingerprints,
    finished,
    score_of,
    trained,
)
from tests.federation.small import federation, frames

from colonnade.attacks import (
    Audit,
    audit_federation,
    audit_run,
    inversion,
    label_attacks,
    learned_model,
)
from colonnade.errors import AuditFailed, ConfigError


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with few_steps():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(
        tmp_path_factory.mktemp("run"), "vimadmm", audit={"label_inference": 0.7}
    )


def scores(found: Audit) -> list[tuple[str, str, float]]:
    return [(one.attack, one.moment, score_of(one)) for one in found.findings]


def test_a_run_is_attacked_and_stays_bit_identical(run: Path) -> None:
    before = fingerprints(run)
    said: list[str] = []
    found = audit_run(run, rows=16, say=said.append)
    assert fingerprints(run, without="") == before
    assert [(one.attack, one.moment) for one in found.findings] == [
        ("labels from residuals", "first rounds"),
        ("labels by the head it was sent", "first rounds"),
        ("labels from residuals", "trained model"),
        ("labels by the head it was sent", "trained model"),
        ("columns by model inversion", "prediction"),
        ("class seen in rebuilt rows", "prediction"),
        ("columns by the known initial model", "first rounds"),
        ("columns by regression on known rows", "trained model"),
    ]
    assert said[0] == "repeating the first rounds"
    assert scores(audit_run(run, rows=16)) == scores(found)


def test_shares_of_a_sum_are_no_columns_to_attack_and_it_is_said() -> None:
    found = audit_federation(
        trained("vimadmm_joint", config={"aggregation": "secure"}, train={"epochs": 1}),
        rows=8,
    )
    assert {one.limit for one in found.findings} == {"label_inference"}
    (note,) = found.notes
    assert note.startswith(
        "What clinic, lab sent for each row arrived masked: registry can read their sum"
        " alone"
    )


def test_a_crossed_threshold_is_an_error_that_names_it(run: Path) -> None:
    found = audit_run(run, rows=8)
    assert [one.limit for one in found.crossed][:1] == ["label_inference"]
    assert found.to_json()["passed"] is False
    with pytest.raises(
        AuditFailed,
        match=(
            r"lab on clinic, labels from residuals \(first rounds\): AUC 1.000,"
            r" 0.912 at least is above label_inference = 0.7"
        ),
    ):
        found.check()
    found.findings = [one.under({}) for one in found.findings]
    found.check()


def test_training_has_its_own_inversion_where_its_rules_differ() -> None:
    same = audit_federation(trained(), rows=8)
    assert {one.moment for one in same.rebuilt} == {"prediction"}
    other = audit_federation(
        trained(parties={"lab": {"outbox": {"train.embedding": GAUSSIAN}}}),
        rows=8,
        party="lab",
    )
    assert [(one.moment, one.defence) for one in other.rebuilt] == [
        ("prediction", "unprotected"),
        ("trained model", "gaussian noise"),
    ]


def test_a_party_that_refuses_is_noted() -> None:
    found = audit_federation(trained(parties={"lab": BUDGETED}), rows=64)
    assert any("'lab' will not release" in note for note in found.notes)
    assert {one.moment for one in found.findings if one.limit == "label_inference"} >= {
        "first rounds"
    }


def test_where_nothing_applies_it_says_so() -> None:
    given = frames(120, "classes")
    alone = {"clinic": given["clinic"].merge(given["lab"], on="patient")}
    found = audit_federation(trained(given=alone), rows=8)
    assert found.findings == []
    assert found.notes == [
        "No attack here applies to what splitnn sends between these parties."
    ]


def test_what_cannot_be_audited_is_refused(run: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"--party is 'lb', which is no party of this run \(did you mean 'lab'\?\)"
        ),
    ):
        audit_run(run, party="lb")
    with pytest.raises(ConfigError, match="records"):
        audit_federation(federation())


def test_attacks_cannot_be_given_the_truth() -> None:
    """No attack takes a party, a federation, labels or features: what they take is
    here, all of it."""
    takes: dict[Callable[..., Any], set[str]] = {
        label_attacks.from_logit_gradients: {"transcript", "knowledge"},
        label_attacks.from_residuals: {"transcript", "knowledge"},
        label_attacks.from_targets: {"transcript", "knowledge"},
        label_attacks.by_direction: {"transcript", "knowledge"},
        label_attacks.by_norm: {"transcript", "knowledge"},
        label_attacks.from_batch_gradient: {"transcript", "knowledge"},
        inversion.invert: {"h", "model", "shape", "search", "known"},
        learned_model.columns_from_jacobian: {"weight", "bias"},
    }
    for attack, names in takes.items():
        assert set(inspect.signature(attack).parameters) == names
    for source in (label_attacks, inversion, learned_model.columns_from_jacobian):
        assert "federation" not in inspect.getsource(source)
