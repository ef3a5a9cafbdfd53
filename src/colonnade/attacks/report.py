"""The audit on disk: audit.json, and pictures as PNG and SVG.

Rows of a public data set may be shown: original above reconstruction. Of anybody's own table a picture shows scores
by column, never a value.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from colonnade.attacks.audit import NONE_APPLIES, Audit
from colonnade.attacks.finding import Finding
from colonnade.attacks.inversion_audit import EVERYBODY, Rebuilt
from colonnade.attacks.promises import Promises
from colonnade.core.files import replaced, write_text
from colonnade.errors import InputError
from colonnade.runs.run_directory import to_json

SHOWN = 8
PROMISES = "promises.json"
MADE = ("audit.json", "labels.png", "labels.svg", "inversion-*.png", "inversion-*.svg")
"""What an audit writes; whatever else lies in the folder is somebody's own."""

INK, ATTACK, GUESS, LIMIT = "#333333", "#c44e52", "#b0b7c3", "#1f4e79"


def prepare(folder: Path) -> None:
    """Make the folder, before attacks that take minutes."""
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write(audit: Audit, folder: Path) -> list[Path]:
    """All files, each whole or not at all. What an earlier audit left there is replaced; where this one looked at one
    party alone, what the earlier one found among the others stays, if it attacked the same checkpoint."""
    audit.drawn = {}
    whole = audit if audit.party is None else _beside(audit, folder)
    prepare(folder)
    with _writing(folder):
        for old in (path for pattern in MADE for path in folder.glob(pattern)):
            if old.stem not in whole.drawn:
                old.unlink()
        pictures = _pictures(whole, folder)
        write_text(folder / "audit.json", to_json(whole.to_json(), indent=2) + "\n")
    return [folder / "audit.json", *pictures]


def write_promises(promises: Promises, folder: Path) -> Path:
    """What canaries showed, beside what was promised."""
    with _writing(folder):
        write_text(folder / PROMISES, to_json(promises.to_json(), indent=2) + "\n")
    return folder / PROMISES


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"The audit cannot be written to {folder}: {error.strerror}. Choose another --out.") from None


def _beside(audit: Audit, folder: Path) -> Audit:
    """With what is still valid of an earlier audit: its findings neither by nor on the party that was looked at."""
    try:
        old = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        same = audit.checkpoint != "" and all(
            old[key] == value for key, value in audit.to_json().items() if key in ("run", "algorithm", "checkpoint")
        )
        before = Audit.from_json(old)
        kept = [one.under(audit.thresholds) for one in before.findings if same]
        others = [one for one in kept if audit.party not in (one.attacker, one.victim)]
        unread = before.not_attacked if same else []
        missed = [one for one in unread if audit.party not in (one.owner, one.receiver)]
        notes = dict.fromkeys([*audit.notes, *(before.notes if same else [])])
        again = {one.victim for one in audit.rebuilt}
        drawn = {stem: victim for stem, victim in before.drawn.items() if same and victim not in again}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or an older kind, or damaged
        return audit
    none = NONE_APPLIES.format(audit.algorithm)
    told = [note for note in notes if note != none or not (others or audit.findings)]
    findings, missed = [*audit.findings, *others], [*audit.not_attacked, *missed]
    return dataclasses.replace(audit, findings=findings, not_attacked=missed, notes=told, drawn=drawn)


