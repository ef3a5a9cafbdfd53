"""Where Jacobians travel in plaintext, the label owner reads columns off them."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.runs import trained
from torch import nn

from colonnade.attacks.learned_model import first_layer, jacobian_findings, read
from colonnade.attacks.rehearsal import first_rounds
from colonnade.models import build

pytestmark = pytest.mark.filterwarnings("ignore:vfedcce")


def test_vfedcce_in_plaintext_gives_every_column_away() -> None:
    one = trained("vfedcce", config={"mode": "plaintext"})
    findings = list(jacobian_findings(one, first_rounds(one, 32), 32, None))
    assert [(f.attacker, f.victim) for f in findings] == [("registry", "clinic"), ("registry", "lab")]
    for found in findings:
        assert found.details["correlation"] >= 0.999
        assert found.score >= 0.999
        assert found.verdict == "can rebuild rows almost exactly"
    only = list(jacobian_findings(one, first_rounds(one, 32), 32, "lab"))
    assert [f.victim for f in only] == ["lab"]


@pytest.mark.parametrize("algorithm", ["splitnn", "vimadmm"])
def test_others_send_no_jacobian(algorithm: str) -> None:
    one = trained(algorithm)
    assert list(jacobian_findings(one, first_rounds(one, 32), 32, None)) == []


def test_the_first_layer_is_found_by_its_place_among_the_parameters() -> None:
    model = build({"name": "mlp", "hidden": [5], "width": 3}, (4,), seed=0, owner="ada")
    assert first_layer(model) == (0, 5, 4)
    assert first_layer(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(3, 2))) is None
    assert first_layer(nn.Sequential(nn.Linear(3, 2, bias=False))) is None
    assert first_layer(nn.ReLU()) is None


def test_a_flat_jacobian_is_cut_where_the_layer_is() -> None:
    x, delta = torch.randn(6, 4), torch.randn(6, 2, 5)
    weight = (delta[..., None] * x[:, None, None]).flatten(2)
    flat = torch.cat([weight, delta, torch.randn(6, 2, 7)], dim=-1).flatten(0, 1)
    torch.testing.assert_close(read(flat, 6, 0, 5, 4), x, atol=1e-5, rtol=1e-4)
