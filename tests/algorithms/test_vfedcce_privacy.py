"""What the parties of vFedCCE can and cannot read: attacks, and transcripts."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from tests.algorithms.test_vfedcce import (
    ENCRYPTED,
    encrypted_modes,
    jacobian,
    joined_gradients,
    made,
)
from tests.conformance.battery import Gaussian
from tests.conformance.toy import flat, sequential
from tests.federation.small import federation, frames, quick
from torch import nn

from colonnade.algorithms import vfedcce
from colonnade.algorithms.embedding import Embed
from colonnade.core import Ciphertext, Released, Rule
from colonnade.encryption import make_keys
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.federation import Federation
from colonnade.privacy.report import HIDDEN
from colonnade.transport import Recording
from colonnade.transport.cohort import CohortOutbox

quiet = pytest.mark.filterwarnings(
    "ignore:vfedcce in plaintext", 'ignore:The encryption scheme "plain"'
)


@quiet
def test_in_plaintext_the_label_owner_reads_the_features_by_division() -> None:
    """du/dW = delta x^T and du/db = delta, at a unit that is not zero."""
    toy = made(
        "plaintext",
        transport=lambda parties: Recording(sequential(parties)),
        task="binary",
    )
    first = toy.parties["ada"].model[0]
    assert isinstance(first, nn.Linear)
    toy.run(1)
    (jacobian,) = toy.transport.of("label owner").tensors("jacobian", "ada")
    weights = jacobian[:, : first.weight.numel()]
    biases = jacobian[:, first.weight.numel() :][:, : len(first.bias)]
    unit = biases.abs().argmax(1)
    rows = torch.arange(len(jacobian))
    read = (
        weights.reshape(-1, *first.weight.shape)[rows, unit] / biases[rows, unit, None]
    )
    assert torch.allclose(
        read, toy.parties["ada"].features[toy.batches.rows("train/0/0")], atol=1e-4
    )


@pytest.mark.parametrize("mode", ENCRYPTED)
def test_encrypted_nothing_readable_crosses_but_log_odds_and_public_keys(
    mode: str,
) -> None:
    toy = made(
        mode,
        "ckks",
        transport=lambda parties: Recording(sequential(parties)),
        task="binary",
        columns=(3, 3),
    )
    toy.run(1)
    for transcript in toy.transport.transcripts.values():
        seen = [item for message in transcript for item in message.message.crossing()]
        readable = {item.receipt.name for item in seen if isinstance(item, Released)}
        hidden = {item.receipt.name for item in seen if isinstance(item, Ciphertext)}
        if transcript.party == "label owner":
            assert readable <= {"log_odds", "public_key"}
            assert hidden == (
                {"masked_gradient"}
                if mode == "encrypted-coefficients"
                else {"jacobian"}
            )
        else:
            assert readable <= {"public_key"}
            assert hidden == (
                {"coefficients", "gradient"}
                if mode == "encrypted-coefficients"
                else {"gradient"}
            )
    guarantees = {entry.name: entry.event for entry in toy.driver.ledger.entries}
    # the party can read it, and that is said
    assert guarantees["gradient"] == "non-private"
    if mode == "encrypted-coefficients":
        assert guarantees["coefficients"] == "encrypted (ckks)"
        assert guarantees["masked_gradient"] == "blinded (ckks)"


def test_the_label_owner_cannot_see_behind_the_mask_with_its_own_key() -> None:
    """What it decrypts has nothing of the gradient in it, and another time is another
    number."""
    toy = made(
        "encrypted-coefficients",
        "ckks",
        transport=lambda p: Recording(sequential(p)),
        columns=(3, 3),
    )
    true = joined_gradients(toy)["ada"].double() * 32
    toy.run(1)
    (reply,) = [
        s.message
        for s in toy.transport.of("label owner")
        if isinstance(s.message, vfedcce.Masked)
    ][:1]
    seen = toy.driver._secret.decrypt(reply.gradient.encrypted)
    assert float(seen.std()) > 1e5 * float(true.std())
    # 195 weights: five deviations
    assert abs(float(torch.corrcoef(torch.stack([seen, true]))[0, 1])) < 0.35


@quiet
@pytest.mark.parametrize("mode", ["plaintext", *ENCRYPTED])
def test_a_party_with_many_weights_can_solve_its_gradient_for_the_labels(
    mode: str,
) -> None:
    """In every mode, because it is in the gradient: this is said in its record and in
    the module's own words."""
    toy = made(mode, task="binary", dtype=torch.float64, columns=(4, 4))
    party = toy.parties["ada"]
    rows = toy.batches.rows("train/0/0")
    known = jacobian(copy.deepcopy(party.model), party.features[rows])
    toy.run(1)
    got = torch.cat([weight.grad.flatten() for weight in party.model.parameters()])
    coefficients = torch.linalg.lstsq(known.T, got[:, None], driver="gelsd").solution[
        :, 0
    ]
    assert known.shape[1] > len(rows)
    assert torch.equal((coefficients < 0).long(), toy.driver.labels[rows])
    assert "labels" in vfedcce.ALGORITHM.reveals["gradient"]


