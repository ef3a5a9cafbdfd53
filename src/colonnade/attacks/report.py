"""The audit on disk: audit.json, and pictures as PNG and SVG.

Rows of a public data set may be shown: original above reconstruction. Of anybody's own
table a picture shows scores by column, never a value.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from torch import Tensor

from colonnade.attacks.audit import NONE_APPLIES, Audit
from colonnade.attacks.finding import Finding
from colonnade.attacks.inversion_audit import EVERYBODY, Rebuilt
from colonnade.attacks.promises import Promises
from colonnade.core.files import write_figure, write_text, written_out
from colonnade.runs.run_directory import to_json

SHOWN = 8
PROMISES = "promises.json"
MADE = ("audit.json", "labels.png", "labels.svg", "inversion-*.png", "inversion-*.svg")
"""The files that an audit writes, and replaces; it leaves all others in the folder
alone."""

INK = "#333333"
ATTACK = "#c44e52"
GUESS = "#b0b7c3"
LIMIT = "#1f4e79"


def prepare(folder: Path) -> None:
    """Make the folder, before attacks that take minutes."""
    with written_out("The audit", folder):
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()


def write(audit: Audit, folder: Path) -> list[Path]:
    """Write all files, each whole or not at all, in place of an earlier audit's. Where
    this audit looked at one party alone, the earlier findings among the others stay, if
    they are about the same checkpoint."""
    audit.drawn = {}
    whole = audit if audit.party is None else _beside(audit, folder)
    prepare(folder)
    with written_out("The audit", folder):
        for old in (path for pattern in MADE for path in folder.glob(pattern)):
            if old.stem not in whole.drawn:
                old.unlink()
        pictures = _pictures(whole, folder)
        write_text(folder / "audit.json", to_json(whole.to_json(), indent=2) + "\n")
    return [folder / "audit.json", *pictures]


def write_promises(promises: Promises, folder: Path) -> Path:
    """What canaries showed, beside what was promised."""
    with written_out("The audit", folder):
        write_text(folder / PROMISES, to_json(promises.to_json(), indent=2) + "\n")
    return folder / PROMISES


def _beside(audit: Audit, folder: Path) -> Audit:
    """The audit, and what is still valid of an earlier one: findings neither by nor on
    the party that was looked at."""
    try:
        old = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        before = Audit.from_json(old)
        attacked = ("run", "algorithm", "checkpoint")
        if audit.checkpoint == "" or any(
            old[key] != getattr(audit, key) for key in attacked
        ):
            return audit
        kept = [finding.under(audit.thresholds) for finding in before.findings]
        others = [
            finding
            for finding in kept
            if audit.party not in (finding.attacker, finding.victim)
        ]
        missed = [
            item
            for item in before.not_attacked
            if audit.party not in (item.owner, item.receiver)
        ]
        notes = dict.fromkeys([*audit.notes, *before.notes])
        again = {rebuilt.victim for rebuilt in audit.rebuilt}
        drawn = {
            stem: victim for stem, victim in before.drawn.items() if victim not in again
        }
    # none, or an older kind, or damaged
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return audit
    none = NONE_APPLIES.format(audit.algorithm)
    kept_notes = [
        note for note in notes if note != none or not (others or audit.findings)
    ]
    findings = [*audit.findings, *others]
    missed = [*audit.not_attacked, *missed]
    return dataclasses.replace(
        audit, findings=findings, not_attacked=missed, notes=kept_notes, drawn=drawn
    )


def _pictures(audit: Audit, folder: Path) -> list[Path]:
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        audit.notes.append('Pictures need matplotlib: pip install "colonnade[plots]".')
        return []
    from matplotlib.figure import Figure

    written: list[Path] = []
    plain: Any = {
        "svg.hashsalt": "colonnade",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    plain |= {"text.parse_math": False}  # a column may be called $x
    with mpl.rc_context(plain):
        labels = [
            finding for finding in audit.findings if finding.limit == "label_inference"
        ]
        if labels:
            figure = Figure(layout="constrained")
            _bars(figure, labels)
            written += write_figure(figure, folder / "labels", dpi=150)
        for rebuilt in audit.rebuilt:
            if rebuilt.picture and audit.dataset is None:
                continue
            figure = Figure(layout="constrained")
            if rebuilt.picture:
                _rows(figure, rebuilt)
            else:
                _columns(figure, rebuilt, audit.thresholds["inversion_r2"])
            name = _name(rebuilt, audit.drawn)
            audit.drawn[name] = rebuilt.victim
            written += write_figure(figure, folder / name, dpi=150)
    return written


def _name(rebuilt: Rebuilt, taken: Collection[str]) -> str:
    words = [
        rebuilt.victim.replace(" ", "-"),
        *(["training"] if rebuilt.moment != "prediction" else []),
    ]
    words += ["mean-unknown"] if "unknown" in rebuilt.defence else []
    name = "-".join(["inversion", *words])
    return name if name not in taken else f"{name}-{len(taken)}"


def _bars(figure: Any, findings: list[Finding]) -> None:
    """Label attacks: the score with its interval, and what a guess gives."""
    figure.set_size_inches(7, 1.2 + 0.32 * len(findings))
    axes = figure.subplots()
    places = list(range(len(findings)))[::-1]
    axes.barh(
        places,
        [finding.score for finding in findings],
        height=0.62,
        color=ATTACK,
        label="attack",
    )
    for place, finding in zip(places, findings, strict=True):
        if finding.low is not None and finding.high is not None:
            axes.plot(
                [finding.low, finding.high], [place, place], color=INK, linewidth=1.2
            )
        axes.plot(
            [finding.baseline] * 2,
            [place - 0.42, place + 0.42],
            color=INK,
            linewidth=2.2,
        )
    axes.plot([], [], color=INK, linewidth=2.2, label="without any attack")
    limits = {finding.threshold for finding in findings} - {None}
    for limit in limits:
        axes.axvline(
            limit, color=LIMIT, linestyle="--", linewidth=1.2, label="threshold"
        )
    names = [
        f"{finding.attacker}:"
        f" {finding.attack.removeprefix('labels ')}\n{finding.moment}"
        for finding in findings
    ]
    axes.set_yticks(places, names)
    axes.set_xlim(0, 1.02)
    axes.set_xlabel(f"labels of {findings[0].victim}: {findings[0].metric}")
    figure.legend(loc="outside upper right", ncols=3, frameon=False)


def _columns(figure: Any, rebuilt: Rebuilt, threshold: float | None) -> None:
    """How much of each column was rebuilt."""
    names = sorted(rebuilt.columns, key=lambda name: -rebuilt.columns[name])
    figure.set_size_inches(6.4, 1.1 + 0.24 * len(names))
    axes = figure.subplots()
    places = list(range(len(names)))[::-1]
    bars = axes.barh(
        places,
        [max(rebuilt.columns[name], 0.0) for name in names],
        height=0.66,
        color=ATTACK,
    )
    values = [
        f"{rebuilt.columns[name]:.2f}{', worse than the mean' * (rebuilt.columns[name] < 0)}"
        for name in names
    ]
    axes.bar_label(bars, values, padding=3, color=INK, fontsize=8)
    if threshold is not None:
        axes.axvline(threshold, color=LIMIT, linestyle="--", linewidth=1.2)
        axes.text(threshold, len(names) - 0.4, " threshold", color=LIMIT, va="bottom")
    axes.set_yticks(places, names)
    axes.set_xlim(0, 1.08)
    axes.set_xlabel("R²: 0 is guessing the mean, 1 is every value exactly")
    title = (
        f"What {rebuilt.attacker} can rebuild of {rebuilt.victim}'s columns"
        f" ({rebuilt.defence})"
    )
    axes.set_title(title, loc="left", fontsize=9)


def _rows(figure: Any, rebuilt: Rebuilt) -> None:
    """Public pictures: the original, what was rebuilt, and the mean that anybody would
    guess."""
    original = rebuilt.original
    lines = {
        "original": original,
        "rebuilt": rebuilt.guess,
        "the mean": rebuilt.mean.expand_as(original),
    }
    count = min(SHOWN, len(original))
    height, width = original.shape[-2:]
    figure.set_size_inches(
        0.9 * count + 0.9, len(lines) * 0.9 * max(height / width, 0.35) + 0.5
    )
    grid = figure.subplots(len(lines), count, squeeze=False)
    black = float(original.min())
    white = float(original.max())
    for (name, pictures), axes in zip(lines.items(), grid, strict=True):
        for picture, place in zip(pictures[:count], axes, strict=True):
            place.imshow(
                _shown(picture, black, white),
                cmap="gray",
                vmin=0,
                vmax=1,
                interpolation="nearest",
            )
            place.set_xticks([])
            place.set_yticks([])
            for spine in place.spines.values():
                spine.set_visible(False)
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center")
    whose = (
        "all parties' parts"
        if rebuilt.victim == EVERYBODY
        else f"{rebuilt.victim}'s part"
    )
    figure.suptitle(
        f"{whose} as {rebuilt.attacker} can rebuild it ({rebuilt.defence})", fontsize=9
    )


def _shown(picture: Tensor, black: float, white: float) -> Any:
    scaled = ((picture - black) / max(white - black, 1e-9)).clamp(0, 1)
    return (scaled.permute(1, 2, 0) if scaled.dim() == 3 else scaled).numpy()
