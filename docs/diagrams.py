"""The pictures of what crosses, one per algorithm: `python docs/diagrams.py` draws them
again into docs/images.

Each algorithm is run for one batch on a few random rows, every call is listened to, and
what was heard is drawn: so a picture shows what is sent, and nothing else. Written by
hand are the notes on what a role computes in between, each under the message that it
follows; a note for a message that does not come is an error.
"""

from __future__ import annotations

import html
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.algorithms import ALGORITHMS, find
from colonnade.core.cipher import Ciphertext
from colonnade.core.message import Message, batch_of
from colonnade.core.release import Released
from colonnade.encryption.masks import SHARES
from colonnade.federation import Federation

IMAGES = Path(__file__).with_name("images")
ROWS = 23
TEST = 4
WIDTH = 6
CLASSES = 3
NEIGHBOURS = 5
OWNER = "label_owner"
SERVER = "aggregation_server"
LABEL = "label owner"
FEATURE = "feature owner k"
ONCE = "once, at the start"
ROUND = "each round"
BATCH = "each batch"
PREDICT = "to predict"


SIZES = {
    ROWS: "rows",
    TEST: "rows",
    WIDTH: "width",
    CLASSES: "classes",
    CLASSES - 1: "(classes − 1)",
    NEIGHBOURS: "k",
}


@dataclass(frozen=True)
class Picture:
    """What to run, whom to show, and what they compute."""

    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    lanes: Mapping[str, str] = field(
        default_factory=lambda: {OWNER: LABEL, "a": FEATURE}
    )
    # (when, message) -> said at its receiver
    notes: Mapping[tuple[str, str], str] = field(default_factory=dict)


