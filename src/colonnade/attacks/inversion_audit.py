"""Model inversion against every feature owner of a run, by whoever received its embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from colonnade.algorithms import Kind
from colonnade.attacks.finding import Finding, column_verdict, recognition_verdict
from colonnade.attacks.inversion import PICTURE, TABLE, Attack, defence_of, invert
from colonnade.attacks.received import Attacked, Received, received
from colonnade.attacks.rehearsal import Rehearsal
from colonnade.attacks.scores import Recogniser, correlation, psnr, r_squared, ssim
from colonnade.evaluate import wilson

TRAINING_ROWS = 2000  # for the classifier that looks at reconstructions
EMBEDDINGS = (Kind.EMBEDDING, Kind.LOGITS)
EVERYBODY = "all together"
WHITE_BOX = "has the victim's model weights (white box)"


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """A victim's attacked rows and what the attack made of them. It stays in memory, but for public pictures."""

    victim: str
    attacker: str
    moment: str
    rows: Tensor
    original: Tensor
    guess: Tensor
    mean: Tensor
    defence: str
    reached: tuple[str, ...]  # all who got the same
    span: float = 1.0  # white minus black
    columns: dict[str, float] = field(default_factory=dict)  # R squared by name, filled in when it is scored

    @property
    def picture(self) -> bool:
        return self.original.dim() > 2


def rebuild(federation: Attacked, rehearsal: Rehearsal, rows: int, party: str | None) -> Iterator[Rebuilt]:
    """Attack each victim once, and where its noise has a mean, once more by somebody who is not told it. Where parties
    hold no torch models there is nothing to invert."""
    if federation.algorithm.local_model is None:
        return
    for victim, owner in federation.owners.items():
        found = _first(federation, rehearsal, victim, party)
        if found is None:
            continue
        attackers, seen = found
        attacker = attackers[0]
        seen = dataclasses.replace(seen, rows=seen.rows[:rows], values=seen.values[:rows])
        features = owner.features.cpu()
        original = features[seen.rows]
        train = rehearsal.between(victim).splits.get("train", torch.arange(len(features)))
        mean = features[train].mean(0)
        attack = _attack(features)
        defence, model, shape = defence_of(seen), rehearsal.models[victim], tuple(features.shape[1:])
        span = float(features.max() - features.min())
        common = (victim, attacker, rehearsal.moment, seen.rows, original)
        told = _protection(seen)
        yield Rebuilt(*common, invert(seen.values, model, shape, attack, defence), mean, told, attackers, span)
        if defence.mean:
            naive = dataclasses.replace(defence, mean=0.0)
            shifted = invert(seen.values + defence.mean, model, shape, attack, naive)
            yield Rebuilt(*common, shifted, mean, f"{told}, its mean unknown", attackers, span)


def joined(federation: Attacked, rebuilt: list[Rebuilt]) -> Rebuilt | None:
    """The whole pictures, where the same attacker rebuilt every part of them."""
    parts = [one for one in rebuilt if "unknown" not in one.defence]
    whole = [one.victim for one in parts] == list(federation.owners) and len({one.attacker for one in parts}) == 1
    whole = whole and all(torch.equal(one.rows, parts[0].rows) for one in parts)
    if not whole or not parts[0].picture or _put_together(federation, [one.original for one in parts]) is None:
        return None
    original, guess, mean = (
        _put_together(federation, pieces)
        for pieces in ([p.original for p in parts], [p.guess for p in parts], [p.mean for p in parts])
    )
    assert original is not None
    assert guess is not None
    assert mean is not None
    first = parts[0]
    span = float(max(one.span for one in parts))
    return dataclasses.replace(first, victim=EVERYBODY, original=original, guess=guess, mean=mean, span=span)


def _put_together(federation: Attacked, parts: list[Tensor]) -> Tensor | None:
    data = federation.settings.data
    if data.split == "strips":
        return torch.cat(parts, dim=-2)
    if data.split == "patches" and data.patch is None:
        columns = data.parts[1] if isinstance(data.parts, tuple) else data.parts
        lines = [torch.cat(parts[at : at + columns], dim=-1) for at in range(0, len(parts), columns)]
        return torch.cat(lines, dim=-2)
    return None


def _columns(federation: Attacked, victim: str, rows: Tensor) -> Tensor:
    """What the victim, or all together, hold about these rows."""
    if victim != EVERYBODY:
        return federation.holdings.columns[victim].features.cpu()[rows]
    whole = _put_together(federation, [owner.features.cpu()[rows] for owner in federation.owners.values()])
    assert whole is not None
    return whole


def inversion_findings(federation: Attacked, rebuilt: list[Rebuilt]) -> Iterator[Finding]:
    """One per reconstruction, and one for whether its class can still be seen."""
    recognisers: dict[str, Recogniser] = {}
    truth = _labels(federation)
    for one in rebuilt:
        details: dict[str, Any] = {"rows": len(one.rows), "release": one.defence, "reached": list(one.reached)}
        found = _picture(one, details) if one.picture else _table(federation, one, details)
        yield dataclasses.replace(found, releases=federation.algorithm.named(*EMBEDDINGS))
        others = _others(federation, one.victim, one.rows)
        if truth is None or int((truth[others] != truth[others][:1]).sum()) == 0:
            continue
        if one.victim not in recognisers:
            columns = _columns(federation, one.victim, others)
            recognisers[one.victim] = Recogniser(columns, truth[others], seed=federation.settings.engine.seed)
        yield _recognition(recognisers[one.victim], one, truth[one.rows], details)