@quiet
def test_noise_on_the_coefficients_protects_them_before_they_are_encrypted() -> None:
    toy = made("encrypted-coefficients", task="binary")
    toy.driver.outbox.rules = {"coefficients": Rule(Gaussian(1.0, 1.0))}
    quiet_one = made("encrypted-coefficients", task="binary")
    assert toy.run(3)[1:] != quiet_one.run(3)[1:]
    events = {
        entry.name: (entry.event, dict(entry.parameters))
        for entry in toy.driver.ledger.entries
    }
    assert events["coefficients"] == ("gaussian", {"noise_multiplier": 1.0})


@quiet
def test_a_rule_that_encryption_cannot_keep_is_refused() -> None:
    toy = made("encrypted-coefficients")
    toy.parties["bob"].outbox.rules = {"masked_gradient": Rule(Gaussian(1.0, 1.0))}
    with pytest.raises(
        (ConfigError, PartyError),
        match="rule for 'masked_gradient' of 'bob' has the mechanism",
    ):
        toy.run(1)


@quiet
@encrypted_modes
def test_nobody_can_talk_a_party_into_plaintext(mode: str) -> None:
    toy = made(mode)
    toy.run(1)
    toy.peers.ask(Embed("train/0/1"))
    if mode == "encrypted-coefficients":
        with pytest.raises(PartyError, match="its mode is encrypted-coefficients"):
            toy.peers["ada"].ask(vfedcce.AskJacobian("train/0/1"))
    else:
        reply = toy.peers["ada"].ask(vfedcce.AskJacobian("train/0/1"))
        assert isinstance(reply.values, Ciphertext)
    gradient = toy.driver.outbox.release(torch.zeros(3), "gradient")
    with pytest.raises(PartyError, match=f"its mode is {mode}"):
        toy.peers["ada"].ask(vfedcce.TakeGradient("train/0/1", gradient))


@quiet
@encrypted_modes
def test_secret_keys_are_in_no_state_and_cannot_be_copied(mode: str) -> None:
    toy = made(mode, "ckks", columns=(2, 2), task="binary")
    toy.run(1)
    holder = toy.driver if mode == "encrypted-coefficients" else toy.parties["ada"]
    assert holder._secret is not None
    for state in toy.states().values():
        kinds = {type(leaf) for leaf in flat(state).values()}
        assert kinds <= {torch.Tensor, int, float, bool, str, type(None)}
    with pytest.raises(BoundaryError, match="does not leave"):
        pickle.dumps(holder._secret)


def test_plaintext_warns_with_the_reason_and_the_default_does_not() -> None:
    assert vfedcce.Config().mode == "encrypted-coefficients"
    assert vfedcce.Config().scheme == "bfv"
    with pytest.warns(UserWarning, match="read that party's columns by division"):
        made("plaintext").run(1)
    with pytest.warns(UserWarning, match="encrypts nothing"):
        made("encrypted-coefficients", "plain").run(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made("encrypted-coefficients", "ckks", columns=(2,), task="binary").run(1)


@quiet
def test_a_jacobian_that_would_not_fit_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vfedcce, "MOST", 1000)
    with pytest.raises(
        PartyError,
        match=(
            r"its Jacobian would have .* values, and 1,000 are allowed; lower"
            r" batch_size"
        ),
    ):
        made("encrypted-coefficients").run(1)


@quiet
def test_a_cohort_cannot_encrypt_for_its_members() -> None:
    toy = made(
        "encrypted-coefficients",
        transport=lambda parties: Recording(sequential(parties)),
    )
    toy.run(1)
    sealed = toy.transport.of("ada").seen[-1].message.crossing()[0]
    together = CohortOutbox(
        [party.outbox for party in toy.parties.values()], "ada, bob, cyd"
    )
    with pytest.raises(BoundaryError, match="each must encrypt gradient for itself"):
        together.pass_on(sealed.encrypted, "gradient")


