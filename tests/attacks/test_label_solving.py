"""A party that knows its Jacobian solves its own gradient for the labels, whatever was
encrypted."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.runs import score_of, trained
from tests.federation.small import frames
from torch import Generator
from torch.func import functional_call, jacrev, vmap

from colonnade.attacks.label_attacks import from_batch_gradient, own_jacobian, solve
from colonnade.attacks.label_audit import label_findings
from colonnade.attacks.received import Knowledge
from colonnade.attacks.rehearsal import first_rounds
from colonnade.core import Transcript
from colonnade.models import build

pytestmark = pytest.mark.filterwarnings(
    "ignore:vfedcce", "ignore:The encryption scheme"
)
MODES = [
    {"mode": "plaintext"},
    {"scheme": "plain"},
    {"mode": "encrypted-jacobian", "scheme": "plain"},
]
WIDE = {"name": "mlp", "hidden": [48], "width": 32}


@pytest.mark.parametrize("config", MODES, ids=lambda config: "-".join(config.values()))
def test_vfedcce_tells_labels_in_every_mode(config: dict[str, str]) -> None:
    one = trained(
        "vfedcce", config=config, model=WIDE, train={"batch_size": 16, "epochs": 1}
    )
    findings = list(label_findings(one, first_rounds(one, 16), None))
    assert [f.attack for f in findings] == ["labels solved from a batch's gradient"] * 2
    for found in findings:
        assert found.details["rows"] == 16
        assert score_of(found) >= 0.9


def test_two_classes_are_solved_as_well() -> None:
    short = {"batch_size": 16, "epochs": 1}
    one = trained(
        "vfedcce", frames(120), config={"mode": "plaintext"}, model=WIDE, train=short
    )
    (found,) = label_findings(one, first_rounds(one, 16), None)
    assert score_of(found) >= 0.9


def test_the_jacobian_is_the_one_of_torch_func() -> None:
    model = build({"name": "mlp", "hidden": [6], "width": 3}, (4,), seed=0, owner="ada")
    x = torch.randn(5, 4, generator=Generator().manual_seed(0))
    weights = {
        name: weight.detach().double() for name, weight in model.named_parameters()
    }
    found = vmap(
        jacrev(lambda w, row: functional_call(model, w, (row[None],))[0]), (None, 0)
    )(weights, x.double())
    expected = torch.cat([part.flatten(2) for part in found.values()], dim=-1).flatten(
        0, 1
    )
    torch.testing.assert_close(own_jacobian(model, x), expected)


def test_what_was_summed_is_found_again_where_there_are_more_weights_than_summands() -> (
    None
):
    generator = Generator().manual_seed(0)
    jacobian, c = (
        torch.randn(*shape, generator=generator).double() for shape in ((20, 50), (20,))
    )
    torch.testing.assert_close(solve(jacobian, jacobian.T @ c), c)
    fewer = jacobian[:, :10]
    assert float((solve(fewer, fewer.T @ c) - c).norm() / c.norm()) > 0.3


def test_without_a_gradient_there_is_nothing_to_solve() -> None:
    one = trained("vfedcce", config={"mode": "plaintext"}, train={"epochs": 1})
    own = Knowledge(
        "lab", one.agreed.one, one.settings.config, 3, one.algorithm.releases
    )
    assert len(from_batch_gradient(Transcript("lab"), own).rows) == 0
