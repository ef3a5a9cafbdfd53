"""The result: in the first lines of a page, with what it took and whether it is final;
and in a section of its own, how good the joint model is, against what each could do
alone, and how it got there."""

from __future__ import annotations

import math
from typing import Any

from colonnade.algorithms import find
from colonnade.evaluate import about_positive
from colonnade.evaluate.metrics import beside_majority, in_order
from colonnade.report.chart import Figure, plates
from colonnade.report.facts import Facts
from colonnade.report.html import Cell, Content, Html, cell, h, note, table
from colonnade.report.spending import THROUGH, protected, unprotected
from colonnade.report.words import (
    BETTER_LOW,
    amount,
    count,
    epsilon,
    listed,
    many,
    metric,
    score,
    seconds,
    sentence,
    size,
    unanswered,
    warnings_of,
)


def opening(facts: Facts) -> Html:
    state = None
    if not facts.finished:
        unit = "round" if facts.several else "epoch"
        follows = f" What follows is its state at the last {unit} that was written."
        state = h("p", h("b", "This run has not finished."), follows, class_="state")
    elif facts.outcome.get("stopped", "all epochs done") != "all epochs done":
        state = h(
            "p",
            h("b", "It stopped early: "),
            sentence(facts.outcome["stopped"]),
            class_="about",
        )
    return h(
        "header",
        h("h1", "Run report: ", h("b", facts.name)),
        [
            h("p", h("b", warning), class_="state")
            for warning in warnings_of(facts.outcome)
        ],
        h("p", result(facts), class_="lede"),
        h("p", took(facts), class_="about"),
        h("p", promised(facts), class_="about"),
        state,
    )


def result(facts: Facts) -> str:
    """One sentence: who, how good, on what, and against which baseline."""
    if facts.part is not None:
        return _part(facts)
    who = count(sum(map(bool, facts.parties.values())), "organisation").capitalize()
    reached = _reached(facts)
    if reached is None:
        single = who == "One organisation"
        verb = (
            "trained" if facts.finished else "is training" if single else "are training"
        )
        return f"{who} {verb} {'a model' if single else 'one model together'}."
    split, scored = reached
    words = f"{who} together {'reach' if facts.finished else 'have reached'} {scored}"
    rival = rival_of(facts)
    if rival is None or facts.baselines is None or facts.baselines["split"] != split:
        return words + "."
    party, alone, why = rival
    if int(facts.baselines["splits"]) == 1:
        return f"{words}; {party} alone{why}, {alone:z.3f}."
    joint = mean(facts.baselines["joint"], facts.metric)
    splits = count(int(facts.baselines["splits"]), "split")
    return (
        f"{words}. Over {splits} of the rows they average {joint:z.3f}; {party}"
        f" alone{why}, {alone:z.3f}."
    )


def _part(facts: Facts) -> str:
    """The sentence for one organisation in a run between sites; its own ledger names
    the others."""
    with_whom = f" with {_few(facts.others)}" if facts.others else ""
    words = (
        f"The part of {facts.part} in a run{with_whom}: what it sent and received, and"
        " what that cost its privacy."
    )
    if (reached := _reached(facts)) is None:
        return f"{words} How good the joint model is, is known where labels are."
    return f"{words} The joint model has {reached[1]}."


def _reached(facts: Facts) -> tuple[str, str] | None:
    """The test or validation split, and the score on it: an accuracy of 0.912 on 113
    test rows."""
    split = next(
        (name for name in ("test", "validation") if name in facts.scores), None
    )
    if split is None or (value := facts.scores[split].get(facts.metric)) is None:
        return None
    name = "a log loss" if facts.metric == "loss" else f"an {metric(facts.metric)}"
    rows = (
        f"{facts.rows[split]:,} {split} rows"
        if split in facts.rows
        else f"{split} rows"
    )
    return split, f"{name} of {value:z.3f} on {rows}{_largest(facts, split)}"


def _largest(facts: Facts, split: str) -> str:
    """What to compare the score with: how often always saying the largest class is
    right."""
    majority = (facts.outcome.get("majority") or {}).get(split)
    if majority is None:
        return ""
    if facts.metric == "accuracy":
        return f" (always saying the largest class: {majority['share']:.3f})"
    accuracy = facts.scores[split]["accuracy"]
    share = majority["share"]
    beside = (
        f"accuracy {accuracy:.3f}, and {share:.3f} by always saying the largest class"
    )
    return f" (chance: 0.500; {beside})" if facts.metric == "auc" else f" ({beside})"


