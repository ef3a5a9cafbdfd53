"""Scores along directions of known length are a party's columns: of one column its values, of more with a few known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from tests.attacks.runs import three, trained

from colonnade.attacks.finding import Finding
from colonnade.attacks.learned_model import lengths_findings
from colonnade.attacks.rehearsal import TRAINED, Rehearsal, first_rounds, train_on
from colonnade.core import Transcript
from colonnade.federation import Federation

UNAIDED, AIDED = "columns from scores and lengths", "columns from scores of many rounds"
SUMMED = "columns from sums of scores of many rounds"


def found(federation: Federation, rehearsal: Rehearsal) -> Mapping[tuple[str, str], Finding]:
    return {(one.victim, one.attack): one for one in lengths_findings(federation, rehearsal, None)}


def test_scores_of_many_rounds_are_the_columns() -> None:
    given = three()
    given["lab"] = given["lab"].iloc[:, :2]  # the id, and one column
    federation = trained("logistic_regression", given, preprocess={"numbers": "standard"})
    first = found(federation, first_rounds(federation, 64))
    alone = first["lab", UNAIDED]
    assert (alone.attacker, alone.moment, alone.releases) == ("registry", "first rounds", ("logits", "lengths"))
    assert alone.score > 0.999
    assert alone.verdict == "can rebuild rows almost exactly"
    aided = first["clinic", AIDED]
    assert min(aided.details["r2"].values()) > 0.99, "every column, not the best alone"
    few = dataclasses.replace(first_rounds(federation, 64), transcripts=train_on(federation, 64, TRAINED).transcripts)
    assert found(federation, few)["clinic", AIDED].score < aided.score, "one round is one direction"


def test_sums_under_masks_over_as_many_rounds_as_there_are_columns_are_the_columns() -> None:
    """Nobody's scores are known, and with the columns of a few rows everybody's follow all the same; of few rounds,
    hardly."""
    pytest.importorskip("cryptography")
    secure, brief = {"aggregation": "secure"}, {"epochs": 2}
    federation = trained("logistic_regression", three(), preprocess={"numbers": "standard"}, config=secure, train=brief)
    rehearsal = first_rounds(federation, 64)
    first = found(federation, rehearsal)
    assert set(first) == {("clinic", SUMMED), ("lab", SUMMED)}
    assert {one.releases for one in first.values()} == {("logits", "lengths")}
    assert all(min(one.details["r2"].values()) > 0.99 for one in first.values())
    own = Transcript("registry", [seen for seen in rehearsal.transcripts["registry"] if seen.sender == "lab"])
    assert not found(federation, dataclasses.replace(rehearsal, transcripts={"registry": own})), "a share is no sum"
    few = dataclasses.replace(rehearsal, transcripts=train_on(federation, 64, TRAINED).transcripts)
    later = found(federation, few)
    assert all(later[key].score < one.score for key, one in first.items()), "one round is one direction"
