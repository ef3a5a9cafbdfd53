"""How good the joint model is, against what each could do alone, and how it got there."""

from __future__ import annotations

from collections.abc import Mapping

from colonnade.evaluate.metrics import beside_majority, in_order
from colonnade.report.chart import Figure
from colonnade.report.facts import Facts
from colonnade.report.html import Content, Html, h, number, table
from colonnade.report.opening import best_alone, mean, rival_of
from colonnade.report.plates import plates
from colonnade.report.words import metric, score, seconds, sentence

CURVES = "progress", "loss", "bytes"


def result_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    """The section's content."""
    told: list[Content] = []
    if facts.scores:
        told.append(_scores(facts))
    for split, why in ((facts.summary or {}).get("not_measured") or {}).items():
        told.append(h("p", f"The {split} rows were not measured: {why}.", class_="caption-note"))
    if facts.summary is not None and "label_owners" in facts.summary:
        told.append(_label_owners(facts))
    if facts.summary is not None and facts.summary.get("subsets"):
        told.append(_subsets(facts.summary["subsets"], facts.scores, facts.summary.get("rows") or {}))
    told.append(plates(figures, "baselines", *CURVES))
    if facts.part is None:
        told += [h("h3", "Against baselines"), *_baselines(facts)]
    elif not facts.scores:
        told.append(h("p", f"{facts.part} holds no labels, so no score is here; a label owner's own report has them."))
    for party, times in ((facts.summary or {}).get("missing") or {}).items():
        words = {"stale": "its last answer was used", "skip": "it was left out", "not_updated": "it got no update"}
        done = ", ".join(f"{words.get(what, what)} {many} times" for what, many in times.items())
        told.append(h("p", h("span", party, class_="party"), f" did not always answer: {done}."))
    return told


def _scores(facts: Facts) -> Html:
    scores = beside_majority({"metrics": facts.scores, "majority": (facts.summary or {}).get("majority", {})})
    names = in_order(facts.summary or {}, dict.fromkeys(name for one in scores.values() for name in one))
    counts = (facts.summary or {}).get("rows") or {}
    rows = [
        [split, number(f"{counts[split]:,}" if split in counts else "–", counts.get(split)),
         *(number(score(values.get(name)), values.get(name)) for name in names)]
        for split, values in scores.items()
    ]  # fmt: skip
    return table("How good the joint model is", ("split", "rows", *map(metric, names)), rows)


def _subsets(
    subsets: Mapping[str, Mapping[str, Mapping[str, float]]],
    scores: Mapping[str, Mapping[str, float]],
    counts: Mapping[str, int],
) -> Html:
    """Of the rows that say most, by who holds them; all of them first."""
    split = next(one for one in ("test", "validation", "train") if one in subsets)
    kinds = dict(subsets[split])
    if split in scores and split in counts:
        kinds = {"all rows": {**scores[split], "rows": counts[split]}, **kinds}
    names = [name for name in next(iter(subsets[split].values())) if name != "rows"]
    rows = [
        [kind, number(f"{int(found['rows']):,}", found["rows"]), *(number(score(found[n]), found[n]) for n in names)]
        for kind, found in kinds.items()
    ]
    return table(f"By who holds a row, of the {split} rows", ("held by", "rows", *map(metric, names)), rows)


def _label_owners(facts: Facts) -> Html:
    assert facts.summary is not None
    name, splits = facts.metric, list(facts.summary["metrics"])
    rows = []
    for owner, about in facts.summary["label_owners"].items():
        each = [about["metrics"].get(split, {}).get(name) for split in splits]
        away = about["left_out"]
        rounds = f"in {len(away)} rounds" if len(away) > 8 else f"in round {', '.join(map(str, away))}"
        held = sum(about["rows"].values())
        rows.append(
            [owner, number(f"{held:,}", held), *(number(score(one), one) for one in each), rounds if away else "never"]
        )
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
    rows = [[_alone(party, facts), *_means(values, names)] for party, values in found["alone"].items()]
    for owner, values in found.get("each", {}).items():
        rows.append([f"together, on rows of {owner}", *_means(values, names)])
    rows.append(["together, as in this run", *_means(found["joint"], names)])
    if found["together"]:
        rows.append(["the same model, all columns in one place", *_means(found["together"], names)])
    for usual, values in found.get("usual", {}).items():
        rows.append([usual, *_means(values, names)])
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


def _alone(party: str, facts: Facts) -> str:
    if "labels" in facts.parties.get(party, []):
        return f"{party} alone"
    return f"{party} alone, given the labels"


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
