"""For a first linear layer the Jacobian is delta times x, so dividing gives x back:
where it travels in plaintext, the label owner reads columns off it."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.runs import score_of, trained
from torch import Generator, Tensor, nn
from torch.func import functional_call, jacrev, vmap

from colonnade.attacks.learned_model import (
    columns_from_jacobian,
    first_layer,
    jacobian_findings,
    read,
)
from colonnade.attacks.rehearsal import first_rounds
from colonnade.errors import DataError
from colonnade.models import build

pytestmark = pytest.mark.filterwarnings("ignore:vfedcce")


def jacobian(x: Tensor, outputs: int = 4) -> tuple[Tensor, Tensor]:
    """da/dW1 and da/db1 of an mlp's class probabilities, per row."""
    model = build(
        {"name": "mlp", "hidden": [16, 8], "width": outputs},
        (x.shape[1],),
        seed=3,
        owner="ada",
    )
    parameters = dict(model.named_parameters())

    def probabilities(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        found: Tensor = functional_call(model, weights, (row[None],))[0].softmax(-1)
        return found

    found = vmap(jacrev(probabilities), (None, 0))(parameters, x)
    return found["0.weight"].detach(), found["0.bias"].detach()


def test_columns_are_read_exactly() -> None:
    x = torch.randn(32, 7, generator=Generator().manual_seed(0))
    weight, bias = jacobian(x)
    assert weight.shape == (32, 4, 16, 7)
    guess = columns_from_jacobian(weight, bias)
    lit = bias.flatten(1).abs().amax(1) > 0
    assert int(lit.sum()) >= 30
    torch.testing.assert_close(guess[lit], x[lit], atol=1e-4, rtol=1e-4)
    assert (
        float(
            torch.corrcoef(torch.stack([guess[lit].flatten(), x[lit].flatten()]))[0, 1]
        )
        >= 0.999
    )


def test_a_row_that_switches_everything_off_shows_nothing() -> None:
    assert torch.equal(
        columns_from_jacobian(torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4)),
        torch.zeros(2, 5),
    )


def test_tiny_derivatives_are_read_as_well_as_large_ones() -> None:
    x = torch.randn(3, 5)
    delta = torch.randn(3, 2, 4) * 1e-25
    torch.testing.assert_close(
        columns_from_jacobian(delta[..., None] * x[:, None, None], delta),
        x,
        atol=1e-5,
        rtol=1e-5,
    )


def test_under_noise_it_is_the_least_squares_answer() -> None:
    generator = Generator().manual_seed(0)
    x = torch.randn(1, 5, generator=generator).double()
    delta = torch.randn(1, 2, 6, generator=generator).double()
    weight = (
        delta[..., None] * x[:, None, None]
        + 0.1 * torch.randn(1, 2, 6, 5, generator=generator).double()
    )
    expected = torch.linalg.lstsq(delta.reshape(12, 1), weight.reshape(12, 5)).solution
    torch.testing.assert_close(columns_from_jacobian(weight, delta), expected)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"\[rows, outputs, units, inputs\].*found \[2, 3\] and \[2\]"
    ):
        columns_from_jacobian(torch.zeros(2, 3), torch.zeros(2))


def test_vfedcce_in_plaintext_gives_every_column_away() -> None:
    one = trained("vfedcce", config={"mode": "plaintext"})
    findings = list(jacobian_findings(one, first_rounds(one, 32), 32, None))
    assert [(f.attacker, f.victim) for f in findings] == [
        ("registry", "clinic"),
        ("registry", "lab"),
    ]
    for found in findings:
        assert found.details["correlation"] >= 0.999
        assert score_of(found) >= 0.999
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
    x = torch.randn(6, 4)
    delta = torch.randn(6, 2, 5)
    weight = (delta[..., None] * x[:, None, None]).flatten(2)
    flat = torch.cat([weight, delta, torch.randn(6, 2, 7)], dim=-1).flatten(0, 1)
    torch.testing.assert_close(read(flat, 6, 0, 5, 4), x, atol=1e-5, rtol=1e-4)