@quiet
@pytest.mark.parametrize("mode", ["plaintext", *ENCRYPTED])
@pytest.mark.parametrize("scheme", ["plain", "ckks", "bfv"])
def test_what_is_said_to_cross_is_what_ledgers_hold(mode: str, scheme: str) -> None:
    toy = made(mode, scheme, columns=(3, 3), task="binary")
    toy.run(1)
    told = vfedcce.crossing(toy.driver.config)
    for number, own in enumerate((toy.parties["ada"], toy.driver)):
        sent = {
            (entry.name, entry.event)
            for entry in own.organisation.ledger.entries
            if entry.direction == "out"
        }
        assert sent == {(name, event.kind) for name, event in told[number].items()}


NOISY: dict[str, Any] = {
    "outbox": {
        "log_odds": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 20.0}}
    }
}
BUDGET: dict[str, Any] = {"budget": {"epsilon": 2.0}}


def of_two(scheme: str = "bfv", **lab: Any) -> Federation:
    """A clinic that drives, by default as vFedCCE does, and a lab; in each batch 16
    rows."""
    settings = quick(
        model={"hidden": [2], "width": 2},
        train={"epochs": 1, "batch_size": 16},
        parties={"lab": lab},
    )
    return federation(
        frames(40), {**settings, "algorithm": {"name": "vfedcce", "scheme": scheme}}
    )


@quiet
@pytest.mark.parametrize(
    "protected", [False, True], ids=["by default", "with noise and a budget"]
)
def test_a_lying_label_owner_cannot_talk_a_party_out_of_encryption_and_mask(
    protected: bool,
) -> None:
    """With a key of the scheme "plain", and coefficients that pick one row, the reply
    would be that row's Jacobian, from which its columns follow by division: all 16 rows
    of a batch in as many batches, and nothing of it counted."""
    one = of_two(**(NOISY | BUDGET if protected else {}))
    secret = make_keys(
        "plain", use="products", limit=one.driver.config.coefficient_limit
    )
    key = one.driver.outbox.publish(secret.public.to_bytes(), "public_key")
    one.peers["lab"].ask(Embed("train/0/0"))
    with pytest.raises(
        BoundaryError,
        match=(
            "of the scheme 'plain' came, and by this party's own settings it is 'bfv'"
        ),
    ):
        one.peers["lab"].ask(vfedcce.UseKey(key))
    picks = torch.zeros(16, 1)
    picks[3] = 1.0
    with pytest.raises(PartyError, match="it was not given a key yet"):
        one.peers["lab"].ask(
            vfedcce.Multiply(
                "train/0/0",
                one.driver.outbox.encrypt(picks, "coefficients", key=secret),
            )
        )
    assert {
        entry.name for entry in one.ledgers["lab"].entries if entry.direction == "out"
    } == {"log_odds"}


@quiet
def test_where_a_party_itself_encrypts_nothing_its_account_says_so() -> None:
    """Its own settings say "plain", so it may, but not under a budget: what leaves then
    can be read."""
    with pytest.raises(
        ConfigError,
        match=(
            r"lab.budget\] can never be kept with vfedcce: it also releases masked_grad"
        ),
    ):
        of_two("plain", **NOISY, **BUDGET)
    counted = of_two("plain", **NOISY)
    counted.fit()
    assert counted.accounts["lab"].worst == math.inf


def test_an_encrypted_run_keeps_its_budget_and_says_against_whom() -> None:
    one = of_two(**NOISY, **BUDGET)
    told = one.fit().summary["privacy"]
    assert 0.1 < one.accounts["lab"].worst < 2.0
    (lab,) = (each for each in told if each["party"] == "lab")
    whom = {one["adversary"] for one in lab["statements"]} - {HIDDEN}
    assert all("the label owner that follows the protocol" in one for one in whom), (
        "made-up ciphertexts read behind"
    )


@quiet
def test_a_key_is_not_replaced_on_the_way() -> None:
    toy = made("encrypted-coefficients")
    toy.run(1)
    other = make_keys(
        "plain", use="products", limit=toy.driver.config.coefficient_limit
    )
    with pytest.raises(
        PartyError, match="it was given another key before, and keeps to that"
    ):
        toy.peers["ada"].ask(
            vfedcce.UseKey(
                toy.driver.outbox.publish(other.public.to_bytes(), "public_key")
            )
        )


def test_a_lying_party_cannot_talk_the_label_owner_into_sending_gradients_in_the_clear() -> (
    None
):
    toy = made("encrypted-jacobian", "ckks", columns=(3, 3), task="binary")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        toy.parties["ada"]._secret = make_keys("plain", use="combinations", limit=8.0)
    with pytest.raises(BoundaryError, match="of the scheme 'plain' came"):
        toy.run(1)
