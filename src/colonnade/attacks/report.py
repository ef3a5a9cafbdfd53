"""The audit on disk: audit.json, and pictures as PNG and SVG.

Rows of a public data set may be shown: original above reconstruction. Of anybody's own
table a picture shows scores by column, never a value.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from torch import Tensor

from colonnade.attacks.audit import NONE_APPLIES, Audit
from colonnade.attacks.finding import LABEL_LIMIT, NOTHING, Finding
from colonnade.attacks.inversion_audit import EVERYBODY, Rebuilt
from colonnade.attacks.promises import Promises
from colonnade.attacks.rehearsal import ASKED, model_files
from colonnade.core.files import write_figure, write_text, written_out
from colonnade.installation import can_draw, no_pictures
from colonnade.runs.layout import AUDIT
from colonnade.runs.run_directory import to_json

SHOWN = 8
REPORT = "audit.json"
PROMISES = "promises.json"
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged report raises."""
MADE = (REPORT, "labels.png", "labels.svg", "inversion-*.png", "inversion-*.svg")
"""The files that an audit writes, and replaces; it leaves all others in the folder
alone."""

INK = "#333333"
ATTACK = "#c44e52"
GUESS = "#b0b7c3"
LIMIT = "#1f4e79"


@dataclass(frozen=True)
class Verdict:
    """The worst that an audit found about a run, for those who decide about it.

    Args:
        text: In words: the worst on labels and the worst on columns, and what the audit
            could not look at.
        leaks: Whether some attack is shown to be better than guessing.
        measured: Whether the audit looked at everything that could be read, with enough
            rows, in the models that the run has now. If not, it rules nothing out.
        attack: The name of the worst attack; "" where none applied.
        passed: Whether thresholds are set in [audit], and everything is measured and
            keeps them.
        date: When the audit began, in UTC.
    """

    text: str
    leaks: bool
    measured: bool
    attack: str = ""
    passed: bool = False
    date: str = ""


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
        write_text(folder / REPORT, to_json(whole.to_json(), indent=2) + "\n")
    return [folder / REPORT, *pictures]


def write_promises(promises: Promises, folder: Path) -> Path:
    """What canaries showed, beside what was promised."""
    with written_out("The audit", folder):
        write_text(folder / PROMISES, to_json(promises.to_json(), indent=2) + "\n")
    return folder / PROMISES


def worst_verdict(run: Path) -> Verdict | None:
    """The worst that `colonnade audit` found about a run, from what it left in the run's
    folder; None where no audit was made.

    Whoever relies on it must look at `measured`, too: nothing was ruled out by an audit
    that could not look at everything, or that looked at other models than the run has
    now.
    """
    path = run / AUDIT / REPORT
    if not path.exists():
        return None
    try:
        audit = Audit.from_json(json.loads(path.read_text(encoding="utf-8")))
    except DAMAGED:
        return Verdict(
            f"{path} cannot be read. Run `colonnade audit {run}` again.",
            leaks=False,
            measured=False,
        )
    gaps = list(_gaps(audit))
    if audit.model_files != model_files(run):
        gaps.append("the models have changed since: audit the run again")
    on_labels = [one for one in audit.findings if one.limit == LABEL_LIMIT]
    on_columns = [one for one in audit.findings if one.limit != LABEL_LIMIT]
    worst = [max(kind, key=_severity) for kind in (on_labels, on_columns) if kind]
    worst.sort(key=_severity, reverse=True)
    words = [f"{one}: {one.verdict} ({one.figure})" for one in worst]
    return Verdict(
        "; ".join([*(words or ["no attack applied to what was sent"]), *gaps]),
        leaks=any(finding.leaks for finding in worst),
        measured=not gaps,
        attack=worst[0].attack if worst else "",
        passed=audit.limited and audit.passed and not gaps,
        date=audit.date,
    )


def _severity(finding: Finding) -> tuple[bool, float, bool]:
    """Findings in the order in which a reader must hear of them: what leaks by how much
    it tells, then what was not measured, then the rest."""
    gain = finding.gain if finding.leaks else NOTHING
    return finding.leaks, gain, not finding.measures_every_class


def _gaps(audit: Audit) -> Iterator[str]:
    """What an audit could not look at."""
    if audit.party is not None:
        yield f"only attacks by or on {audit.party} were made"
    if missed := len(audit.not_attacked):
        yield f"not attacked: {missed} of the releases that can be read"
    unmeasured = [one for one in audit.findings if not one.measures_every_class]
    if unmeasured:
        yield (
            f"{len(unmeasured)} of {len(audit.findings)} findings are on too few rows of"
            " some class: audit more rows (--rows)"
        )
    if audit.open_sites:
        yield f"not known to have passed: {', '.join(audit.open_sites)}"


