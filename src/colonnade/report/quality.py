"""How well the joint model ranks and decides on rows that nobody trained on: curves, counts, thresholds and costs."""

from __future__ import annotations

from colonnade.report.chart import Figure, Series, lines
from colonnade.report.facts import Facts, Plain
from colonnade.report.html import Content, Html, cell, h, number, table
from colonnade.report.plates import plates
from colonnade.report.words import amount, score

CURVES = "roc", "precision_recall", "lift", "calibration", "distribution"


def quality_figures(facts: Facts) -> list[Figure]:
    """Those that the label owner's numbers allow."""
    found = facts.quality or {}
    made = []
    if "roc" in found:
        made += _ranking(found)
    if found.get("calibration"):
        made.append(_calibration(found))
    if "distribution" in found:
        made.append(_distribution(found))
    return made


def _through(points: list[tuple[float, float]], name: str = "joint model") -> Series:
    x, y = zip(*points, strict=True)
    return Series(name, x, y)


def _ranking(found: Plain) -> list[Figure]:
    """How well scores tell positives from negatives."""
    ks = found["ks"]
    note = f"KS, the largest distance between the lines, is {ks['value']:.3f}, at a score of {ks['at']:.3f}."
    return [
        lines(
            "roc", "ROC: of the positives, how many are found",
            [_through(found["roc"]), Series("chance", [0.0, 1.0], [0.0, 1.0])],
            x="share of the negatives called positive", y="share of the positives", note=note,
        ),
        lines(
            "precision_recall", "Precision and recall",
            [_through(found["precision_recall"]), Series("chance", [0.0, 1.0], [found["share"]] * 2)],
            x="recall: share of the positives that are called so", y="precision", zero=True,
        ),
        lines(
            "lift", "Lift: how many times more positives than by chance", [_through(found["lift"])],
            x="share of the rows, highest scores first", y="times", zero=True,
        ),
    ]  # fmt: skip


def _calibration(found: Plain) -> Figure:
    """Of scores, or of predicted numbers."""
    both = [value for pair in found["calibration"] for value in pair]
    ends = [min(both), max(both)]
    series = [_through(found["calibration"], "tenths of the rows"), Series("as predicted", ends, ends)]
    if "off" in found:
        title = "What was true, by what was predicted"
        return lines("calibration", title, series, x="mean prediction", y="mean of the label")
    title = "Calibration: how often it came true, by score"
    note = f"The mean score is {found['mean_score']:.3f}, and {found['share']:.3f} of the rows are positive."
    return lines("calibration", title, series, x="mean score", y="share of positives", note=note)


def _distribution(found: Plain) -> Figure:
    negatives, positives = found["distribution"]
    bars = len(negatives)
    x = [(at + 0.5) / bars for at in range(bars)]
    shares = [[count / max(sum(counts), 1) for count in counts] for counts in (negatives, positives)]
    positive = _positive(found)
    other = next(name for name in found["classes"] if name != positive)
    return lines(
        "distribution", "Scores, by true class", [Series(positive, x, shares[1]), Series(other, x, shares[0])],
        x=f"score of {positive}", y="share of its rows", zero=True,
    )  # fmt: skip


def _positive(found: Plain) -> str:
    """The class that precision, recall and all curves are of."""
    return str(found["classes"][found["positive"]])


def quality_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    """The section's content; the label owner measured it."""
    found = facts.quality
    assert found is not None
    told: list[Content] = [
        h("p", f"On {found['rows']:,} {found['split']} rows that nobody trained on, known to {found['owner']}, who "
          "holds the labels.", f" The positive class is {_positive(found)}, the second of the two in order."
          if "roc" in found else ""),
        plates(figures, *CURVES),
    ]  # fmt: skip
    if "thresholds" in found:
        told.append(_thresholds(found))
    if "each" in found:
        told += [_each(found), _confusion(found)]
    if "off" in found:
        rows = [[share, cell(value, "{:.4g}".format)] for share, value in found["off"].items()]
        told.append(table("How far off predictions are", ("of the rows", "at most"), rows))
    return told


def _thresholds(found: Plain) -> Html:
    rows = [
        [cell(one["miss_costs"], str),
         number("never" if one["threshold"] is None else score(one["threshold"]), one["threshold"]),
         *(cell(one[key], amount) for key in ("acted_on", "misses", "alarms")), cell(one["cost"], score)]
        for one in found["thresholds"]
    ]  # fmt: skip
    caption = f"From which score of {_positive(found)} on to act, by what a miss costs in false alarms"
    return table(caption, ("a miss costs", "act from", "rows", "missed", "false alarms", "cost per row"), rows)


def _each(found: Plain) -> Html:
    rows = [
        [name, cell(one["rows"], amount), *(cell(one[key], score) for key in ("precision", "recall", "f1"))]
        for name, one in zip(found["classes"], found["each"], strict=True)
    ]
    return table("By class", ("class", "rows", "precision", "recall", "F1"), rows)


def _confusion(found: Plain) -> Html:
    rows = [
        [name, *(cell(count, amount) for count in counts)]
        for name, counts in zip(found["classes"], found["confusion"], strict=True)
    ]
    return table("True classes (rows) and what was predicted (columns)", ("true", *found["classes"]), rows)
