"""The first lines of a page: the result in one sentence, what it took, and whether it is final."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from colonnade.algorithms import find
from colonnade.report.facts import Facts
from colonnade.report.html import Content, Html, h
from colonnade.report.spending import THROUGH, protected, unprotected
from colonnade.report.words import BETTER_LOW, COUNTS, always_one, count, epsilon, many, metric, seconds, sentence, size


def opening(facts: Facts) -> Html:
    """The page's header."""
    state = None
    if not facts.finished:
        state = h(
            "p",
            h("b", "This run has not finished."),
            " What follows is its state at the last ",
            "round" if facts.several else "epoch",
            " that was written.",
            class_="state",
        )
    elif facts.summary is not None and facts.summary.get("stopped", "all epochs done") != "all epochs done":
        state = h("p", h("b", "It stopped early: "), sentence(facts.summary["stopped"]), class_="about")
    return h(
        "header",
        h("h1", "Run report: ", h("b", facts.name)),
        h("p", result(facts), class_="lede"),
        h("p", h("b", warned), class_="state") if (warned := always_one(facts.summary or {})) else None,
        h("p", took(facts), class_="about"),
        h("p", promised(facts), class_="about"),
        state,
    )


def result(facts: Facts) -> str:
    """One sentence: who, how good, on what, and against which baseline."""
    if facts.part is not None:
        return _part(facts)
    who = _organisations(facts)
    name = facts.metric
    split = next((one for one in ("test", "validation") if one in facts.scores), None)
    if split is None or facts.scores[split].get(name) is None:
        one = who == "One organisation"
        verb = "trained" if facts.finished else "is training" if one else "are training"
        return f"{who} {verb} {'a model' if one else 'one model together'}."
    rows = ((facts.summary or {}).get("rows") or {}).get(split)
    on = f"{split} rows" if rows is None else f"{rows:,} {split} rows"
    reached = f"{'reach' if facts.finished else 'have reached'} {with_article(name)} of"
    told = f"{who} together {reached} {facts.scores[split][name]:.3f} on {on}{_largest(facts, split)}"
    rival = rival_of(facts)
    if rival is None or facts.baselines is None or facts.baselines["split"] != split:
        return told + "."
    party, alone, words = rival
    if int(facts.baselines["splits"]) == 1:
        return f"{told}; {party} alone{words}, {alone:.3f}."
    joint = mean(facts.baselines["joint"], name)
    splits = count(int(facts.baselines["splits"]), "split")
    return f"{told}. Over {splits} of the rows they average {joint:.3f}; {party} alone{words}, {alone:.3f}."


def _part(facts: Facts) -> str:
    """Of one organisation in a run between sites; the others are those that its own ledger names."""
    others = facts.others if len(facts.others) <= 4 else [*facts.others[:3], f"{len(facts.others) - 3} more"]
    told = f"The part of {facts.part} in a run{f' with {listed(others)}' if others else ''}: what it sent and received"
    told += ", and what that cost its privacy."
    split = next((one for one in ("test", "validation") if one in facts.scores), None)
    if split is None or (score := facts.scores[split].get(facts.metric)) is None:
        return f"{told} How good the joint model is, is known where labels are."
    rows = ((facts.summary or {}).get("rows") or {}).get(split)
    on = f"{split} rows" if rows is None else f"{rows:,} {split} rows"
    return f"{told} The joint model has {with_article(facts.metric)} of {score:.3f} on {on}{_largest(facts, split)}."


def _largest(facts: Facts, split: str) -> str:
    """What the score is to be held against: always saying the largest class is right so often."""
    found = ((facts.summary or {}).get("majority") or {}).get(split)
    if found is None:
        return ""
    if facts.metric == "accuracy":
        return f" (always saying the largest class: {found['share']:.3f})"
    beside = (
        f"accuracy {facts.scores[split]['accuracy']:.3f}, and {found['share']:.3f} by always saying the largest class"
    )
    return f" (chance: 0.500; {beside})" if facts.metric == "auc" else f" ({beside})"


def with_article(name: str) -> str:
    """an accuracy, a log loss."""
    return "a log loss" if name == "loss" else f"an {metric(name)}"


def listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _organisations(facts: Facts) -> str:
    number = len([name for name, roles in facts.parties.items() if roles])
    word = COUNTS[number].capitalize() if number < len(COUNTS) else f"{number:,}"
    return f"{word} organisation{'' if number == 1 else 's'}"


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
        return _took_part(facts, facts.part)
    trained = find(facts.algorithm).trains
    epochs = [] if facts.several else [f"{many(facts.epochs, 'epoch')}, "]
    return [
        h("b", facts.algorithm), ", ", *([*epochs, f"{facts.rounds:,} rounds of exchange, "] if trained else []),
        h("b", size(facts.sent)), " sent in all" if facts.part is None else f" sent by {facts.part}",
        f", {seconds(facts.seconds)} of training." if trained else "; nothing is trained.",
    ]  # fmt: skip


def _took_part(facts: Facts, party: str) -> Content:
    bytes_ = facts.traffic.get(party, {"out": 0, "in": 0})
    return [
        h("b", facts.algorithm), f", {facts.rounds:,} round{'' if facts.rounds == 1 else 's'} of exchange, ",
        h("b", size(bytes_["out"])), f" sent and {size(bytes_['in'])} received by {party}.",
    ]  # fmt: skip


def _of(guarantee: dict[str, Any]) -> str:
    return f" of {guarantee['budget']['epsilon']:g}" if guarantee.get("budget") else ""


def _for(guarantee: dict[str, Any]) -> str:
    """A row's value can also change what is released of others, through the model that it trained; that is more."""
    through = any(THROUGH in one["adversary"] for one in guarantee["statements"])
    return " for a row's own releases" if through else ""


def promised(facts: Facts) -> Content:
    """The privacy of it in one or two sentences."""
    if not facts.privacy:
        return "What it cost anybody's privacy is not known here."
    told: list[Content] = []
    for one, value in protected(facts.privacy):
        told += [h("b", f"{one['party']}'s {one['protects']}"), f": ε = {epsilon(value)}{_of(one)}{_for(one)}. "]
    without = [f"{one['party']}'s {one['protects']}" for one in unprotected(facts.privacy)]
    if without and not told:
        whose = "nobody's columns or labels have a" if facts.part is None else f"{listed(without)} have no"
        return f"No release had noise: {whose} differential-privacy guarantee."
    if without:
        shown = without if len(without) <= 4 else [*without[:3], f"{len(without) - 3} more"]
        told += [f"No guarantee for {listed(shown)}."]
    return told