EMBED = {(BATCH, "Embed"): "hₖ = fₖ(xₖ)", (PREDICT, "Embed"): "hₖ = fₖ(xₖ)"}
PICTURES = {
    "splitnn": Picture(
        "splitnn",
        notes=EMBED
        | {
            (BATCH, "Embedding"): "loss of g([h₁ … h_M]); one step of g",
            (BATCH, "Descend"): "one step of fₖ",
            (PREDICT, "Embedding"): "g([h₁ … h_M])",
        },
    ),
    "vafl": Picture(
        "vafl",
        notes=EMBED
        | {
            (BATCH, "Embedding"): "loss of g(Σ αₖ hₖ); one step of g and α",
            (BATCH, "Descend"): "one step of fₖ",
            (PREDICT, "Embedding"): "g(Σ αₖ hₖ)",
        },
    ),
    "fdml": Picture(
        "fdml",
        notes={
            (BATCH, "Embed"): "oₖ = fₖ(xₖ) Wₖ",
            (BATCH, "Embedding"): "o = Σ oₖ; g = ∂loss/∂o",
            (BATCH, "Descend"): "one step of fₖ and Wₖ",
            (PREDICT, "Embedding"): "o = Σ oₖ",
        },
    ),
    "vimsgd": Picture(
        "vimsgd",
        notes=EMBED
        | {
            (
                BATCH,
                "Embedding",
            ): "o = Σ hₖ Wₖ; one step of W (Eq. 12); ∂loss/∂hₖ (Eq. 14)",
            (BATCH, "Descend"): "one step of fₖ (Eq. 15)",
            (PREDICT, "Embedding"): "o = Σ hₖ Wₖ",
        },
    ),
    "vimadmm": Picture(
        "vimadmm",
        notes=EMBED
        | {
            (
                BATCH,
                "Embedding",
            ): "o = Σ hₖ Wₖ; z (Eq. 6), λ (Eq. 7), W (Eq. 8); r = z − o − λ/ρ",
            (BATCH, "Improve"): "τ steps of fₖ towards r + hₖ Wₖ (Eq. 10)",
            (PREDICT, "Embedding"): "o = Σ hₖ Wₖ",
        },
    ),
    "vimadmm_joint": Picture(
        "vimadmm_joint",
        notes={
            (BATCH, "Embed"): "oₖ = fₖ(xₖ) Wₖ",
            (BATCH, "Embedding"): "o = Σ oₖ; z (Eq. 17), λ (Eq. 18); r = z − o − λ/ρ",
            (BATCH, "Improve"): "τ steps of fₖ and Wₖ towards r + oₖ (Eq. 20, 21)",
            (PREDICT, "Embedding"): "o = Σ oₖ",
        },
    ),
    "vimadmm_joint-secure": Picture(
        "vimadmm_joint",
        {"aggregation": "secure"},
        notes={
            (BATCH, "Embed"): "oₖ, under masks that cancel in the sum",
            (BATCH, "Embedding"): "o = sum of all shares; z, λ; r = z − o − λ/ρ",
            (BATCH, "Improve"): "τ steps of fₖ and Wₖ towards r + oₖ",
        },
    ),
    "compressed_vfl": Picture(
        "compressed_vfl",
        notes={
            (BATCH, "Embed"): "hₘ, compressed and with noise if its owner says so",
            (BATCH, "Embedding"): "Q steps of θ₀",
            (BATCH, "Improve"): "Q steps of θₘ, all else as it was sent",
            (PREDICT, "Embedding"): "g([h₁ … h_M])",
        },
    ),
    "vfedcce": Picture(
        "vfedcce",
        {"scheme": "plain"},  # the same exchange; ciphertexts as large as they like
        notes={
            (BATCH, "Embed"): "uₖ = fₖ(xₖ)",
            (BATCH, "Embedding"): "p = mean of probabilities; cₖ = N ∂loss/∂uₖ",
            (BATCH, "Multiply"): "Jacobian × ciphertext, plus a mask",
            (BATCH, "Masked"): "decrypts a masked sum",
            (BATCH, "TakeGradient"): "takes the mask off; one step",
            (PREDICT, "Embedding"): "p = mean of probabilities",
        },
    ),
    "boosted_trees": Picture(
        "boosted_trees",
        {"depth": 2, "bins": 4, "min_rows": 1},
        notes={
            (BATCH, "Start"): "sums of E(g), E(h) by bin, blinded",
            (BATCH, "Sums"): "decrypts; of each node the split that gains most",
            (BATCH, "Split"): "remembers its threshold",
            (BATCH, "Divide"): "the same sums for the smaller children",
            (PREDICT, "Directions"): "leaves of all trees, added up",
        },
    ),
    "knn": Picture(
        "knn",
        {"scheme": "plain"},
        {"b": FEATURE, OWNER: LABEL, "a": "reader, a feature owner"},
        {
            (PREDICT, "AskDistances"): "dₖ to every training row",
            (PREDICT, "Distances"): "adds what it cannot read",
            (PREDICT, "Rank"): "decrypts, adds its own dₖ, sorts",
            (PREDICT, "Neighbours"): "their labels vote",
        },
    ),
    "one_shot": Picture(
        "one_shot",
        {"estimator": "logistic", "width": WIDTH},
        notes={
            (
                BATCH,
                "Embed",
            ): "learns fₖ from its own rows, without labels; hₖ = fₖ(xₖ)",
            (
                BATCH,
                "Embedding",
            ): "learns g from y, its own columns and h₁ … h_M; nothing goes back",
            (PREDICT, "Embed"): "hₖ = fₖ(xₖ)",
            (PREDICT, "Embedding"): "g([x₀, h₁ … h_M])",
        },
    ),
    "multi_vfl": Picture(
        "multi_vfl",
        lanes={
            SERVER: "aggregation server",
            OWNER: "label owner k",
            "a": "data owner d",
        },
        notes={
            (BATCH, "Embed"): "h = f_dk(x)",
            (BATCH, "Embedding"): "one step of gₖ",
            (BATCH, "Descend"): "one step of f_dk",
            (ROUND, "Trained"): "W + server step on the mean of gₖ − W",
            (ROUND, "Average"): "f_d = mean of f_dk",
        },
    ),
}