def _pictures(audit: Audit, folder: Path) -> list[Path]:
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        audit.notes.append('Pictures need matplotlib: pip install "colonnade[plots]".')
        return []
    from matplotlib.figure import Figure

    made: list[Path] = []
    plain: Any = {"svg.hashsalt": "colonnade", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    plain |= {"text.parse_math": False}  # a column may be called $x
    with mpl.rc_context(plain):
        labels = [one for one in audit.findings if one.limit == "label_inference"]
        if labels:
            made += _save(_bars(Figure(layout="constrained"), labels), folder / "labels")
        for one in audit.rebuilt:
            if one.picture and audit.dataset is None:
                continue
            figure = Figure(layout="constrained")
            drawn = _rows(figure, one) if one.picture else _columns(figure, one, audit.thresholds["inversion_r2"])
            name = _name(one, audit.drawn)
            audit.drawn[name] = one.victim
            made += _save(drawn, folder / name)
    return made


def _name(one: Rebuilt, taken: Collection[str]) -> str:
    words = [one.victim.replace(" ", "-"), *(["training"] if one.moment != "prediction" else [])]
    words += ["mean-unknown"] if "unknown" in one.defence else []
    name = "-".join(["inversion", *words])
    return name if name not in taken else f"{name}-{len(taken)}"


def _save(figure: Any, path: Path) -> list[Path]:
    saved = []
    for kind, options in (("png", {"dpi": 150}), ("svg", {"metadata": {"Date": None}})):
        final = path.with_name(f"{path.name}.{kind}")
        with replaced(final) as fresh:
            figure.savefig(fresh, format=kind, **options)
        saved.append(final)
    return saved


def _bars(figure: Any, findings: list[Finding]) -> Any:
    """Label attacks: the score with its interval, and what a guess gives."""
    figure.set_size_inches(7, 1.2 + 0.32 * len(findings))
    axes = figure.subplots()
    at = list(range(len(findings)))[::-1]
    scores = [one.score for one in findings]
    axes.barh(at, scores, height=0.62, color=ATTACK, label="attack")
    for place, one in zip(at, findings, strict=True):
        if one.low is not None and one.high is not None:
            axes.plot([one.low, one.high], [place, place], color=INK, linewidth=1.2)
        left, right = one.baseline, one.baseline
        axes.plot([left, right], [place - 0.42, place + 0.42], color=INK, linewidth=2.2)
    axes.plot([], [], color=INK, linewidth=2.2, label="without any attack")
    limits = {one.threshold for one in findings} - {None}
    for limit in limits:
        axes.axvline(limit, color=LIMIT, linestyle="--", linewidth=1.2, label="threshold")
    axes.set_yticks(at, [f"{one.attacker}: {one.attack.removeprefix('labels ')}\n{one.moment}" for one in findings])
    axes.set_xlim(0, 1.02)
    axes.set_xlabel(f"labels of {findings[0].victim}: {findings[0].metric}")
    figure.legend(loc="outside upper right", ncols=3, frameon=False)
    return figure


def _columns(figure: Any, one: Rebuilt, threshold: float | None) -> Any:
    """Per column how much of it was rebuilt."""
    names = sorted(one.columns, key=lambda name: -one.columns[name])
    figure.set_size_inches(6.4, 1.1 + 0.24 * len(names))
    axes = figure.subplots()
    at = list(range(len(names)))[::-1]
    bars = axes.barh(at, [max(one.columns[name], 0.0) for name in names], height=0.66, color=ATTACK)
    told = [f"{one.columns[name]:.2f}{', worse than the mean' * (one.columns[name] < 0)}" for name in names]
    axes.bar_label(bars, told, padding=3, color=INK, fontsize=8)
    if threshold is not None:
        axes.axvline(threshold, color=LIMIT, linestyle="--", linewidth=1.2)
        axes.text(threshold, len(names) - 0.4, " threshold", color=LIMIT, va="bottom")
    axes.set_yticks(at, names)
    axes.set_xlim(0, 1.08)
    axes.set_xlabel("R²: 0 is guessing the mean, 1 is every value exactly")
    axes.set_title(f"What {one.attacker} can rebuild of {one.victim}'s columns ({one.defence})", loc="left", fontsize=9)
    return figure


def _rows(figure: Any, one: Rebuilt) -> Any:
    """Public pictures: the original, what was rebuilt, and the mean that anybody would guess."""
    lines = {"original": one.original, "rebuilt": one.guess, "the mean": one.mean.expand_as(one.original)}
    count = min(SHOWN, len(one.original))
    height, width = one.original.shape[-2:]
    figure.set_size_inches(0.9 * count + 0.9, len(lines) * 0.9 * max(height / width, 0.35) + 0.5)
    grid = figure.subplots(len(lines), count, squeeze=False)
    black, white = float(one.original.min()), float(one.original.max())
    for (name, pictures), axes in zip(lines.items(), grid, strict=True):
        for picture, place in zip(pictures[:count], axes, strict=True):
            place.imshow(_shown(picture, black, white), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            place.set_xticks([])
            place.set_yticks([])
            for spine in place.spines.values():
                spine.set_visible(False)
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center")
    whose = "all parties' parts" if one.victim == EVERYBODY else f"{one.victim}'s part"
    figure.suptitle(f"{whose} as {one.attacker} can rebuild it ({one.defence})", fontsize=9)
    return figure


def _shown(picture: Tensor, black: float, white: float) -> Any:
    scaled = ((picture - black) / max(white - black, 1e-9)).clamp(0, 1)
    return (scaled.permute(1, 2, 0) if scaled.dim() == 3 else scaled).numpy()
