"""Numbers for people, the same everywhere in a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from colonnade.evaluate import metric as metric

COUNTS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
BETTER_LOW = {"loss", "rmse", "mae"}
DONE_WITHOUT = {
    "stale": "its last answer was used",
    "skip": "it was left out",
    "not_updated": "it got no update",
}


def size(count: float) -> str:
    """Bytes: 12.3 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def score(value: Any) -> str:
    """A metric to four digits, as the command line prints it; a dash where there is
    none."""
    return (
        f"{value:z.4f}"
        if isinstance(value, (int, float)) and math.isfinite(value)
        else "–"
    )


def always_one(summary: Mapping[str, Any]) -> str:
    """A sentence where a model of two classes always says the same class; otherwise
    nothing."""
    majority = summary.get("majority") or {}
    split = next(
        (name for name in ("test", "validation", "train") if name in majority), None
    )
    if split is None or not majority[split].get("always_one"):
        return ""
    right = score(summary["metrics"][split]["accuracy"])
    return (
        f"It says the same class of every row: its accuracy on {split} rows, {right},"
        " is that class's share. Scores may still tell rows apart: choose the score"
        " from which on to act."
    )


def warnings_of(summary: Mapping[str, Any]) -> list[str]:
    """What must be read before a run's scores: the run's own findings, and that it
    always says one class."""
    return [
        *summary.get("findings", []),
        *summary.get("label_findings", []),
        *filter(None, [always_one(summary)]),
    ]


def whose_models(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on whose local models follow from the agreed seed, and whose are
    secret."""
    models = summary.get("models") or {}
    seeded = listed([name for name, source in models.items() if source == "seeded"])
    secret = listed([name for name, source in models.items() if source == "secret"])
    sentences = []
    if seeded:
        sentences.append(
            f"A rehearsal: the initial weights of {seeded} follow from the agreed seed,"
            " and whoever knows it can rebuild columns from what was sent. Between"
            ' sites weights are secret, unless an owner says models = "seeded".'
        )
    if secret:
        sentences.append(
            f"The initial weights of {secret} came from the operating system, so that"
            " nobody else knows the local model; what embeddings tell somebody who"
            " knows columns of some rows, `colonnade audit` measures."
        )
    return sentences


def unanswered(summary: Mapping[str, Any]) -> dict[str, str]:
    """For each party that did not always answer: what was done without its answer, and
    how often."""
    return {
        party: ", ".join(
            f"{DONE_WITHOUT.get(done, done)} {number} times"
            for done, number in counts.items()
        )
        for party, counts in (summary.get("missing") or {}).items()
    }


def listed(names: Sequence[str]) -> str:
    """A, B and C."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def many(count: int, noun: str) -> str:
    """A count and its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def seconds(value: float) -> str:
    if value < 0.9995:
        return f"{1000 * value:.0f} ms"
    if value < 119.5:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return (
        f"{minutes} min {rest} s"
        if minutes < 120
        else f"{minutes // 60} h {minutes % 60} min"
    )


def epsilon(value: float | None) -> str:
    if value is None:
        return "no guarantee"
    return f"{value:.3f}" if value < 10 else f"{value:,.1f}"


def count(number: int, noun: str) -> str:
    """three rounds; 1,250 rounds."""
    word = COUNTS[number] if number < len(COUNTS) else f"{number:,}"
    return f"{word} {noun if number == 1 else noun + 's'}"


def times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def amount(number: float) -> str:
    return f"{number:,.0f}"


def sentence(words: str) -> str:
    """The words with a capital and a full stop."""
    words = " ".join(words.split()).rstrip(".")
    return capital(words) + "." if words else ""
