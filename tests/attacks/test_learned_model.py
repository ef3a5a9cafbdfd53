"""What a model that nobody knows gives away to somebody who knows columns of some rows, beside a control."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.runs import three, trained
from tests.federation.small import frames

from colonnade.attacks import audit_federation
from colonnade.attacks.learned_model import learned_findings, regressed
from colonnade.attacks.rehearsal import TRAINED, train_on

SECRET = {"parties": {"clinic": {"models": "secret"}, "lab": {"models": "secret"}}}
NAME = "columns by regression on known rows"


@pytest.mark.parametrize("models", [SECRET, {}], ids=["secret", "seeded"])
def test_a_secret_model_is_learned_from_known_rows(models: dict[str, dict[str, object]]) -> None:
    one = trained("splitnn", three(), model={"hidden": [32], "width": 24}, **models)
    found = {finding.victim: finding for finding in learned_findings(one, train_on(one, 512, TRAINED), None)}
    assert found.keys() == {"clinic", "lab"}
    for finding in found.values():
        assert finding.attack == NAME
        assert (finding.attacker, finding.moment) == ("registry", "trained model")
        assert finding.details["known_rows"] == 100
        assert finding.details["rows"] == 40
        assert finding.score > 0.25  # a secret model is drawn anew in every run, and a few of its units may be dead
        assert finding.details["by_known_rows"].keys() == {"20", "100"}
    worst = max(found.values(), key=lambda finding: finding.score)
    best = worst.details["best_column"]
    assert worst.score > 0.7
    assert worst.details["r2"][best] > 0.8 > worst.details["r2_without_embeddings"][best] + 0.2


def test_noise_without_the_row_gives_nothing_away() -> None:
    """The control of the attack itself: it must not find what is not there."""
    alone = {"embedding": {"mechanism": {"name": "noise_only", "clip": 1.0, "sigma": 4.0}}}
    one = trained("splitnn", three(), parties={"lab": {"outbox": alone}}, train={"epochs": 1})
    (finding,) = learned_findings(one, train_on(one, 512, TRAINED), "lab")
    assert finding.victim == "lab"
    assert finding.score < 0.25


def test_an_owner_with_columns_has_them_in_the_control() -> None:
    """The laboratory's columns are the clinic's own, so embeddings tell nothing that it did not know."""
    given = frames(200, "classes")
    twin = given["clinic"].drop(columns="diagnosis").rename(columns={"age": "iron", "weight": "zinc"})
    one = trained("splitnn", {"clinic": given["clinic"], "lab": twin}, **SECRET)
    (finding,) = learned_findings(one, train_on(one, 512, TRAINED), None)
    assert min(finding.details["r2_without_embeddings"].values()) > 0.99
    assert (finding.score, finding.verdict) == (0.0, "hardly better than guessing the mean")


def test_too_few_rows_are_not_attacked() -> None:
    one = trained("splitnn", frames(45), train={"epochs": 1})
    assert list(learned_findings(one, train_on(one, 512, TRAINED), None)) == []
    assert NAME not in {finding.attack for finding in audit_federation(one, rows=8).findings}


def test_regression_finds_a_linear_map_and_ridge_holds_where_there_are_more_numbers_than_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weights = torch.randn(80, 6, generator=generator), torch.randn(6, 3, generator=generator)
    assert torch.allclose(regressed(x[:20], (x @ weights)[:20] + 2, x[20:]), (x @ weights)[20:] + 2, atol=0.05)
    wide = torch.randn(80, 60, generator=generator)  # nothing to be learned from 20 rows
    guess = regressed(wide[:20], x[:20], wide[20:])
    assert float((guess - x[20:]).square().mean()) < 1.5 * float((x[20:] - x[:20].mean(0)).square().mean())
    constant = regressed(torch.ones(20, 2), x[:20], torch.ones(5, 2))
    assert torch.allclose(constant, x[:20].mean(0).expand(5, -1), atol=1e-5)