def _beside(audit: Audit, folder: Path) -> Audit:
    """The audit of one party, and what is still valid of an earlier audit of the same
    models: findings neither by nor on that party."""
    try:
        saved = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        before = Audit.from_json(saved)
    except (FileNotFoundError, *DAMAGED):
        return audit
    about = (audit.run, audit.algorithm, audit.model_files)
    if not audit.model_files or about != (
        before.run,
        before.algorithm,
        before.model_files,
    ):
        return audit
    findings = [
        finding.under(audit.thresholds)
        for finding in before.findings
        if audit.party not in (finding.attacker, finding.victim)
    ]
    missed = [
        item
        for item in before.not_attacked
        if audit.party not in (item.owner, item.receiver)
    ]
    drawn_again = {rebuilt.victim for rebuilt in audit.rebuilt}
    together = dataclasses.replace(
        audit,
        findings=[*audit.findings, *findings],
        not_attacked=[*audit.not_attacked, *missed],
        notes=list(dict.fromkeys([*audit.notes, *before.notes])),
        party=None if before.party is None else audit.party,
        drawn={
            picture: victim
            for picture, victim in before.drawn.items()
            if victim not in drawn_again
        },
    )
    if together.findings:
        none_applies = NONE_APPLIES.format(audit.algorithm)
        together.notes = [note for note in together.notes if note != none_applies]
    return together


def _pictures(audit: Audit, folder: Path) -> list[Path]:
    """Draw what was found, where matplotlib is installed; gives the files."""
    if not can_draw():
        audit.notes.append(no_pictures())
        return []
    import matplotlib as mpl
    from matplotlib.figure import Figure

    written: list[Path] = []
    style: Any = {
        "svg.hashsalt": "colonnade",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.parse_math": False,  # a column may be called $x
    }
    with mpl.rc_context(style):
        labels = [finding for finding in audit.findings if finding.limit == LABEL_LIMIT]
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
    """A name for the picture of a reconstruction that no other picture has."""
    parts = ["inversion", rebuilt.victim.replace(" ", "-")]
    if rebuilt.moment != ASKED:
        parts.append("training")
    if "unknown" in rebuilt.defence:
        parts.append("mean-unknown")
    name = "-".join(parts)
    return name if name not in taken else f"{name}-{len(taken)}"


def _bars(figure: Any, findings: list[Finding]) -> None:
    """Label attacks: the score with its interval, and what a guess gives."""
    figure.set_size_inches(7, 1.2 + 0.32 * len(findings))
    axes = figure.subplots()
    places = list(range(len(findings)))[::-1]
    scores = [finding.score or 0.0 for finding in findings]
    axes.barh(places, scores, height=0.62, color=ATTACK, label="attack")
    for place, finding in zip(places, findings, strict=True):
        _mark(axes, place, finding)
    axes.plot([], [], color=INK, linewidth=2.2, label="guessing")
    for limit in {finding.threshold for finding in findings} - {None}:
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


def _mark(axes: Any, place: int, finding: Finding) -> None:
    """The interval of a score, and where guessing would be."""
    if finding.score is None:
        axes.text(0.01, place, "not measured", color=INK, va="center", fontsize=8)
    if finding.low is not None and finding.high is not None:
        ends = [finding.low, finding.high]
        axes.plot(ends, [place, place], color=INK, linewidth=1.2)
    guessing = [finding.baseline, finding.baseline]
    axes.plot(guessing, [place - 0.42, place + 0.42], color=INK, linewidth=2.2)


def _columns(figure: Any, rebuilt: Rebuilt, threshold: float | None) -> None:
    """How much of each column was rebuilt."""
    names = sorted(rebuilt.columns, key=lambda name: -rebuilt.columns[name])
    scores = [rebuilt.columns[name] for name in names]
    figure.set_size_inches(6.4, 1.1 + 0.24 * len(names))
    axes = figure.subplots()
    places = list(range(len(names)))[::-1]
    lengths = [max(score, 0.0) for score in scores]
    bars = axes.barh(places, lengths, height=0.66, color=ATTACK)
    values = [
        f"{score:.2f}{', worse than the mean' if score < 0 else ''}" for score in scores
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
    line_height = 0.9 * max(height / width, 0.35)
    figure.set_size_inches(0.9 * count + 0.9, len(lines) * line_height + 0.5)
    grid = figure.subplots(len(lines), count, squeeze=False)
    black = float(original.min())
    white = float(original.max())
    for (name, pictures), axes in zip(lines.items(), grid, strict=True):
        for picture, place in zip(pictures[:count], axes, strict=True):
            _draw(place, _shown(picture, black, white))
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center")
    together = rebuilt.victim == EVERYBODY
    whose = "all parties' parts" if together else f"{rebuilt.victim}'s part"
    title = f"{whose} as {rebuilt.attacker} can rebuild it ({rebuilt.defence})"
    figure.suptitle(title, fontsize=9)


def _draw(place: Any, picture: Any) -> None:
    """A picture without a frame."""
    place.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    place.set_xticks([])
    place.set_yticks([])
    for spine in place.spines.values():
        spine.set_visible(False)


def _shown(picture: Tensor, black: float, white: float) -> Any:
    scaled = ((picture - black) / max(white - black, 1e-9)).clamp(0, 1)
    return (scaled.permute(1, 2, 0) if scaled.dim() == 3 else scaled).numpy()
