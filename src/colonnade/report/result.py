"""How good the joint model is, against what each could do alone, and how it got there."""

from __future__ import annotations

import math

from colonnade.evaluate.metrics import beside_majority, in_order
from colonnade.report.chart import Figure, plates
from colonnade.report.facts import Facts
from colonnade.report.html import Content, Html, cell, h, number, table
from colonnade.report.opening import best_alone, mean, rival_of
from colonnade.report.words import amount, metric, score, seconds, sentence, unanswered

CURVES = "progress", "loss", "bytes"


def result_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    content: list[Content] = []
    if facts.scores:
        content.append(_scores(facts))
    for split, why in (facts.outcome.get("not_measured") or {}).items():
        content.append(h("p", f"The {split} rows were not measured: {why}.", class_="caption-note"))
    if "label_owners" in facts.outcome:
        content.append(_label_owners(facts))
    if facts.outcome.get("subsets"):
        content.append(_subsets(facts))
    content.append(plates(figures, "baselines", *CURVES))
    if facts.part is None:
        content += [h("h3", "Against baselines"), *_baselines(facts)]
    elif not facts.scores:
        where = "so no score is here; a label owner's own report has them."
        content.append(h("p", f"{facts.part} holds no labels, {where}"))
    for party, done in unanswered(facts.outcome).items():
        content.append(h("p", h("span", party, class_="party"), f" did not always answer: {done}."))
    return content


def _scores(facts: Facts) -> Html:
    scores = beside_majority(facts.outcome | {"metrics": facts.scores})
    names = in_order(facts.outcome, dict.fromkeys(name for values in scores.values() for name in values))
    rows: list[list[Content]] = []
    for split, values in scores.items():
        count = cell(facts.rows[split], amount) if split in facts.rows else number("–", None)
        rows.append([split, count, *(cell(values.get(name), score) for name in names)])
    return table("How good the joint model is", ("split", "rows", *map(metric, names)), rows)


def _subsets(facts: Facts) -> Html:
    """Scores on the test rows, or others where there are none, by who holds them; all rows come first."""
    subsets = facts.outcome["subsets"]
    split = next(name for name in ("test", "validation", "train") if name in subsets)
    kinds = dict(subsets[split])
    names = [name for name in next(iter(kinds.values())) if name != "rows"]
    if split in facts.scores and split in facts.rows:
        kinds = {"all rows": {**facts.scores[split], "rows": facts.rows[split]}, **kinds}
    rows = [
        [kind, cell(scores["rows"], amount), *(cell(scores[name], score) for name in names)]
        for kind, scores in kinds.items()
    ]
    return table(f"By who holds a row, of the {split} rows", ("held by", "rows", *map(metric, names)), rows)


def _label_owners(facts: Facts) -> Html:
    name, splits = facts.metric, list(facts.outcome["metrics"])
    rows = []
    for owner, about in facts.outcome["label_owners"].items():
        values = [about["metrics"].get(split, {}).get(name) for split in splits]
        away = about["left_out"]
        rounds = f"in {len(away)} rounds" if len(away) > 8 else f"in round {', '.join(map(str, away))}"
        scores = (cell(value, score) for value in values)
        rows.append([owner, cell(sum(about["rows"].values()), amount), *scores, rounds if away else "never"])
    caption = f"By label owner: {metric(name)} of the joint model on its rows"
    return table(caption, ("label owner", "rows", *splits, "left out"), rows)


def _baselines(facts: Facts) -> list[Content]:
    baselines = facts.baselines
    if baselines is None:
        return [
            h("p", "No baselines were measured. ", h("code", "colonnade report DIR --baselines"), " trains the same "
              "model on each party's columns alone, and on all columns in one place. It needs all tables on one "
              "machine, so it is for simulations, and for partners who allow it; the run's privacy budgets are not "
              "touched, because nothing leaves that machine.")
        ]  # fmt: skip
    name = baselines["metric"]
    measured = (*baselines["alone"].values(), baselines["joint"], baselines["together"])
    names = list(dict.fromkeys(key for values in measured if values for key in values[0]))
    labelled = {party for party, roles in facts.parties.items() if "labels" in roles}
    given = {party: "" if party in labelled else ", given the labels" for party in baselines["alone"]}
    who = {f"{party} alone{given[party]}": values for party, values in baselines["alone"].items()}
    who |= {f"together, on rows of {owner}": values for owner, values in baselines.get("each", {}).items()}
    who["together, as in this run"] = baselines["joint"]
    if baselines["together"]:
        who["the same model, all columns in one place"] = baselines["together"]
    who |= baselines.get("usual", {})
    rows = [[trains, *_means(values, names)] for trains, values in who.items()]
    content: list[Content] = []
    if words := _against(facts):
        content.append(h("p", f"Together, {metric(name)} is {', '.join(words)}."))
    splits = int(baselines["splits"])
    mean_of = f" (mean of {splits} splits)" if splits > 1 else ""
    caption = f"On {baselines['split']} rows that nobody trained on{mean_of}"
    content.append(table(caption, ("who trains", *map(metric, names)), rows))
    how = [*baselines.get("how", []), *baselines.get("notes", [])]
    content += [h("p", sentence(line), class_="caption-note") for line in how]
    if "seconds" in baselines:
        content.append(h("p", f"Measured in {seconds(baselines['seconds'])}.", class_="caption-note"))
    return content


def _against(facts: Facts) -> list[str]:
    """The joint model's mean lead on, or lag behind, each baseline that matters."""
    baselines = facts.baselines
    assert baselines is not None
    name = baselines["metric"]
    joint = mean(baselines["joint"], name)
    gains: dict[str, float] = {}  # NaN where there is no score, as after a training that diverged
    for owner, values in baselines.get("each", {}).items():
        gains[f"{owner} alone on its rows"] = mean(values, name) - mean(baselines["alone"].get(owner, []), name)
    if "each" not in baselines:
        rival, best = rival_of(facts), best_alone(baselines)
        if rival is not None:
            gains[f"{rival[0]} alone{rival[2]}"] = joint - rival[1]
        if best is not None and (rival is None or best[0] != rival[0]):
            gains[f"the best single party's columns with the labels, {best[0]}"] = joint - best[1]
        gains["all columns in one place"] = joint - mean(baselines["together"] or [], name)
        gains |= {usual: joint - mean(values, name) for usual, values in baselines.get("usual", {}).items()}
    return [f"{_than(gain)} {baseline}" for baseline, gain in gains.items() if not math.isnan(gain)]


def _than(gain: float) -> str:
    shown = f"{abs(gain):.4f}"
    return "the same as" if float(shown) == 0 else f"{shown} {'above' if gain > 0 else 'below'}"


def _means(values: list[dict[str, float]], names: list[str]) -> list[Content]:
    means = [mean(values, name) for name in names]
    return [number(score(value), value if value == value else None) for value in means]
