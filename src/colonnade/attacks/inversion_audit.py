"""Model inversion against every feature owner of a run, by whoever received its
embeddings.

Where the victim's initial weights follow from the agreed seed, the run is a rehearsal.
At its first batch nobody has trained yet, so whoever knows the seed, the victim's name
and the kind of its model has the very model that made the embeddings: no weights need
to be stolen. What `inversion` finds is then made exact by Levenberg and Marquardt's
method, each row by itself:

    x <- x - (J'J + mu I)^-1 J'(f(x) - h)        mu falls where that came nearer to h, and rises where it did not
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.algorithms import Kind
from colonnade.attacks.finding import (
    ASSUMES,
    CLASS_LIMIT,
    INVERSION,
    KNOWN_MODEL,
    SSIM,
    SSIM_LIMIT,
    TURNED,
    WHITE_BOX,
    Finding,
    of_columns,
)
from colonnade.attacks.inversion import PICTURE, TABLE, defence_of, invert, white_box
from colonnade.attacks.received import Received, received
from colonnade.attacks.rehearsal import Attacked, Rehearsal, spans_of
from colonnade.attacks.scores import (
    AUC,
    GUESSED_AUC,
    correlation,
    psnr,
    r_squared,
    recogniser,
    score_classes,
    ssim,
)

Recognise = Callable[[Tensor], Tensor]
TRAINING_ROWS = 2000  # for the classifier that looks at reconstructions
EMBEDDINGS = (Kind.EMBEDDING, Kind.LOGITS)
EVERYBODY = "all together"
STEPS = 60
DETERMINED = 1e-4
"""The smallest derivative in any direction, as a share of the largest, with which f(x)
still determines x."""


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """A victim's attacked rows and what the attack made of them. It stays in memory,
    except for public pictures."""

    victim: str
    attacker: str
    moment: str
    rows: Tensor
    values: Tensor  # the embeddings of the rows that came
    original: Tensor
    guess: Tensor
    mean: Tensor
    defence: str
    reached: tuple[str, ...]  # all who got the same
    span: float = 1.0  # white minus black
    # R squared by name, filled in when it is scored
    columns: dict[str, float] = field(default_factory=dict)

    @property
    def picture(self) -> bool:
        return self.original.dim() > 2


def rebuild(
    federation: Attacked, rehearsal: Rehearsal, rows: int, party: str | None
) -> Iterator[Rebuilt]:
    """Attack each victim that has a torch model once, and where its noise has a mean,
    once more not knowing it."""
    if federation.algorithm.local_model is None:
        return
    for victim, owner in federation.owners.items():
        reached = _first(federation, rehearsal, victim, party)
        if reached is None:
            continue
        attackers, seen = reached
        seen = dataclasses.replace(
            seen, rows=seen.rows[:rows], values=seen.values[:rows]
        )
        features = owner.features.cpu()
        train = rehearsal.between(victim).splits.get(
            "train", torch.arange(len(features))
        )
        mean = features[train].mean(0)
        low = float(features.min())
        high = float(features.max())
        search = (
            TABLE
            if features.dim() == 2
            else dataclasses.replace(PICTURE, bounds=(low, high))
        )
        defence = defence_of(seen)
        model = rehearsal.models[victim]
        shape = tuple(features.shape[1:])
        common = (
            victim,
            attackers[0],
            rehearsal.moment,
            seen.rows,
            seen.values,
            features[seen.rows],
        )
        protection = _protection(seen)
        span = high - low
        yield Rebuilt(
            *common,
            invert(seen.values, model, shape, search, defence),
            mean,
            protection,
            attackers,
            span,
        )
        if defence.mean:
            naive = dataclasses.replace(defence, mean=0.0)
            shifted = invert(seen.values + defence.mean, model, shape, search, naive)
            yield Rebuilt(
                *common,
                shifted,
                mean,
                f"{protection}, its mean unknown",
                attackers,
                span,
            )


def joined(federation: Attacked, rebuilt: list[Rebuilt]) -> Rebuilt | None:
    """The whole pictures, where the same attacker rebuilt every part of them."""
    parts = [part for part in rebuilt if "unknown" not in part.defence]
    whole = [part.victim for part in parts] == list(federation.owners) and len(
        {part.attacker for part in parts}
    ) == 1
    whole = whole and all(torch.equal(part.rows, parts[0].rows) for part in parts)
    data = federation.settings.data
    fits = data.split == "strips" or (data.split == "patches" and data.patch is None)
    if not whole or not parts[0].picture or not fits:
        return None
    original, guess, mean = (
        _put_together(federation, pieces)
        for pieces in (
            [p.original for p in parts],
            [p.guess for p in parts],
            [p.mean for p in parts],
        )
    )
    span = float(max(part.span for part in parts))
    return dataclasses.replace(
        parts[0], victim=EVERYBODY, original=original, guess=guess, mean=mean, span=span
    )


def _put_together(federation: Attacked, parts: list[Tensor]) -> Tensor:
    """Join strips, or patches that do not overlap, into whole pictures."""
    data = federation.settings.data
    if data.split == "strips":
        return torch.cat(parts, dim=-2)
    columns = data.parts[1] if isinstance(data.parts, tuple) else data.parts
    return torch.cat(
        [
            torch.cat(parts[at : at + columns], dim=-1)
            for at in range(0, len(parts), columns)
        ],
        dim=-2,
    )


def _columns(federation: Attacked, victim: str, rows: Tensor) -> Tensor:
    """What the victim, or all together, hold about these rows."""
    if victim != EVERYBODY:
        return federation.holdings.columns[victim].features.cpu()[rows]
    return _put_together(
        federation, [owner.features.cpu()[rows] for owner in federation.owners.values()]
    )


def inversion_findings(
    federation: Attacked, reconstructions: list[Rebuilt]
) -> Iterator[Finding]:
    """A finding per reconstruction, and one on whether its class can still be seen."""
    recognisers: dict[str, Recognise | None] = {}
    truth = _labels(federation)
    for rebuilt in reconstructions:
        score = _picture if rebuilt.picture else _table
        finding = score(federation, rebuilt)
        releases = federation.algorithm.named(*EMBEDDINGS)
        yield dataclasses.replace(finding, releases=releases)
        if truth is None:
            continue
        if rebuilt.victim not in recognisers:
            recognisers[rebuilt.victim] = _recogniser(federation, rebuilt, truth)
        yield _recognition(federation, recognisers[rebuilt.victim], rebuilt, truth)


def _recogniser(
    federation: Attacked, rebuilt: Rebuilt, truth: Tensor
) -> Recognise | None:
    """A classifier that learned the victim's rows that were not attacked; None where
    these are of one class."""
    others = _others(federation, rebuilt.victim, rebuilt.rows)
    labels = truth[others]
    if len(torch.unique(labels)) < 2:
        return None
    return recogniser(
        _columns(federation, rebuilt.victim, others),
        labels,
        len(federation.holdings.encoder.classes),
        seed=federation.settings.engine.seed,
    )


def _details(rebuilt: Rebuilt) -> dict[str, Any]:
    """What is said of every finding on a reconstruction."""
    return {
        "rows": len(rebuilt.rows),
        "release": rebuilt.defence,
        "reached": list(rebuilt.reached),
    }


def _picture(_: Attacked, rebuilt: Rebuilt) -> Finding:
    original = rebuilt.original
    blank = rebuilt.mean.expand_as(original)

    def likeness(other: Tensor) -> float:
        return float(ssim(original, other, rebuilt.span).mean())

    def decibels(other: Tensor) -> float:
        return float(psnr(original, other, rebuilt.span).mean())

    pixels = original.flatten()[:, None]
    linked = correlation(pixels, rebuilt.guess.flatten()[:, None])
    return Finding(
        attack=INVERSION,
        attacker=rebuilt.attacker,
        victim=rebuilt.victim,
        moment=rebuilt.moment,
        assumes=f"{WHITE_BOX}; knows the range of a pixel",
        metric=SSIM,
        score=likeness(rebuilt.guess),
        baseline=likeness(blank),
        limit=SSIM_LIMIT,
        details={
            **_details(rebuilt),
            "psnr": decibels(rebuilt.guess),
            "psnr_baseline": decibels(blank),
            "correlation": float(linked[0]),
        },
    )


def _table(federation: Attacked, rebuilt: Rebuilt) -> Finding:
    spans = spans_of(federation, rebuilt.victim)
    by_column = r_squared(rebuilt.original, rebuilt.guess, rebuilt.mean, spans)
    rebuilt.columns.update(by_column)
    correlations = correlation(rebuilt.original, rebuilt.guess)
    linked = {name: float(correlations[spans[name]].mean()) for name in by_column}
    return of_columns(
        INVERSION,
        rebuilt.attacker,
        rebuilt.victim,
        rebuilt.moment,
        by_column,
        details={
            **_details(rebuilt),
            "mean_r2": sum(by_column.values()) / max(len(by_column), 1),
            "r2": by_column,
            "correlation": linked,
        },
    )


def _recognition(
    federation: Attacked,
    recognise: Recognise | None,
    rebuilt: Rebuilt,
    labels: Tensor,
) -> Finding:
    """Whether a classifier that learned other rows still sees the class of the rebuilt
    ones. Where those other rows are of one class it learned nothing: not measured."""
    truth = labels[rebuilt.rows]
    classes = len(federation.holdings.encoder.classes)
    finding = Finding(
        attack="class seen in rebuilt rows",
        attacker=rebuilt.attacker,
        victim=rebuilt.victim,
        moment=rebuilt.moment,
        assumes=f"{WHITE_BOX}; has other rows with their classes",
        metric=AUC,
        score=None,
        baseline=GUESSED_AUC,
        limit=CLASS_LIMIT,
        undecided=((0.0, 1.0),),
        details=_details(rebuilt),
    )
    if recognise is None:
        return finding
    score, on_the_original = (
        score_classes(recognise(columns), truth, classes, named=True)
        for columns in (rebuilt.guess, rebuilt.original)
    )
    assert score.plain is not None
    return dataclasses.replace(
        finding,
        score=score.score,
        low=score.low,
        high=score.high,
        undecided=score.undecided,
        remark=TURNED * score.turned,
        details={
            **finding.details,
            **dataclasses.asdict(score.plain),
            "auc_on_the_original": on_the_original.score,
        },
    )


def _first(
    federation: Attacked, rehearsal: Rehearsal, victim: str, party: str | None
) -> tuple[tuple[str, ...], Received] | None:
    """The parties that the victim's embeddings reached, the label owner first, and the
    first embedding that came."""
    labels = federation.holdings.label_owner
    names = federation.algorithm.named(*EMBEDDINGS)
    reached: dict[str, Received] = {}
    for attacker in sorted(rehearsal.transcripts, key=lambda name: name != labels):
        seen = received(
            rehearsal.transcripts[attacker],
            rehearsal.between(victim, attacker),
            names,
            victim,
        )
        first = next(seen, None)
        if (
            party in (None, attacker, victim)
            and first is not None
            and first.real_matrix
        ):
            reached[attacker] = first
    return (tuple(reached), next(iter(reached.values()))) if reached else None


def _protection(seen: Received) -> str:
    """In words, how the owner protected a release."""
    done = [] if seen.event.kind == "non-private" else [f"{seen.event.kind} noise"]
    return (
        " and ".join([*done, *([] if seen.codec == "identity" else [seen.codec])])
        or "unprotected"
    )


def _labels(federation: Attacked) -> Tensor | None:
    """The classes of all rows; None where labels are numbers, or are held elsewhere."""
    if (
        federation.driver is None
        or federation.holdings.encoder.task != "classification"
    ):
        return None
    return federation.holdings.labelled.labels.cpu()


def _others(federation: Attacked, victim: str, attacked: Tensor) -> Tensor:
    """The victim's training rows that were not attacked."""
    train = federation.agreed_apart.get(victim, federation.agreed).splits.get(
        "train", attacked[:0]
    )
    return train[~torch.isin(train, attacked)][:TRAINING_ROWS]