def pictures() -> dict[str, Picture]:
    """Those above, and one without notes of each algorithm that has none of its own."""
    drawn = {picture.algorithm for picture in PICTURES.values()}
    return PICTURES | {name: Picture(name) for name in ALGORITHMS if name not in drawn}


@dataclass(frozen=True)
class Heard:
    """One message on its way."""

    sender: str
    to: str
    message: Message
    batch: str | None


def listen(picture: Picture) -> list[tuple[str, Heard]]:
    """One batch and one prediction, and when each message came."""
    heard: list[Heard] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        federation = _federation(picture)
        for party in (*federation.owners.values(), *federation.label_owners.values()):
            party.handle = _overheard(party.name, party.handle, heard)
        for _ in federation.train():
            pass
        trained = len(heard)
        if find(picture.algorithm).nested is None:
            federation.evaluate("test")
    several = [
        n for n, one in enumerate(heard) if type(one.message).__name__ == "TrainRound"
    ]
    return [
        (_when(one, n < trained, bool(several) and n >= several[0]), one)
        for n, one in enumerate(heard)
    ]


def _overheard(
    name: str, handle: Callable[..., Any], heard: list[Heard]
) -> Callable[..., Any]:
    def handled(envelope: Any) -> Any:
        batch = batch_of(envelope.message)
        heard.append(Heard(envelope.sender, name, envelope.message, batch))
        reply = handle(envelope)
        heard.append(Heard(name, envelope.sender, reply, batch))
        return reply

    return handled


def _when(one: Heard, training: bool, begun: bool) -> str:
    rows = (one.batch or "").rpartition(":")[2]
    if rows.startswith("train/"):
        return BATCH
    if begun:
        return ROUND
    return ONCE if rows in ("", f"train[0:{ROWS}]") or training else PREDICT


def _federation(picture: Picture) -> Any:
    """A few random rows at three feature owners."""
    random = np.random.default_rng(0)
    rows = ROWS + TEST
    tables = {
        name: (
            pd.DataFrame(random.normal(size=(rows, 2)), columns=["x", "y"])
            .rename_axis("id")
            .reset_index()
        )
        for name in "abc"
    }
    labels = pd.DataFrame({"id": range(rows), "class": np.arange(rows) % CLASSES})
    settings = {
        "algorithm": {"name": picture.algorithm, **picture.settings},
        "data": {"validation": 0, "test": TEST},
        "model": {"name": "linear", "width": WIDTH},
        "train": {"epochs": 1, "batch_size": ROWS},
        "federation": {"device": "cpu", "cohort": "off", "threads": "never"},
    }
    if find(picture.algorithm).nested is not None:
        return Federation.from_frames(
            tables,
            label_owners={OWNER: labels},
            id="id",
            label="class",
            settings=settings,
        )
    return Federation.from_frames(
        {**tables, OWNER: labels}, id="id", label="class", settings=settings
    )


@dataclass(frozen=True)
class Line:
    """Something to draw: a heading, an arrow with its words, or a note at a lane."""

    kind: str
    words: tuple[str, ...]
    of: str = ""
    to: str = ""
    carries: str = ""
    door: bool = False


def script(name: str) -> list[Line]:
    """A picture's lines from top to bottom; what repeats an exchange of the same
    heading is left out."""
    picture = pictures()[name]
    reveals = find(picture.algorithm).reveals
    told = set[str]()
    when = ""
    lines = list[Line]()
    unused = set(picture.notes)
    drawn = set[tuple[str, str, str, str]]()
    for now, one in listen(picture):
        said = type(one.message).__name__
        key = (now, said, one.sender, one.to)
        if (
            one.sender not in picture.lanes
            or one.to not in picture.lanes
            or said == "Done"
            or key in drawn
        ):
            continue
        drawn.add(key)
        if now != when:
            lines.append(Line("heading", (now,)))
            when = now
        sealed = one.message.crossing()
        carried = _carried(sealed, one.sender) + _scalars(one.message, bool(sealed))
        new = [part.receipt.name for part in sealed if part.receipt.name not in told]
        told.update(new)
        tells = tuple(f"{word}: {reveals[word]}" for word in dict.fromkeys(new))
        lines.append(
            Line(
                "arrow",
                (said, *tells),
                one.sender,
                one.to,
                ", ".join(carried),
                bool(sealed),
            )
        )
        if (now, said) in picture.notes:
            unused.discard((now, said))
            lines.append(Line("note", (picture.notes[now, said],), one.to))
    if unused:
        raise ValueError(
            f"{name}: notes for messages that do not come: {sorted(unused)}"
        )
    return lines


