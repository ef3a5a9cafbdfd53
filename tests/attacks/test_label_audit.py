"""Every label attack that applies is made, by every party that does not hold the
labels."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tests.attacks.runs import score_of, three, trained
from tests.federation.small import frames
from torch.nn.functional import one_hot

from colonnade.attacks import label_audit
from colonnade.attacks.finding import NOT_MEASURED, TURNED, Finding
from colonnade.attacks.label_audit import guesses, label_findings
from colonnade.attacks.received import Guess
from colonnade.attacks.rehearsal import TRAINED, first_rounds, train_on
from colonnade.evaluate import wilson
from colonnade.federation import Federation

pytestmark = pytest.mark.filterwarnings("ignore:compressed_vfl")
DIRECT = {
    "fdml": "labels from logit gradients",
    "vimadmm": "labels from residuals",
    "vimadmm_joint": "labels from residuals",
    "compressed_vfl": "labels as they were sent",
}
SPLIT = ("splitnn", "vafl", "vimsgd")


def found(one: Federation, party: str | None = None) -> list[Finding]:
    return list(label_findings(one, first_rounds(one, 512), party))


@pytest.mark.parametrize("algorithm", DIRECT)
def test_what_can_be_read_is_read_by_everybody(algorithm: str) -> None:
    findings = [
        one for one in found(trained(algorithm)) if "it was sent" not in one.attack
    ]
    assert [(one.attack, one.attacker, one.victim) for one in findings] == [
        (DIRECT[algorithm], name, "registry") for name in ("clinic", "lab")
    ]
    for one in findings:
        assert one.score == one.details["accuracy"] == 1.0
        assert one.details["rows"] == 140
        assert one.verdict == "can tell nearly every label"
        assert one.baseline == 0.5 > one.details["accuracy_without"]


@pytest.mark.parametrize("algorithm", SPLIT)
def test_split_learning_is_attacked_by_direction_and_for_two_classes_by_length(
    algorithm: str,
) -> None:
    assert {one.attack for one in found(trained(algorithm))} == {
        "labels by gradient direction"
    }
    binary = found(trained(algorithm, frames(120)))
    assert [one.attack for one in binary] == [
        "labels by gradient direction",
        "labels by gradient length",
    ]
    assert binary[0].attacker == "lab"  # the clinic holds the labels itself
    assert binary[0].score == 1.0


def test_one_party_can_be_looked_at() -> None:
    one = trained("fdml")
    assert [f.attacker for f in found(one, "lab")] == ["lab"]
    assert [f.attacker for f in found(one, "registry")] == ["clinic", "lab"]


def test_numbers_are_judged_by_correlation() -> None:
    (one,) = found(trained("vimsgd", frames(120, "regression")))
    assert one.metric == "squared correlation"
    assert score_of(one) > 0.5


@pytest.mark.parametrize("algorithm", ["fdml", "vimadmm"])
def test_randomized_response_bounds_what_can_be_read(algorithm: str) -> None:
    """The attack reads the drawn labels exactly; these are the true ones as often as
    the mechanism says."""
    epsilon = 0.5
    classes = 3
    rule = {
        "labels": {"mechanism": {"name": "randomized_response", "epsilon": epsilon}}
    }
    one = trained(algorithm, three(600), parties={"registry": {"outbox": rule}})
    first = found(one)[0]
    keep = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    rows = first.details["rows"]
    low, high = wilson(round(first.details["accuracy"] * rows), rows, z=3.3)
    assert low < keep < high


def test_noise_on_what_the_label_owner_sends_makes_it_a_guess() -> None:
    rule = {
        "residual": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 200.0}}
    }
    one = trained(
        "vimadmm",
        parties={"registry": {"outbox": rule}},
        config={"learning_rate": 1e-6},
    )
    read = [f for f in found(one) if f.attack == DIRECT["vimadmm"]]
    assert {f.verdict for f in read} == {"no better than guessing"}


@pytest.mark.parametrize(
    ("algorithm", "attack"), [("vimadmm", "head"), ("compressed_vfl", "model")]
)
def test_weights_that_were_sent_tell_labels_once_they_are_trained(
    algorithm: str, attack: str
) -> None:
    one = trained(algorithm)
    first = first_rounds(one, 512)
    later = dataclasses.replace(train_on(one, 512, TRAINED), begun=first.transcripts)
    made = [
        f
        for f in label_findings(one, later, None)
        if f.attack == f"labels by the {attack} it was sent"
    ]
    assert [f.attacker for f in made] == ["clinic", "lab"]
    assert {f.releases for f in made} == {(attack,)}
    assert max(score_of(f) - f.baseline for f in made) > 0.1


def test_guesses_that_a_party_tells_hide_nothing_that_is_known_without_them() -> None:
    federation = trained("fdml")
    rehearsal = first_rounds(federation, 512)
    own = list(label_findings(federation, rehearsal, "lab"))
    rows = torch.arange(140)
    truth = federation.holdings.labelled.labels
    wrong = Guess(rows, one_hot((truth[rows] + 1) % 3, 3).float(), named=True)
    few = Guess(rows[:3], one_hot(truth[:3], 3).float(), named=True)
    for told in (wrong, few):
        by_attack = {(own[0].attack, "lab", rehearsal.moment): told}
        assert list(label_findings(federation, rehearsal, "lab", by_attack)) == own


def test_an_inverted_guess_of_two_classes_is_a_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    federation = trained("fdml", frames(120))
    rehearsal = first_rounds(federation, 512)
    ((attack, name, guess),) = guesses(federation, rehearsal, "lab", 2)
    inverted = dataclasses.replace(guess, scores=-guess.scores)
    monkeypatch.setattr(label_audit, "guesses", lambda *_: [(attack, name, inverted)])
    (finding,) = label_findings(federation, rehearsal, "lab")
    assert (finding.score, finding.verdict) == (
        1.0,
        "can tell nearly every label" + TURNED,
    )
    assert finding.assumes == f"{attack.assumes}, and a few labels"
    assert finding.details["named"] is False
    assert finding.under({"label_inference": 0.8}).crossed


def test_guesses_on_rows_of_one_class_are_not_measured_and_hide_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Saying one class of rows that have no other is right every time, and says
    nothing; neither does it replace what the label owner found itself."""
    federation = trained("fdml", frames(120))
    rehearsal = first_rounds(federation, 512)
    labels = federation.holdings.labelled.labels
    ((attack, name, guess),) = guesses(federation, rehearsal, "lab", 2)
    alike = (labels == 1).nonzero().flatten()[:20]
    scores = torch.tensor([-1.0, 1.0]).expand(20, 2)
    told = {(attack.name, "lab", rehearsal.moment): Guess(alike, scores, named=True)}
    (own,) = label_findings(federation, rehearsal, "lab", told)
    assert own.leaks
    assert own.details["rows"] == len(guess.rows)
    nothing = dataclasses.replace(guess, rows=guess.rows[:0], scores=guess.scores[:0])
    monkeypatch.setattr(label_audit, "guesses", lambda *_: [(attack, name, nothing)])
    (alone,) = label_findings(federation, rehearsal, "lab", told)
    assert alone.score is None
    assert alone.verdict == NOT_MEASURED + label_audit.OWN_WORD
    assert not alone.counts
    assert alone.under({"label_inference": 0.9}).unknown


def test_guesses_that_show_more_stand_beside_what_is_known_and_bound_nothing() -> None:
    federation = trained("fdml", frames(120))
    rehearsal = first_rounds(federation, 512)
    ((attack, name, guess),) = guesses(federation, rehearsal, "lab", 2)
    noise = torch.rand(len(guess.rows), generator=torch.Generator().manual_seed(0))
    weak = dataclasses.replace(guess, scores=torch.stack([-noise, noise], 1))
    told = {(attack.name, "lab", rehearsal.moment): guess}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_audit, "guesses", lambda *_: [(attack, name, weak)])
        by_word, own = label_findings(federation, rehearsal, "lab", told)
    assert by_word.leaks
    assert by_word.verdict.endswith(label_audit.OWN_WORD)
    assert not by_word.counts
    assert not own.leaks
    assert own.counts
