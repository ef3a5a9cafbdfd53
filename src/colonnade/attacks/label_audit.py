"""Which label attacks apply to a run, and how well they do: every feature owner against
the label owner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from colonnade.algorithms import Kind
from colonnade.attacks.finding import LABELS, Finding, advantage, verdict
from colonnade.attacks.label_attacks import (
    by_direction,
    by_norm,
    from_batch_gradient,
    from_head,
    from_logit_gradients,
    from_model,
    from_nodes,
    from_residuals,
    from_targets,
)
from colonnade.attacks.received import Guess, Knowledge
from colonnade.attacks.rehearsal import Attacked, Rehearsal
from colonnade.attacks.scores import score_labels
from colonnade.core import Transcript

FEWEST = 8  # rows, below which a share says nothing
OWN_WORD = ", by its own word"


@dataclass(frozen=True)
class LabelAttack:
    """`reads` is the kind of release that it works on; `beside` are kinds that come
    with it and tell no more."""

    name: str
    assumes: str
    guess: Callable[[Transcript, Knowledge], Guess]
    reads: Kind
    binary: bool = False
    beside: tuple[Kind, ...] = ()
    # whether it needs the attacker's model and columns, beside what it was sent
    own: bool = False


LOOKS = "only looks at what it receives"
NAMES = "knows the number of classes, and one row of each to name them"
SOLVES = "has many weights for a batch's rows, or columns that tell labels"
USES = "has its own model, and the head for it"
COMPLETES = "has its own model, and what the others sent"
TWO = "knows that there are two classes, and one row to name them"
CURVED = (Kind.LOGIT_CURVATURE,)
ATTACKS = (
    LabelAttack("labels as they were sent", LOOKS, from_targets, Kind.LABELS),
    LabelAttack(
        "labels from logit gradients",
        LOOKS,
        from_logit_gradients,
        Kind.LOGIT_GRADIENT,
        beside=CURVED,
    ),
    LabelAttack(
        "labels from residuals",
        "looks at what it receives and knows rho",
        from_residuals,
        Kind.RESIDUAL,
    ),
    LabelAttack(
        "labels solved from a batch's gradient",
        SOLVES,
        from_batch_gradient,
        Kind.BATCH_GRADIENT,
        own=True,
    ),
    LabelAttack("labels by the head it was sent", USES, from_head, Kind.HEAD, own=True),
    LabelAttack(
        "labels by the model it was sent", COMPLETES, from_model, Kind.MODEL, own=True
    ),
    LabelAttack("labels by the nodes that rows share", NAMES, from_nodes, Kind.NODES),
    LabelAttack("labels by gradient direction", NAMES, by_direction, Kind.GRADIENT),
    LabelAttack("labels by gradient length", TWO, by_norm, Kind.GRADIENT, binary=True),
)
Guesses = Mapping[tuple[str, str, str], Guess]
"""Guesses that parties elsewhere report, by attack, attacker and moment."""


def label_findings(
    federation: Attacked,
    rehearsal: Rehearsal,
    party: str | None,
    told_guesses: Guesses | None = None,
) -> Iterator[Finding]:
    """A finding per attack and feature owner that does not hold the labels itself.
    `party` narrows to one attacker. What an attacker elsewhere was sent is known here,
    and so is what left it unchanged. Guesses that it tells itself, on rows of its
    choice, can make a verdict worse and never better: they replace a finding only where
    they show more. Alone they bound nothing (`Finding.counts`)."""
    classes = len(federation.holdings.encoder.classes)
    for attack, name, guess in guesses(federation, rehearsal, party, classes):
        own = (
            _finding(federation, rehearsal, attack, name, guess)
            if len(guess.rows) >= FEWEST
            else None
        )
        told = (told_guesses or {}).get((attack.name, name, rehearsal.moment))
        if told is not None and len(told.rows) >= FEWEST:
            finding = _finding(federation, rehearsal, attack, name, told)
            if own is None or finding.score > own.score:
                details = {**finding.details, "told": own is None}
                yield dataclasses.replace(
                    finding, verdict=finding.verdict + OWN_WORD, details=details
                )
                if own is not None and advantage(
                    finding.score, finding.baseline
                ) >= advantage(own.score, own.baseline):
                    continue
        if own is not None:
            yield own


def guesses(
    federation: Attacked, rehearsal: Rehearsal, party: str | None, classes: int
) -> Iterator[tuple[LabelAttack, str, Guess]]:
    """The attacks that apply, each party with columns that makes them, and what it
    guesses."""
    owner = federation.holdings.label_owner
    for attack in ATTACKS:
        if not federation.algorithm.named(attack.reads) or (
            attack.binary and classes != 2
        ):
            continue
        for name in partners(federation):
            if name != owner and party in (None, name, owner):
                own = _knowledge(federation, rehearsal, name, classes)
                yield attack, name, attack.guess(rehearsal.heard_by(name), own)


def partners(federation: Attacked) -> list[str]:
    """The parties that hold columns, here or elsewhere."""
    asked = [name for owner in federation.label_owners.values() for name in owner.peers]
    return list(dict.fromkeys([*federation.owners, *asked]))


def _knowledge(
    federation: Attacked, rehearsal: Rehearsal, party: str, classes: int
) -> Knowledge:
    """What an attacking party has itself; of a party elsewhere, what it sent alone is
    known."""
    owner = federation.holdings.label_owner
    batches = rehearsal.between(party)
    config = federation.settings.config
    releases = federation.algorithm.releases
    columns = (
        federation.owners[party].features.cpu() if party in federation.owners else None
    )
    model = rehearsal.models.get(party)
    stepped = rehearsal.stepped.get(party)
    begun = rehearsal.begun.get(party, Transcript(party))
    sent = Transcript(
        owner, [seen for seen in rehearsal.heard_by(owner) if seen.sender == party]
    )
    return Knowledge(
        party, batches, config, classes, releases, model, columns, stepped, begun, sent
    )


def _finding(
    federation: Attacked,
    rehearsal: Rehearsal,
    attack: LabelAttack,
    attacker: str,
    guess: Guess,
) -> Finding:
    holdings = federation.holdings
    truth = holdings.labelled.labels.cpu()[guess.rows]
    classes = len(holdings.encoder.classes)
    usable = (
        torch.nan_to_num(guess.labels)
        if guess.labels.is_floating_point()
        else guess.labels
    )
    score = score_labels(
        usable, truth, classes, named=guess.named, seed=federation.settings.engine.seed
    )
    metric = "accuracy" if classes else "squared correlation"
    assumes = attack.assumes + ", and a few labels" * score.turned
    words = (
        verdict(LABELS, score.score, score.baseline, score.low)
        + ", the other way round" * score.turned
    )
    return Finding(
        attack.name,
        attacker,
        holdings.label_owner,
        rehearsal.moment,
        assumes,
        metric,
        score.score,
        score.baseline,
        words,
        "label_inference",
        score.low,
        score.high,
        releases=federation.algorithm.named(attack.reads, *attack.beside),
        details={
            "rows": score.rows,
            "chance": score.chance,
            "majority": score.majority,
            "named": guess.named and not score.turned,
        },
    )