def _scalars(message: Message, beside: bool) -> list[str]:
    """Plain fields by name; a batch's name goes without saying beside a tensor."""
    plain = [
        name
        for name in message.hints()
        if isinstance(getattr(message, name), (str, int, float, tuple, dict))
    ]
    held = [
        name
        for name in plain
        if not _holds_tensors(getattr(message, name))
        and not (beside and name == "batch")
    ]
    return [name.replace("took_part", "who took part") for name in held]


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, tuple) and any(
        isinstance(one, (Released, Ciphertext)) for one in value
    )


def _carried(sealed: Sequence[Any], sender: str) -> list[str]:
    """Releases by name and size; only by name where one name has several sizes."""
    found: dict[str, set[str]] = {}
    for part in sealed:
        name = _name(part, sender)
        sizes = [SIZES.get(size, "weights") for size in part.shape]
        if part.receipt.name in ("distances", "total"):
            sizes[-1] = "training rows"
        found.setdefault(name, set()).add(
            "" if name in ("public_key", "inputs", "weights") else " × ".join(sizes)
        )
    return [
        f"{name}: {size}" if len(said) == 1 and (size := min(said)) else name
        for name, said in found.items()
    ]


def _name(part: Any, sender: str) -> str:
    name = part.receipt.name
    if part.receipt.codec == SHARES.name:
        return f"masked {name}"
    if isinstance(part, Ciphertext):
        return f"{part.encrypted.hides} {name}"
    return (
        f"{name} of the others"
        if part.receipt.owner != sender and name == "embedding"
        else str(name)
    )


WIDE = 860
MARGIN = 146
SMALL = 12
LETTER = 6.1
INK = "#767c86"
LINE = "#8a929e"
DOOR = "#c2701c"
BOX = {"server": "#6b4fa0", "label": "#2f6f9f", "other": "#3b7d5a"}


def draw(name: str) -> str:
    """The SVG: one lane per role, time runs down. Colours are of middle brightness, to
    be read on white and black."""
    picture = pictures()[name]
    parts = list[str]()
    y = 64
    places = np.linspace(MARGIN, WIDE - MARGIN, len(picture.lanes))
    lane = {who: float(x) for who, x in zip(picture.lanes, places, strict=True)}
    for line in script(name):
        more, y = {"heading": _heading, "note": _note, "arrow": _arrow}[line.kind](
            line, lane, y
        )
        parts += more
    legend = (
        "an outbox: the owner's rules, budget and ledger. A dashed call carries no"
        " tensor. Done is not drawn."
    )
    heads = [
        piece for who, x in lane.items() for piece in _head(picture.lanes[who], x, y)
    ]
    foot = [*_door(12, y + 31), _text(28, y + 35, legend, size=11, anchor="start")]
    title = html.escape(
        f"What crosses in {name.replace('-', ', ')}: messages between"
        f" {' and '.join(picture.lanes.values())}"
    )
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {y + 50}"'
                f' width="{WIDE}" height="{y + 50}" role="img" font-family="system-ui,'
                f' sans-serif" font-size="{SMALL}">'
            ),
            f"<title>{title}</title>",
            (
                '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4"'
                ' markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0'
                f' 8z" fill="{LINE}"/></marker></defs>'
            ),
            *heads,
            *parts,
            *foot,
            "</svg>\n",
        ]
    )


