"""The first lines of a page: the result in one sentence, what it took, and whether it is final."""

from __future__ import annotations

import math
from typing import Any

from colonnade.algorithms import find
from colonnade.report.facts import Facts
from colonnade.report.html import Content, Html, h
from colonnade.report.spending import THROUGH, protected, unprotected
from colonnade.report.words import (
    BETTER_LOW,
    count,
    epsilon,
    listed,
    many,
    metric,
    seconds,
    sentence,
    size,
    warnings_of,
)


def opening(facts: Facts) -> Html:
    state = None
    if not facts.finished:
        unit = "round" if facts.several else "epoch"
        follows = f" What follows is its state at the last {unit} that was written."
        state = h("p", h("b", "This run has not finished."), follows, class_="state")
    elif facts.outcome.get("stopped", "all epochs done") != "all epochs done":
        state = h("p", h("b", "It stopped early: "), sentence(facts.outcome["stopped"]), class_="about")
    return h(
        "header",
        h("h1", "Run report: ", h("b", facts.name)),
        [h("p", h("b", warning), class_="state") for warning in warnings_of(facts.outcome)],
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
        verb = "trained" if facts.finished else "is training" if single else "are training"
        return f"{who} {verb} {'a model' if single else 'one model together'}."
    split, score = reached
    words = f"{who} together {'reach' if facts.finished else 'have reached'} {score}"
    rival = rival_of(facts)
    if rival is None or facts.baselines is None or facts.baselines["split"] != split:
        return words + "."
    party, alone, why = rival
    if int(facts.baselines["splits"]) == 1:
        return f"{words}; {party} alone{why}, {alone:.3f}."
    joint = mean(facts.baselines["joint"], facts.metric)
    splits = count(int(facts.baselines["splits"]), "split")
    return f"{words}. Over {splits} of the rows they average {joint:.3f}; {party} alone{why}, {alone:.3f}."


def _part(facts: Facts) -> str:
    """The sentence for one organisation in a run between sites; its own ledger names the others."""
    with_whom = f" with {_few(facts.others)}" if facts.others else ""
    words = f"The part of {facts.part} in a run{with_whom}: what it sent and received, and what that cost its privacy."
    if (reached := _reached(facts)) is None:
        return f"{words} How good the joint model is, is known where labels are."
    return f"{words} The joint model has {reached[1]}."


def _reached(facts: Facts) -> tuple[str, str] | None:
    """The test or validation split, and the score on it: an accuracy of 0.912 on 113 test rows."""
    split = next((name for name in ("test", "validation") if name in facts.scores), None)
    if split is None or (score := facts.scores[split].get(facts.metric)) is None:
        return None
    name = "a log loss" if facts.metric == "loss" else f"an {metric(facts.metric)}"
    rows = f"{facts.rows[split]:,} {split} rows" if split in facts.rows else f"{split} rows"
    return split, f"{name} of {score:.3f} on {rows}{_largest(facts, split)}"


def _largest(facts: Facts, split: str) -> str:
    """What to compare the score with: how often always saying the largest class is right."""
    majority = (facts.outcome.get("majority") or {}).get(split)
    if majority is None:
        return ""
    if facts.metric == "accuracy":
        return f" (always saying the largest class: {majority['share']:.3f})"
    accuracy, share = facts.scores[split]["accuracy"], majority["share"]
    beside = f"accuracy {accuracy:.3f}, and {share:.3f} by always saying the largest class"
    return f" (chance: 0.500; {beside})" if facts.metric == "auc" else f" ({beside})"


def _few(names: list[str]) -> str:
    return listed(names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"])


def mean(values: list[dict[str, Any]], name: str) -> float:
    known = [scores[name] for scores in values if scores.get(name) is not None]
    return sum(known) / len(known) if known else float("nan")


def rival_of(facts: Facts) -> tuple[str, float, str] | None:
    """The party that could train alone, its score, and why it was chosen: the label owner, where it has columns."""
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
    scores = {party: mean(values, baselines["metric"]) for party, values in baselines["alone"].items()}
    real = {party: score for party, score in scores.items() if not math.isnan(score)}
    best = min if baselines["metric"] in BETTER_LOW else max
    party = best(real, key=lambda name: real[name], default=None)
    return None if party is None else (party, real[party])


def took(facts: Facts) -> Content:
    if facts.part is not None and not facts.metrics:  # the driver has epochs and seconds
        bytes_ = facts.traffic.get(facts.part, {"out": 0, "in": 0})
        return [
            h("b", facts.algorithm), f", {many(facts.rounds, 'round')} of exchange, ",
            h("b", size(bytes_["out"])), f" sent and {size(bytes_['in'])} received by {facts.part}.",
        ]  # fmt: skip
    trained = find(facts.algorithm).trains
    epochs = [] if facts.several else [f"{many(facts.epochs, 'epoch')}, "]
    return [
        h("b", facts.algorithm), ", ", *([*epochs, f"{facts.rounds:,} rounds of exchange, "] if trained else []),
        h("b", size(facts.sent)), " sent in all" if facts.part is None else f" sent by {facts.part}",
        f", {seconds(facts.seconds)} of training." if trained else "; nothing is trained.",
    ]  # fmt: skip


def promised(facts: Facts) -> Content:
    """The guarantees in one or two sentences."""
    if not facts.privacy:
        return "What it cost anybody's privacy is not known here."
    content: list[Content] = []
    for guarantee, value in protected(facts.privacy):
        of = f" of {guarantee['budget']['epsilon']:g}" if guarantee.get("budget") else ""
        # a row can also change what is released of others, through the model that it trained: that epsilon is larger
        through = any(THROUGH in line["adversary"] for line in guarantee["statements"])
        own = " for a row's own releases" if through else ""
        content += [h("b", f"{guarantee['party']}'s {guarantee['protects']}"), f": ε = {epsilon(value)}{of}{own}. "]
    without = [f"{guarantee['party']}'s {guarantee['protects']}" for guarantee in unprotected(facts.privacy)]
    if without and not content:
        whose = "nobody's columns or labels have a" if facts.part is None else f"{listed(without)} have no"
        return f"No release had noise: {whose} differential-privacy guarantee."
    if without:
        content += [f"No guarantee for {_few(without)}."]
    return content
