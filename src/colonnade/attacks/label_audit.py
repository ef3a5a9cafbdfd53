"""Which label attacks apply to a run, and how well they do: every feature owner against
the label owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from colonnade.algorithms import Kind
from colonnade.attacks.finding import LABEL_LIMIT, TURNED, Finding
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
from colonnade.attacks.scores import LabelScore, score_classes, score_numbers
from colonnade.core import Transcript

FEWEST = 8
"""The fewest rows to score a guess on."""
OWN_WORD = ", by its own word"
"""What is added to the verdict on guesses that an attacker reports."""


@dataclass(frozen=True)
class LabelAttack:
    """A way to guess labels.

    Args:
        name: What it is called in findings.
        assumes: What the attacker knows or has, beside what it was sent.
        guess: The attack itself.
        reads: The kind of release that it works on.
        binary: Whether it needs labels of two classes.
        beside: Kinds of releases that come with the first and tell no more.
        own: Whether it needs the attacker's model and columns, so that between sites
            the attacker alone can make it.
    """

    name: str
    assumes: str
    guess: Callable[[Transcript, Knowledge], Guess]
    reads: Kind
    binary: bool = False
    beside: tuple[Kind, ...] = ()
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

    What an attacker elsewhere was sent is known here, and so is what left it unchanged.
    Where it also tells guesses of its own, on rows of its choice, these can make a
    verdict worse and never better: they are a finding beside the other one if they show
    more, or alone, and bound nothing (`Finding.counts`).

    Args:
        federation: What is attacked.
        rehearsal: What each party received.
        party: Only attacks by or on this party.
        told_guesses: Guesses that parties elsewhere report.
    """
    classes = len(federation.holdings.encoder.classes)
    for attack, attacker, guess in guesses(federation, rehearsal, party, classes):
        own = _finding(federation, rehearsal, attack, attacker, guess)
        told = (told_guesses or {}).get((attack.name, attacker, rehearsal.moment))
        if told is not None:
            by_word = _finding(federation, rehearsal, attack, attacker, told)
            if by_word is not None and (own is None or by_word.gain > own.gain):
                yield replace(
                    by_word,
                    remark=by_word.remark + OWN_WORD,
                    details={**by_word.details, "told": True},
                )
        if own is not None:
            yield own


def guesses(
    federation: Attacked, rehearsal: Rehearsal, party: str | None, classes: int
) -> Iterator[tuple[LabelAttack, str, Guess]]:
    """The attacks that apply, each party with columns that makes them, and what it
    guesses."""
    owner = federation.holdings.label_owner
    for attack in ATTACKS:
        sent = federation.algorithm.named(attack.reads)
        if not sent or (attack.binary and classes != 2):
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
    features = federation.owners.get(party)
    sent = [seen for seen in rehearsal.heard_by(owner) if seen.sender == party]
    return Knowledge(
        party,
        rehearsal.between(party),
        federation.settings.config,
        classes,
        federation.algorithm.releases,
        model=rehearsal.models.get(party),
        columns=None if features is None else features.features.cpu(),
        stepped=rehearsal.stepped.get(party),
        begun=rehearsal.begun.get(party, Transcript(party)),
        shown=Transcript(owner, sent),
    )


def _finding(
    federation: Attacked,
    rehearsal: Rehearsal,
    attack: LabelAttack,
    attacker: str,
    guess: Guess,
) -> Finding | None:
    """Compare a guess with the truth; None where it is about too few rows."""
    guess = guess.by_row()
    if len(guess.rows) < FEWEST:
        return None
    holdings = federation.holdings
    score = _scored(federation, guess)
    return Finding(
        attack=attack.name,
        attacker=attacker,
        victim=holdings.label_owner,
        moment=rehearsal.moment,
        assumes=attack.assumes + ", and a few labels" * score.turned,
        metric=score.metric,
        score=score.score,
        baseline=score.baseline,
        limit=LABEL_LIMIT,
        low=score.low,
        high=score.high,
        undecided=score.undecided,
        remark=TURNED * score.turned,
        releases=federation.algorithm.named(attack.reads, *attack.beside),
        details={
            "rows": score.rows,
            "named": guess.named and not score.turned,
            **({} if score.plain is None else asdict(score.plain)),
        },
    )


def _scored(federation: Attacked, guess: Guess) -> LabelScore:
    holdings = federation.holdings
    truth = holdings.labelled.labels.cpu()[guess.rows]
    classes = len(holdings.encoder.classes)
    if classes == 0:
        return score_numbers(guess.scores[:, 0], truth)
    return score_classes(
        guess.scores,
        truth,
        classes,
        named=guess.named,
        seed=federation.settings.engine.seed,
    )
