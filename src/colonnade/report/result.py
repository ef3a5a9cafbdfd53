"""How good the joint model is, against what each could do alone, and how it got there."""

from __future__ import annotations

from colonnade.evaluate.metrics import beside_majority, in_order
from colonnade.report.chart import Figure
from colonnade.report.facts import Facts
from colonnade.report.html import Content, Html, cell, h, number, table
from colonnade.report.opening import best_alone, mean, rival_of
from colonnade.report.plates import plates
from colonnade.report.words import amount, metric, score, seconds, sentence, unanswered

CURVES = "progress", "loss", "bytes"


def result_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    told: list[Content] = []
    if facts.scores:
        told.append(_scores(facts))
    for split, why in (facts.told.get("not_measured") or {}).items():
        told.append(h("p", f"The {split} rows were not measured: {why}.", class_="caption-note"))
    if "label_owners" in facts.told:
        told.append(_label_owners(facts))
    if facts.told.get("subsets"):
        told.append(_subsets(facts))
    told.append(plates(figures, "baselines", *CURVES))
    if facts.part is None:
        told += [h("h3", "Against baselines"), *_baselines(facts)]
    elif not facts.scores:
        told.append(h("p", f"{facts.part} holds no labels, so no score is here; a label owner's own report has them."))
    for party, done in unanswered(facts.told).items():
        told.append(h("p", h("span", party, class_="party"), f" did not always answer: {done}."))
    return told


def _scores(facts: Facts) -> Html:
    scores = beside_majority(facts.told | {"metrics": facts.scores})
    names = in_order(facts.told, dict.fromkeys(name for one in scores.values() for name in one))
    rows: list[list[Content]] = []
    for split, values in scores.items():
        count = cell(facts.rows[split], amount) if split in facts.rows else number("–", None)
        rows.append([split, count, *(cell(values.get(name), score) for name in names)])
    return table("How good the joint model is", ("split", "rows", *map(metric, names)), rows)


def _subsets(facts: Facts) -> Html:
    """Of the rows that say most, by who holds them; all of them first."""
    subsets = facts.told["subsets"]
    split = next(one for one in ("test", "validation", "train") if one in subsets)
    kinds = dict(subsets[split])
    names = [name for name in next(iter(kinds.values())) if name != "rows"]
    if split in facts.scores and split in facts.rows:
        kinds = {"all rows": {**facts.scores[split], "rows": facts.rows[split]}, **kinds}
    rows = [
        [kind, cell(found["rows"], amount), *(cell(found[name], score) for name in names)]
        for kind, found in kinds.items()
    ]
    return table(f"By who holds a row, of the {split} rows", ("held by", "rows", *map(metric, names)), rows)


def _label_owners(facts: Facts) -> Html:
    name, splits = facts.metric, list(facts.told["metrics"])
    rows = []
    for owner, about in facts.told["label_owners"].items():
        each = [about["metrics"].get(split, {}).get(name) for split in splits]
        away = about["left_out"]
        rounds = f"in {len(away)} rounds" if len(away) > 8 else f"in round {', '.join(map(str, away))}"
        scores = (cell(one, score) for one in each)
        rows.append([owner, cell(sum(about["rows"].values()), amount), *scores, rounds if away else "never"])
    caption = f"By label owner: {metric(name)} of the joint model on its rows"
    return table(caption, ("label owner", "rows", *splits, "left out"), rows)


def _baselines(facts: Facts) -> list[Content]:
    found = facts.baselines
    if found is None:
        return [
            h("p", "No baselines were measured. ", h("code", "colonnade report DIR --baselines"), " trains the same "
              "model on each party's columns alone, and on all columns in one place. It needs all tables on one "
              "machine, so it is for simulations, and for partners who allow it; the run's privacy budgets are not "
              "touched, because nothing leaves that machine.")
        ]  # fmt: skip
    name = found["metric"]
    known = [one for one in (*found["alone"].values(), found["joint"], found["together"] or []) if one]
    names = list(dict.fromkeys(key for values in known for key in values[0]))
    labelled = {party for party, roles in facts.parties.items() if "labels" in roles}
    given = {party: "" if party in labelled else ", given the labels" for party in found["alone"]}
    who = {f"{party} alone{given[party]}": values for party, values in found["alone"].items()}
    who |= {f"together, on rows of {owner}": values for owner, values in found.get("each", {}).items()}
    who["together, as in this run"] = found["joint"]
    if found["together"]:
        who["the same model, all columns in one place"] = found["together"]
    who |= found.get("usual", {})
    rows = [[trains, *_means(values, names)] for trains, values in who.items()]
    told: list[Content] = []
    if words := _against(facts):
        told.append(h("p", f"Together, {metric(name)} is {', '.join(words)}."))
    splits = int(found["splits"])
    mean_of = f" (mean of {splits} splits)" if splits > 1 else ""
    caption = f"On {found['split']} rows that nobody trained on{mean_of}"
    told.append(table(caption, ("who trains", *map(metric, names)), rows))
    how = [*found.get("how", []), *found.get("notes", [])]
    told += [h("p", sentence(one), class_="caption-note") for one in how]
    if "seconds" in found:
        told.append(h("p", f"Measured in {seconds(found['seconds'])}.", class_="caption-note"))
    return told


def _against(facts: Facts) -> list[str]:
    """The joint model's mean lead on, or lag behind, each baseline that matters."""
    found = facts.baselines
    assert found is not None
    name = found["metric"]
    joint = mean(found["joint"], name)
    if "each" in found:
        return [
            f"{_than(mean(values, name) - mean(found['alone'][owner], name))} {owner} alone on its rows"
            for owner, values in found["each"].items()
            if owner in found["alone"]
        ]
    told = []
    rival, best = rival_of(facts), best_alone(found)
    if rival is not None:
        told.append(f"{_than(joint - rival[1])} {rival[0]} alone{rival[2]}")
    if best is not None and (rival is None or best[0] != rival[0]):
        told.append(f"{_than(joint - best[1])} the best single party's columns with the labels, {best[0]}")
    if found["together"]:
        told.append(f"{_than(joint - mean(found['together'], name))} all columns in one place")
    for usual, values in found.get("usual", {}).items():
        told.append(f"{_than(joint - mean(values, name))} {usual}")
    return told


def _than(gain: float) -> str:
    shown = f"{abs(gain):.4f}"
    return "the same as" if float(shown) == 0 else f"{shown} {'above' if gain > 0 else 'below'}"


def _means(values: list[dict[str, float]], names: list[str]) -> list[Content]:
    means = [mean(values, name) for name in names]
    return [number(score(one), one if one == one else None) for one in means]
