"""How well the joint model ranks and decides on rows that nobody trained on: curves,
counts, thresholds and costs."""

from __future__ import annotations

from colonnade.evaluate import POSITIVE_BY, class_name
from colonnade.report.chart import Figure, Series, lines, plates
from colonnade.report.facts import Facts, Plain
from colonnade.report.html import Cell, Content, Html, cell, h, table
from colonnade.report.words import amount, score

CURVES = "roc", "precision_recall", "lift", "calibration", "distribution"


def quality_figures(facts: Facts) -> list[Figure]:
    """The figures that the label owner's numbers allow."""
    quality = _named(facts)
    return [
        *(_ranking(quality) if "roc" in quality else []),
        *([_calibration(quality)] if quality.get("calibration") else []),
        *([_distribution(quality)] if "distribution" in quality else []),
    ]


def _named(facts: Facts) -> Plain:
    """The label owner's numbers, with classes as they are shown."""
    quality = facts.quality or {}
    return quality | {
        "classes": [class_name(name) for name in quality.get("classes", [])]
    }


def _through(points: list[tuple[float, float]], name: str = "joint model") -> Series:
    x, y = zip(*points, strict=True)
    return Series(name, x, y)


def _ranking(quality: Plain) -> list[Figure]:
    """How well scores tell positives from negatives."""
    ks = quality["ks"]
    note = (
        f"KS, the largest distance between the lines, is {ks['value']:.3f}, at a score"
        f" of {ks['at']:.3f}; it was looked for on these rows, so expect less on"
        " others."
    )
    return [
        lines(
            "roc",
            "ROC: of the positives, how many are found",
            [_through(quality["roc"]), Series("chance", [0.0, 1.0], [0.0, 1.0])],
            x="share of the negatives called positive",
            y="share of the positives",
            note=note,
        ),
        lines(
            "precision_recall",
            "Precision and recall",
            [
                _through(quality["precision_recall"]),
                Series("chance", [0.0, 1.0], [quality["share"]] * 2),
            ],
            x="recall: share of the positives that are called so",
            y="precision",
            zero=True,
        ),
        lines(
            "lift",
            "Lift: how many times more positives than by chance",
            [_through(quality["lift"])],
            x="share of the rows, highest scores first",
            y="times",
            zero=True,
        ),
    ]


def _calibration(quality: Plain) -> Figure:
    """How well scores, or predicted numbers, agree with the truth."""
    both = [value for pair in quality["calibration"] for value in pair]
    ends = [min(both), max(both)]
    series = [
        _through(quality["calibration"], "tenths of the rows"),
        Series("as predicted", ends, ends),
    ]
    if "off" in quality:
        title = "What was true, by what was predicted"
        return lines(
            "calibration", title, series, x="mean prediction", y="mean of the label"
        )
    title = "Calibration: how often it came true, by score"
    note = (
        f"The mean score is {quality['mean_score']:.3f}, and {quality['share']:.3f} of"
        " the rows are positive."
    )
    return lines(
        "calibration", title, series, x="mean score", y="share of positives", note=note
    )


def _distribution(quality: Plain) -> Figure:
    negatives, positives = quality["distribution"]
    bars = len(negatives)
    x = [(at + 0.5) / bars for at in range(bars)]
    shares = [
        [count / max(sum(counts), 1) for count in counts]
        for counts in (negatives, positives)
    ]
    positive = _positive(quality)
    other = next(name for name in quality["classes"] if name != positive)
    return lines(
        "distribution",
        "Scores, by true class",
        [Series(positive, x, shares[1]), Series(other, x, shares[0])],
        x=f"score of {positive}",
        y="share of its rows",
        zero=True,
    )


def _positive(quality: Plain) -> str:
    """The class that precision, recall and all curves are about."""
    return str(quality["classes"][quality["positive"]])


def quality_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    quality = _named(facts)
    about = ""
    if "roc" in quality:
        why = (facts.summary or {}).get("positive", {}).get("by")
        reason = f", {POSITIVE_BY[why]}" if why in POSITIVE_BY else ""
        about = f" The positive class is {_positive(quality)}{reason}."
    off = [
        [share, cell(value, "{:.4g}".format)]
        for share, value in quality.get("off", {}).items()
    ]
    return [
        h(
            "p",
            f"On {quality['rows']:,} {quality['split']} rows that nobody trained on,"
            f" known to {quality['owner']}, who holds the labels.",
            about,
        ),
        plates(figures, *CURVES),
        _thresholds(quality) if "thresholds" in quality else None,
        [_by_class(quality), _confusion(quality)] if "each" in quality else None,
        (
            table("How far off predictions are", ("of the rows", "at most"), off)
            if "off" in quality
            else None
        ),
    ]


def _thresholds(quality: Plain) -> Html:
    rows = [
        [
            cell(choice["miss_costs"], str),
            Cell(
                "never" if choice["threshold"] is None else score(choice["threshold"]),
                choice["threshold"],
            ),
            *(cell(choice[key], amount) for key in ("acted_on", "misses", "alarms")),
            cell(choice["cost"], score),
        ]
        for choice in quality["thresholds"]
    ]
    caption = (
        f"From which score of {_positive(quality)} on to act, by what a miss costs in"
        f" false alarms. Scores were chosen on the {quality['split']} rows, and the"
        " cost is of the same rows: expect a higher one on others."
    )
    return table(
        caption,
        ("a miss costs", "act from", "rows", "missed", "false alarms", "cost per row"),
        rows,
    )


def _by_class(quality: Plain) -> Html:
    rows = [
        [
            name,
            cell(scores["rows"], amount),
            *(cell(scores[key], score) for key in ("precision", "recall", "f1")),
        ]
        for name, scores in zip(quality["classes"], quality["each"], strict=True)
    ]
    return table("By class", ("class", "rows", "precision", "recall", "F1"), rows)


def _confusion(quality: Plain) -> Html:
    rows = [
        [name, *(cell(count, amount) for count in counts)]
        for name, counts in zip(quality["classes"], quality["confusion"], strict=True)
    ]
    return table(
        "True classes (rows) and what was predicted (columns)",
        ("true", *quality["classes"]),
        rows,
    )
