"""The first lines of a page: the result in one sentence, what it took, and whether it is final."""

from __future__ import annotations

from typing import Any

from colonnade.algorithms import find
from colonnade.report.facts import Facts
from colonnade.report.html import Content, Html, h
from colonnade.report.spending import THROUGH, protected, unprotected
from colonnade.report.words import BETTER_LOW, always_one, count, epsilon, listed, many, metric, seconds, sentence, size


def opening(facts: Facts) -> Html:
    """The page's header."""
    state = None
    if not facts.finished:
        unit = "round" if facts.several else "epoch"
        follows = f" What follows is its state at the last {unit} that was written."
        state = h("p", h("b", "This run has not finished."), follows, class_="state")
    elif facts.told.get("stopped", "all epochs done") != "all epochs done":
        state = h("p", h("b", "It stopped early: "), sentence(facts.told["stopped"]), class_="about")
    return h(
        "header",
        h("h1", "Run report: ", h("b", facts.name)),
        h("p", result(facts), class_="lede"),
        h("p", h("b", warned), class_="state") if (warned := always_one(facts.told)) else None,
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
        one = who == "One organisation"
        verb = "trained" if facts.finished else "is training" if one else "are training"
        return f"{who} {verb} {'a model' if one else 'one model together'}."
    split, score = reached
    told = f"{who} together {'reach' if facts.finished else 'have reached'} {score}"
    rival = rival_of(facts)
    if rival is None or facts.baselines is None or facts.baselines["split"] != split:
        return told + "."
    party, alone, words = rival
    if int(facts.baselines["splits"]) == 1:
        return f"{told}; {party} alone{words}, {alone:.3f}."
    joint = mean(facts.baselines["joint"], facts.metric)
    splits = count(int(facts.baselines["splits"]), "split")
    return f"{told}. Over {splits} of the rows they average {joint:.3f}; {party} alone{words}, {alone:.3f}."


def _part(facts: Facts) -> str:
    """Of one organisation in a run between sites; the others are those that its own ledger names."""
    with_whom = f" with {_few(facts.others)}" if facts.others else ""
    told = f"The part of {facts.part} in a run{with_whom}: what it sent and received, and what that cost its privacy."
    if (reached := _reached(facts)) is None:
        return f"{told} How good the joint model is, is known where labels are."
    return f"{told} The joint model has {reached[1]}."


def _reached(facts: Facts) -> tuple[str, str] | None:
    """The split that tells most, and the score on it: an accuracy of 0.912 on 113 test rows."""
    split = next((one for one in ("test", "validation") if one in facts.scores), None)
    if split is None or (score := facts.scores[split].get(facts.metric)) is None:
        return None
    name = "a log loss" if facts.metric == "loss" else f"an {metric(facts.metric)}"
    rows = f"{facts.rows[split]:,} {split} rows" if split in facts.rows else f"{split} rows"
    return split, f"{name} of {score:.3f} on {rows}{_largest(facts, split)}"


def _largest(facts: Facts, split: str) -> str:
    """What the score is to be held against: always saying the largest class is right so often."""
    found = (facts.told.get("majority") or {}).get(split)
    if found is None:
        return ""
    if facts.metric == "accuracy":
        return f" (always saying the largest class: {found['share']:.3f})"
    beside = (
        f"accuracy {facts.scores[split]['accuracy']:.3f}, and {found['share']:.3f} by always saying the largest class"
    )
    return f" (chance: 0.500; {beside})" if facts.metric == "auc" else f" ({beside})"


def _few(names: list[str]) -> str:
    return listed(names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"])


def mean(values: list[dict[str, Any]], name: str) -> float:
    known = [one[name] for one in values if one.get(name) is not None]
    return sum(known) / len(known) if known else float("nan")


def rival_of(facts: Facts) -> tuple[str, float, str] | None:
    """The party that could train alone, its score, and why this one: the label owner, where it has columns."""
    found = facts.baselines
    if not found or not found["alone"] or facts.several:
        return None
    for party, roles in facts.parties.items():
        if "labels" in roles and party in found["alone"]:
            return party, mean(found["alone"][party], found["metric"]), ", which holds the labels"
    best = best_alone(found)
    return None if best is None else (*best, ", whose columns tell most")


def best_alone(baselines: dict[str, Any] | None) -> tuple[str, float] | None:
    """The party that does best by itself, and its score."""
    if not baselines or not baselines["alone"]:
        return None
    scores = {party: mean(values, baselines["metric"]) for party, values in baselines["alone"].items()}
    real = {party: one for party, one in scores.items() if one == one}
    best = min if baselines["metric"] in BETTER_LOW else max
    party = best(real, key=lambda one: real[one], default=None)
    return None if party is None else (party, real[party])


def took(facts: Facts) -> Content:
    if facts.part is not None and not facts.metrics:  # epochs and seconds are with who drives
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
    """The privacy of it in one or two sentences."""
    if not facts.privacy:
        return "What it cost anybody's privacy is not known here."
    told: list[Content] = []
    for one, value in protected(facts.privacy):
        of = f" of {one['budget']['epsilon']:g}" if one.get("budget") else ""
        # a row's value can also change what is released of others, through the model that it trained; that is more
        through = any(THROUGH in line["adversary"] for line in one["statements"])
        own = " for a row's own releases" if through else ""
        told += [h("b", f"{one['party']}'s {one['protects']}"), f": ε = {epsilon(value)}{of}{own}. "]
    without = [f"{one['party']}'s {one['protects']}" for one in unprotected(facts.privacy)]
    if without and not told:
        whose = "nobody's columns or labels have a" if facts.part is None else f"{listed(without)} have no"
        return f"No release had noise: {whose} differential-privacy guarantee."
    if without:
        told += [f"No guarantee for {_few(without)}."]
    return told