def known_findings(
    federation: Attacked, first: Rehearsal, rows: int, party: str | None
) -> Iterator[Finding]:
    """Attack every party whose models are seeded, with its model as it was before the
    first batch."""
    victims = [
        name
        for name in federation.owners
        if federation.settings.models_of(name) == "seeded"
    ]
    if (
        not victims
        or federation.algorithm.learns_first
        or not federation.algorithm.draws_weights
    ):
        return
    for rebuilt in rebuild(federation, first, rows, party):
        if rebuilt.victim not in victims or "unknown" in rebuilt.defence:
            continue
        # else its embedding does not say it exactly
        if not rebuilt.picture and rebuilt.defence == "unprotected":
            exact = improved(
                rebuilt.guess, rebuilt.values, first.models[rebuilt.victim]
            )
            rebuilt = dataclasses.replace(rebuilt, guess=exact)
        finding = next(inversion_findings(federation, [rebuilt]))
        yield dataclasses.replace(
            finding, attack=KNOWN_MODEL, assumes=ASSUMES[KNOWN_MODEL]
        )


def improved(guess: Tensor, h: Tensor, model: nn.Module) -> Tensor:
    """Move a guess to where f(x) is h; a row that its embedding does not determine
    stays as guessed, by its prior."""
    f = white_box(model).double()
    h = h.detach().cpu().double()
    x = guess.detach().cpu().double()
    eye = torch.eye(x.shape[1], dtype=x.dtype)
    damping = torch.full((len(x), 1, 1), 1e-3, dtype=x.dtype)
    for _ in range(STEPS):
        out, jacobian = _differentiated(f, x)
        miss = out - h
        towards = (jacobian.transpose(1, 2) @ miss[..., None])[..., 0]
        moved = x - torch.linalg.solve(
            jacobian.transpose(1, 2) @ jacobian + damping * eye, towards
        )
        with torch.no_grad():
            nearer = (f(moved) - h).square().sum(1) < miss.square().sum(1)
        x = torch.where(nearer[:, None], moved, x)
        damping = torch.where(nearer[:, None, None], damping / 4, damping * 4).clamp(
            1e-12, 1e6
        )
    sizes = torch.linalg.svdvals(_differentiated(f, x)[1])
    determined = (sizes.shape[1] == x.shape[1]) & (
        sizes[:, -1] > DETERMINED * sizes[:, 0]
    )
    return torch.where(determined[:, None], x.to(guess.dtype), guess.cpu())


def _differentiated(f: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) [rows, outputs], and by row its derivative [rows, outputs, columns]."""
    inputs = x.clone().requires_grad_()
    out = f(inputs)
    by_output = [
        torch.autograd.grad(output.sum(), inputs, retain_graph=True)[0]
        for output in out.unbind(1)
    ]
    return out.detach(), torch.stack(by_output, 1)