def _head(title: str, x: float, bottom: int) -> Iterator[str]:
    kind = next((kind for kind in BOX if kind in title), "other")
    half = max(70, len(title) * 4 + 12)
    left = min(max(x - half, 4), WIDE - 2 * half - 4)
    yield (
        f'<line x1="{x:g}" y1="36" x2="{x:g}" y2="{bottom + 10}" stroke="{LINE}"'
        ' stroke-width="1.5"/>'
    )
    yield (
        f'<rect x="{left:g}" y="8" width="{2 * half}" height="30" rx="6"'
        f' fill="{BOX[kind]}"/>'
    )
    yield _text(left + half, 28, title, colour="#ffffff", weight="600", size=13)


def _heading(line: Line, _: Mapping[str, float], y: int) -> tuple[list[str], int]:
    rule = (
        f'<line x1="8" y1="{y + 10}" x2="{WIDE - 8}" y2="{y + 10}" stroke="{LINE}"'
        ' stroke-width="0.6"/>'
    )
    return [
        rule,
        _text(8, y + 4, line.words[0].upper(), size=10, anchor="start", weight="600"),
    ], y + 34


def _note(line: Line, lane: Mapping[str, float], y: int) -> tuple[list[str], int]:
    """What a role computes, in a box on its lane."""
    x = lane[line.of]
    text = line.words[0]
    wide = len(text) * LETTER + 22
    left = min(max(x - wide / 2, 4), WIDE - wide - 4)
    box = (
        f'<rect x="{left:g}" y="{y}" width="{wide:g}" height="22" rx="4" fill="#e9edf2"'
        f' stroke="{LINE}"/>'
    )
    return [box, _text(left + wide / 2, y + 15, text, colour="#1f2933")], y + 46


def _arrow(line: Line, lane: Mapping[str, float], y: int) -> tuple[list[str], int]:
    """A message: its name and what it carries above the arrow, what its receiver learns
    below it."""
    start = lane[line.of]
    end = lane[line.to]
    right = end > start
    middle = (start + end) / 2
    room, bold = (
        int((abs(end - start) - 40) / wide) for wide in (LETTER, 1.2 * LETTER)
    )
    said, *tells = line.words
    above = textwrap.wrap(f"{said}({line.carries})", bold) if line.carries else [said]
    parts = [
        _text(middle, y + 14 * n, words, weight="600") for n, words in enumerate(above)
    ]
    y += 14 * len(above) - 6
    tail = start + (12 if right else -12) if line.door else start
    dashes = "" if line.door else ' stroke-dasharray="5 4"'
    parts.append(
        f'<line x1="{tail:g}" y1="{y}" x2="{end + (-3 if right else 3):g}" y2="{y}"'
        f' stroke="{LINE}" stroke-width="1.6"{dashes} marker-end="url(#tip)"/>'
    )
    parts += _door(start + (4 if right else -12), y) if line.door else []
    below = [words for told in tells for words in textwrap.wrap(told, room)]
    parts += [
        _text(middle, y + 16 + 14 * n, words, size=11) for n, words in enumerate(below)
    ]
    return parts, y + 14 * len(below) + (24 if below else 26)


def _door(x: float, y: int) -> list[str]:
    """An outbox: a door with a handle."""
    return [
        f'<rect x="{x:g}" y="{y - 9}" width="8" height="18" rx="1" fill="{DOOR}"/>',
        f'<circle cx="{x + 6:g}" cy="{y + 1}" r="1" fill="#ffffff"/>',
    ]


def _text(
    x: float,
    y: float,
    words: str,
    *,
    colour: str = INK,
    size: int = SMALL,
    anchor: str = "middle",
    weight: str = "400",
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"'
        f' font-size="{size}" font-weight="{weight}">{html.escape(words)}</text>'
    )


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for each in pictures():
        (IMAGES / f"crosses-{each}.svg").write_text(draw(each), encoding="utf-8")
