"""Columns from the first training batch, where the victim's initial weights follow from the agreed seed.

Such a run is a rehearsal. At its first batch nobody has trained yet, so whoever knows the seed, the victim's name and
the kind of its model has the very model that made the embeddings: no weights need to be stolen. What `inversion` finds
is made exact by Levenberg and Marquardt's method, each row by itself:

    x <- x - (J'J + mu I)^-1 J'(f(x) - h)        mu falls where that came nearer to h, and rises where it did not
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from colonnade.attacks.finding import Finding
from colonnade.attacks.inversion import white_box
from colonnade.attacks.inversion_audit import EMBEDDINGS, Rebuilt, inversion_findings, rebuild
from colonnade.attacks.received import received
from colonnade.attacks.rehearsal import Attacked, Rehearsal

ATTACK = "columns by the known initial model"
ASSUMES = "knows the agreed seed, from which the victim's initial weights follow, and the kind of its model"
STEPS = 60
DETERMINED = 1e-4
"""The smallest derivative in any direction, as a share of the largest, with which f(x) still determines x."""


def known_findings(federation: Attacked, first: Rehearsal, rows: int, party: str | None) -> Iterator[Finding]:
    """Attack every party whose models are seeded, with its model as it was before the first batch."""
    victims = [name for name in federation.owners if federation.settings.models_of(name) == "seeded"]
    if not victims or federation.algorithm.learns_first or not federation.algorithm.draws_weights:
        return
    for rebuilt in rebuild(federation, first, rows, party):
        if rebuilt.victim not in victims or "unknown" in rebuilt.defence:
            continue
        finding = next(inversion_findings(federation, [_exact(federation, rebuilt, first)]))
        yield dataclasses.replace(finding, attack=ATTACK, assumes=ASSUMES)


def _exact(federation: Attacked, rebuilt: Rebuilt, first: Rehearsal) -> Rebuilt:
    """Improve every row until its embedding is the one that came; noise, codecs and pictures are left alone."""
    if rebuilt.picture or rebuilt.defence != "unprotected":
        return rebuilt
    names = federation.algorithm.named(*EMBEDDINGS)
    victim = rebuilt.victim
    h = next(received(first.transcripts[rebuilt.attacker], first.between(victim), names, victim)).values
    return dataclasses.replace(rebuilt, guess=improved(rebuilt.guess, h[: len(rebuilt.rows)], first.models[victim]))


def improved(guess: Tensor, h: Tensor, model: nn.Module) -> Tensor:
    """Move a guess to where f(x) is h; a row that its embedding does not determine stays as guessed, by its prior."""
    f, h, x = white_box(model).double(), h.detach().cpu().double(), guess.detach().cpu().double()
    eye = torch.eye(x.shape[1], dtype=x.dtype)
    damping = torch.full((len(x), 1, 1), 1e-3, dtype=x.dtype)
    for _ in range(STEPS):
        out, jacobian = _differentiated(f, x)
        miss = out - h
        towards = (jacobian.transpose(1, 2) @ miss[..., None])[..., 0]
        moved = x - torch.linalg.solve(jacobian.transpose(1, 2) @ jacobian + damping * eye, towards)
        with torch.no_grad():
            nearer = (f(moved) - h).square().sum(1) < miss.square().sum(1)
        x = torch.where(nearer[:, None], moved, x)
        damping = torch.where(nearer[:, None, None], damping / 4, damping * 4).clamp(1e-12, 1e6)
    sizes = torch.linalg.svdvals(_differentiated(f, x)[1])
    determined = (sizes.shape[1] == x.shape[1]) & (sizes[:, -1] > DETERMINED * sizes[:, 0])
    return torch.where(determined[:, None], x.to(guess.dtype), guess.cpu())


def _differentiated(f: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) [rows, outputs], and by row its derivative [rows, outputs, columns]."""
    inputs = x.clone().requires_grad_()
    out = f(inputs)
    by_output = [torch.autograd.grad(output.sum(), inputs, retain_graph=True)[0] for output in out.unbind(1)]
    return out.detach(), torch.stack(by_output, 1)