def _few(names: list[str]) -> str:
    return listed(names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"])


def mean(values: list[dict[str, Any]], name: str) -> float:
    known = [scores[name] for scores in values if scores.get(name) is not None]
    return sum(known) / len(known) if known else float("nan")


def rival_of(facts: Facts) -> tuple[str, float, str] | None:
    """The party that could train alone, its score, and why it was chosen: the label
    owner, where it has columns."""
    baselines = facts.baselines
    if not baselines or not baselines["alone"] or facts.several:
        return None
    for party, roles in facts.parties.items():
        alone = mean(baselines["alone"].get(party, []), baselines["metric"])
        if "labels" in roles and not math.isnan(alone):
            return party, alone, ", which holds the labels"
    best = best_alone(baselines)
    return None if best is None else (*best, ", whose columns tell most")


def best_alone(baselines: dict[str, Any] | None) -> tuple[str, float] | None:
    """The party that does best by itself, and its score."""
    if not baselines or not baselines["alone"]:
        return None
    scores = {
        party: mean(values, baselines["metric"])
        for party, values in baselines["alone"].items()
    }
    real = {party: value for party, value in scores.items() if not math.isnan(value)}
    best = min if baselines["metric"] in BETTER_LOW else max
    party = best(real, key=lambda name: real[name], default=None)
    return None if party is None else (party, real[party])


def took(facts: Facts) -> Content:
    # the driver has epochs and seconds
    if facts.part is not None and not facts.metrics:
        bytes_ = facts.traffic.get(facts.part, {"out": 0, "in": 0})
        return [
            h("b", facts.algorithm),
            f", {many(facts.rounds, 'round')} of exchange, ",
            h("b", size(bytes_["out"])),
            f" sent and {size(bytes_['in'])} received by {facts.part}.",
        ]
    trained = find(facts.algorithm).trains
    epochs = [] if facts.several else [f"{many(facts.epochs, 'epoch')}, "]
    return [
        h("b", facts.algorithm),
        ", ",
        *([*epochs, f"{facts.rounds:,} rounds of exchange, "] if trained else []),
        h("b", size(facts.sent)),
        " sent in all" if facts.part is None else f" sent by {facts.part}",
        (
            f", {seconds(facts.seconds)} of training."
            if trained
            else "; nothing is trained."
        ),
    ]


def promised(facts: Facts) -> Content:
    """The guarantees in one or two sentences."""
    if not facts.privacy:
        return "What it cost anybody's privacy is not known here."
    content: list[Content] = []
    for guarantee, value in protected(facts.privacy):
        of = (
            f" of {guarantee['budget']['epsilon']:g}" if guarantee.get("budget") else ""
        )
        # a row can also change what is released of others, through the model that it
        # trained: that epsilon is larger
        through = any(THROUGH in line["adversary"] for line in guarantee["statements"])
        own = " for a row's own releases" if through else ""
        content += [
            h("b", f"{guarantee['party']}'s {guarantee['protects']}"),
            f": ε = {epsilon(value)}{of}{own}. ",
        ]
    without = [
        f"{guarantee['party']}'s {guarantee['protects']}"
        for guarantee in unprotected(facts.privacy)
    ]
    if without and not content:
        whose = (
            "nobody's columns or labels have a"
            if facts.part is None
            else f"{listed(without)} have no"
        )
        return f"No release had noise: {whose} differential-privacy guarantee."
    if without:
        content += [f"No guarantee for {_few(without)}."]
    return content


CURVES = "progress", "loss", "bytes"


def result_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    not_measured = facts.outcome.get("not_measured") or {}
    silent = unanswered(facts.outcome)
    elsewhere = (
        f"{facts.part} holds no labels, so no score is here; a label owner's own report"
        " has them."
    )
    return [
        _scores(facts) if facts.scores else None,
        note(about_positive(facts.outcome)) if facts.outcome.get("positive") else None,
        [
            note(f"The {split} rows were not measured: {why}.")
            for split, why in not_measured.items()
        ],
        _label_owners(facts) if "label_owners" in facts.outcome else None,
        _subsets(facts) if facts.outcome.get("subsets") else None,
        plates(figures, "baselines", *CURVES),
        (
            [h("h3", "Against baselines"), *_baselines(facts)]
            if facts.part is None
            else None
        ),
        h("p", elsewhere) if facts.part is not None and not facts.scores else None,
        [
            h("p", h("span", name, class_="party"), f" did not always answer: {done}.")
            for name, done in silent.items()
        ],
    ]


def _scores(facts: Facts) -> Html:
    scores = beside_majority(facts.outcome | {"metrics": facts.scores})
    names = in_order(
        facts.outcome,
        dict.fromkeys(name for values in scores.values() for name in values),
    )
    rows: list[list[Content]] = []
    for split, values in scores.items():
        held = (
            cell(facts.rows[split], amount) if split in facts.rows else Cell("–", None)
        )
        rows.append([split, held, *(cell(values.get(name), score) for name in names)])
    return table(
        "How good the joint model is", ("split", "rows", *map(metric, names)), rows
    )


def _subsets(facts: Facts) -> Html:
    """Scores on the test rows, or others where there are none, by who holds them; all
    rows come first."""
    subsets = facts.outcome["subsets"]
    split = next(name for name in ("test", "validation", "train") if name in subsets)
    kinds = dict(subsets[split])
    names = [name for name in next(iter(kinds.values())) if name != "rows"]
    if split in facts.scores and split in facts.rows:
        kinds = {
            "all rows": {**facts.scores[split], "rows": facts.rows[split]},
            **kinds,
        }
    rows = [
        [
            kind,
            cell(scores["rows"], amount),
            *(cell(scores[name], score) for name in names),
        ]
        for kind, scores in kinds.items()
    ]
    return table(
        f"By who holds a row, of the {split} rows",
        ("held by", "rows", *map(metric, names)),
        rows,
    )


def _label_owners(facts: Facts) -> Html:
    name = facts.metric
    splits = list(facts.outcome["metrics"])
    rows = []
    for owner, about in facts.outcome["label_owners"].items():
        values = [about["metrics"].get(split, {}).get(name) for split in splits]
        away = about["left_out"]
        rounds = (
            f"in {len(away)} rounds"
            if len(away) > 8
            else f"in round {', '.join(map(str, away))}"
        )
        scores = (cell(value, score) for value in values)
        rows.append(
            [
                owner,
                cell(sum(about["rows"].values()), amount),
                *scores,
                rounds if away else "never",
            ]
        )
    caption = f"By label owner: {metric(name)} of the joint model on its rows"
    return table(caption, ("label owner", "rows", *splits, "left out"), rows)


def _baselines(facts: Facts) -> list[Content]:
    baselines = facts.baselines
    if baselines is None:
        return [
            h(
                "p",
                "No baselines were measured. ",
                h("code", "colonnade report DIR --baselines"),
                " trains the same model on each party's columns alone, and on all"
                " columns in one place. It needs all tables on one machine, so it is"
                " for simulations, and for partners who allow it; the run's privacy"
                " budgets are not touched, because nothing leaves that machine.",
            )
        ]
    name = baselines["metric"]
    measured = (*baselines["alone"].values(), baselines["joint"], baselines["together"])
    names = list(
        dict.fromkeys(key for values in measured if values for key in values[0])
    )
    labelled = {party for party, roles in facts.parties.items() if "labels" in roles}
    given = {
        party: "" if party in labelled else ", given the labels"
        for party in baselines["alone"]
    }
    who = {
        f"{party} alone{given[party]}": values
        for party, values in baselines["alone"].items()
    }
    who |= {
        f"together, on rows of {owner}": values
        for owner, values in baselines.get("each", {}).items()
    }
    who["together, as in this run"] = baselines["joint"]
    if baselines["together"]:
        who["the same model, all columns in one place"] = baselines["together"]
    who |= baselines.get("usual", {})
    means = {
        trains: [mean(values, name) for name in names] for trains, values in who.items()
    }
    rows = [
        [who, *(Cell(score(n), None if math.isnan(n) else n) for n in numbers)]
        for who, numbers in means.items()
    ]
    words = _against(facts)
    splits = int(baselines["splits"])
    mean_of = f" (mean of {splits} splits)" if splits > 1 else ""
    caption = f"On {baselines['split']} rows that nobody trained on{mean_of}"
    return [
        h("p", f"Together, {metric(name)} is {', '.join(words)}.") if words else None,
        table(caption, ("who trains", *map(metric, names)), rows),
        [
            note(sentence(line))
            for line in (*baselines.get("how", []), *baselines.get("notes", []))
        ],
        (
            note(f"Measured in {seconds(baselines['seconds'])}.")
            if "seconds" in baselines
            else None
        ),
    ]


def _against(facts: Facts) -> list[str]:
    """The joint model's mean lead on, or lag behind, each baseline that matters."""
    baselines = facts.baselines
    assert baselines is not None
    name = baselines["metric"]
    joint = mean(baselines["joint"], name)
    # NaN where there is no score, as after a training that diverged
    gains: dict[str, float] = {}
    for owner, values in baselines.get("each", {}).items():
        gains[f"{owner} alone on its rows"] = mean(values, name) - mean(
            baselines["alone"].get(owner, []), name
        )
    if "each" not in baselines:
        rival = rival_of(facts)
        best = best_alone(baselines)
        if rival is not None:
            gains[f"{rival[0]} alone{rival[2]}"] = joint - rival[1]
        if best is not None and (rival is None or best[0] != rival[0]):
            gains[f"the best single party's columns with the labels, {best[0]}"] = (
                joint - best[1]
            )
        gains["all columns in one place"] = joint - mean(
            baselines["together"] or [], name
        )
        gains |= {
            usual: joint - mean(values, name)
            for usual, values in baselines.get("usual", {}).items()
        }
    return [
        f"{_than(gain)} {baseline}"
        for baseline, gain in gains.items()
        if not math.isnan(gain)
    ]


def _than(gain: float) -> str:
    shown = f"{abs(gain):.4f}"
    return (
        "the same as"
        if float(shown) == 0
        else f"{shown} {'above' if gain > 0 else 'below'}"
    )