def _picture(one: Rebuilt, details: dict[str, Any]) -> Finding:
    span = one.span
    blank = one.mean.expand_as(one.original)
    found, without = (float(ssim(one.original, other, span).mean()) for other in (one.guess, blank))
    decibels = [float(psnr(one.original, other, span).mean()) for other in (one.guess, blank)]
    flat = [part.flatten()[:, None] for part in (one.original, one.guess)]
    details = {
        **details,
        "psnr": decibels[0],
        "psnr_baseline": decibels[1],
        "correlation": float(correlation(*flat)[0]),
    }
    verdict = column_verdict(found, without)
    assumes = f"{WHITE_BOX}; knows the range of a pixel"
    return _finding(one, assumes, "SSIM", found, without, verdict, "inversion_ssim", details)


def _table(federation: Attacked, one: Rebuilt, details: dict[str, Any]) -> Finding:
    preprocessor = federation.holdings.columns[one.victim].preprocessor
    width = one.original.shape[1]
    spans = preprocessor.spans if preprocessor else {f"column {at}": slice(at, at + 1) for at in range(width)}
    by_column = r_squared(one.original, one.guess, one.mean, spans)
    one.columns.update(by_column)
    best = max(by_column, key=by_column.__getitem__, default="")
    score = by_column.get(best, 0.0)
    together = correlation(one.original, one.guess)
    linked = {name: float(together[span].mean()) for name, span in spans.items() if name in by_column}
    mean = sum(by_column.values()) / max(len(by_column), 1)
    details = {**details, "best_column": best, "mean_r2": mean, "r2": by_column, "correlation": linked}
    verdict = column_verdict(score, 0.0)
    return _finding(one, WHITE_BOX, "R² of the best column", score, 0.0, verdict, "inversion_r2", details)


def _recognition(recogniser: Recogniser, one: Rebuilt, truth: Tensor, details: dict[str, Any]) -> Finding:
    score, original = (recogniser.accuracy(columns, truth) for columns in (one.guess, one.original))
    low, high = wilson(round(score * len(truth)), len(truth))
    baseline = float(torch.bincount(truth).max()) / len(truth)
    verdict = recognition_verdict(low, score, baseline)
    details = {**details, "accuracy_on_the_original": original}
    assumes = f"{WHITE_BOX}; has other rows with their classes"
    found = _finding(one, assumes, "accuracy", score, baseline, verdict, "recognition", details)
    return dataclasses.replace(found, attack="class seen in rebuilt rows", low=low, high=high)


def _finding(
    one: Rebuilt,
    assumes: str,
    metric: str,
    score: float,
    baseline: float,
    verdict: str,
    limit: str,
    details: dict[str, Any],
) -> Finding:
    return Finding(
        "columns by model inversion", one.attacker, one.victim, one.moment, assumes, metric, score, baseline, verdict,
        limit, details=details,
    )  # fmt: skip


def _first(
    federation: Attacked, rehearsal: Rehearsal, victim: str, party: str | None
) -> tuple[tuple[str, ...], Received] | None:
    """The parties that the victim's embeddings reached, the label owner first, and the first embedding that came."""
    labels, names = federation.holdings.label_owner, federation.algorithm.named(*EMBEDDINGS)
    reached: dict[str, Received] = {}
    for attacker in sorted(rehearsal.transcripts, key=lambda name: name != labels):
        seen = received(rehearsal.transcripts[attacker], rehearsal.between(victim, attacker), names, victim)
        first = next(seen, None)
        wanted = party in (None, attacker, victim)
        if wanted and first is not None and first.values.is_floating_point() and first.values.dim() == 2:
            reached[attacker] = first
    return (tuple(reached), next(iter(reached.values()))) if reached else None


def _protection(seen: Received) -> str:
    """What the owner did to it, in words."""
    done = [] if seen.event.kind == "non-private" else [f"{seen.event.kind} noise"]
    return " and ".join([*done, *([] if seen.codec == "identity" else [seen.codec])]) or "unprotected"


def _attack(features: Tensor) -> Attack:
    if features.dim() == 2:
        return TABLE
    return dataclasses.replace(PICTURE, bounds=(float(features.min()), float(features.max())))


def _labels(federation: Attacked) -> Tensor | None:
    """The classes of all rows; None of numbers, and at a site where labels are elsewhere."""
    held = federation.holdings
    return (
        held.labelled.labels.cpu() if held.encoder.task == "classification" and federation.driver is not None else None
    )


def _others(federation: Attacked, victim: str, attacked: Tensor) -> Tensor:
    """Training rows of the victim's that were not attacked."""
    train = federation.agreed_apart.get(victim, federation.agreed).splits.get("train", attacked[:0])
    return train[~torch.isin(train, attacked)][:TRAINING_ROWS]
